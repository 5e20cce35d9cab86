//! What can be wrong with a checkpoint or its options, found before anything large is read or allocated.

use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::survey::Survey;
use crate::load::types::ModelTypes;
use crate::load::weights::Weights;
use crate::plan::memory::{LoadOptions, MemoryPlan, kv_spec};
use vllm_apple_ops::Backend;

impl Checkpoint {
    /// Checks that the tensors are those that the configuration asks for, each with its shape and a float type, that the model
    /// fits into memory with these options, and that the backend can do it: whatever this accepts, only running out of
    /// memory, or a weight out of the range of `dtype`, can make loading fail.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self, backend: &impl Backend, options: &LoadOptions) -> Result<(), LoadError> {
        let types = options.types_for(self.dtype());
        let survey = self.survey(options)?;
        let plan = MemoryPlan::new(self.config(), &survey, types, options, backend)?;
        plan.num_blocks(options.kv_cache_memory)?;
        Ok(backend.check_kv_cache(&kv_spec(self.config(), types.kv_cache, &plan.info))?)
    }

    /// What its numbers are with these options: of its weights, those that take the most bytes.
    ///
    /// # Errors
    /// A weight that is missing or not what it should be.
    pub fn types(&self, options: &LoadOptions) -> Result<ModelTypes, LoadError> {
        let types = options.types_for(self.dtype());
        Ok(ModelTypes { weights: self.survey(options)?.most(types.weights), ..types })
    }

    /// Checks that there is every tensor of the model, and no other, and says what the weights are.
    pub(crate) fn survey(&self, options: &LoadOptions) -> Result<Survey, LoadError> {
        self.check_quantization(options.quantization)?;
        let survey = Survey::default();
        let format = options.types_for(self.dtype()).weights;
        Weights::load(&survey, self, format, options.activation_dtype, &mut |_, _| {})?;
        self.check_all_used()?;
        survey.check_activations(options.activation_dtype)?;
        Ok(survey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use vllm_apple_cpu::CpuBackend;

    #[test]
    fn every_golden_checkpoint_passes() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
        let mut num_checked = 0;
        for entry in std::fs::read_dir(models).unwrap() {
            let checkpoint = Checkpoint::open(&entry.unwrap().path()).unwrap();
            checkpoint.check(&CpuBackend::new(Some(1)), &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            num_checked += 1;
        }
        assert!(num_checked >= 7, "one checkpoint per family at least");
    }

    #[test]
    fn what_the_backend_cannot_do_is_found() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2");
        let options = LoadOptions { block_size: 8, ..LoadOptions::default() };
        let error = Checkpoint::open(&model).unwrap().check(&CpuBackend::new(Some(1)), &options).unwrap_err();
        assert!(error.to_string().contains("`block_size` 16"), "{error}");
    }

    #[test]
    fn memory_that_is_told_counts_instead_of_what_is_free() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2");
        let options = LoadOptions { available_memory: Some(1 << 10), ..LoadOptions::default() };
        let error = Checkpoint::open(&model).unwrap().check(&CpuBackend::new(Some(1)), &options).unwrap_err();
        assert!(error.to_string().contains("available 1.00 KiB"), "{error}");
    }

    #[test]
    fn a_layer_too_few_or_too_many_is_found() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2");
        let directory = tempfile::tempdir().unwrap();
        let config = std::fs::read_to_string(model.join("config.json")).unwrap();
        let layers = serde_json::from_str::<serde_json::Value>(&config).unwrap()["num_hidden_layers"].as_u64().unwrap();
        std::fs::copy(model.join("model.safetensors"), directory.path().join("model.safetensors")).unwrap();
        let old = format!("\"num_hidden_layers\": {layers}");
        assert!(config.contains(&old));
        for (described, named) in [(layers + 1, layers), (layers - 1, layers - 1)] {
            let new = format!("\"num_hidden_layers\": {described}");
            std::fs::write(directory.path().join("config.json"), config.replace(&old, &new)).unwrap();
            let error = Checkpoint::open(directory.path())
                .unwrap()
                .check(&CpuBackend::new(Some(1)), &LoadOptions::default())
                .unwrap_err();
            assert!(error.to_string().contains(&format!("model.layers.{named}.")), "{error}");
        }
    }
}

//! What can be wrong with a checkpoint or its options, found before anything large is read or allocated. Knows no backend.

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::memory::{LoadOptions, MemoryPlan, available_memory};
use crate::weights::{Nowhere, Weights};

impl Checkpoint {
    /// Checks that every tensor that the configuration asks for is there with its shape and a float type, and that the
    /// model fits into memory with these options: whatever this accepts, only running out of memory, or a weight out of
    /// the range of `dtype`, can make loading fail.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self, options: &LoadOptions) -> Result<(), LoadError> {
        let dtype = options.dtype.unwrap_or_else(|| self.dtype());
        Weights::load(&Nowhere, self, dtype)?;
        MemoryPlan::new(self.config(), dtype, options, available_memory()?).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_golden_checkpoint_passes() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
        let mut num_checked = 0;
        for entry in std::fs::read_dir(models).unwrap() {
            let checkpoint = Checkpoint::open(&entry.unwrap().path()).unwrap();
            checkpoint.check(&LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            num_checked += 1;
        }
        assert!(num_checked >= 7, "one checkpoint per family at least");
    }

    #[test]
    fn a_fault_in_the_last_layer_is_found() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2");
        let directory = tempfile::tempdir().unwrap();
        let config = std::fs::read_to_string(model.join("config.json")).unwrap();
        let layers = serde_json::from_str::<serde_json::Value>(&config).unwrap()["num_hidden_layers"].as_u64().unwrap();
        let (old, new) = (format!("\"num_hidden_layers\": {layers}"), format!("\"num_hidden_layers\": {}", layers + 1));
        assert!(config.contains(&old));
        std::fs::write(directory.path().join("config.json"), config.replace(&old, &new)).unwrap();
        std::fs::copy(model.join("model.safetensors"), directory.path().join("model.safetensors")).unwrap();
        let error = Checkpoint::open(directory.path()).unwrap().check(&LoadOptions::default()).unwrap_err();
        assert!(error.to_string().contains(&format!("model.layers.{layers}.")), "{error}");
    }
}

//! What can be wrong with a checkpoint or its options, found before anything large is read or allocated. Knows no backend.

use crate::checkpoint::Checkpoint;
use crate::config::{LayerConfig, MlpConfig, MoeConfig};
use crate::error::LoadError;
use crate::memory::{LoadOptions, MemoryPlan, available_memory};

impl Checkpoint {
    /// Checks that every tensor that the configuration asks for is there with its shape and a float type, and that the
    /// model fits into memory with these options: whatever this accepts, only running out of memory can make loading fail.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self, options: &LoadOptions) -> Result<(), LoadError> {
        for (name, shape) in self.expected_tensors() {
            match *shape {
                [rows, cols] => self.matrix(&name, rows, cols)?,
                _ => self.vector(&name, shape[0])?,
            };
        }
        let dtype = options.dtype.unwrap_or_else(|| self.dtype());
        MemoryPlan::new(self.config(), dtype, options, available_memory()?).map(drop)
    }

    /// Names and shapes of all tensors that loading reads.
    fn expected_tensors(&self) -> Vec<(String, Vec<usize>)> {
        let c = self.config();
        let mut list = Tensors::default();
        list.push("model.embed_tokens.weight", &[c.vocab_size, c.hidden_size]);
        if !c.tie_word_embeddings {
            list.push("lm_head.weight", &[c.vocab_size, c.hidden_size]);
        }
        list.push("model.norm.weight", &[c.hidden_size]);
        for (i, layer) in c.layers.iter().enumerate() {
            list.prefix = format!("model.layers.{i}.");
            self.expect_layer(&mut list, layer);
        }
        list.found
    }

    fn expect_layer(&self, list: &mut Tensors, layer: &LayerConfig) {
        let c = self.config();
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        list.push("input_layernorm.weight", &[c.hidden_size]);
        list.push("post_attention_layernorm.weight", &[c.hidden_size]);
        for (projection, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            list.linear(&format!("self_attn.{projection}"), rows, c.hidden_size, c.qkv_bias);
        }
        list.linear("self_attn.o_proj", c.hidden_size, q, c.o_bias);
        if c.qk_norm {
            list.push("self_attn.q_norm.weight", &[c.head_dim]);
            list.push("self_attn.k_norm.weight", &[c.head_dim]);
        }
        match &layer.mlp {
            &MlpConfig::Dense { intermediate_size, bias } => list.dense("mlp", c.hidden_size, intermediate_size, bias),
            MlpConfig::Moe(moe) => self.expect_experts(list, moe),
        }
    }

    fn expect_experts(&self, list: &mut Tensors, moe: &MoeConfig) {
        let (hidden, width) = (self.config().hidden_size, moe.intermediate_size);
        let names = &self.family.names;
        let [gate, up, down] = names.expert_projections;
        list.linear(names.router, moe.num_experts, hidden, false);
        for e in 0..moe.num_experts {
            for (projection, rows, cols) in [(gate, width, hidden), (up, width, hidden), (down, hidden, width)] {
                list.linear(&format!("{}.{e}.{projection}", names.experts), rows, cols, false);
            }
        }
        if let Some(width) = moe.shared_intermediate_size {
            list.dense("mlp.shared_expert", hidden, width, false);
            list.linear("mlp.shared_expert_gate", 1, hidden, false);
        }
    }
}

/// Tensors below a prefix.
#[derive(Default)]
struct Tensors {
    prefix: String,
    found: Vec<(String, Vec<usize>)>,
}

impl Tensors {
    fn push(&mut self, name: &str, shape: &[usize]) {
        self.found.push((format!("{}{name}", self.prefix), shape.to_vec()));
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize, bias: bool) {
        self.push(&format!("{name}.weight"), &[rows, cols]);
        if bias {
            self.push(&format!("{name}.bias"), &[rows]);
        }
    }

    fn dense(&mut self, name: &str, hidden: usize, width: usize, bias: bool) {
        self.linear(&format!("{name}.gate_proj"), width, hidden, bias);
        self.linear(&format!("{name}.up_proj"), width, hidden, bias);
        self.linear(&format!("{name}.down_proj"), hidden, width, bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// A tensor that is loaded but not expected here, or the other way round, shows as a difference: the golden
    /// checkpoints hold what their families load and nothing else.
    #[test]
    fn the_golden_checkpoints_hold_exactly_the_expected_tensors() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
        let mut num_checked = 0;
        for entry in std::fs::read_dir(models).unwrap() {
            let directory = entry.unwrap().path();
            let checkpoint = Checkpoint::open(&directory).unwrap();
            checkpoint.check(&LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            let expected: BTreeSet<_> = checkpoint.expected_tensors().into_iter().map(|(name, _)| name).collect();
            let held: BTreeSet<_> = checkpoint.tensor_names().map(str::to_owned).collect();
            assert_eq!(expected, held, "{}", directory.display());
            num_checked += 1;
        }
        assert!(num_checked >= 7, "one checkpoint per family at least");
    }
}

//! Tensors that the model of config.json does not ask for: whoever has them read another model than the one that was saved. It knows no
//! shapes.

use super::{Checkpoint, Entry};
use crate::load::config::Head;
use crate::load::error::LoadError;
use crate::load::packed::Method;
use std::sync::atomic::Ordering;

/// Ends of names that mean nothing: tables of RoPE, which old versions of transformers and Colossal-AI saved beside the weights, and
/// which every program computes from config.json. vLLM leaves out the same.
const SAY_NOTHING: [&str; 3] = ["rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"];

/// Ends of names of scales, zero points and biases for caches of few bits, which checkpoints may have whose weights are floats, too. Caches are of floats here.
const OF_CACHES: [&str; 10] = [
    ".k_scale",
    ".v_scale",
    ".k_zero_point",
    ".v_zero_point",
    ".q_scale",
    ".kv_scale",
    ".k_proj.output_scale",
    ".v_proj.output_scale",
    ".k_proj.k_bias",
    ".v_proj.v_bias",
];

/// Tensors that an error names.
const SHOWN: usize = 3;

impl Checkpoint {
    /// Checks that every tensor has been asked for, or changes nothing. To be asked when the whole model has been looked for.
    pub(crate) fn check_all_used(&self) -> Result<(), LoadError> {
        let used = |entry: &Entry| entry.used.load(Ordering::Relaxed);
        let mut unused: Vec<String> = self
            .tensors
            .iter()
            .filter(|(name, entry)| !used(entry) && !self.may_be_unused(name) && !self.adds_nothing(name, entry))
            .map(|(name, _)| self.in_file(name))
            .collect();
        if !unused.is_empty() {
            unused.sort_unstable();
            let (path, count) = (self.weights_path(), unused.len());
            let more = if count > SHOWN { ", …" } else { "" };
            unused.truncate(SHOWN);
            return Err(LoadError::UnusedTensors { path, count, names: unused.join(", ") + more });
        }
        Ok(())
    }

    /// Tensors that nobody asks for in sound checkpoints. Many with tied embeddings have the output head nevertheless.
    pub(super) fn may_be_unused(&self, name: &str) -> bool {
        SAY_NOTHING.iter().any(|end| name.ends_with(end))
            || OF_CACHES.iter().any(|end| name.ends_with(end))
            || self.config.tie_word_embeddings && name == self.lm_head()
            || self.config.head == Head::Hidden && name.split('.').next() == Some(self.family.names.lm_head)
    }

    /// Whether it is a bias of zeros, as AutoGPTQ wrote one for every matrix that it quantised, Qwen's own checkpoints among them. vLLM leaves
    /// them out, too, whatever they are.
    fn adds_nothing(&self, name: &str, entry: &Entry) -> bool {
        let of_codes = |matrix: &str| self.tensors.contains_key(&format!("{matrix}.qweight"));
        matches!(self.method, Some(Method::Gptq { .. }))
            && name.strip_suffix(".bias").is_some_and(of_codes)
            && self.bytes_of(entry).iter().all(|&byte| byte == 0)
    }
}

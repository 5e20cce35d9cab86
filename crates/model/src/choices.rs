//! What the loader will choose for any model on a device, in words: for people who examine the device. The rules are elsewhere.

use crate::error::LoadError;
use crate::memory::{LoadOptions, available_memory, size};
use vllm_apple_ops::{Backend, DType};

/// By name, what [`crate::ModelExecutor::load`] would do with these options.
///
/// # Errors
/// If the free memory cannot be read.
pub fn choices(options: &LoadOptions, backend: &impl Backend) -> Result<Vec<(String, String)>, LoadError> {
    let stored = DType::BF16;
    let reason = match (options.dtype_for(stored), options.dtype) {
        (_, None) => "its own type".to_owned(),
        (DType::F16, Some(_)) => "by --dtype; a weight beyond its range is an error".to_owned(),
        (_, Some(_)) => "by --dtype".to_owned(),
    };
    let dtype = options.dtype_for(stored);
    let available = available_memory(backend)?;
    let whose = match backend.memory_limit() {
        Some(limit) if limit == available => "what the device recommends",
        _ => "what is free now",
    };
    let kv_cache = match options.kv_cache_memory {
        Some(_) => "--kv-cache-memory".to_owned(),
        None => format!("half of what the others leave, and no more than {} requests take", options.max_num_seqs),
    };
    let most = options.kv_budget(u128::MAX, available.into());
    let rows = [
        ("weights and KV cache of a bfloat16 checkpoint", format!("{dtype}: {reason}")),
        ("tokens in a step", format!("{} (--max-num-batched-tokens)", options.max_num_batched_tokens)),
        ("requests in a step", format!("{} (--max-num-seqs)", options.max_num_seqs)),
        ("weights, KV cache and scratch", format!("at most {}: {whose}", size(available.into()))),
        ("KV cache", format!("at most {}: {kv_cache}", size(most))),
    ];
    Ok(rows.map(|(what, choice)| (what.to_owned(), choice)).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_cpu::CpuBackend;

    fn found(options: &LoadOptions) -> String {
        let rows = choices(options, &CpuBackend::new(Some(1))).unwrap();
        rows.iter().map(|(what, choice)| format!("{what}: {choice}\n")).collect()
    }

    #[test]
    fn choices_follow_the_options() {
        let text = found(&LoadOptions::default());
        assert!(text.contains("checkpoint: bfloat16: its own type") && text.contains("what is free now"), "{text}");
        let options = LoadOptions { dtype: Some(DType::F16), kv_cache_memory: Some(3 << 30), ..LoadOptions::default() };
        let text = found(&options);
        assert!(text.contains("checkpoint: float16: by --dtype; a weight beyond its range"), "{text}");
        assert!(text.contains("KV cache: at most 3.00 GiB: --kv-cache-memory"), "{text}");
    }
}

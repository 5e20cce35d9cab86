//! What the loader will choose for any model on a device, in words: for people who examine the device. The rules are elsewhere.

use crate::load::error::LoadError;
use crate::plan::available::Machine;
use crate::plan::limits::MAX_TOKENS;
use crate::plan::memory::{LoadOptions, kv_budget, size};
use vllm_apple_ops::{Backend, DType};

/// By name, what [`crate::LoadedModel::load`] would do with these options.
///
/// # Errors
/// If the free memory cannot be read.
pub fn choices(options: &LoadOptions, backend: &impl Backend) -> Result<Vec<(String, String)>, LoadError> {
    let stored = DType::BF16;
    let types = options.types_for(stored);
    let reason = match (types.activations, options.dtype) {
        (_, None) => "its own type".to_owned(),
        (DType::F16, Some(_)) => "by `dtype`; a weight beyond its range is an error".to_owned(),
        (_, Some(_)) => "by `dtype`".to_owned(),
    };
    let of_cache = match options.kv_cache_dtype {
        None => "that of the activations",
        Some(_) => "by `kv_cache_dtype`",
    };
    let tokens = match options.max_num_batched_tokens {
        Some(tokens) => format!("{tokens} (`max_num_batched_tokens`)"),
        None => format!("at most {MAX_TOKENS}, about half a second of a prompt (`max_num_batched_tokens`)"),
    };
    let machine = Machine::here(backend.memory_limit())?;
    let available = machine.most();
    let whose = match machine.recommended {
        Some(limit) if limit == available => "what the device recommends".to_owned(),
        _ if machine.pageable.is_some() => {
            format!("what macOS can spare, but for {} that stay for other programs", size(machine.reserve().into()))
        }
        _ => "what is free now".to_owned(),
    };
    let length = match options.max_model_len {
        Some(tokens) => format!("{tokens} tokens (`max_model_len`)"),
        None => "the model's, or as much of it as memory has room for (`max_model_len`)".to_owned(),
    };
    let kv_cache = match options.kv_cache_memory {
        Some(_) => "`kv_cache_memory`".to_owned(),
        None => {
            let part = if machine.of_cache(4) == 2 { "half" } else { "a quarter" };
            let requests = options.max_num_seqs;
            format!("{part} of what the others leave, or one sequence, and no more than {requests} requests take")
        }
    };
    let most = kv_budget(&machine, options.kv_cache_memory, [0, u128::MAX], available.into());
    let rows = [
        ("weights and activations of a bfloat16 checkpoint", format!("{}: {reason}", types.activations)),
        ("weights in memory", types.weights.to_string()),
        ("its KV cache", format!("{}: {of_cache}", types.kv_cache)),
        ("longest sequence", length),
        ("tokens in a step", tokens),
        ("requests in a step", format!("{} (`max_num_seqs`)", options.max_num_seqs)),
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
        assert!(text.contains("checkpoint: bfloat16: its own type") && text.contains("memory has room for"), "{text}");
        let whose = if cfg!(target_os = "macos") { "what macOS can spare" } else { "what is free now" };
        assert!(text.contains(whose) && text.contains("of what the others leave, or one sequence"), "{text}");
        let options = LoadOptions {
            dtype: Some(DType::F16),
            max_model_len: Some(300),
            kv_cache_memory: Some(3 << 30),
            ..LoadOptions::default()
        };
        let text = found(&options);
        assert!(text.contains("longest sequence: 300 tokens"), "{text}");
        assert!(text.contains("checkpoint: float16: by `dtype`; a weight beyond its range"), "{text}");
        assert!(text.contains("KV cache: at most 3.00 GiB: `kv_cache_memory`"), "{text}");
    }
}

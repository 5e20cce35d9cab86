//! How this program's user sets what messages of the libraries name: these write a setting as the field of its options, in backticks.
//! Knows flags and variables, no message.

use std::borrow::Cow;

/// Settings and what sets them here.
const SETTINGS: [(&str, &str); 19] = [
    ("`dtype`", "--dtype"),
    ("`quantization`", "--quantization"),
    ("`activation_dtype`", "--activation-dtype"),
    ("`kv_cache_dtype`", "--kv-cache-dtype"),
    ("`device`", "--device"),
    ("`tokenizer`", "--tokenizer"),
    ("`block_size`", "--block-size"),
    ("`kv_cache_memory`", "--kv-cache-memory"),
    ("`max_model_len`", "--max-model-len"),
    ("`max_num_batched_tokens`", "--max-num-batched-tokens"),
    ("`max_num_seqs`", "--max-num-seqs"),
    ("`max_request_memory`", "--max-request-memory"),
    ("`threads`", "--threads"),
    ("`metal_attention`", "VLLM_METAL_ATTENTION"),
    ("`metal_prefill`", "VLLM_APPLE_ENGINE_PREFILL"),
    ("`metal_strict`", "VLLM_METAL_STRICT"),
    ("`metal_scratch_pool`", "VLLM_METAL_SCRATCH_POOL_MB"),
    ("`metal_max_batch_size`", "VLLM_METAL_MAX_BATCH_SIZE"),
    ("`metal_allow_vm`", "VLLM_METAL_ALLOW_VM"),
];

/// A message with the settings that it names as this program's user writes them.
pub fn word(message: &str) -> Cow<'_, str> {
    SETTINGS.iter().fold(Cow::Borrowed(message), |text, (setting, written)| match text.contains(setting) {
        true => Cow::Owned(text.replace(setting, written)),
        false => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_flags_and_nothing_else_changes() {
        let message = "use a smaller `max_num_seqs` or `kv_cache_memory`, `metal_strict`=1; `n` must be 1";
        let worded = "use a smaller --max-num-seqs or --kv-cache-memory, VLLM_METAL_STRICT=1; `n` must be 1";
        assert_eq!(word(message), worded);
    }

    /// Libraries have other users, too: they know neither this program's flags nor an environment.
    #[test]
    fn libraries_name_settings_and_read_no_environment() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut checked = 0;
        for library in ["executor", "ops", "cpu", "metal", "device", "model", "engine", "verify"] {
            let sources = walk(&crates.join(library).join("src"));
            for entry in sources.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
                let text = std::fs::read_to_string(&entry).unwrap();
                for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
                {
                    let flag = line
                        .match_indices("--")
                        .any(|(at, _)| line[at + 2..].starts_with(|c: char| c.is_ascii_lowercase()));
                    let environment = line.contains("env::var") || line.contains("env::vars") || line.contains("VLLM_");
                    assert!(!flag && !environment, "{}:{}: {line}", entry.display(), number + 1);
                }
                checked += 1;
            }
        }
        assert!(checked > 100, "{checked} files");
    }

    fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
    }
}

//! Fields that requests may bring besides those that endpoints read: what is refused by name, what is accepted without effect, and what was
//! perhaps meant. Knows names and values that ask for nothing, no endpoint.

use serde_json::Value;

/// A field that cannot be honoured: name, the value that asks for nothing, advice. Ignoring it silently would give a wrong answer, so that
/// any other value is refused. Where several values ask for nothing, each has a row.
pub type Unsupported = (&'static str, &'static str, &'static str);

/// Fields of vLLM's and OpenAI's requests, and of other servers' that mean a constraint, that no endpoint honours.
pub const UNSUPPORTED: &[Unsupported] = &[
    ("adapter_id", "null", "adapters are not loaded"),
    ("add_bos_token", "true", "use `add_special_tokens`"),
    ("allowed_token_ids", "[]", "use logit_bias to steer tokens"),
    ("allowed_tokens", "[]", "use logit_bias to steer tokens"),
    ("audio", "{}", "only text is generated"),
    ("bad_words", "[]", "use logit_bias to steer tokens"),
    ("bad_words_ids", "[]", "use logit_bias to steer tokens"),
    ("begin_suppress_tokens", "[]", "use logit_bias to steer tokens"),
    ("chat_template", "\"\"", "only the chat API renders a template"),
    ("compaction", "null", "shorten the messages before sending them"),
    ("custom_logit_processor", "null", "use logit_bias to steer tokens"),
    ("detokenize", "true", "answers are text; `return_token_ids` brings the tokens beside it"),
    ("do_sample", "true", "set temperature to 0 for the most likely token"),
    ("dry_allowed_length", "2", "use repetition_penalty"),
    ("dry_base", "1.75", "use repetition_penalty"),
    ("dry_multiplier", "0", "use repetition_penalty"),
    ("dry_penalty_last_n", "-1", "use repetition_penalty"),
    ("dry_range", "0", "use repetition_penalty"),
    ("dry_sequence_breakers", "[]", "use repetition_penalty"),
    ("dynatemp_exponent", "1", "use temperature"),
    ("dynatemp_range", "0", "use temperature"),
    ("ec_transfer_params", "{}", "only text is read"),
    ("enable_response_messages", "false", "answers have the prompt's number of tokens alone"),
    ("eos_token_id", "[]", "use `stop_token_ids`"),
    ("epsilon_cutoff", "0", "use min_p"),
    ("eta_cutoff", "0", "use min_p"),
    ("extra_body", "{}", "it is an argument of OpenAI's client, which puts its fields beside the others"),
    ("fallback_credit_token", "null", "one model is served"),
    ("fallbacks", "[]", "one model is served"),
    ("force_words_ids", "[]", "use logit_bias to steer tokens"),
    ("forced_bos_token_id", "null", "use logit_bias to steer tokens"),
    ("forced_eos_token_id", "null", "use `stop_token_ids`"),
    // Among `functions`, of which there are none.
    ("function_call", "\"auto\"", "use `tools`"),
    ("function_call", "\"none\"", "use `tools`"),
    ("functions", "[]", "use `tools`"),
    ("guided_decoding", "{}", "use `structured_outputs`"),
    ("json_mode", "false", "use `response_format`"),
    ("kv_transfer_params", "{}", "the KV cache stays in this process"),
    ("length_penalty", "1.0", "beam search is not available"),
    ("logits_processors", "[]", "use logit_bias to steer tokens"),
    ("logprob_token_ids", "[]", "use `logprobs`"),
    ("lora", "[]", "adapters are not loaded"),
    ("lora_name", "null", "adapters are not loaded"),
    ("lora_path", "null", "adapters are not loaded"),
    ("lora_request", "null", "adapters are not loaded"),
    ("max_length", "null", "use max_tokens"),
    ("max_new_tokens", "null", "use max_tokens"),
    ("max_output_tokens", "null", "use max_tokens"),
    ("max_time", "null", "use max_tokens"),
    ("media_io_kwargs", "{}", "only text is read"),
    ("min_keep", "0", "use top_k"),
    ("min_length", "0", "use min_tokens"),
    ("min_new_tokens", "0", "use min_tokens"),
    ("mirostat", "0", "use top_p or min_p"),
    ("mirostat_eta", "0.1", "use top_p or min_p"),
    ("mirostat_mode", "0", "use top_p or min_p"),
    ("mirostat_tau", "5", "use top_p or min_p"),
    ("mm_payload", "\"tensors\"", "only text is read"),
    ("mm_processor_kwargs", "{}", "only text is read"),
    ("modalities", "[\"text\"]", "only text is generated"),
    ("moderation", "null", "this server moderates nothing"),
    ("n_keep", "0", "shorten the prompt before sending it"),
    ("n_predict", "null", "use max_tokens"),
    ("n_probs", "0", "use `logprobs`"),
    ("no_repeat_ngram_size", "0", "use repetition_penalty"),
    ("num_beams", "1", "use n with sampling"),
    ("num_predict", "null", "use max_tokens"),
    ("num_return_sequences", "1", "use n"),
    ("options", "{}", "send its fields beside the others, by OpenAI's names"),
    ("penalty_alpha", "0", "use repetition_penalty"),
    ("previous_input_messages", "[]", "use `previous_response_id`, or send all messages"),
    ("priority", "0", "requests are served first come, first served"),
    ("prompt_embeds", "[]", "send text or token ids"),
    ("reasoning", "{}", "use `reasoning_effort` or `chat_template_kwargs`"),
    ("repeat_last_n", "-1", "penalties reach back to the beginning"),
    ("repeat_penalty", "1.0", "use repetition_penalty"),
    ("repetition_detection", "{}", "use repetition_penalty"),
    ("return_hidden_states", "false", "only text is generated"),
    ("return_mm_kwargs", "false", "only text is read"),
    ("return_prompt_text", "false", "use /tokenize and /detokenize"),
    ("return_token_offsets", "false", "use `return_token_ids`"),
    ("return_weight_versions", "false", "weights do not change"),
    ("routed_experts_prompt_start", "0", "experts are not shown"),
    ("samplers", "[]", "samplers run in vLLM's order"),
    ("separate_reasoning", "true", "use `include_reasoning`"),
    ("sequence_bias", "{}", "use logit_bias to steer tokens"),
    ("smoothing_factor", "0", "use temperature"),
    ("stop_at", "[]", "use `stop`"),
    ("stop_regex", "[]", "use `stop`"),
    ("stop_sequences", "[]", "use `stop`"),
    ("stop_words", "[]", "use `stop`"),
    ("stream_interval", "1", "each token is sent as it comes"),
    ("structural_tag", "\"\"", "use `structured_outputs`"),
    ("structured_output", "{}", "use `structured_outputs`"),
    ("suffix", "\"\"", "models served here continue a prompt, they do not fill in"),
    ("suppress_tokens", "[]", "use logit_bias to steer tokens"),
    ("t_max_predict_ms", "0", "use max_tokens"),
    ("temperature_last", "false", "samplers run in vLLM's order"),
    ("tfs", "1", "use top_p or min_p"),
    ("tfs_z", "1", "use top_p or min_p"),
    ("thinking_token_budget", "-1", "use max_tokens"),
    ("top_a", "0", "use top_p or min_p"),
    ("top_n_sigma", "-1", "use top_p or min_p"),
    ("truncate", "null", "shorten the prompt before sending it"),
    ("truncate_prompt_tokens", "null", "shorten the prompt before sending it"),
    ("truncation_side", "null", "shorten the prompt before sending it"),
    ("typ_p", "1", "use top_p or min_p"),
    ("typical_p", "1.0", "use top_p or min_p"),
    ("use_beam_search", "false", "use n with sampling"),
    ("vllm_xargs", "{}", "this server has no plugins"),
    ("watermark", "false", "tokens are not marked"),
    ("watermarking", "false", "tokens are not marked"),
    ("web_search_options", "null", "this server searches nothing"),
    ("xtc_probability", "0", "use temperature or min_p"),
    ("xtc_threshold", "0.1", "use temperature or min_p"),
];

/// Fields that change nothing in an answer, whatever they hold. The answer's header names those that a request brought.
pub const WITHOUT_EFFECT: &[&str] = &[
    "cache_prompt",
    "client_metadata",
    "id_slot",
    "keep_alive",
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "rid",
    "safety_identifier",
    "service_tier",
    "session_id",
    "store",
    "user",
    "verbosity",
];

/// Whether a value asks for nothing: equal to the neutral one, numbers by what they are worth.
pub fn is_neutral(value: &Value, neutral: &str) -> bool {
    match serde_json::from_str::<Value>(neutral) {
        Ok(neutral) => value == &neutral || neutral.is_number() && value.as_f64() == neutral.as_f64(),
        Err(_) => false,
    }
}

/// The known name that is written almost as `name`.
pub fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    const LONG: usize = 64;
    if name.len() > LONG {
        return None;
    }
    let far = (name.len() / 3).max(1);
    let near = known.map(|known| (distance(name, known), known)).min()?;
    (near.0 <= far).then_some(near.1)
}

/// Letters to change, add or leave out between two words.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_near() {
        let known = ["temperature", "top_p", "top_k", "n"];
        let meant = |name| nearest(name, known.into_iter());
        assert_eq!(meant("temprature"), Some("temperature"));
        assert_eq!(meant("topp"), Some("top_p"));
        assert_eq!(meant("colour"), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn neutral_values_are_valid_and_numbers_count_by_worth() {
        for (name, neutral, _) in UNSUPPORTED {
            assert!(serde_json::from_str::<Value>(neutral).is_ok(), "{name}");
        }
        assert!(is_neutral(&serde_json::json!(1), "1.0") && is_neutral(&serde_json::json!(0.0), "0"));
        assert!(!is_neutral(&serde_json::json!(true), "1") && !is_neutral(&serde_json::json!("1"), "1"));
    }
}

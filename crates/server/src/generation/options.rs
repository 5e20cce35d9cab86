//! What a request or a command line may ask of sampling, and how it falls back on the model's own defaults. Knows no JSON
//! body, no flags and no engine.

use std::sync::Arc;

use vllm_apple_executor::SamplingParams;
use vllm_apple_model::GenerationConfig;

/// Sampling options by vLLM's names; what is absent falls back on the model's generation_config.json, then on vLLM's default.
/// Lists are shared, so that a clone for each of many prompts costs the same however long they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOptions {
    /// Randomness: 0 always takes the most likely token.
    pub temperature: Option<f32>,
    /// Sample among this many most likely tokens; 0 or -1: all.
    pub top_k: Option<i64>,
    /// Sample among the most likely tokens that together reach this probability.
    pub top_p: Option<f32>,
    /// Sample among tokens at least this many times as likely as the likeliest.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens already seen; 1 is neutral.
    pub repetition_penalty: Option<f32>,
    /// Subtracted from a token's logit per occurrence in the output.
    pub frequency_penalty: Option<f32>,
    /// Subtracted from the logit of tokens in the output.
    pub presence_penalty: Option<f32>,
    /// Added to the logits of these tokens.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// Key of the random stream; vLLM takes it as a signed number, of which -1 is none.
    pub seed: Option<i64>,
    /// End the text before one of these strings.
    pub stop: Arc<[String]>,
    /// End at one of these tokens.
    pub stop_token_ids: Arc<[u32]>,
    /// Keep the stop string or stop token in the text.
    pub include_stop_str_in_output: bool,
    /// Go on after the model's end token.
    pub ignore_eos: bool,
    /// Do not end before this many tokens.
    pub min_tokens: Option<u32>,
    /// End after this many tokens.
    pub max_tokens: Option<u32>,
    /// Report the log-probability of each token and of this many alternatives.
    pub logprobs: Option<u32>,
    /// The same for the prompt's tokens.
    pub prompt_logprobs: Option<u32>,
    /// Show special tokens in the text.
    pub keep_special_tokens: bool,
    /// Do not put spaces between special tokens that show.
    pub join_special_tokens: bool,
}

impl SamplingOptions {
    /// The engine's parameters: the request's own value, else the model's, else vLLM's. `room` is what the model's length
    /// leaves for the output; without a number of its own, a request ends there.
    pub fn params(&self, defaults: &GenerationConfig, room: usize) -> SamplingParams {
        let neutral = SamplingParams::default();
        let top_k = self.top_k.or(defaults.top_k.map(i64::from)).unwrap_or(0);
        // A prompt that leaves no room is refused for its length, not for a `max_tokens` that nobody gave.
        let room = u32::try_from(room).unwrap_or(u32::MAX).max(1);
        SamplingParams {
            temperature: self.temperature.or(defaults.temperature).unwrap_or(neutral.temperature),
            // As in vLLM, -1 also keeps all; more tokens than any vocabulary has keep all, too.
            top_k: if top_k <= 0 { 0 } else { u32::try_from(top_k).unwrap_or(u32::MAX) },
            top_p: self.top_p.or(defaults.top_p).unwrap_or(neutral.top_p),
            min_p: self.min_p.or(defaults.min_p).unwrap_or(neutral.min_p),
            repetition_penalty: self
                .repetition_penalty
                .or(defaults.repetition_penalty)
                .unwrap_or(neutral.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(neutral.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(neutral.presence_penalty),
            logit_bias: Arc::clone(&self.logit_bias),
            seed: self.seed.filter(|&seed| seed != -1).map(|seed| seed as u64),
            stop_token_ids: Arc::clone(&self.stop_token_ids),
            ignore_eos: self.ignore_eos,
            min_tokens: self.min_tokens.unwrap_or(0),
            max_tokens: Some(self.max_tokens.or(defaults.max_new_tokens.map(|max| max.min(room))).unwrap_or(room)),
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_before_the_model_and_the_model_before_the_neutral_value() {
        let defaults = GenerationConfig {
            temperature: Some(0.6),
            top_k: Some(20),
            max_new_tokens: Some(50),
            ..Default::default()
        };
        let options = SamplingOptions { temperature: Some(0.0), ..Default::default() };
        let params = options.params(&defaults, 100);
        assert_eq!((params.temperature, params.top_k, params.top_p), (0.0, 20, 1.0));
        assert_eq!(params.max_tokens, Some(50));
        assert_eq!(options.params(&GenerationConfig::default(), 100).max_tokens, Some(100));
        assert_eq!(options.params(&defaults, 7).max_tokens, Some(7));
    }

    #[test]
    fn a_seed_of_minus_one_is_none() {
        let seed = |seed| SamplingOptions { seed, ..Default::default() }.params(&GenerationConfig::default(), 1).seed;
        assert_eq!([None, Some(-1), Some(0), Some(-2)].map(seed), [None, None, Some(0), Some(u64::MAX - 1)]);
    }

    #[test]
    fn top_k_of_minus_one_keeps_all() {
        let options = SamplingOptions { top_k: Some(-1), ..Default::default() };
        assert_eq!(options.params(&GenerationConfig { top_k: Some(5), ..Default::default() }, 1).top_k, 0);
    }
}

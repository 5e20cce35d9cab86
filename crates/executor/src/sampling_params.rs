//! How the tokens of one request are picked and when it ends: vLLM's `SamplingParams`, without stop strings, which need text.

use std::sync::Arc;

/// Sampling parameters of a request. Names, defaults and meaning are vLLM's. Lists are shared: a clone costs the same however long they
/// are, so that many answers to one request do not multiply what it brought.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Above 0 divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep the `k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens whose probability reaches `p`; in (0, 1].
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as likely as the most likely one; in [0, 1].
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; above 0, 1 is neutral.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit once per occurrence in the output; in [-2, 2].
    pub frequency_penalty: f32,
    /// Subtracted from the logit of a token that occurs in the output; in [-2, 2].
    pub presence_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// Key of the random stream; `None` lets the engine choose.
    pub seed: Option<u64>,
    /// Tokens that end the request, beside EOS.
    pub stop_token_ids: Arc<[u32]>,
    /// Do not end at EOS.
    pub ignore_eos: bool,
    /// Do not end before this many output tokens.
    pub min_tokens: u32,
    /// End after this many output tokens; `None` goes on to the model's length.
    pub max_tokens: Option<u32>,
    /// Report the log-probability of each output token and of this many alternatives.
    pub logprobs: Option<u32>,
    /// The same for the prompt's tokens from the second on.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Arc::default(),
            seed: None,
            stop_token_ids: Arc::default(),
            ignore_eos: false,
            min_tokens: 0,
            max_tokens: None,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// Most alternatives that `logprobs` and `prompt_logprobs` may ask for (vLLM's `max_logprobs`).
pub const MAX_LOGPROBS: u32 = 20;

/// Temperatures below this are greedy (vLLM's `_SAMPLING_EPS`).
pub const GREEDY_TEMPERATURE: f32 = 1e-5;

/// A sampling parameter out of its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{param} must be {expected}, got {got}")]
pub struct InvalidParam {
    /// The parameter's name.
    pub param: &'static str,
    /// What is allowed.
    pub expected: String,
    /// What was given.
    pub got: String,
}

impl SamplingParams {
    /// Whether the most likely token is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_TEMPERATURE
    }

    /// Checks every parameter against its range and the vocabulary.
    ///
    /// # Errors
    /// The first parameter that is out of range.
    pub fn validate(&self, vocab_size: usize) -> Result<(), InvalidParam> {
        let numbers = [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ];
        numbers.into_iter().try_for_each(|(param, value)| in_range(param, value, value))?;
        for &(token, bias) in &*self.logit_bias {
            token_in_vocab("logit_bias", token, vocab_size)?;
            in_range("logit_bias", bias, bias)?;
        }
        for (param, len) in [("logit_bias", self.logit_bias.len()), ("stop_token_ids", self.stop_token_ids.len())] {
            if len > vocab_size {
                let expected = format!("at most as long as the vocabulary ({vocab_size} tokens)");
                return Err(invalid(param, &expected, format_args!("{len} entries")));
            }
        }
        for &token in &*self.stop_token_ids {
            token_in_vocab("stop_token_ids", token, vocab_size)?;
        }
        if self.max_tokens == Some(0) {
            return Err(invalid("max_tokens", "at least 1", 0));
        }
        if let Some(max) = self.max_tokens
            && self.min_tokens > max
        {
            let expected = format!("at most max_tokens ({max})");
            return Err(invalid("min_tokens", &expected, self.min_tokens));
        }
        for (param, value) in [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(n) = value
                && n > MAX_LOGPROBS
            {
                return Err(invalid(param, &format!("at most {MAX_LOGPROBS}"), n));
            }
        }
        Ok(())
    }
}

/// A parameter that is a number, what is in its range, and the range in words.
type Range = (&'static str, fn(f32) -> bool, &'static str);

const RANGES: [Range; 7] = [
    ("temperature", |t| (0.0..=100.0).contains(&t), "from 0 to 100"),
    ("top_p", |p| p > 0.0 && p <= 1.0, "above 0 and at most 1"),
    ("min_p", |p| (0.0..=1.0).contains(&p), "from 0 to 1"),
    // Beyond that a logit may become smaller than a normal number, which GPUs take for 0, and CPUs do not.
    ("repetition_penalty", |r| (1e-30..=1e30).contains(&r), "from 1e-30 to 1e30"),
    ("frequency_penalty", |p| (-2.0..=2.0).contains(&p), "from -2 to 2"),
    ("presence_penalty", |p| (-2.0..=2.0).contains(&p), "from -2 to 2"),
    ("logit_bias", |bias| (-100.0..=100.0).contains(&bias), "from -100 to 100"),
];

/// Checks a parameter that is a number as [`SamplingParams::validate`] does, but says what was given, not what it is rounded to.
///
/// # Errors
/// It is out of its range.
pub fn check_number(param: &'static str, given: f64) -> Result<(), InvalidParam> {
    // Without an exponent the largest have 309 digits.
    const LONG: usize = 20;
    let plain = given.to_string();
    in_range(param, given as f32, if plain.len() > LONG { format!("{given:?}") } else { plain })
}

fn in_range(param: &'static str, value: f32, got: impl ToString) -> Result<(), InvalidParam> {
    let range = RANGES.iter().find(|(name, ..)| *name == param);
    match range {
        Some((_, contains, expected)) if !contains(value) => Err(invalid(param, expected, got)),
        _ => Ok(()),
    }
}

fn token_in_vocab(param: &'static str, token: u32, vocab_size: usize) -> Result<(), InvalidParam> {
    if (token as usize) < vocab_size {
        return Ok(());
    }
    Err(invalid(param, &format!("token ids below the vocabulary size {vocab_size}"), token))
}

fn invalid(param: &'static str, expected: &str, got: impl ToString) -> InvalidParam {
    InvalidParam { param, expected: expected.to_owned(), got: got.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_each_bad_value_is_named() {
        assert_eq!(SamplingParams::default().validate(10), Ok(()));
        type Change = fn(&mut SamplingParams);
        let bad: [(&str, Change); 9] = [
            ("temperature", |p| p.temperature = -0.1),
            ("top_p", |p| p.top_p = 0.0),
            ("min_p", |p| p.min_p = f32::NAN),
            ("repetition_penalty", |p| p.repetition_penalty = 0.0),
            ("presence_penalty", |p| p.presence_penalty = 2.5),
            ("logit_bias", |p| p.logit_bias = [(10, 1.0)].into()),
            ("stop_token_ids", |p| p.stop_token_ids = [10].into()),
            ("max_tokens", |p| p.max_tokens = Some(0)),
            ("logprobs", |p| p.logprobs = Some(21)),
        ];
        for (name, change) in bad {
            let mut params = SamplingParams::default();
            change(&mut params);
            assert_eq!(params.validate(10).unwrap_err().param, name);
        }
    }

    #[test]
    fn what_was_given_is_said_and_not_what_it_is_rounded_to() {
        for (given, got) in
            [(100.123_456_789, "100.123456789"), (-3.0, "-3"), (1e39, "1e39"), (-1e-40, "-1e-40"), (f64::NAN, "NaN")]
        {
            let error = check_number("temperature", given).map_err(|error| error.to_string());
            assert_eq!(error, Err(format!("temperature must be from 0 to 100, got {got}")));
        }
        assert_eq!(check_number("repetition_penalty", 1e-30), Ok(()));
    }

    #[test]
    fn the_ends_of_every_range_are_valid() {
        let params = SamplingParams {
            temperature: 100.0,
            top_p: 1.0,
            min_p: 1.0,
            frequency_penalty: -2.0,
            presence_penalty: 2.0,
            logit_bias: (0..10).map(|token| (token, if token % 2 == 0 { -100.0 } else { 100.0 })).collect(),
            stop_token_ids: (0..10).collect(),
            max_tokens: Some(4),
            min_tokens: 4,
            logprobs: Some(MAX_LOGPROBS),
            ..SamplingParams::default()
        };
        assert_eq!(params.validate(10), Ok(()));
    }

    #[test]
    fn just_beyond_a_range_is_not_valid() {
        type Change = fn(&mut SamplingParams);
        let bad: [(&str, Change); 5] = [
            ("logit_bias", |p| p.logit_bias = [(3, -100.1)].into()),
            ("logit_bias", |p| p.logit_bias = vec![(3, 1.0); 11].into()),
            ("stop_token_ids", |p| p.stop_token_ids = vec![3; 11].into()),
            ("min_tokens", |p| (p.max_tokens, p.min_tokens) = (Some(4), 5)),
            ("min_tokens", |p| (p.max_tokens, p.min_tokens) = (Some(4), 6)),
        ];
        for (name, change) in bad {
            let mut params = SamplingParams::default();
            change(&mut params);
            assert_eq!(params.validate(10).unwrap_err().param, name);
        }
    }

    #[test]
    fn the_smallest_temperature_that_is_drawn_from_is_vllms() {
        let at = |temperature| SamplingParams { temperature, ..SamplingParams::default() };
        assert!(!at(GREEDY_TEMPERATURE).is_greedy());
        assert!(at(GREEDY_TEMPERATURE.next_down()).is_greedy());
    }
}

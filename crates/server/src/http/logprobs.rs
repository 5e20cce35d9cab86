//! Log-probabilities in the three shapes of the API: completions', chat's, and vLLM's `prompt_logprobs`. Knows token ids
//! and their text.

use serde_json::{Map, Value, json};
use vllm_apple_executor::{Sample, TokenLogprobs};

use crate::text::Tokenizer;

/// JSON has no infinity; OpenAI's stand-in for a probability of 0.
const LEAST: f32 = -9999.0;

/// How a token is written.
#[derive(Debug, Clone, Copy)]
pub struct TokenNames<'a> {
    /// Knows the text.
    pub tokenizer: &'a Tokenizer,
    /// Write `token_id:N` instead, which is unique.
    pub as_ids: bool,
}

impl TokenNames<'_> {
    fn name(self, id: u32) -> String {
        match self.as_ids {
            true => format!("token_id:{id}"),
            false => self.tokenizer.token_text(id),
        }
    }
}

/// Completions' `logprobs`. `token_logprobs` of a token without probabilities, the prompt's first, are `null`.
/// `offset` is the place of the first token in the choice's text, in characters; it moves on to the next token's.
pub fn completion(samples: &[Sample], names: TokenNames<'_>, offset: &mut usize) -> Value {
    let (mut tokens, mut token_logprobs, mut top_logprobs, mut text_offset) = (vec![], vec![], vec![], vec![]);
    for sample in samples {
        let name = names.name(sample.token_id);
        text_offset.push(*offset);
        *offset += name.chars().count();
        match &sample.logprobs {
            None => {
                token_logprobs.push(Value::Null);
                top_logprobs.push(Value::Null);
            }
            Some(logprobs) => {
                token_logprobs.push(finite(logprobs.logprob));
                top_logprobs.push(Value::Object(with_alternatives(sample.token_id, logprobs, names)));
            }
        }
        tokens.push(name);
    }
    json!({
        "text_offset": text_offset,
        "token_logprobs": token_logprobs,
        "tokens": tokens,
        "top_logprobs": top_logprobs,
    })
}

/// The token itself first, then the most likely ones; tokens that read alike keep the first one's value.
fn with_alternatives(token_id: u32, logprobs: &TokenLogprobs, names: TokenNames<'_>) -> Map<String, Value> {
    let mut map = Map::new();
    for &(id, logprob) in [(token_id, logprobs.logprob)].iter().chain(&logprobs.top) {
        map.entry(names.name(id)).or_insert(finite(logprob));
    }
    map
}

/// Chat's `logprobs`.
pub fn chat(samples: &[Sample], names: TokenNames<'_>) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = names.tokenizer.token_bytes(id);
        json!({"token": names.name(id), "logprob": finite(logprob), "bytes": bytes})
    };
    let with_top = |sample: &Sample| {
        let logprobs = sample.logprobs.as_ref()?;
        let mut content = entry(sample.token_id, logprobs.logprob);
        let top: Vec<_> = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
        content["top_logprobs"] = Value::Array(top);
        Some(content)
    };
    json!({"content": samples.iter().filter_map(with_top).collect::<Vec<_>>()})
}

/// vLLM's `prompt_logprobs`: `null` for the first token, then for each a map from token id to what is known of it, with up to `num_top`
/// alternatives.
pub fn prompt(samples: &[Sample], num_top: u32, tokenizer: &Tokenizer) -> Value {
    let known = |id: u32, logprob: f32, rank: u32| {
        let text = tokenizer.token_text(id);
        (id.to_string(), json!({"logprob": finite(logprob), "rank": rank, "decoded_token": text}))
    };
    let position = |sample: &Sample| {
        let Some(logprobs) = &sample.logprobs else { return Value::Null };
        let own = known(sample.token_id, logprobs.logprob, logprobs.rank);
        let top =
            logprobs.top.iter().take(num_top as usize).zip(1..).map(|(&(id, logprob), rank)| known(id, logprob, rank));
        // The token's own entry comes first and wins over its entry among the alternatives.
        let mut map = Map::from_iter([own]);
        for (id, value) in top {
            map.entry(id).or_insert(value);
        }
        Value::Object(map)
    };
    std::iter::once(Value::Null).chain(samples.iter().map(position)).collect()
}

fn finite(logprob: f32) -> Value {
    json!(logprob.max(LEAST))
}

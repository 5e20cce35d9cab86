//! Log-probabilities in the three shapes of the API: completions', chat's, and vLLM's `prompt_logprobs`. Knows token ids
//! and their text: a token is called by the characters that it completes, so that names make the text and offsets are places in it.

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

/// Calls the tokens of a text by their names, in their order. The text begins with a character.
struct Naming<'a> {
    names: TokenNames<'a>,
    /// Bytes of a character that tokens before have begun.
    begun: Vec<u8>,
}

impl<'a> Naming<'a> {
    fn new(names: TokenNames<'a>) -> Self {
        Self { names, begun: Vec::new() }
    }

    /// The name of a token that is next, or might have been.
    fn name(&self, id: u32) -> String {
        if self.names.as_ids {
            return format!("token_id:{id}");
        }
        characters(&self.joined(id)).0
    }

    /// Goes on behind the token that is next.
    fn pass(&mut self, id: u32) {
        let joined = self.joined(id);
        self.begun = characters(&joined).1.to_vec();
    }

    fn joined(&self, id: u32) -> Vec<u8> {
        [&*self.begun, &*self.names.tokenizer.token_bytes(id)].concat()
    }
}

/// The whole characters of a text, and the bytes at its end that begin another. What can become none is U+FFFD.
fn characters(bytes: &[u8]) -> (String, &[u8]) {
    let end = bytes.utf8_chunks().last().map_or(&[][..], |last| last.invalid());
    // No length of an error: the text may go on.
    let goes_on = std::str::from_utf8(end).is_err_and(|error| error.error_len().is_none());
    let begun = if goes_on { end } else { &[] };
    (String::from_utf8_lossy(&bytes[..bytes.len() - begun.len()]).into_owned(), begun)
}

/// Completions' `logprobs`. `token_logprobs` of a token without probabilities, the prompt's first, are `null`.
/// `offset` is the place of the first token in the choice's text, in characters; it moves on to the next token's.
pub fn completion(samples: &[Sample], names: TokenNames<'_>, offset: &mut usize) -> Value {
    let (mut tokens, mut token_logprobs, mut top_logprobs, mut text_offset) = (vec![], vec![], vec![], vec![]);
    let mut naming = Naming::new(names);
    for sample in samples {
        let name = naming.name(sample.token_id);
        text_offset.push(*offset);
        *offset += name.chars().count();
        match &sample.logprobs {
            None => {
                token_logprobs.push(Value::Null);
                top_logprobs.push(Value::Null);
            }
            Some(logprobs) => {
                token_logprobs.push(finite(logprobs.logprob));
                top_logprobs.push(Value::Object(with_alternatives(sample.token_id, logprobs, &naming)));
            }
        }
        tokens.push(name);
        naming.pass(sample.token_id);
    }
    json!({
        "text_offset": text_offset,
        "token_logprobs": token_logprobs,
        "tokens": tokens,
        "top_logprobs": top_logprobs,
    })
}

/// The token itself first, then the most likely ones; tokens that read alike keep the first one's value.
fn with_alternatives(token_id: u32, logprobs: &TokenLogprobs, naming: &Naming<'_>) -> Map<String, Value> {
    let mut map = Map::new();
    for &(id, logprob) in [(token_id, logprobs.logprob)].iter().chain(&logprobs.top) {
        map.entry(naming.name(id)).or_insert(finite(logprob));
    }
    map
}

/// Chat's `logprobs`.
pub fn chat(samples: &[Sample], names: TokenNames<'_>) -> Value {
    let mut naming = Naming::new(names);
    let with_top = |sample: &Sample| {
        let entry = |id: u32, logprob: f32| {
            let bytes = names.tokenizer.token_bytes(id);
            json!({"token": naming.name(id), "logprob": finite(logprob), "bytes": bytes})
        };
        let content = sample.logprobs.as_ref().map(|logprobs| {
            let mut content = entry(sample.token_id, logprobs.logprob);
            let top: Vec<_> = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
            content["top_logprobs"] = Value::Array(top);
            content
        });
        naming.pass(sample.token_id);
        content
    };
    json!({"content": samples.iter().filter_map(with_top).collect::<Vec<_>>()})
}

/// vLLM's `prompt_logprobs`: `null` for the first token, then for each a map from token id to what is known of it, with up to `num_top`
/// alternatives.
pub fn prompt(samples: &[Sample], num_top: u32, tokenizer: &Tokenizer) -> Value {
    let mut naming = Naming::new(TokenNames { tokenizer, as_ids: false });
    let position = |sample: &Sample| {
        let Some(logprobs) = &sample.logprobs else { return Value::Null };
        let known = |id: u32, logprob: f32, rank: u32| {
            let text = naming.name(id);
            (id.to_string(), json!({"logprob": finite(logprob), "rank": rank, "decoded_token": text}))
        };
        let own = known(sample.token_id, logprobs.logprob, logprobs.rank);
        let top =
            logprobs.top.iter().take(num_top as usize).zip(1..).map(|(&(id, logprob), rank)| known(id, logprob, rank));
        // The token's own entry comes first and wins over its entry among the alternatives.
        let mut map = Map::from_iter([own]);
        for (id, value) in top {
            map.entry(id).or_insert(value);
        }
        naming.pass(sample.token_id);
        Value::Object(map)
    };
    std::iter::once(Value::Null).chain(samples.iter().map(position)).collect()
}

fn finite(logprob: f32) -> Value {
    json!(logprob.max(LEAST))
}

#[cfg(test)]
mod tests {
    use super::characters;

    #[test]
    fn a_text_may_end_inside_a_character() {
        let cases: [(&[u8], &str, usize); 8] = [
            (b"", "", 0),
            (b"ab", "ab", 0),
            ("a😀".as_bytes(), "a😀", 0),
            (b"a\xF0\x9F\x98", "a", 3),
            (b"\xF0\x9Fb", "\u{FFFD}b", 0),
            (b"\xF0\x9Fb\xC3", "\u{FFFD}b", 1),
            // Bytes that begin no character.
            (b"a\x98\x80", "a\u{FFFD}\u{FFFD}", 0),
            (b"a\xFF", "a\u{FFFD}", 0),
        ];
        for (bytes, text, begun) in cases {
            assert_eq!(characters(bytes), (text.to_owned(), &bytes[bytes.len() - begun..]), "{bytes:?}");
        }
    }
}

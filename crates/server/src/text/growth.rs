//! How much longer than its text what a tokenizer.json makes of it can be. A file may ask for a text that doubles thirty times, which
//! would end the process when the first request comes. Knows the steps of the `tokenizers` crate by their JSON, and no vocabulary.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use vllm_apple_model::json;

/// Most bytes for each byte of a text. Unicode's own normal forms make up to 18 of one; SentencePiece's space has 3.
const MAX_FACTOR: f64 = 128.0;
/// Most bytes, or tokens, that are added to any text.
const MAX_ADDED: usize = 4096;

/// The steps that may make something longer.
#[derive(Deserialize)]
struct Steps<'a> {
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    decoder: Option<&'a RawValue>,
}

/// A bound of the length of what comes out, by the length of what goes in.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Growth {
    factor: f64,
    added: f64,
}

impl Growth {
    const NONE: Self = Self { factor: 1.0, added: 0.0 };

    fn by(factor: f64) -> Self {
        Self { factor: factor.max(1.0), added: 0.0 }
    }

    fn then(self, next: Self) -> Self {
        Self { factor: self.factor * next.factor, added: self.added * next.factor + next.added }
    }
}

/// Refuses a tokenizer.json of which a text, or the tokens' text, could become too long.
pub(super) fn check(text: &[u8]) -> Result<(), String> {
    // What is no JSON, or no object, is the library's to describe.
    json::check(text).or_else(|error| if error.is_data() { Err(error.to_string()) } else { Ok(()) })?;
    let steps = match serde_json::from_slice::<Steps<'_>>(text) {
        Ok(steps) => steps,
        // A step that is there twice.
        Err(error) if error.is_data() => return Err(error.to_string()),
        Err(_) => return Ok(()),
    };
    let tree = |name: &str, step: Option<&RawValue>| match step {
        Some(step) => json::parse(step.get().as_bytes()).map_err(|error| format!("its {name}: {error}")),
        None => Ok(Value::Null),
    };
    for (name, step) in [("normalizer", steps.normalizer), ("decoder", steps.decoder)] {
        let Growth { factor, added } = growth(&tree(name, step)?)?;
        if factor > MAX_FACTOR || added > MAX_ADDED as f64 {
            return Err(format!(
                "its {name} makes a text up to {factor} times as long and adds {added} bytes, expected at most {MAX_FACTOR} \
                 times and {MAX_ADDED} bytes"
            ));
        }
    }
    let added = tokens_added(&tree("post_processor", steps.post_processor)?);
    if added > MAX_ADDED {
        return Err(format!("its post_processor adds {added} tokens to every text, expected at most {MAX_ADDED}"));
    }
    Ok(())
}

/// Of a normalizer or a decoder.
fn growth(step: &Value) -> Result<Growth, String> {
    let list = |name: &str| step.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let length = |value: Option<&Value>| value.and_then(Value::as_str).map_or(0, str::len) as f64;
    Ok(match step.get("type").and_then(Value::as_str).unwrap_or_default() {
        "Sequence" => {
            let mut all = Growth::NONE;
            for step in list("normalizers").iter().chain(list("decoders")) {
                all = all.then(growth(step)?);
            }
            all
        }
        "Replace" => {
            let content = length(step.get("content"));
            match step.pointer("/pattern/String").and_then(Value::as_str) {
                Some(text) if !text.is_empty() => Growth::by(content / text.len() as f64),
                // An expression may match every letter, or nothing between any two.
                _ => Growth::by(1.0 + content),
            }
        }
        "Prepend" => Growth { factor: 1.0, added: length(step.get("prepend")) },
        "Precompiled" => Growth::by(longest_replacement(step)? as f64 / 2.0),
        "NFKC" | "NFKD" => Growth::by(18.0),
        "NFC" | "NFD" | "Lowercase" | "BertNormalizer" | "ByteLevel" | "Nmt" | "Metaspace" => Growth::by(4.0),
        // Prefixes and the like are taken away, tokens are put together.
        _ => Growth::NONE,
    })
}

/// The longest text that a compiled map of characters, as of SentencePiece, puts in place of another.
fn longest_replacement(step: &Value) -> Result<usize, String> {
    let encoded = step.get("precompiled_charsmap").and_then(Value::as_str).unwrap_or_default();
    let damaged = || "its precompiled_charsmap is damaged".to_owned();
    let bytes = STANDARD.decode(encoded).map_err(|_| damaged())?;
    if bytes.is_empty() {
        return Ok(0);
    }
    // The size of a trie, the trie, and the texts, each of which ends with a zero.
    let (size, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
    let texts = rest.get(u32::from_le_bytes(*size) as usize..).ok_or_else(damaged)?;
    Ok(texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0))
}

/// Tokens that a post-processor adds to a text, or to two.
fn tokens_added(step: &Value) -> usize {
    let list = |name: &str| step.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let ids = |piece: &Value| {
        let name = piece.pointer("/SpecialToken/id").and_then(Value::as_str)?;
        Some(step.get("special_tokens")?.get(name)?.get("ids")?.as_array()?.len())
    };
    let template = list("single").iter().chain(list("pair")).filter_map(ids).sum::<usize>();
    template + list("processors").iter().map(tokens_added).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(steps: &Value) -> String {
        check(steps.to_string().as_bytes()).unwrap_err()
    }

    #[test]
    fn steps_of_real_tokenizers_pass() {
        let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let all = json!([prepend, {"type": "NFKC"}, space]);
        let back = json!([{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}]);
        let processor = json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        });
        let steps = json!({
            "normalizer": {"type": "Sequence", "normalizers": all},
            "decoder": {"type": "Sequence", "decoders": back},
            "post_processor": {"type": "Sequence", "processors": [processor]},
        });
        assert_eq!(check(steps.to_string().as_bytes()), Ok(()));
        assert_eq!(growth(&steps["normalizer"]), Ok(Growth { factor: 54.0, added: 162.0 }));
        assert_eq!(tokens_added(&steps["post_processor"]), 1);
        assert_eq!(check(b"{}"), Ok(()));
        assert_eq!(check(b"no json"), Ok(()));
    }

    #[test]
    fn what_grows_without_measure_is_refused() {
        let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let sequence = |list: &str, step: &Value| json!({"type": "Sequence", list: vec![step; 8]});
        assert!(
            refused(&json!({"normalizer": sequence("normalizers", &double)}))
                .contains("normalizer makes a text up to 256")
        );
        assert!(refused(&json!({"decoder": sequence("decoders", &double)})).contains("decoder makes a text up to 256"));
        let most = json!({"type": "Sequence", "normalizers": vec![&double; 7]});
        assert_eq!(check(json!({"normalizer": most}).to_string().as_bytes()), Ok(()));
        let most = json!({"type": "Prepend", "prepend": "a".repeat(MAX_ADDED)});
        assert_eq!(check(json!({"normalizer": most}).to_string().as_bytes()), Ok(()));
        let any = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "a".repeat(200)});
        assert!(refused(&json!({"normalizer": any})).contains("201 times"));
        let prepend = json!({"type": "Prepend", "prepend": "a".repeat(5000)});
        assert!(refused(&json!({"normalizer": prepend})).contains("adds 5000 bytes"));
        let single = vec![json!({"SpecialToken": {"id": "x", "type_id": 0}}); 50];
        let processor = json!({"single": single, "special_tokens": {"x": {"ids": vec![1; 100]}}});
        assert!(refused(&json!({"post_processor": processor})).contains("adds 5000 tokens"));
    }

    #[test]
    fn a_map_of_characters_is_read_before_the_library_trusts_it() {
        // A trie of no bytes, and "abc" and "de".
        let map = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
        assert_eq!(longest_replacement(&map("AAAAAGFiYwBkZQA=")), Ok(3));
        assert_eq!(longest_replacement(&map("")), Ok(0));
        for damaged in ["////////", "/////w==", "AAA=", "?AAA"] {
            assert!(refused(&json!({"normalizer": map(damaged)})).contains("damaged"), "{damaged}");
        }
    }
}

//! Damaged tokenizer files: an error that names the file, never a panic.

use std::sync::Arc;

use crate::support::{byte_level, golden_dir, tokenizer_of};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use vllm_apple::text::{DetokenizeOptions, Detokenizer, Tokenizer};

fn files() -> Vec<(&'static str, Vec<u8>)> {
    let read = |path: &str| std::fs::read(golden_dir().join("models").join(path)).unwrap();
    vec![
        ("tokenizer.json", read("llama/tokenizer.json")),
        ("tokenizer.json", read("llama-llama3/tokenizer.json")),
        ("tokenizer.json", read("qwen2/tokenizer.json")),
        ("tekken.json", read("mistral-tekken/tekken.json")),
    ]
}

/// Either an error that names the file, or a tokenizer that can be used without a panic.
fn check(file: &str, bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(file), bytes).unwrap();
    let tokenizer = match Tokenizer::from_dir(dir.path()) {
        Ok(tokenizer) => Arc::new(tokenizer),
        Err(e) => return assert!(e.to_string().contains(file), "{e}"),
    };
    let ids = tokenizer.encode("Hello <s>▁ wörld 狐\u{301}\n\n  42", true).unwrap_or_default();
    let _ = tokenizer.decode(&ids, true);
    let options = DetokenizeOptions { skip_special_tokens: false, ..DetokenizeOptions::default() };
    let mut detokenizer = Detokenizer::new(tokenizer, &ids, options);
    for id in (0..300).chain([u32::MAX]) {
        let _ = detokenizer.push(id);
    }
    detokenizer.finish();
}

#[test]
fn truncated_files_are_errors() {
    for (file, bytes) in files() {
        for len in (0..bytes.len()).step_by(97) {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(file), &bytes[..len]).unwrap();
            let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
            assert!(error.contains(file), "{error}");
        }
    }
}

#[test]
fn mutated_files_never_panic() {
    for (file, bytes) in files() {
        let mutation = (0..bytes.len(), 0..bytes.len(), any::<u8>(), 0..4);
        TestRunner::new(ProptestConfig::with_cases(150))
            .run(&mutation, |(at, other, byte, how)| {
                let mut damaged = bytes.clone();
                match how {
                    0 => damaged[at] = byte,
                    // Digits are ids and lengths: where valid JSON means nonsense.
                    1 => match damaged.iter().skip(at).position(u8::is_ascii_digit) {
                        Some(digit) => damaged[at + digit] = b'0' + byte % 10,
                        None => damaged.truncate(at),
                    },
                    2 => drop(damaged.drain(at.min(other)..at.max(other).min(at.min(other) + 40))),
                    _ => damaged.swap(at, other),
                }
                check(file, &damaged);
                Ok(())
            })
            .unwrap();
    }
}

/// A decoder that strips more than a token has: the `tokenizers` crate panics when it decodes, not when the file is read.
#[test]
fn a_decoder_that_strips_too_much_is_an_error() {
    let path = golden_dir().join("models/llama/tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let steps = json.pointer_mut("/decoder/decoders").unwrap().as_array_mut().unwrap();
    let strip = steps.iter_mut().find(|step| step["type"] == "Strip").unwrap();
    (strip["start"], strip["stop"]) = (json!(1), json!(1));
    check("tokenizer.json", &serde_json::to_vec(&json).unwrap());
}

/// The library puts any id there, which no model has.
#[test]
fn a_post_processor_that_adds_tokens_outside_the_vocabulary_is_an_error() {
    let template = |id: u32| {
        let parts = json!([{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
        json!({
            "type": "TemplateProcessing", "single": parts, "pair": parts,
            "special_tokens": {"x": {"id": "x", "ids": [id], "tokens": ["x"]}},
        })
    };
    let bert = |id: u32| json!({"type": "BertProcessing", "sep": ["a", 0], "cls": ["y", id]});
    for (post_processor, id) in [(template(u32::MAX), u32::MAX), (template(2), 2), (bert(99_999), 99_999)] {
        let mut json = byte_level(&["a", "b"]);
        json["post_processor"] = post_processor;
        let error = tokenizer_of(&[("tokenizer.json", &json)]).unwrap_err().to_string();
        for word in ["tokenizer.json", "post_processor", &format!("token {id},")] {
            assert!(error.contains(word), "\"{error}\" does not say \"{word}\"");
        }
    }
    let mut json = byte_level(&["a", "b"]);
    json["post_processor"] = template(1);
    assert_eq!(tokenizer_of(&[("tokenizer.json", &json)]).unwrap().encode("a", true).unwrap(), [1, 0]);
}

/// The library tells them by their fields.
#[test]
fn steps_without_a_type_are_measured_too() {
    let mut json = byte_level(&["a"]);
    let double = json!({"pattern": {"String": "a"}, "content": "a".repeat(200)});
    for step in [double.clone(), json!({"type": "Sequence", "normalizers": [double]})] {
        json["normalizer"] = step;
        let error = tokenizer_of(&[("tokenizer.json", &json)]).err().unwrap().to_string();
        assert!(error.contains("normalizer makes a text up to 200 times as long"), "{error}");
    }
    json["normalizer"] = Value::Null;
    let dir = tempfile::tempdir().unwrap();
    let twice = json.to_string().replacen('{', "{\"normalizer\":null,", 1);
    std::fs::write(dir.path().join("tokenizer.json"), twice).unwrap();
    let error = Tokenizer::from_dir(dir.path()).err().unwrap().to_string();
    assert!(error.contains("duplicate field `normalizer`"), "{error}");
}

/// Prompts would be no part of what the model reads.
#[test]
fn a_post_processor_without_the_text_is_an_error() {
    let path = golden_dir().join("models/qwen2/tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    json["post_processor"] = json!({
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a", "type_id": 0}}], "pair": [],
        "special_tokens": {"a": {"id": "a", "ids": [0], "tokens": ["a"]}},
    });
    let error = tokenizer_of(&[("tokenizer.json", &json)]).err().unwrap().to_string();
    assert!(error.contains("post_processor leaves out"), "{error}");
}

/// One value at a time says something else, in valid JSON.
#[test]
fn changed_values_never_panic() {
    for (file, bytes) in files() {
        let json: Value = serde_json::from_slice(&bytes).unwrap();
        let mut pointers = Vec::new();
        collect(&json, String::new(), &mut pointers);
        for pointer in pointers {
            for other in [json!(null), json!(4_000_000_000_u32), json!([]), json!("")] {
                let mut changed = json.clone();
                *changed.pointer_mut(&pointer).unwrap() = other;
                check(file, &serde_json::to_vec(&changed).unwrap());
            }
        }
    }
}

/// JSON pointers to everything but the insides of long lists, of which the first entries stand for the rest.
fn collect(value: &Value, at: String, pointers: &mut Vec<String>) {
    let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => {
            map.iter().take(12).for_each(|(key, v)| collect(v, format!("{at}/{}", escape(key)), pointers));
        }
        Value::Array(list) => {
            list.iter().take(3).enumerate().for_each(|(i, v)| collect(v, format!("{at}/{i}"), pointers));
        }
        _ => {}
    }
    pointers.push(at);
}

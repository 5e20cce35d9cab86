//! Tokenizers against what transformers and mistral_common recorded on hostile text, and special tokens from configuration files.

use crate::support::{KINDS, byte_level, golden_dir, load, tokenizer_of};
use serde_json::{Value, json};
use vllm_apple::text::{TextError, Tokenizer};

#[test]
fn encodes_like_the_original() {
    for kind in KINDS {
        let (golden, tokenizer) = load(kind);
        assert_eq!(tokenizer.vocab_size(), golden.size, "{kind}");
        for case in golden.encode {
            let name = format!("{kind}: {}", case.name);
            assert_eq!(tokenizer.encode(&case.text, false).unwrap(), case.ids, "{name}");
            assert_eq!(tokenizer.encode(&case.text, true).unwrap(), case.ids_with_special, "{name}, special");
        }
    }
}

#[test]
fn decodes_like_the_original() {
    for kind in KINDS {
        let (golden, tokenizer) = load(kind);
        for case in golden.decode {
            assert_eq!(tokenizer.decode(&case.ids, false).unwrap(), case.text, "{kind}: {:?}", case.ids);
            let skipped = tokenizer.decode(&case.ids, true).unwrap();
            assert_eq!(skipped, case.text_without_special, "{kind}: {:?}", case.ids);
        }
    }
}

#[test]
fn token_bytes_make_up_the_text() {
    for kind in KINDS {
        let (golden, tokenizer) = load(kind);
        for case in golden.encode {
            let bytes: Vec<u8> = case.ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
            let text = String::from_utf8(bytes).unwrap();
            let whole = tokenizer.decode(&case.ids, false).unwrap();
            // A SentencePiece text begins with a space that its decoder removes.
            assert!(text == whole || text == format!(" {whole}"), "{kind}: {}: {text:?}", case.name);
        }
        assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
        assert_eq!(tokenizer.decode(&[u32::MAX], false).unwrap(), "");
    }
}

/// What transformers' `convert_ids_to_tokens` says, and of a tekken.json mistral_common's `id_to_piece`.
#[test]
fn tokens_are_spelled_as_in_the_vocabulary() {
    for (kind, expected) in [
        ("qwen", ["H", "e", "ll", "o", "ĠðŁ", "ĺ", "Ģ", "Ġwor", "ld", "<|im_end|>", "Ã©"].as_slice()),
        (
            "llama2",
            &[
                "▁", "<0x48>", "e", "ll", "o", "▁", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁w", "or", "ld", "<0x1D>",
                "é",
            ],
        ),
    ] {
        let tokenizer = load(kind).1;
        let text = if kind == "qwen" { "Hello 😀 world<|im_end|>é" } else { "Hello 😀 world\u{1d}é" };
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(ids.iter().map(|&id| tokenizer.token(id)).collect::<Vec<_>>(), expected, "{kind}");
        assert_eq!(tokenizer.token(u32::MAX), "");
    }
    let tekken = load("tekken").1;
    let ids = tekken.encode("é 😀", false).unwrap();
    assert_eq!(
        ids.iter().map(|&id| tekken.token(id)).collect::<Vec<_>>(),
        ids.iter().map(|&id| tekken.token_text(id)).collect::<Vec<_>>()
    );
}

#[test]
fn eos_ids_are_the_tokenizers_and_the_generation_configs() {
    let dir = tempfile::tempdir().unwrap();
    let source = golden_dir().join("models/qwen2");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(source.join(file), dir.path().join(file)).unwrap();
    }
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let own = Tokenizer::from_dir(dir.path()).unwrap().eos_token_id().unwrap();
    let ids = || Tokenizer::from_dir(dir.path()).unwrap().eos_token_ids().to_vec();
    let sorted = |mut ids: Vec<u32>| {
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids(), [own]);
    write("config.json", r#"{"eos_token_id": 1}"#);
    assert_eq!(ids(), sorted(vec![1, own]));
    write("generation_config.json", r#"{"eos_token_id": [3, 2]}"#);
    assert_eq!(ids(), sorted(vec![2, 3, own]));
    write("generation_config.json", r#"{"temperature": 1.0}"#);
    assert_eq!(ids(), sorted(vec![1, own]));
}

#[test]
fn a_directory_without_tokenizer_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_dir(dir.path()).unwrap_err();
    assert!(matches!(error, TextError::NoTokenizer { .. }));
    let message = error.to_string();
    for part in [dir.path().to_str().unwrap(), "tokenizer.json", "tekken.json"] {
        assert!(message.contains(part), "{message}");
    }
    std::fs::write(dir.path().join("tokenizer.model"), "x").unwrap();
    assert!(Tokenizer::from_dir(dir.path()).unwrap_err().to_string().contains("tokenizer.model"));
}

#[test]
fn the_tokens_that_begin_and_end_a_text_have_names_and_ids() {
    let config = json!({"bos_token": "b", "eos_token": {"content": "c"}});
    let named =
        tokenizer_of(&[("tokenizer.json", &byte_level(&["a", "c", "d", "b"])), ("tokenizer_config.json", &config)])
            .unwrap();
    assert_eq!((named.bos_token(), named.bos_token_id()), (Some("b"), Some(3)));
    assert_eq!((named.eos_token(), named.eos_token_id()), (Some("c"), Some(1)));
    let unnamed = tokenizer_of(&[("tokenizer.json", &byte_level(&["a"]))]).unwrap();
    assert_eq!((unnamed.bos_token(), unnamed.bos_token_id()), (None, None));
    assert_eq!((unnamed.eos_token(), unnamed.eos_token_id()), (None, None));
}

/// The first byte of ä has no text of its own.
#[test]
fn a_token_shows_as_text() {
    let tokenizer = tokenizer_of(&[("tokenizer.json", &byte_level(&["Ġa", "Ã"]))]).unwrap();
    assert_eq!([0, 1, 2].map(|id| tokenizer.token_text(id)), [" a", "\u{FFFD}", ""]);
    assert_eq!([0, 1, 2].map(|id| tokenizer.contains(id)), [true, true, false]);
    let (golden, tekken) = load("tekken");
    let size = golden.size as u32;
    assert_eq!([size - 1, size].map(|id| tekken.contains(id)), [true, false]);
}

/// A tekken.json of so many special and ordinary tokens as its configuration says, and so many listed.
fn tekken(
    version: &str,
    special: usize,
    listed: Option<usize>,
    vocab_size: usize,
    tokens: usize,
) -> Result<Tokenizer, TextError> {
    let text = std::fs::read(golden_dir().join("models/mistral-tekken/tekken.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&text).unwrap();
    json["config"]["version"] = version.into();
    json["config"]["default_num_special_tokens"] = special.into();
    json["config"]["default_vocab_size"] = vocab_size.into();
    json["vocab"].as_array_mut().unwrap().truncate(tokens);
    json["special_tokens"] = match listed {
        Some(listed) => (0..listed).map(|rank| json!({"rank": rank, "token_str": format!("<{rank}>")})).collect(),
        None => Value::Null,
    };
    tokenizer_of(&[("tekken.json", &json)])
}

#[test]
fn a_tekken_file_says_how_many_tokens_it_has() {
    let error = |result: Result<Tokenizer, TextError>| result.unwrap_err().to_string();
    // Up to version 7 the special tokens have names that need not be listed.
    for version in ["v3", "v7"] {
        let tokenizer = tekken(version, 25, None, 25 + 256, 256).unwrap();
        assert_eq!(tokenizer.vocab_size(), 281);
        assert_eq!(tokenizer.token_to_id("[INST]"), Some(3));
        assert_eq!(tokenizer.token_to_id("<SPECIAL_24>"), Some(24));
    }
    for version in ["v8", "v11"] {
        assert!(error(tekken(version, 25, None, 25 + 256, 256)).contains("special_tokens is missing"));
    }
    assert_eq!(tekken("v7", 5, Some(5), 5 + 256, 256).unwrap().vocab_size(), 261);
    assert!(error(tekken("v7", 4, Some(5), 4 + 256, 256)).contains("default_num_special_tokens is 4"));
    // As many ordinary tokens as are announced, and no fewer than there are bytes; more are left out.
    assert_eq!(tekken("v7", 5, Some(5), 5 + 256, 300).unwrap().vocab_size(), 261);
    assert_eq!(tekken("v7", 5, Some(5), 5 + 300, 300).unwrap().vocab_size(), 305);
    assert!(error(tekken("v7", 5, Some(5), 5 + 301, 300)).contains("vocab has 300 tokens, expected 301"));
    assert!(error(tekken("v7", 5, Some(5), 5 + 255, 256)).contains("expected 255, at least 256"));
    let too_many = (1 << 20) + 1;
    assert!(error(tekken("v7", too_many, Some(5), too_many + 256, 256)).contains("default_num_special_tokens"));
}

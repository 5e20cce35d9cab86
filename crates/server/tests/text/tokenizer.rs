//! Tokenizers against what transformers and mistral_common recorded on hostile text, and special tokens from configuration files.

use crate::support::{KINDS, golden_dir, load};
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

//! Tokenizers and chat templates out of GGUF files against those of the checkpoints that they were made of.

use std::collections::BTreeMap;
use std::path::Path;

use vllm_apple::text::{ChatTemplate, Tokenizer};

use crate::support::{golden_dir, load};
use crate::vocabularies::tokenizer as of_vocabulary;

/// The first file of a golden model, and the kind of its tokenizer.
const FILES: [(&str, &str); 3] = [
    ("gguf-llama/model.gguf", "llama2"),
    ("gguf-llama3/model.gguf", "llama3"),
    ("gguf-qwen2/model-00001-of-00003.gguf", "qwen"),
];

/// Texts that Qwen's tokenizer.json composes (NFC) before it looks at them, which llama.cpp does not and GGUF files do not say.
const COMPOSED: [&str; 4] = ["composed", "decomposed", "combining alone", "long run of marks"];

#[test]
fn ids_and_texts_are_those_of_the_checkpoint() {
    for (file, kind) in FILES {
        let (golden, _) = load(kind);
        let tokenizer = Tokenizer::from_dir(&golden_dir().join("quantised/models").join(file)).unwrap();
        let mut different = BTreeMap::new();
        for case in &golden.encode {
            let got = [false, true].map(|special| tokenizer.encode(&case.text, special).unwrap());
            if got != [case.ids.clone(), case.ids_with_special.clone()] {
                different.insert(case.name.as_str(), (case.text.clone(), got, case.ids_with_special.clone()));
            }
        }
        if kind == "qwen" {
            different.retain(|name, _| !COMPOSED.contains(name));
        }
        assert!(different.is_empty(), "{file}: {different:?}");
        for case in &golden.decode {
            let got = [false, true].map(|skip| tokenizer.decode(&case.ids, skip).unwrap());
            assert_eq!(got, [case.text.clone(), case.text_without_special.clone()], "{file}: {:?}", case.ids);
        }
    }
}

/// A GGUF file of a vocabulary of all bytes and `merges`, with these fields besides, and no tensors.
fn vocabulary(merges: &[&str], more: &[(&str, &str)], path: &Path) {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let list = |texts: &[String]| {
        let len = (texts.len() as u64).to_le_bytes();
        [&[9, 0, 0, 0, 8, 0, 0, 0][..], &len, &texts.iter().flat_map(|one| text(one)).collect::<Vec<u8>>()].concat()
    };
    // Those that stand for themselves, and the others behind 255.
    let is_own = |byte: &u32| [33..=126, 161..=172, 174..=255].iter().any(|range| range.contains(byte));
    let others = 256..256 + (0..256).filter(|byte| !is_own(byte)).count() as u32;
    let bytes = (0..256).filter(is_own).chain(others).map(|code| char::from_u32(code).unwrap().to_string());
    let whole = ["abc".to_owned()].into_iter().chain(merges.iter().map(|merge| merge.replace(' ', "")));
    let tokens: Vec<String> = bytes.chain(whole).collect();
    let merges: Vec<String> = merges.iter().map(|&merge| merge.to_owned()).collect();
    let mut fields = vec![
        [text("tokenizer.ggml.tokens"), list(&tokens)].concat(),
        [text("tokenizer.ggml.merges"), list(&merges)].concat(),
        [text("tokenizer.ggml.bos_token_id"), vec![4, 0, 0, 0, 7, 0, 0, 0]].concat(),
    ];
    let strings = [("tokenizer.ggml.model", "gpt2")].into_iter().chain(more.iter().copied());
    fields.extend(strings.map(|(name, value)| [text(name), vec![8, 0, 0, 0], text(value)].concat()));
    let header = [&b"GGUF\x03\0\0\0"[..], &0u64.to_le_bytes(), &(fields.len() as u64).to_le_bytes()].concat();
    std::fs::write(path, [header, fields.concat()].concat()).unwrap();
}

/// Merges join what is in one piece; what comes of these says where texts were cut.
#[test]
fn texts_are_cut_as_the_file_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let merges = ["1 1", "11 1", "! Ċ", "Ġ =", "Ġ `"];
    let pieces = |pre: Option<&str>, text: &str| {
        vocabulary(&merges, &pre.map(|pre| ("tokenizer.ggml.pre", pre)).into_iter().collect::<Vec<_>>(), &path);
        let tokenizer = of_vocabulary(&path)?;
        let ids = tokenizer.encode(text, true).unwrap();
        Ok::<_, String>(ids.iter().map(|&id| tokenizer.decode(&[id], false).unwrap()).collect::<Vec<_>>().join("|"))
    };
    let text = "abc 11111!\n = `";
    for (pre, expected) in [
        (Some("gpt-2"), "a|b|c| |11|111|!|\n| =| `"),
        (Some("qwen2"), "a|b|c| |1|1|1|1|1|!\n| =| `"),
        // A token that no merge makes, and a first token of its own.
        (Some("llama-bpe"), "(|abc| |111|11|!\n| =| `"),
        (Some("smaug-bpe"), "a|b|c| |111|11|!\n| =| `"),
        (Some("seed-coder"), "a|b|c| |1|1|1|1|1|!|\n| =| `"),
        (Some("falcon"), "a|b|c| |111|11|!|\n| |=| |`"),
        (Some("default"), "a|b|c| |111|11|!|\n| |=| `"),
        (None, "a|b|c| |111|11|!|\n| |=| `"),
        (Some(""), "a|b|c| |111|11|!|\n| |=| `"),
    ] {
        assert_eq!(pieces(pre, text).as_deref(), Ok(expected), "{pre:?}");
    }
    let error = pieces(Some("bloom"), text).unwrap_err();
    let words = ["tokenizer.ggml.pre is \"bloom\"", "supported are ", "smaug-bpe", "default"];
    for word in words {
        assert!(error.contains(word), "\"{error}\" does not say \"{word}\"");
    }
}

#[test]
fn a_template_that_does_not_compile_is_named_by_the_file() {
    let mut bytes = std::fs::read(golden_dir().join("quantised/models/gguf-llama/model.gguf")).unwrap();
    let begins = b"{% if messages[0]";
    let at = bytes.windows(begins.len()).position(|window| window == begins).unwrap();
    bytes[at + 3..at + 5].copy_from_slice(b"of");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let tokenizer = Tokenizer::from_dir(&path).unwrap();
    let error = ChatTemplate::from_dir(&path, &tokenizer, None).unwrap_err().to_string();
    assert!(error.starts_with(&format!("the chat template from {} does not compile: ", path.display())), "{error}");
    assert!(error.ends_with("; --chat-template FILE takes another one in its place"), "{error}");
    // Of what is given already, there is nothing else to say.
    let error = ChatTemplate::from_dir(&path, &tokenizer, Some("{% of %}")).unwrap_err().to_string();
    assert!(
        error.starts_with("the chat template from --chat-template does not compile") && !error.contains("FILE"),
        "{error}"
    );
}

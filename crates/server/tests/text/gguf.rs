//! Tokenizers and chat templates out of GGUF files against those of the checkpoints that they were made of.

use std::collections::BTreeMap;

use vllm_apple::text::Tokenizer;

use crate::support::{golden_dir, load};

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

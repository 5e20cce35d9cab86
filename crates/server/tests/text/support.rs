//! What the tests of text share: the recorded truth and the tokenizers it belongs to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use vllm_apple::text::{TextError, Tokenizer};

/// What transformers or mistral_common did with one tokenizer.
#[derive(Deserialize)]
pub struct Golden {
    /// The directory under tests/golden/models.
    pub checkpoint: String,
    /// Number of token ids.
    pub size: usize,
    /// Text to ids.
    pub encode: Vec<Encode>,
    /// Ids to text.
    pub decode: Vec<Decode>,
}

/// One text and its ids.
#[derive(Deserialize)]
pub struct Encode {
    pub name: String,
    pub text: String,
    pub ids: Vec<u32>,
    pub ids_with_special: Vec<u32>,
}

/// Ids and their text.
#[derive(Deserialize)]
pub struct Decode {
    pub ids: Vec<u32>,
    pub text: String,
    pub text_without_special: String,
}

/// One tokenizer of every kind.
pub const KINDS: [&str; 5] = ["llama2", "llama3", "mistral", "qwen", "tekken"];

/// The recorded truth.
pub fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

/// The record of one kind and its tokenizer.
pub fn load(kind: &str) -> (Golden, Arc<Tokenizer>) {
    let file = golden_dir().join("tokenizers").join(format!("{kind}.json"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let golden: Golden = serde_json::from_str(&text).unwrap();
    let dir = golden_dir().join("models").join(&golden.checkpoint);
    (golden, Arc::new(Tokenizer::from_dir(&dir).unwrap()))
}

/// A tokenizer of these JSON files.
pub fn tokenizer_of(files: &[(&str, &Value)]) -> Result<Tokenizer, TextError> {
    let dir = tempfile::tempdir().unwrap();
    for (name, value) in files {
        std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    }
    Tokenizer::from_dir(dir.path())
}

/// A tokenizer.json of bytes: every token of `vocab`, in the order of ids, is one, and the longest at each place is taken.
pub fn byte_level(vocab: &[&str]) -> Value {
    let ids: serde_json::Map<String, Value> =
        vocab.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), id.into())).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": ids, "merges": [], "ignore_merges": true},
    })
}

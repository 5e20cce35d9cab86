//! Reads which tokens begin, end and structure a text from a checkpoint's JSON files; does not know the vocabulary.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use serde_json::{Map, Value};
use vllm_apple_model::{file, json};

use super::TextError;

/// A token that the configuration names beside the vocabulary's own list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedToken {
    pub content: String,
    pub special: bool,
    pub lstrip: bool,
    pub rstrip: bool,
    pub single_word: bool,
    pub normalized: bool,
}

/// The special tokens of a checkpoint, as its configuration files name them.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// `bos_token`, `eos_token`, `pad_token`, …: name and text, in file order.
    pub(super) named: Vec<(String, String)>,
    /// Every token that must be in the vocabulary, as special or as ordinary added token; each text once.
    pub(super) tokens: Vec<NamedToken>,
    /// `add_bos_token`, where the configuration decides it.
    pub(super) add_bos: Option<bool>,
    /// `add_eos_token`, where the configuration decides it.
    pub(super) add_eos: Option<bool>,
    /// `eos_token_id` of generation_config.json, or else of config.json.
    pub(super) configured_eos_ids: Vec<u32>,
}

const NAMES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl SpecialTokens {
    /// Reads the files that are there; a missing file says nothing, a malformed one is an error.
    pub(super) fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let config = read_object(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
        let map = read_object(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
        let mut special = Self {
            add_bos: config.get("add_bos_token").and_then(Value::as_bool),
            add_eos: config.get("add_eos_token").and_then(Value::as_bool),
            configured_eos_ids: configured_eos_ids(dir)?,
            ..Self::default()
        };
        let mut tokens = Tokens::default();
        if let Some(Value::Object(added)) = config.get("added_tokens_decoder") {
            let mut added: Vec<_> =
                added.iter().filter_map(|(id, v)| Some((id.parse::<u32>().ok(), named_token(v, false)?))).collect();
            added.sort_by_key(|(id, _)| *id);
            added.into_iter().for_each(|(_, token)| tokens.add(token));
        }
        for name in NAMES {
            // tokenizer_config.json decides, even by null; the older map fills in what it leaves out.
            let value = config.get(name).or_else(|| map.get(name));
            if let Some(token) = value.and_then(|v| named_token(v, true)) {
                special.named.push((name.to_owned(), token.content.clone()));
                tokens.add(token);
            }
        }
        for source in [&config, &map] {
            for key in ["additional_special_tokens", "extra_special_tokens"] {
                match source.get(key) {
                    Some(Value::Array(list)) => {
                        list.iter().filter_map(|v| named_token(v, true)).for_each(|token| tokens.add(token))
                    }
                    Some(Value::Object(extra)) => extra.iter().for_each(|(name, v)| {
                        if let Some(token) = named_token(v, true) {
                            special.named.push((name.clone(), token.content.clone()));
                            tokens.add(token);
                        }
                    }),
                    _ => {}
                }
            }
        }
        special.tokens = tokens.list;
        Ok(special)
    }

    /// The text of a named token such as `eos_token`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(n, _)| n == name).map(|(_, text)| text.as_str())
    }

    /// Names and texts, for a template's variables.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }
}

/// Tokens in order, each text once.
#[derive(Default)]
struct Tokens {
    list: Vec<NamedToken>,
    /// Where in the list a text is: checkpoints name thousands.
    places: HashMap<String, usize>,
}

impl Tokens {
    /// Adds a token. One that is known stays as it is, but for being special if either is.
    fn add(&mut self, token: NamedToken) {
        match self.places.entry(token.content.clone()) {
            Entry::Occupied(known) => self.list[*known.get()].special |= token.special,
            Entry::Vacant(place) => {
                place.insert(self.list.len());
                self.list.push(token);
            }
        }
    }
}

/// Reads a JSON object; `None` where there is no such file.
pub(super) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, TextError> {
    let bytes = match file::read(path, file::MAX_SETTINGS) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TextError::Read { path: path.to_owned(), source }),
    };
    let invalid = |reason| TextError::Invalid { path: path.to_owned(), reason };
    json::object(&bytes).map(Some).map_err(invalid)
}

/// A token given as its text, or as an object with `content` and flags.
fn named_token(value: &Value, special: bool) -> Option<NamedToken> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
    let content = match value {
        Value::String(text) => text.clone(),
        Value::Object(object) => object.get("content")?.as_str()?.to_owned(),
        _ => return None,
    };
    let named = NamedToken {
        content,
        special: special || flag("special"),
        lstrip: flag("lstrip"),
        rstrip: flag("rstrip"),
        single_word: flag("single_word"),
        normalized: flag("normalized"),
    };
    (!named.content.is_empty()).then_some(named)
}

/// `eos_token_id`, an integer or a list: generation_config.json wins over config.json and its `text_config`, as in vLLM.
fn configured_eos_ids(dir: &Path) -> Result<Vec<u32>, TextError> {
    let ids = |value: Option<&Value>| -> Vec<u32> {
        let list = match value {
            Some(Value::Array(list)) => list.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        list.iter().filter_map(|v| u32::try_from(v.as_u64()?).ok()).collect()
    };
    for file in ["generation_config.json", "config.json"] {
        let Some(config) = read_object(&dir.join(file))? else { continue };
        let nested = config.get("text_config").and_then(|text| text.get("eos_token_id"));
        let found = ids(config.get("eos_token_id").or(nested));
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

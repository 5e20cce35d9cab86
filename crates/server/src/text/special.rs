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
    /// `eos_token_id` of generation_config.json, or else of config.json.
    pub(super) configured_eos_ids: Vec<u32>,
    /// What tokenizer_config.json says, as it stands there.
    config: Map<String, Value>,
}

/// A value whose objects that describe a token are its text.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(token) if token.get("content").is_some_and(Value::is_string) => token["content"].clone(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        Value::Array(items) => items.iter().map(plain).collect(),
        value => value.clone(),
    }
}

const NAMES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl SpecialTokens {
    /// Reads the files that are there; a missing file says nothing, a malformed one is an error.
    pub(super) fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let mut special = Self { configured_eos_ids: configured_eos_ids(dir)?, ..Self::default() };
        let read = |name: &str| Ok((dir.join(name), read_object(&dir.join(name))?.unwrap_or_default()));
        let (config, map) = (read("tokenizer_config.json")?, read("special_tokens_map.json")?);
        let mut tokens = Tokens::default();
        let invalid = |path: &Path| {
            let path = path.to_owned();
            move |reason| TextError::Invalid { path, reason }
        };
        special.take_config(&config.1, &mut tokens).map_err(invalid(&config.0))?;
        for name in NAMES {
            // tokenizer_config.json decides, even by null; the older map fills in what it leaves out.
            let source = if config.1.contains_key(name) { &config } else { &map };
            special.take(name, source.1.get(name), &mut tokens).map_err(invalid(&source.0))?;
        }
        for (path, source) in [&config, &map] {
            special.take_further(source, &mut tokens).map_err(invalid(path))?;
        }
        special.tokens = tokens.list;
        special.config = config.1;
        Ok(special)
    }

    /// What tokenizer_config.json says, tokens by their text alone.
    pub fn config(&self) -> Map<String, Value> {
        self.config.iter().map(|(name, value)| (name.clone(), plain(value))).collect()
    }

    /// What only tokenizer_config.json says.
    fn take_config(&mut self, config: &Map<String, Value>, tokens: &mut Tokens) -> Result<(), String> {
        let added = match config.get("added_tokens_decoder") {
            None | Some(Value::Null) => return Ok(()),
            Some(Value::Object(added)) => added,
            Some(_) => return Err("added_tokens_decoder must be an object of tokens by their ids".to_owned()),
        };
        let read = |(id, value): (&String, &Value)| {
            let number =
                id.parse::<u32>().map_err(|_| format!("added_tokens_decoder has the id {id:?}, expected a number"))?;
            Ok::<_, String>((number, named_token(value, false, &format!("added_tokens_decoder.{id}"))?))
        };
        let mut added: Vec<_> = added.iter().map(read).collect::<Result<_, _>>()?;
        added.sort_by_key(|(id, _)| *id);
        added.into_iter().filter_map(|(_, token)| token).for_each(|token| tokens.add(token));
        Ok(())
    }

    /// The token of a name, if there is one.
    fn take(&mut self, name: &str, value: Option<&Value>, tokens: &mut Tokens) -> Result<(), String> {
        if let Some(value) = value
            && let Some(token) = named_token(value, true, name)?
        {
            self.named.push((name.to_owned(), token.content.clone()));
            tokens.add(token);
        }
        Ok(())
    }

    /// Tokens with names of the checkpoint's own, or without.
    fn take_further(&mut self, source: &Map<String, Value>, tokens: &mut Tokens) -> Result<(), String> {
        for key in ["additional_special_tokens", "extra_special_tokens"] {
            match source.get(key) {
                None | Some(Value::Null) => {}
                Some(Value::Array(list)) => {
                    for (at, value) in list.iter().enumerate() {
                        named_token(value, true, &format!("{key}[{at}]"))?
                            .into_iter()
                            .for_each(|token| tokens.add(token));
                    }
                }
                Some(Value::Object(extra)) => {
                    for (name, value) in extra {
                        self.take(name, Some(value), tokens)?;
                    }
                }
                Some(_) => {
                    return Err(format!("{key} must be a list of tokens, or an object of tokens by their names"));
                }
            }
        }
        Ok(())
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

/// A token given as its text, or as an object with `content` and flags; null or an empty text is none.
fn named_token(value: &Value, special: bool, name: &str) -> Result<Option<NamedToken>, String> {
    let content = match value {
        Value::Null => return Ok(None),
        Value::Object(object) => object.get("content"),
        text => Some(text),
    };
    let Some(content) = content.and_then(Value::as_str) else {
        return Err(format!("{name} must be a text, or an object with a text as its `content`"));
    };
    let flag = |field: &str| Ok::<_, String>(flag(value.get(field), &format!("{name}.{field}"))?.unwrap_or(false));
    let named = NamedToken {
        content: content.to_owned(),
        special: flag("special")? || special,
        lstrip: flag("lstrip")?,
        rstrip: flag("rstrip")?,
        single_word: flag("single_word")?,
        normalized: flag("normalized")?,
    };
    Ok((!named.content.is_empty()).then_some(named))
}

fn flag(value: Option<&Value>, name: &str) -> Result<Option<bool>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(format!("{name} must be true or false, got {other}")),
    }
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

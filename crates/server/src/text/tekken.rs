//! Mistral's tekken.json: byte-pair encoding by rank over a split pattern, equal to mistral_common's Tekkenizer. Knows the
//! file's tokens and nothing of the checkpoint around it.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fancy_regex::Regex;
use serde::{Deserialize, Serialize};

use vllm_apple_model::file;

use super::TextError;
use super::length::LengthBound;

/// A part of a prompt: special tokens that are written in a text stay text.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Piece {
    Special(Cow<'static, str>),
    Text(String),
}

impl Piece {
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Special(_) => None,
        }
    }
}

/// The vocabulary and the merge rules of a tekken.json. Special tokens come first, so an ordinary token's id is its rank
/// plus the number of special tokens.
#[derive(Debug)]
pub struct Tekken {
    pattern: Regex,
    ranks: HashMap<Box<[u8]>, u32>,
    /// Bytes of ordinary tokens by rank.
    bytes: Vec<Box<[u8]>>,
    special: Vec<String>,
    special_ids: HashMap<String, u32>,
    version: u32,
}

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
    version: String,
}

#[derive(Deserialize)]
struct Token {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// The pattern of a tekken.json beside a file, if there is one.
pub(super) fn pattern_beside(path: &Path) -> Result<Option<String>, TextError> {
    #[derive(Deserialize)]
    struct Pattern {
        config: OfConfig,
    }
    #[derive(Deserialize)]
    struct OfConfig {
        pattern: String,
    }
    let path = path.with_file_name("tekken.json");
    if !path.is_file() {
        return Ok(None);
    }
    let bytes =
        file::read(&path, file::MAX_TOKENIZER).map_err(|source| TextError::Read { path: path.clone(), source })?;
    let read = serde_json::from_slice::<Pattern>(&bytes);
    let read = read.map_err(|error| TextError::Invalid { path, reason: error.to_string() })?;
    Ok(Some(read.config.pattern))
}

/// The special tokens of files up to version 7, which do not list their own (mistral_common, tekken.py).
const DEFAULT_SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// More special tokens than any tokenizer has: a bound on what a damaged file can make us allocate.
const MAX_SPECIAL: usize = 1 << 20;

impl Tekken {
    /// Reads and checks a tekken.json.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let bytes = file::read(path, file::MAX_TOKENIZER)
            .map_err(|source| TextError::Read { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes).map_err(|reason| TextError::Invalid { path: path.to_owned(), reason })
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let file: File = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let config = file.config;
        let version = config.version.strip_prefix('v').and_then(|v| v.parse().ok());
        let version: u32 =
            version.ok_or_else(|| format!("config.version is {:?}, expected v3, v7, …", config.version))?;
        let special = special_tokens(file.special_tokens, config.default_num_special_tokens, version)?;
        let ordinary = config
            .default_vocab_size
            .checked_sub(special.len())
            .ok_or_else(|| format!("default_vocab_size {} is below its special tokens", config.default_vocab_size))?;
        let bytes = ordinary_tokens(&file.vocab, ordinary)?;
        let ranks: HashMap<_, _> = bytes.iter().cloned().zip(0..).collect();
        if ranks.len() != bytes.len() {
            return Err("vocab holds the same token_bytes twice".to_owned());
        }
        let special_ids: HashMap<_, _> = special.iter().cloned().zip(0..).collect();
        if special_ids.len() != special.len() {
            return Err("special_tokens holds the same token_str twice".to_owned());
        }
        let pattern = Regex::new(&config.pattern).map_err(|e| format!("config.pattern does not compile: {e}"))?;
        Ok(Self { pattern, ranks, bytes, special, special_ids, version })
    }

    /// The number after the `v` of `config.version`: which chat format the model was trained with.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Ordinary and special tokens together.
    pub fn vocab_size(&self) -> usize {
        self.special.len() + self.bytes.len()
    }

    /// The id of a special token such as `[INST]`.
    pub fn special_id(&self, token: &str) -> Option<u32> {
        self.special_ids.get(token).copied()
    }

    /// Whether the id is one of the special tokens, which come first.
    pub fn is_special(&self, id: u32) -> bool {
        (id as usize) < self.special.len()
    }

    /// The bytes of a token: of a special one its name, of one outside the vocabulary none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match self.special.get(id) {
            Some(name) => name.as_bytes(),
            None => self.bytes.get(id - self.special.len()).map_or(&[], |bytes| bytes),
        }
    }

    /// Text of token ids. A special token ends a character that was not complete, left out or not.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let mut text = String::new();
        for run in ids.chunk_by(|a, b| self.is_special(*a) == self.is_special(*b)) {
            if skip_special_tokens && self.is_special(run[0]) {
                continue;
            }
            let bytes: Vec<u8> = run.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        text
    }

    /// Appends the ids of a text. Special tokens written in the text stay text.
    pub fn encode_into(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let offset = self.special.len() as u32;
        for piece in self.pattern.find_iter(text) {
            let piece = piece.map_err(|e| TextError::Tokenize(e.to_string()))?.as_str().as_bytes();
            match self.ranks.get(piece) {
                Some(rank) => ids.push(rank + offset),
                None => self.merge(piece, |rank| ids.push(rank + offset)),
            }
        }
        Ok(())
    }

    /// Joins the neighbours whose union has the lowest rank, the leftmost of equals first, until no union is a token.
    fn merge(&self, piece: &[u8], mut emit: impl FnMut(u32)) {
        // Part i covers start i .. next[i]; a removed part has next 0. The heap may hold outdated pairs.
        let len = piece.len();
        let mut next: Vec<usize> = (1..=len).collect();
        let mut previous: Vec<Option<usize>> = (0..len).map(|i| i.checked_sub(1)).collect();
        let rank_of = |start: usize, end: usize| self.ranks.get(&piece[start..end]).copied();
        let pair = |start: usize, end: usize| rank_of(start, end).map(|rank| Reverse((rank, start, end)));
        let mut heap: BinaryHeap<_> = (0..len.saturating_sub(1)).filter_map(|i| pair(i, i + 2)).collect();
        while let Some(Reverse((_, start, end))) = heap.pop() {
            let middle = next[start];
            if middle == 0 || middle == len || next[middle] != end {
                continue;
            }
            next[start] = end;
            next[middle] = 0;
            if end < len {
                previous[end] = Some(start);
                heap.extend(pair(start, next[end]));
            }
            if let Some(before) = previous[start] {
                heap.extend(pair(before, end));
            }
        }
        let mut start = 0;
        while start < len {
            // Every single byte is a token: checked when the file was read.
            emit(rank_of(start, next[start]).unwrap_or_default());
            start = next[start];
        }
    }

    /// What the vocabulary says about the length of texts.
    pub(super) fn length_bound(&self) -> LengthBound {
        LengthBound::of_bytes(self.bytes.iter(), 1)
    }

    /// The names that templates and generation use for some of the special tokens.
    pub(super) fn named_tokens(&self) -> Vec<(String, String)> {
        [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")]
            .into_iter()
            .filter(|(_, token)| self.special_ids.contains_key(*token))
            .map(|(name, token)| (name.to_owned(), token.to_owned()))
            .collect()
    }
}

/// The special tokens in id order, filled up with `<SPECIAL_n>`.
fn special_tokens(listed: Option<Vec<Special>>, count: usize, version: u32) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = match listed {
        Some(listed) => {
            if let Some((i, token)) = listed.iter().enumerate().find(|(i, token)| token.rank != *i) {
                return Err(format!("special_tokens[{i}].rank is {}, expected {i}", token.rank));
            }
            listed.into_iter().map(|token| token.token_str).collect()
        }
        None if version > 7 => return Err("special_tokens is missing".to_owned()),
        None => DEFAULT_SPECIAL.map(str::to_owned).to_vec(),
    };
    if names.len() > count || count > MAX_SPECIAL {
        return Err(format!("default_num_special_tokens is {count}, but special_tokens has {}", names.len()));
    }
    names.extend((names.len()..count).map(|id| format!("<SPECIAL_{id}>")));
    Ok(names)
}

/// The bytes of the first `count` tokens, checked as mistral_common does: in rank order, all single bytes first.
fn ordinary_tokens(vocab: &[Token], count: usize) -> Result<Vec<Box<[u8]>>, String> {
    if vocab.len() < count || count < 256 {
        return Err(format!("vocab has {} tokens, expected {count}, at least 256", vocab.len()));
    }
    let decode = |(i, token): (usize, &Token)| {
        let bytes =
            BASE64.decode(&token.token_bytes).map_err(|e| format!("vocab[{i}].token_bytes is not base64: {e}"))?;
        if token.rank != i {
            return Err(format!("vocab[{i}].rank is {}, expected {i}", token.rank));
        }
        if i < 256 && bytes != [i as u8] {
            return Err(format!("vocab[{i}].token_bytes is not the single byte {i}"));
        }
        Ok(bytes.into_boxed_slice())
    };
    vocab[..count].iter().enumerate().map(decode).collect()
}

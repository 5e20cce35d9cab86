//! The tokenizer of a checkpoint, whichever file it comes in: text to token ids and back. Knows no templates and no streams.

use std::path::Path;
use std::sync::Arc;

use vllm_apple_model::file;

use super::TextError;
use super::gate::Gate;
use super::hugging_face::{HuggingFaceTokenizer, Pieces};
use super::length::LengthBound;
use super::special::SpecialTokens;
use super::tekken::{Piece, Tekken};
use super::truncation::Side;

/// A checkpoint's tokenizer and its special tokens, which clones share.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pub(super) source: Source,
    special: Arc<SpecialTokens>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<u32>,
    eos_token_ids: Arc<[u32]>,
    length_bound: Arc<LengthBound>,
    max_tokens: usize,
    /// A text may have as many times `max_tokens`.
    times: usize,
    max_memory: usize,
    gate: Arc<Gate>,
}

/// A text that is only to be counted may have so many times the tokens of a prompt: what it takes then is bounded by the model's length as other
/// texts' is.
const TIMES_TO_COUNT: usize = 16;

/// Bytes of normalized text that are tokenized at once; a longer text alone.
const AT_ONCE: usize = 2 << 20;

/// Bytes that the `tokenizers` crate takes for each byte of a normalized text while it works on it: 395 where every character is a piece of
/// its own that becomes two, as of `\r1`.
const PER_TEXT_BYTE: usize = 400;

/// The file that a tokenizer was read from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// tokenizer.json
    HuggingFace(Arc<HuggingFaceTokenizer>),
    /// tekken.json
    Tekken(Arc<Tekken>),
}

impl Tokenizer {
    /// Reads tokenizer.json or, where only that is there, tekken.json, with the configuration files beside it.
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let (json, tekken) = (dir.join("tokenizer.json"), dir.join("tekken.json"));
        // A GGUF file is a directory of what it stands for.
        if dir.is_file() && !file::exists(&json) {
            return Err(TextError::NoTokenizer { dir: dir.to_owned(), hint: "; it is a file: give its directory" });
        }
        let special = SpecialTokens::from_dir(dir)?;
        if file::exists(&json) {
            let hugging_face = HuggingFaceTokenizer::from_file(&json, &special)?;
            return Ok(Self::new(Source::HuggingFace(Arc::new(hugging_face)), special));
        }
        if tekken.is_file() {
            return Ok(Self::new(Source::Tekken(Arc::new(Tekken::from_file(&tekken)?)), special));
        }
        let hint = if dir.join("tokenizer.model").is_file() {
            "; its tokenizer.model alone is not read: convert it once with transformers' save_pretrained"
        } else if dir.join("vocab.json").is_file() {
            "; its vocab.json and merges.txt alone are not read: convert them once with transformers' save_pretrained"
        } else {
            ""
        };
        Err(TextError::NoTokenizer { dir: dir.to_owned(), hint })
    }

    fn new(source: Source, mut special: SpecialTokens) -> Self {
        let length_bound = match &source {
            Source::HuggingFace(hugging_face) => hugging_face.length_bound(),
            Source::Tekken(tekken) => tekken.length_bound(),
        };
        if let Source::Tekken(tekken) = &source {
            special.named = tekken.named_tokens();
        }
        let tokenizer = Self {
            source,
            special: Arc::new(special),
            bos_token_id: None,
            eos_token_id: None,
            eos_token_ids: Arc::default(),
            length_bound: Arc::new(length_bound),
            max_tokens: usize::MAX,
            times: 1,
            max_memory: usize::MAX,
            gate: Arc::new(Gate::new(AT_ONCE)),
        };
        let id = |name| tokenizer.special.get(name).and_then(|text| tokenizer.token_to_id(text));
        let (bos, eos) = (id("bos_token"), id("eos_token"));
        let mut all: Vec<u32> = eos.into_iter().chain(tokenizer.special.configured_eos_ids.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        Self { bos_token_id: bos, eos_token_id: eos, eos_token_ids: all.into(), ..tokenizer }
    }

    /// The same tokenizer, of texts that may have `max_tokens` tokens. One that must have more is refused before it is tokenized, which
    /// would take hundreds of times its memory; one that could have fewer may still turn out to have more.
    pub fn bounded(self, max_tokens: usize) -> Self {
        Self { max_tokens, ..self }
    }

    /// The same tokenizer, of texts that are only to be counted: who asks how much too long a text is is told.
    pub fn to_count(&self) -> Self {
        Self { times: TIMES_TO_COUNT, ..self.clone() }
    }

    /// The same tokenizer, which refuses a text that could take more than so many bytes while it is tokenized.
    pub fn within_memory(self, max_memory: usize) -> Self {
        Self { max_memory, ..self }
    }

    /// Token ids of a text. Special tokens written in the text are recognised (not with tekken.json, as in mistral_common);
    /// `add_special_tokens` adds what the tokenizer puts around a text, such as the beginning of a sequence.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let weight = self.weigh(|| std::iter::once(text))?;
        self.gate.pass(weight, || match &self.source {
            Source::HuggingFace(hugging_face) => hugging_face.encode(text, add_special_tokens),
            Source::Tekken(tekken) => {
                let mut ids = Vec::new();
                ids.extend(self.bos_token_id.filter(|_| add_special_tokens));
                tekken.encode_into(text, &mut ids)?;
                Ok(ids)
            }
        })
    }

    /// Token ids of a prompt in Mistral's format.
    pub(super) fn encode_pieces(&self, pieces: &[Piece]) -> Result<Vec<u32>, TextError> {
        let Source::Tekken(tekken) = &self.source else {
            return Err(TextError::Template("a prompt in Mistral's format needs a tekken.json".to_owned()));
        };
        let weight = self.weigh(|| pieces.iter().filter_map(Piece::text))?;
        self.gate.pass(weight, || {
            let mut ids = Vec::new();
            for piece in pieces {
                match piece {
                    Piece::Text(text) => tekken.encode_into(text, &mut ids)?,
                    Piece::Special(token) => ids.push(
                        tekken
                            .special_id(token)
                            .ok_or_else(|| TextError::Template(format!("tekken.json has no special token {token}")))?,
                    ),
                }
            }
            Ok(ids)
        })
    }

    /// Refuses texts that must have more tokens together than a prompt may.
    pub(super) fn check_lengths<'t, I: Iterator<Item = &'t str>>(
        &self,
        texts: impl Fn() -> I,
    ) -> Result<(), TextError> {
        let bytes = texts().map(str::len).sum();
        let (max, times) = (self.max_tokens.saturating_mul(self.times), self.times);
        if bytes <= max {
            return Ok(());
        }
        match texts().map(|text| self.length_bound.least_tokens(text)).sum() {
            least if least <= max => Ok(()),
            least if times > 1 => Err(TextError::TooLongToCount { bytes, least, max, times }),
            least => Err(TextError::TooLong { bytes, least, max }),
        }
    }

    /// The longest part of a text, without its end or its beginning, of which it is not known beforehand that it has too many tokens.
    pub(super) fn part_of_bounded_length<'t>(&self, text: &'t str, cut: Side) -> &'t str {
        let part = |bytes: usize| match cut {
            Side::Right => &text[..(0..=bytes).rfind(|&at| text.is_char_boundary(at)).unwrap_or(0)],
            Side::Left => {
                let at = (text.len() - bytes..text.len()).find(|&at| text.is_char_boundary(at));
                &text[at.unwrap_or(text.len())..]
            }
        };
        let fits = |bytes: usize| self.check_lengths(|| std::iter::once(part(bytes))).is_ok();
        let (mut fitting, mut too_long) = (0, text.len() + 1);
        // Most texts fit.
        if fits(text.len()) {
            return text;
        }
        while fitting + 1 < too_long {
            let middle = fitting + (too_long - fitting) / 2;
            if fits(middle) { fitting = middle } else { too_long = middle }
        }
        part(fitting)
    }

    /// What texts weigh at the gate. Refuses those that must have too many tokens, or could take more memory than there is for them.
    fn weigh<'t, I: Iterator<Item = &'t str>>(&self, texts: impl Fn() -> I) -> Result<usize, TextError> {
        self.check_lengths(&texts)?;
        let bytes: usize = texts().map(str::len).sum();
        let check = |weight: usize| match weight.saturating_mul(PER_TEXT_BYTE) {
            needs if needs > self.max_memory => Err(TextError::TooLarge { bytes, needs, memory: self.max_memory }),
            _ => Ok(weight),
        };
        // Most texts become no shorter.
        check(bytes)?;
        check(texts().map(|text| self.normalized_len(text)).sum())
    }

    /// About how many bytes a text has when it is tokenized.
    pub fn normalized_len(&self, text: &str) -> usize {
        match &self.source {
            Source::HuggingFace(hugging_face) => hugging_face.normalized_len(text),
            Source::Tekken(_) => text.len(),
        }
    }

    /// The text of token ids; ids outside the vocabulary have none.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        match &self.source {
            Source::HuggingFace(hugging_face) => hugging_face.decode(ids, skip_special_tokens),
            Source::Tekken(tekken) => Ok(tekken.decode(ids, skip_special_tokens)),
        }
    }

    /// One more than the highest token id. The model's embedding may be larger (padding), never smaller.
    pub fn vocab_size(&self) -> usize {
        match &self.source {
            Source::HuggingFace(hugging_face) => hugging_face.vocab_size(),
            Source::Tekken(tekken) => tekken.vocab_size(),
        }
    }

    /// The id of a token by its exact text in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        match &self.source {
            Source::HuggingFace(hugging_face) => hugging_face.token_to_id(token),
            Source::Tekken(tekken) => tekken.special_id(token),
        }
    }

    /// Whether there is a token with this id: a vocabulary may have gaps.
    pub fn contains(&self, id: u32) -> bool {
        match &self.source {
            Source::HuggingFace(hugging_face) => hugging_face.contains(id),
            Source::Tekken(tekken) => (id as usize) < tekken.vocab_size(),
        }
    }

    /// The bytes that a token contributes to a running text: for `logprobs`, where a token may be part of a character.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match &self.source {
            Source::HuggingFace(hugging_face) => hugging_face.token_bytes(id),
            Source::Tekken(tekken) => tekken.token_bytes(id).to_vec(),
        }
    }

    /// A token as text for display, a leading space included; parts of characters show as U+FFFD.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.token_bytes(id)).into_owned()
    }

    /// A token as the vocabulary spells it, which transformers calls the token itself: `Ġworld`, `▁world`, `<0xF0>`, and of a tekken.json, which
    /// spells bytes, its text. One outside the vocabulary has no letters.
    pub fn token(&self, id: u32) -> String {
        match &self.source {
            Source::HuggingFace(hugging_face) => hugging_face.token(id),
            Source::Tekken(_) => self.token_text(id),
        }
    }

    /// Whether `skip_special_tokens` leaves this token out.
    pub fn is_special(&self, id: u32) -> bool {
        match &self.source {
            Source::HuggingFace(hugging_face) => hugging_face.is_special(id),
            Source::Tekken(tekken) => tekken.is_special(id),
        }
    }

    /// The text of the token that begins a sequence.
    pub fn bos_token(&self) -> Option<&str> {
        self.special.get("bos_token")
    }

    /// The text of the token that ends a sequence.
    pub fn eos_token(&self) -> Option<&str> {
        self.special.get("eos_token")
    }

    /// The token that begins a sequence.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.bos_token_id
    }

    /// The tokenizer's own end token.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.eos_token_id
    }

    /// Every token that ends a generation unless `ignore_eos` is set: the tokenizer's end token and the `eos_token_id`s of
    /// generation_config.json, or without one those of config.json. Sorted.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos_token_ids
    }

    /// The named special tokens.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// How pieces become text in a stream.
    pub(super) fn pieces(&self) -> Option<(&HuggingFaceTokenizer, &Pieces)> {
        match &self.source {
            Source::HuggingFace(hugging_face) => Some((hugging_face, hugging_face.pieces())),
            Source::Tekken(_) => None,
        }
    }
}

//! A tokenizer.json behind the `tokenizers` crate, and how each of its tokens becomes bytes; knows nothing of requests.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, Encoding, NormalizedString, Normalizer, PostProcessor, Token, Tokenizer as Library};
use vllm_apple_model::file;

use super::TextError;
use super::growth;
use super::length::LengthBound;
use super::special::{NamedToken, SpecialTokens};
use super::tekken;

/// How the pieces of a stream become text.
#[derive(Debug)]
pub(super) enum Pieces {
    /// Every token is a fixed byte string and the text is their concatenation (ByteLevel).
    Bytes(ByteTable),
    /// Every token is a fixed text, or one byte of a character (`<0xE2>`); the text may lose some leading characters.
    SentencePiece(LeadingStrip),
    /// The text of a token depends on its neighbours.
    Windowed,
}

/// Up to `count` times `what` is removed from the beginning of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeadingStrip {
    pub what: char,
    pub count: usize,
}

/// The bytes of all tokens, by id, in one allocation.
#[derive(Debug)]
pub(super) struct ByteTable {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ByteTable {
    fn get(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..end]
    }
}

/// Far above any vocabulary: what a damaged file can make us allocate.
const MAX_VOCAB_SIZE: usize = 1 << 24;

/// The library's tokenizer with the configuration's additions applied.
#[derive(Debug)]
pub(super) struct HuggingFaceTokenizer {
    library: Library,
    pieces: Pieces,
    vocab_size: usize,
    special: HashSet<u32>,
    /// An ordinary token and its text: what stands before a token whose text inside a sentence is wanted.
    context: Option<(u32, String)>,
}

impl HuggingFaceTokenizer {
    pub fn from_file(path: &Path, special: &SpecialTokens) -> Result<Self, TextError> {
        let bytes = file::read(path, file::MAX_TOKENIZER)
            .map_err(|source| TextError::Read { path: path.to_owned(), source })?;
        let invalid = |reason: String| TextError::Invalid { path: path.to_owned(), reason };
        growth::check(&bytes).map_err(invalid)?;
        let tekken = tekken::pattern_beside(path)?;
        // The library indexes and unwraps on some malformed files; a bad file must not end the process.
        let loaded = catch_unwind(|| {
            let mut library = Library::from_bytes(&bytes).map_err(|e| e.to_string())?;
            configure(&mut library, special)?;
            if let Some(pattern) = &tekken {
                split_by(&mut library, pattern)?;
            }
            // The library tells steps without a known type by their fields: once more, by what it has understood.
            let understood = json!({
                "normalizer": library.get_normalizer(),
                "post_processor": library.get_post_processor(),
                "decoder": library.get_decoder(),
            });
            growth::check(understood.to_string().as_bytes())?;
            Ok::<_, String>(library)
        });
        let library = match loaded {
            Ok(result) => result.map_err(invalid)?,
            Err(_) => return Err(invalid("its parts do not fit together".to_owned())),
        };
        let highest = library.get_vocab(true).values().max().copied();
        let vocab_size = highest.map_or(0, |id| id as usize + 1);
        if vocab_size > MAX_VOCAB_SIZE {
            return Err(invalid(format!("it has a token id of {}, expected one below 2^24", vocab_size - 1)));
        }
        let hugging_face = catch_unwind(AssertUnwindSafe(|| Self::new(library, vocab_size)))
            .map_err(|_| invalid("its vocabulary and decoder do not fit together".to_owned()))?;
        hugging_face.check_ids().map_err(invalid)?;
        Ok(hugging_face)
    }

    /// Tokenizes a text: what fails for any is the file's fault, not a request's.
    fn check_ids(&self) -> Result<(), String> {
        if let Some(post_processor) = self.library.get_post_processor() {
            let text = Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0))], 0);
            let processed = guarded(|| post_processor.process(text, None, false)).map_err(|error| error.to_string())?;
            if processed.is_empty() {
                return Err("its post_processor leaves out the text".to_owned());
            }
        }
        for (part, add_special_tokens) in [("model", false), ("post_processor", true)] {
            let ids = self.encode("Hello, 1 \u{10ffff}", add_special_tokens);
            let ids = ids.map_err(|error| format!("it cannot tokenize: {error}"))?;
            if let Some(id) = ids.into_iter().find(|&id| !self.contains(id)) {
                return Err(format!("its {part} makes a token {id}, which its vocabulary does not have"));
            }
        }
        Ok(())
    }

    fn new(library: Library, vocab_size: usize) -> Self {
        let added = library.get_added_vocabulary();
        let special = |(id, token): (&u32, &AddedToken)| added.is_special_token(&token.content).then_some(*id);
        let special = added.get_added_tokens_decoder().iter().filter_map(special).collect();
        let mut hugging_face = Self { library, pieces: Pieces::Windowed, vocab_size, special, context: None };
        hugging_face.context = hugging_face.find_context();
        hugging_face.pieces = hugging_face.classify();
        hugging_face
    }

    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.library.token_to_id(token)
    }

    pub fn token(&self, id: u32) -> String {
        self.library.id_to_token(id).unwrap_or_default()
    }

    pub fn contains(&self, id: u32) -> bool {
        self.library.id_to_token(id).is_some()
    }

    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// The text of an added token, special or not; `None` for tokens of the model's own vocabulary.
    pub fn added_token(&self, id: u32) -> Option<String> {
        self.library.get_added_vocabulary().simple_id_to_token(id)
    }

    /// About how many bytes the normalizer makes of a text. A window at a time: as a whole that would take forty times the text.
    pub fn normalized_len(&self, text: &str) -> usize {
        const WINDOW: usize = 16_384;
        let Some(normalizer) = self.library.get_normalizer() else { return text.len() };
        let normalize = |window: &str| {
            let mut normalized = NormalizedString::from(window);
            normalizer.normalize(&mut normalized)?;
            Ok(normalized.get().len())
        };
        let (mut rest, mut len) = (text, 0);
        while !rest.is_empty() {
            let end = (1..=WINDOW.min(rest.len())).rev().find(|&at| rest.is_char_boundary(at));
            let (window, after) = rest.split_at(end.unwrap_or(rest.len()));
            // What fails here fails again when the text is tokenized, and is told then.
            len += guarded(|| normalize(window)).unwrap_or(window.len());
            rest = after;
        }
        len
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let encoding = guarded(|| self.library.encode_fast(text, add_special_tokens))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        guarded(|| self.library.decode(ids, skip_special_tokens))
    }

    /// The bytes that a token contributes inside a text. A byte token gives its one byte.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match &self.pieces {
            Pieces::Bytes(table) => table.get(id).to_vec(),
            Pieces::SentencePiece(_) => match self.byte_token(id) {
                Some(byte) => vec![byte],
                None => self.text_inside(id).into_bytes(),
            },
            Pieces::Windowed => self.text_inside(id).into_bytes(),
        }
    }

    /// The byte of a token such as `<0xE2>`.
    pub fn byte_token(&self, id: u32) -> Option<u8> {
        parse_byte_token(&self.library.id_to_token(id)?)
    }

    /// The text of a token that is not the first of a text.
    fn text_inside(&self, id: u32) -> String {
        if let Some((context, prefix)) = &self.context
            && let Ok(both) = self.decode(&[*context, id], false)
            && let Some(text) = both.strip_prefix(prefix.as_str())
        {
            return text.to_owned();
        }
        self.decode(&[id], false).unwrap_or_default()
    }

    /// What the vocabulary says about the length of texts.
    pub fn length_bound(&self) -> LengthBound {
        let vocab = self.library.get_vocab(true);
        let shrink = serde_json::to_value(self.library.get_normalizer()).ok().and_then(|n| shrink_of_normalizer(&n));
        let pre_tokenizer = serde_json::to_value(self.library.get_pre_tokenizer()).unwrap_or_default();
        let strips = self.library.get_added_tokens_decoder().values().any(|token| token.lstrip || token.rstrip);
        match shrink.filter(|_| !strips && keeps_all(&pre_tokenizer)) {
            Some(shrink) if matches!(self.pieces, Pieces::Bytes(_)) => {
                LengthBound::of_bytes(vocab.values().map(|&id| self.token_bytes(id)), shrink)
            }
            Some(shrink) if matches!(self.pieces, Pieces::SentencePiece(_)) => {
                // The vocabulary spells a space `▁`, which may stand for itself, too.
                let spelled = vocab.keys().flat_map(|token| [token.replace('▁', " "), token.clone()]);
                LengthBound::of_bytes(spelled, shrink)
            }
            _ => LengthBound::Chars(vocab.keys().map(|token| token.chars().count()).max().unwrap_or(1).max(1)),
        }
    }

    /// An ordinary word of the vocabulary to put before other tokens.
    fn find_context(&self) -> Option<(u32, String)> {
        (0..self.vocab_size as u32).find_map(|id| {
            let token = self.library.id_to_token(id)?;
            let ordinary = token.bytes().all(|b| b.is_ascii_alphabetic());
            let text = (ordinary && self.added_token(id).is_none()).then(|| self.decode(&[id], false).ok())??;
            (!text.is_empty()).then_some((id, text))
        })
    }

    fn classify(&self) -> Pieces {
        let decoder = serde_json::to_value(self.library.get_decoder()).unwrap_or_default();
        match sequence_of(&decoder).as_slice() {
            [one] if kind(one) == "ByteLevel" => Pieces::Bytes(self.byte_table()),
            steps => sentence_piece(steps).map_or(Pieces::Windowed, Pieces::SentencePiece),
        }
    }

    fn byte_table(&self) -> ByteTable {
        let mut table = ByteTable { bytes: Vec::new(), ends: Vec::with_capacity(self.vocab_size) };
        let byte_of = byte_level_alphabet();
        for id in 0..self.vocab_size as u32 {
            let token = self.library.id_to_token(id).unwrap_or_default();
            let mapped: Option<Vec<u8>> = token.chars().map(|c| byte_of.get(c as usize).copied()?).collect();
            // A token with a character outside the alphabet (an added token) stands for its own UTF-8.
            match mapped {
                Some(bytes) => table.bytes.extend_from_slice(&bytes),
                None => table.bytes.extend_from_slice(token.as_bytes()),
            }
            table.ends.push(table.bytes.len());
        }
        table
    }
}

/// What the library answers. It indexes and unwraps on some malformed files, which must not end a request's thread.
fn guarded<T>(ask: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TextError> {
    match catch_unwind(AssertUnwindSafe(ask)) {
        Ok(answer) => answer.map_err(|e| TextError::Tokenize(e.to_string())),
        Err(_) => Err(TextError::Tokenize("tokenizer.json is inconsistent".to_owned())),
    }
}

/// Applies tokenizer_config.json as transformers does from version 5 on: named tokens become special, and what stands around a text is
/// tokenizer.json's business, whatever `add_bos_token` and `add_eos_token` say. Truncation and padding stored in the file are for
/// training and are switched off.
fn configure(library: &mut Library, special: &SpecialTokens) -> Result<(), String> {
    library.with_truncation(None).map_err(|e| e.to_string())?;
    library.with_padding(None);
    // So is leaving out merges at random.
    if let ModelWrapper::BPE(bpe) = library.get_model()
        && bpe.dropout.is_some()
    {
        let mut bpe = bpe.clone();
        bpe.dropout = None;
        library.with_model(ModelWrapper::BPE(bpe));
    }
    // All at once: the library searches texts for added tokens by an automaton, which it makes anew with every call.
    let added: Vec<AddedToken> = special.tokens.iter().filter_map(|token| added_token(library, token)).collect();
    library.add_tokens(added).map_err(|e| e.to_string())?;
    Ok(())
}

/// Cuts texts by the pattern of a tekken.json: what converters wrote into many a tokenizer.json beside one, or made of one, is Llama's, which cuts
/// words elsewhere than the model was trained with. transformers and vLLM take tekken.json then; from tokenizer.json come tokens and merges, which are
/// the same.
fn split_by(library: &mut Library, pattern: &str) -> Result<(), String> {
    let Some(steps) = library.get_pre_tokenizer() else { return Ok(()) };
    let mut steps = serde_json::to_value(steps).map_err(|e| e.to_string())?;
    let step = match steps.get_mut("pretokenizers").and_then(Value::as_array_mut) {
        Some(steps) => steps.iter_mut().find(|step| kind(step) == "Split"),
        None => Some(&mut steps).filter(|step| kind(step) == "Split"),
    };
    let Some(regex) = step.and_then(|step| step.pointer_mut("/pattern/Regex")) else { return Ok(()) };
    if regex != pattern {
        tracing::warn!("tokenizer.json cuts texts otherwise than tekken.json beside it, whose pattern is taken");
        *regex = pattern.into();
        let steps: PreTokenizerWrapper = serde_json::from_value(steps).map_err(|e| e.to_string())?;
        library.with_pre_tokenizer(Some(steps));
    }
    Ok(())
}

/// A named token as it is to be added or changed; `None` if the vocabulary has it so.
fn added_token(library: &Library, token: &NamedToken) -> Option<AddedToken> {
    let known = library.token_to_id(&token.content);
    match known.and_then(|id| library.get_added_vocabulary().get_added_tokens_decoder().get(&id)) {
        Some(known) if known.special || !token.special => None,
        Some(known) => Some(AddedToken { special: true, ..known.clone() }),
        None => Some(
            AddedToken::from(token.content.clone(), token.special)
                .lstrip(token.lstrip)
                .rstrip(token.rstrip)
                .single_word(token.single_word)
                .normalized(token.normalized),
        ),
    }
}

/// By what factor a normalizer may make a text shorter, in bytes; `None` if nobody knows.
fn shrink_of_normalizer(normalizer: &Value) -> Option<usize> {
    match kind(normalizer) {
        "" | "ByteLevel" | "Prepend" => Some(1),
        // A space becomes `▁`, as in SentencePiece.
        "Replace" if normalizer.pointer("/pattern/String").and_then(Value::as_str) == Some(" ") => {
            normalizer.get("content")?.as_str().filter(|content| !content.is_empty()).map(|_| 1)
        }
        // Three letters of three bytes may make one syllable of three.
        "NFC" => Some(3),
        "Sequence" => {
            let steps = normalizer.get("normalizers")?.as_array()?;
            steps.iter().try_fold(1, |all, step| Some(all * shrink_of_normalizer(step)?))
        }
        _ => None,
    }
}

/// Whether a pre-tokenizer drops no character.
fn keeps_all(pre_tokenizer: &Value) -> bool {
    match kind(pre_tokenizer) {
        "" => pre_tokenizer.is_null(),
        "ByteLevel" | "Metaspace" | "Digits" => true,
        "Split" => pre_tokenizer.get("behavior").and_then(Value::as_str).is_some_and(|behavior| behavior != "Removed"),
        "Sequence" => {
            let steps = pre_tokenizer.get("pretokenizers").and_then(Value::as_array);
            steps.is_some_and(|steps| steps.iter().all(keeps_all))
        }
        _ => false,
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The steps of a decoder; a single decoder is a sequence of one.
fn sequence_of(decoder: &Value) -> Vec<&Value> {
    match decoder.get("decoders").and_then(Value::as_array) {
        Some(steps) => steps.iter().collect(),
        None => vec![decoder],
    }
}

/// Recognises `Replace* ByteFallback Fuse Strip?`, the decoder of SentencePiece models with byte fallback.
fn sentence_piece(steps: &[&Value]) -> Option<LeadingStrip> {
    let first = steps.iter().position(|step| kind(step) != "Replace")?;
    let (strip, rest) = match &steps[first..] {
        [bytes, fuse] => (None, [bytes, fuse]),
        [bytes, fuse, strip] => (Some(strip), [bytes, fuse]),
        _ => return None,
    };
    if kind(rest[0]) != "ByteFallback" || kind(rest[1]) != "Fuse" {
        return None;
    }
    let Some(strip) = strip else { return Some(LeadingStrip { what: ' ', count: 0 }) };
    let what = strip.get("content")?.as_str()?.chars().next()?;
    let count = strip.get("start")?.as_u64()? as usize;
    (kind(strip) == "Strip" && strip.get("stop")?.as_u64() == Some(0)).then_some(LeadingStrip { what, count })
}

fn parse_byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// The byte for each character of the GPT-2 byte alphabet, by code point: printable Latin-1 stands for itself, the other
/// 68 bytes follow from U+0100 in order.
fn byte_level_alphabet() -> Vec<Option<u8>> {
    let mut table = vec![None; 0x144];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            table[byte as usize] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
}

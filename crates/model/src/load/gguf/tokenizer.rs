//! `tokenizer.json` and `tokenizer_config.json` as a GGUF file's metadata say them. It tokenizes nothing.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::config::is_end;

/// A vocabulary's kinds of tokens that are no ordinary text.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;

/// GPT-4's pattern as Llama 3 has it, and Qwen 2 with one digit at a time.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As Qwen 2's, with line ends apart from punctuation.
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As Qwen 2's, with marks where letters are.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const FALCON_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";
const THREE_DIGITS: &str = "[0-9][0-9][0-9]";

const DIGIT: &str = r"\p{N}";
const NEWLINE: &str = r"[\r\n]";
/// DeepSeek's letters of scripts with two cases, punctuation, and Chinese, Japanese and Korean.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ",
    r"-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆ",
    r"ﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
);
const DEEPSEEK_PUNCTUATION: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
const DEEPSEEK_CJK: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";

/// How a text is cut before pairs are merged, by `tokenizer.ggml.pre`.
struct Pre {
    names: &'static [&'static str],
    /// One after the other; each cuts the pieces that those before it leave.
    patterns: &'static [&'static str],
    /// Whether a text that is a token is that token.
    ignore_merges: bool,
    /// Whether texts begin with a token of their own, unless the file says otherwise.
    add_bos: bool,
}

impl Pre {
    /// Those of most files.
    const fn new(names: &'static [&'static str], patterns: &'static [&'static str]) -> Self {
        Self { names, patterns, ignore_merges: false, add_bos: false }
    }
}

/// What llama.cpp takes where a file does not say it.
const DEFAULT: &str = "default";

/// Those of Llama 3's kind.
const LLAMA3_NAMES: [&str; 7] = ["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"];

/// By the names that llama.cpp (`llama_vocab::impl::load`) treats alike.
const PRES: [Pre; 13] = [
    Pre { ignore_merges: true, add_bos: true, ..Pre::new(&LLAMA3_NAMES, &[LLAMA3]) },
    Pre::new(&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2"], &[QWEN2]),
    Pre::new(&["qwen35"], &[QWEN35]),
    Pre::new(&["falcon"], &[FALCON_PUNCTUATION, GPT2, THREE_DIGITS]),
    Pre { ignore_merges: true, add_bos: true, ..Pre::new(&["tekken"], &[TEKKEN]) },
    Pre::new(&["gpt-4o", "llama4", "kanana2"], &[O200K]),
    Pre::new(&["gpt-2", "gpt2", "phi-2", "mellum", "a.x-4.0", "gigachat", "mpt"], &[GPT2]),
    Pre::new(&["smollm", "starcoder", "refact", "command-r"], &[DIGIT, GPT2]),
    Pre::new(&["deepseek-llm"], &[NEWLINE, DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, r"\s+$", DEEPSEEK_CJK, DIGIT]),
    Pre::new(&["smaug-bpe"], &[LLAMA3]),
    Pre::new(&["seed-coder"], &[SEED_CODER]),
    Pre::new(&[DEFAULT], &[PUNCTUATION, GPT2, r"\p{N}+", THREE_DIGITS]),
    Pre::new(&["deepseek-coder"], &[NEWLINE, r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, DIGIT]),
];

/// What the metadata say of a vocabulary.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<u64>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Map<String, Value>) -> Result<Self, String> {
        let tokens = tokens(metadata)?;
        let kinds = match metadata.get("tokenizer.ggml.token_type") {
            None => vec![1; tokens.len()],
            Some(list) => list.as_array().into_iter().flatten().map(|kind| kind.as_u64().unwrap_or(1)).collect(),
        };
        // What ends a reply is no ordinary text, whatever its kind says, as in llama.cpp.
        let kind = |(kind, text): (u64, &&str)| if is_end(text) { CONTROL } else { kind };
        match kinds.len() == tokens.len() {
            true => Ok(Self { kinds: kinds.into_iter().zip(&tokens).map(kind).collect(), tokens }),
            false => Err(format!(
                "tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens {}",
                kinds.len(),
                tokens.len()
            )),
        }
    }

    /// Tokens that are found in texts before anything else.
    fn added(&self) -> Vec<Value> {
        let is_added = |(_, kind): &(usize, &u64)| [UNKNOWN, CONTROL, USER_DEFINED].contains(*kind);
        let token = |(id, kind): (usize, &u64)| {
            json!({
                "id": id, "content": self.tokens[id], "special": *kind != USER_DEFINED, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false,
            })
        };
        self.kinds.iter().enumerate().filter(is_added).map(token).collect()
    }

    /// Ids by text, without those that no text becomes.
    fn ids(&self) -> Map<String, Value> {
        let used = self.tokens.iter().enumerate().filter(|(id, _)| self.kinds[*id] != UNUSED);
        used.map(|(id, token)| ((*token).to_owned(), id.into())).collect()
    }
}

fn strings<'a>(metadata: &'a Map<String, Value>, key: &str) -> Result<Vec<&'a str>, String> {
    let list = metadata.get(key).and_then(Value::as_array).ok_or_else(|| format!("it has no list {key}"))?;
    list.iter().map(|value| value.as_str().ok_or_else(|| format!("{key} is no list of texts"))).collect()
}

/// All tokens. Some files have none: models of other programs' tokenizers.
fn tokens(metadata: &Map<String, Value>) -> Result<Vec<&str>, String> {
    const KEY: &str = "tokenizer.ggml.tokens";
    match metadata.contains_key(KEY) {
        true => strings(metadata, KEY),
        false => Err("the GGUF file holds no tokenizer; give the directory of one as `tokenizer`".to_owned()),
    }
}

/// `tokenizer.json`.
pub(super) fn tokenizer(metadata: &Map<String, Value>) -> Result<Value, String> {
    tokens(metadata)?;
    match metadata.get("tokenizer.ggml.model").and_then(Value::as_str) {
        Some("gpt2") => byte_level(metadata),
        Some("llama") => sentence_piece(metadata),
        Some("gemma4") => gemma4(metadata),
        Some("bert") => word_piece(metadata),
        other => Err(format!(
            "tokenizer.ggml.model is {}, which is not supported; supported are gpt2, llama, gemma4 and bert, or give another `tokenizer`",
            other.map_or_else(|| "(absent)".to_owned(), |name| name.chars().take(40).collect())
        )),
    }
}

/// What a file says of how texts are cut, if it does.
fn pre_name(metadata: &Map<String, Value>) -> Option<&str> {
    metadata.get("tokenizer.ggml.pre").and_then(Value::as_str).filter(|name| !name.is_empty())
}

/// Whether texts are cut in some way that need not be the one with which the model was trained, as files of before April 2024 do not say it.
pub(super) fn is_guessed(metadata: &Map<String, Value>) -> bool {
    metadata.get("tokenizer.ggml.model").is_some_and(|model| *model == json!("gpt2")) && pre_name(metadata).is_none()
}

fn pre(metadata: &Map<String, Value>) -> Result<&'static Pre, String> {
    let name = pre_name(metadata).unwrap_or(DEFAULT);
    PRES.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| {
        let name: String = name.chars().take(40).collect();
        let known: Vec<&str> = PRES.iter().flat_map(|pre| pre.names).copied().collect();
        format!(
            "tokenizer.ggml.pre is {name:?}, which is not supported; supported are {}, or give another `tokenizer`",
            known.join(", ")
        )
    })
}

fn byte_level(metadata: &Map<String, Value>) -> Result<Value, String> {
    let (vocabulary, pre) = (Vocabulary::read(metadata)?, pre(metadata)?);
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let steps: Vec<Value> = pre.patterns.iter().copied().map(cut).chain([bytes.clone()]).collect();
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": post_processor(metadata, &vocabulary.tokens, [("bos", pre.add_bos), ("eos", false)])?,
        "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": pre.ignore_merges, "vocab": vocabulary.ids(),
            "merges": listed_merges(metadata)?,
        },
    }))
}

/// The step that makes each match of `pattern`, and what lies between two, a piece of its own.
fn cut(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

/// The pairs that are merged, the first ones first, where the file lists them.
fn listed_merges(metadata: &Map<String, Value>) -> Result<Vec<Value>, String> {
    let split = |merge: &str| merge.split_once(' ').map(|(left, right)| json!([left, right]));
    let merges: Option<_> = strings(metadata, "tokenizer.ggml.merges")?.into_iter().map(split).collect();
    merges.ok_or_else(|| "tokenizer.ggml.merges has an entry that is no pair".to_owned())
}

fn sentence_piece(metadata: &Map<String, Value>) -> Result<Value, String> {
    let vocabulary = Vocabulary::read(metadata)?;
    let scores = metadata.get("tokenizer.ggml.scores").and_then(Value::as_array);
    let scores = scores.ok_or("it has no list tokenizer.ggml.scores")?;
    if scores.len() != vocabulary.tokens.len() {
        return Err("tokenizer.ggml.scores and tokenizer.ggml.tokens differ in length".to_owned());
    }
    let with_prefix = metadata.get("tokenizer.ggml.add_space_prefix") != Some(&Value::Bool(false));
    marked_spaces(metadata, &vocabulary, merges(&vocabulary, scores), with_prefix, Value::Null)
}

/// Gemma 4's: as SentencePiece's, with listed merges, of which none joins a newline with anything else.
fn gemma4(metadata: &Map<String, Value>) -> Result<Value, String> {
    marked_spaces(metadata, &Vocabulary::read(metadata)?, listed_merges(metadata)?, false, cut(r"\n+"))
}

/// Pairs of characters merged, with `▁` for spaces, and bytes where no token is a character's.
fn marked_spaces(
    metadata: &Map<String, Value>,
    vocabulary: &Vocabulary<'_>,
    merges: Vec<Value>,
    with_prefix: bool,
    pre_tokenizer: Value,
) -> Result<Value, String> {
    let unknown = named(metadata, &vocabulary.tokens, "unknown")?.map(|(_, token)| token);
    let replaced = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let (mut normalizers, mut decoders) = (Vec::new(), Vec::new());
    decoders.push(json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}));
    decoders.extend([json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
    if with_prefix {
        normalizers.push(json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    normalizers.push(replaced);
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor(metadata, &vocabulary.tokens, [("bos", true), ("eos", false)])?,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary.ids(), "merges": merges,
        },
    }))
}

/// BERT's: the longest tokens from the left. The file marks those that begin a word; the library, those that go on in one.
fn word_piece(metadata: &Map<String, Value>) -> Result<Value, String> {
    let vocabulary = Vocabulary::read(metadata)?;
    let (unknown, _) =
        named(metadata, &vocabulary.tokens, "unknown")?.ok_or("it has no tokenizer.ggml.unknown_token_id")?;
    let flag = |name: &str, otherwise: bool| {
        metadata.get(&format!("tokenizer.ggml.normalizer.{name}")).and_then(Value::as_bool).unwrap_or(otherwise)
    };
    let lowercase = flag("lowercase", true);
    let remarked = |id: usize| match (vocabulary.kinds[id], vocabulary.tokens[id]) {
        (CONTROL, token) => token.to_owned(),
        (_, token) => token.strip_prefix('▁').map_or_else(|| format!("##{token}"), str::to_owned),
    };
    let ids: Map<String, Value> = (0..vocabulary.tokens.len()).map(|id| (remarked(id), id.into())).collect();
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "lowercase": lowercase,
            "strip_accents": flag("strip_accents", lowercase),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": post_processor(metadata, &vocabulary.tokens, [("cls", true), ("seperator", true)])?,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": remarked(unknown), "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": ids,
        },
    }))
}

/// The pairs that make each token, the best tokens first: SentencePiece merges by the score of what comes out.
fn merges(vocabulary: &Vocabulary<'_>, scores: &[Value]) -> Vec<Value> {
    let ids: HashMap<&str, usize> = vocabulary.tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut pairs = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate().filter(|(id, _)| vocabulary.kinds[*id] == 1) {
        let first = pairs.len();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                pairs.push((scores[id].as_f64().unwrap_or(f64::MIN), l, r, left, right));
            }
        }
        pairs[first..].sort_by_key(|&(_, l, r, ..)| (l, r));
    }
    let length = |text: &str| text.chars().count();
    // Stable: pairs of equal rank stay in the order of their tokens.
    pairs.sort_by(|a, b| {
        b.0.total_cmp(&a.0).then_with(|| length(b.3).cmp(&length(a.3))).then_with(|| length(b.4).cmp(&length(a.4)))
    });
    pairs.into_iter().map(|(_, _, _, left, right)| json!([left, right])).collect()
}

/// The id and the text of a token that the metadata name, if they do.
fn named<'a>(
    metadata: &Map<String, Value>,
    tokens: &[&'a str],
    name: &str,
) -> Result<Option<(usize, &'a str)>, String> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let Some(value) = metadata.get(&key) else {
        // SentencePiece's own, which files may leave out.
        let of_sentence_piece = [("unknown", 0), ("bos", 1), ("eos", 2)].into_iter().find(|(of, _)| *of == name);
        let is_sentence_piece = metadata.get("tokenizer.ggml.model").is_some_and(|model| *model == json!("llama"));
        return Ok(of_sentence_piece.filter(|_| is_sentence_piece).and_then(|(_, id)| Some((id, *tokens.get(id)?))));
    };
    let id = value.as_u64().and_then(|id| usize::try_from(id).ok()).filter(|&id| id < tokens.len());
    let id = id.ok_or_else(|| {
        let value: String = value.to_string().chars().take(40).collect();
        format!("{key} is {value}, the vocabulary has {} tokens", tokens.len())
    })?;
    Ok(Some((id, tokens[id])))
}

/// What stands around a text: its first and its last token, by their names in the metadata and whether they are there if these do not say.
fn post_processor(metadata: &Map<String, Value>, tokens: &[&str], ends: [(&str, bool); 2]) -> Result<Value, String> {
    let around = |(name, otherwise): (&str, bool)| {
        let flag = metadata.get(&format!("tokenizer.ggml.add_{name}_token")).and_then(Value::as_bool);
        Ok::<_, String>(named(metadata, tokens, name)?.filter(|_| flag.unwrap_or(otherwise)))
    };
    let [first, last] = ends;
    let (first, last) = (around(first)?, around(last)?);
    let special = |token: Option<(usize, &str)>| token.map(|(_, id)| json!({"SpecialToken": {"id": id, "type_id": 0}}));
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let single: Vec<Value> = [special(first), Some(text("A")), special(last)].into_iter().flatten().collect();
    let tokens: Map<String, Value> = [first, last]
        .into_iter()
        .flatten()
        .map(|(id, token)| (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]})))
        .collect();
    Ok(
        json!({"type": "TemplateProcessing", "single": single, "pair": [text("A"), text("B")], "special_tokens": tokens}),
    )
}

/// `tokenizer_config.json`.
pub(super) fn settings(metadata: &Map<String, Value>) -> Result<Value, String> {
    let tokens = tokens(metadata)?;
    let token = |name: &str| Ok::<_, String>(named(metadata, &tokens, name)?.map(|(_, token)| token));
    const TEMPLATE: &str = "tokenizer.chat_template";
    let mut template = metadata.get(TEMPLATE).cloned().unwrap_or(Value::Null);
    // Those of other names, such as for requests with tools.
    let others = metadata.iter().filter_map(|(key, text)| Some((key.strip_prefix(TEMPLATE)?.strip_prefix('.')?, text)));
    let mut named: Vec<Value> = others.map(|(name, text)| json!({"name": name, "template": text})).collect();
    if !named.is_empty() {
        if !template.is_null() {
            named.push(json!({"name": "default", "template": template}));
        }
        template = named.into();
    }
    Ok(json!({
        "bos_token": token("bos")?,
        "eos_token": token("eos")?,
        "unk_token": token("unknown")?,
        "pad_token": token("padding")?,
        "chat_template": template,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings_of(metadata: Value) -> Value {
        settings(metadata.as_object().unwrap()).unwrap()
    }

    #[test]
    fn templates_of_names_of_their_own_are_listed() {
        let metadata = json!({
            "tokenizer.ggml.tokens": ["a"], "tokenizer.chat_template": "one", "tokenizer.chat_template.tool_use": "two",
            "tokenizer.chat_templates": ["tool_use"],
        });
        let both = json!([{"name": "tool_use", "template": "two"}, {"name": "default", "template": "one"}]);
        assert_eq!(settings_of(metadata)["chat_template"], both);
    }

    #[test]
    fn a_file_without_a_tokenizer_is_told_what_to_do() {
        let nothing = Map::new();
        for made in [settings(&nothing), tokenizer(&nothing)] {
            let reason = made.unwrap_err();
            assert!(reason.contains("holds no tokenizer") && reason.contains("`tokenizer`"), "{reason}");
        }
    }

    #[test]
    fn sentence_pieces_own_tokens_need_not_be_named() {
        let tokens = json!(["<unk>", "<s>", "</s>", "a"]);
        let of = |model: &str| {
            let settings = settings_of(json!({"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens}));
            ["unk_token", "bos_token", "eos_token"].map(|name| settings[name].clone())
        };
        assert_eq!(of("llama"), ["<unk>", "<s>", "</s>"].map(Value::from));
        assert_eq!(of("gpt2"), [Value::Null, Value::Null, Value::Null]);
    }

    #[test]
    fn what_ends_a_reply_is_found_in_texts_whatever_its_kind() {
        let metadata = json!({
            "tokenizer.ggml.tokens": ["a", "<|im_end|>", "<end>"], "tokenizer.ggml.token_type": [1, 1, 1],
        });
        let added = Vocabulary::read(metadata.as_object().unwrap()).unwrap().added();
        assert_eq!(added.len(), 1);
        assert_eq!((&added[0]["content"], &added[0]["special"]), (&json!("<|im_end|>"), &json!(true)));
    }
}

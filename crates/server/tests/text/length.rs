//! Texts that are too long are refused before they are tokenized, by a bound that is never above their tokens.

use serde_json::{Value, json};
use vllm_apple::text::{TextError, Tokenizer};

use crate::support::{KINDS, byte_level, golden_dir, load, tokenizer_of};

/// The least number of tokens that a text is refused with.
fn least(tokenizer: Tokenizer, text: &str) -> usize {
    match tokenizer.bounded(1).encode(text, false) {
        Err(TextError::TooLong { bytes, least, max: 1 }) if bytes == text.len() => least,
        other => panic!("{other:?}"),
    }
}

/// What might fit the model, but not the memory. It counts what the normalizer makes of it: of U+1D160, 12 bytes.
#[test]
fn a_text_that_could_take_too_much_memory_is_refused() {
    let tokenizer = Tokenizer::from_dir(&golden_dir().join("models/qwen2")).unwrap().within_memory(400 * 50_000);
    let needs = |text: &str| match tokenizer.encode(text, false) {
        Ok(_) => None,
        Err(TextError::TooLarge { bytes, needs, memory: 20_000_000 }) if bytes == text.len() => Some(needs),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(needs(&"a".repeat(50_000)), None);
    assert_eq!(needs(&"a".repeat(50_001)), Some(400 * 50_001));
    assert_eq!(needs(&"\u{1d160}".repeat(4_000)), None);
    assert_eq!(needs(&"\u{1d160}".repeat(5_000)), Some(400 * 60_000));
    // Characters across the windows that are counted at a time.
    assert_eq!(needs(&format!("a{}", "\u{1d160}".repeat(5_000))), Some(400 * 60_001));
    let long = tokenizer.bounded(10).encode(&"ab ".repeat(50_001), false);
    assert!(matches!(long, Err(TextError::TooLong { .. })), "the model's length comes first");
}

/// Where a token is known to be a run of bytes, 100 times `a` are 25 tokens of four; where not, ten of ten characters.
#[test]
fn the_bound_follows_what_the_tokenizer_does_to_a_text() {
    let (bytes, chars) = (25_usize, 10);
    let split =
        |behavior: &str| json!({"type": "Split", "pattern": {"String": "x"}, "behavior": behavior, "invert": false});
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let byte_level_step =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let sequence = |of: &str, steps: &[Value]| json!({"type": "Sequence", of: steps});
    let (nfc, lowercase, whitespace) =
        (json!({"type": "NFC"}), json!({"type": "Lowercase"}), json!({"type": "Whitespace"}));
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let strip = |stop: usize| json!({"type": "Strip", "content": " ", "start": 1, "stop": stop});
    let fuse = [json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    let cases = [
        ("normalizer", json!({"type": "ByteLevel"}), bytes),
        ("normalizer", prepend.clone(), bytes),
        ("normalizer", replace(json!({"String": " "}), "▁"), bytes),
        ("normalizer", replace(json!({"String": " "}), ""), chars),
        ("normalizer", replace(json!({"String": "a"}), "▁"), chars),
        ("normalizer", replace(json!({"Regex": " "}), "▁"), chars),
        ("normalizer", nfc.clone(), bytes.div_ceil(3)),
        ("normalizer", sequence("normalizers", &[prepend, nfc.clone()]), bytes.div_ceil(3)),
        ("normalizer", sequence("normalizers", &[nfc.clone(), nfc.clone()]), bytes.div_ceil(9)),
        ("normalizer", sequence("normalizers", &[nfc, lowercase.clone()]), chars),
        ("normalizer", lowercase, chars),
        ("pre_tokenizer", json!(null), bytes),
        ("pre_tokenizer", byte_level_step.clone(), bytes),
        (
            "pre_tokenizer",
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}),
            bytes,
        ),
        ("pre_tokenizer", json!({"type": "Digits", "individual_digits": true}), bytes),
        ("pre_tokenizer", split("Isolated"), bytes),
        ("pre_tokenizer", split("Removed"), chars),
        ("pre_tokenizer", sequence("pretokenizers", &[split("Isolated"), byte_level_step.clone()]), bytes),
        ("pre_tokenizer", sequence("pretokenizers", &[byte_level_step, whitespace.clone()]), chars),
        ("pre_tokenizer", whitespace, chars),
        ("decoder", sequence("decoders", &fuse), bytes),
        ("decoder", sequence("decoders", &[fuse[0].clone(), fuse[1].clone(), strip(0)]), bytes),
        ("decoder", sequence("decoders", &[fuse[0].clone(), fuse[1].clone(), strip(1)]), chars),
        ("decoder", sequence("decoders", &[fuse[0].clone(), fuse[0].clone()]), chars),
        ("decoder", sequence("decoders", &[fuse[1].clone(), fuse[1].clone()]), chars),
        ("decoder", json!({"type": "Fuse"}), chars),
        ("decoder", json!(null), chars),
    ];
    for (part, value, expected) in cases {
        let mut json = byte_level(&["a", "b", "aaaa", "bbbbbbbbbb"]);
        json[part] = value;
        let tokenizer = tokenizer_of(&[("tokenizer.json", &json)]).unwrap();
        assert_eq!(least(tokenizer, &"a".repeat(100)), expected, "{part}: {}", json[part]);
    }
}

/// An added token that takes the spaces beside it may stand for any number of them.
#[test]
fn a_token_that_takes_spaces_leaves_no_bound_by_bytes() {
    for (lstrip, rstrip, expected) in [(false, false, 25), (true, false, 10), (false, true, 10)] {
        let mut json = byte_level(&["a", "b", "aaaa", "bbbbbbbbbb"]);
        json["added_tokens"] = json!([{
            "id": 4, "content": "<x>", "special": true, "lstrip": lstrip, "rstrip": rstrip, "single_word": false, "normalized": false,
        }]);
        let tokenizer = tokenizer_of(&[("tokenizer.json", &json)]).unwrap();
        assert_eq!(least(tokenizer, &"a".repeat(100)), expected, "{lstrip} {rstrip}");
    }
}

/// A token counts only where both of its first bytes stand.
#[test]
fn a_long_token_that_begins_otherwise_does_not_count() {
    let tokenizer = tokenizer_of(&[("tokenizer.json", &byte_level(&["a", "b", "aaaa", "ba"]))]).unwrap();
    assert_eq!(least(tokenizer, &"ba".repeat(100)), 100);
}

#[test]
fn a_space_is_as_long_as_its_spelling_in_the_vocabulary() {
    let mut json = byte_level(&["a", "▁", "▁▁▁▁"]);
    json["decoder"] = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]});
    let tokenizer = || tokenizer_of(&[("tokenizer.json", &json)]).unwrap();
    assert_eq!(least(tokenizer(), &" ".repeat(100)), 25);
    assert_eq!(least(tokenizer(), &"▁".repeat(100)), 25, "in the text, too");
}

/// A text of just as many tokens as are allowed passes, whatever it is.
#[test]
fn no_text_is_refused_that_fits() {
    for kind in KINDS {
        let (golden, _) = load(kind);
        let dir = golden_dir().join("models").join(&golden.checkpoint);
        for case in golden.encode.iter().filter(|case| !case.ids.is_empty()) {
            let tokenizer = Tokenizer::from_dir(&dir).unwrap().bounded(case.ids.len());
            assert_eq!(tokenizer.encode(&case.text, false).unwrap(), case.ids, "{kind}: {}", case.name);
        }
    }
}

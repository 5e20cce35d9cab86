//! Prompts that are cut to a number of tokens.

use std::path::Path;

use vllm_apple::text::{Side, Tokenizer, Truncation};

/// Whose texts have a token behind them, and before them.
fn tokenizers() -> [Tokenizer; 2] {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/embedders/models");
    ["qwen3-last", "llama-mean"].map(|name| Tokenizer::from_dir(&golden.join(name)).unwrap().bounded(256))
}

const TEXT: &str = "The quick brown fox jumps over the lazy dog";

#[test]
fn tokens_around_a_text_stay_unless_a_side_is_asked_for() {
    let [behind, before] = tokenizers();
    for tokenizer in [&behind, &before] {
        let (plain, whole) = (tokenizer.encode(TEXT, false).unwrap(), tokenizer.encode(TEXT, true).unwrap());
        assert_eq!(whole.len(), plain.len() + 1, "there is one token around it");
        let cut = |max_tokens, side| Truncation { max_tokens, side }.encode(tokenizer, TEXT, true).unwrap();
        for len in 1..whole.len() {
            assert_eq!(cut(len, Some(Side::Right)), whole[..len]);
            assert_eq!(cut(len, Some(Side::Left)), whole[whole.len() - len..]);
            let expected = match whole.starts_with(&plain) {
                true => [&plain[..len - 1], &whole[whole.len() - 1..]].concat(),
                false => whole[..len].to_vec(),
            };
            assert_eq!(cut(len, None), expected);
            let alone = Truncation { max_tokens: len, side: None }.encode(tokenizer, TEXT, false).unwrap();
            assert_eq!(alone, plain[..len.min(plain.len())]);
        }
        assert_eq!(cut(whole.len(), None), whole);
        let tokens = Truncation { max_tokens: 2, side: None }.of_tokens(tokenizer, whole.clone());
        assert_eq!(tokens, whole[..2]);
    }
    let none = Truncation { max_tokens: 0, side: None }.encode(&behind, TEXT, true).unwrap_err();
    assert!(none.to_string().contains("1 special tokens"), "{none}");
}

#[test]
fn a_text_of_any_length_is_cut() {
    for tokenizer in tokenizers() {
        let text = format!("{}\u{e9}", "a fox and \u{e9}\u{1f98a} ".repeat(20_000));
        assert!(tokenizer.encode(&text, true).is_err(), "it must have too many tokens");
        for side in [None, Some(Side::Left), Some(Side::Right)] {
            let ids = Truncation { max_tokens: 256, side }.encode(&tokenizer, &text, true).unwrap();
            assert_eq!(ids.len(), 256);
        }
        let first = Truncation { max_tokens: 9, side: Some(Side::Right) };
        let short = tokenizer.encode(&text[..text.char_indices().nth(60).unwrap().0], true).unwrap();
        assert_eq!(first.encode(&tokenizer, &text, true).unwrap(), short[..9]);
    }
}

//! Streaming detokenisation against decoding at once, for every kind of tokenizer.

use std::sync::Arc;

use crate::support::{KINDS, byte_level, load, tokenizer_of};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use vllm_apple::text::{DetokenizeOptions, Detokenizer, Tokenizer};

fn options(skip_special_tokens: bool) -> DetokenizeOptions {
    DetokenizeOptions { skip_special_tokens, ..DetokenizeOptions::default() }
}

fn stream(tokenizer: &Arc<Tokenizer>, prompt: &[u32], ids: &[u32], skip: bool) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), prompt, options(skip));
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
    text.push_str(&detokenizer.finish());
    text
}

/// Whether some run of byte tokens (`<0xE2>`) begins with whole characters and is invalid later: the documented exception.
fn shows_characters_of_an_invalid_run(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> bool {
    let byte_tokens: Vec<_> = (0..=255u8).map(|b| tokenizer.token_to_id(&format!("<0x{b:02X}>"))).collect();
    let byte = |id: u32| byte_tokens.iter().position(|&t| t == Some(id));
    let shown: Vec<u32> = ids
        .iter()
        .copied()
        .filter(|&id| !(skip && tokenizer.is_special(id)) && (id as usize) < tokenizer.vocab_size())
        .collect();
    shown.chunk_by(|&a, &b| byte(a).is_some() && byte(b).is_some()).any(|run| {
        let bytes: Vec<u8> = run.iter().filter_map(|&id| byte(id)).map(|b| b as u8).collect();
        std::str::from_utf8(&bytes).is_err_and(|e| e.valid_up_to() > 0)
    })
}

fn check(kind: &str, tokenizer: &Arc<Tokenizer>, ids: &[u32], skip: bool) {
    if shows_characters_of_an_invalid_run(tokenizer, ids, skip) {
        return;
    }
    let whole = tokenizer.decode(ids, skip).unwrap();
    let pieces = pieces(tokenizer, ids, options(skip));
    let Some(rest) = whole.strip_prefix(&pieces.concat()) else {
        panic!("{kind}, skip {skip}: {ids:?}: {pieces:?} is not the beginning of {whole:?}");
    };
    // A character that the end cuts off shows as up to three U+FFFD, or not at all.
    let is_cut_off = pieces.iter().rev().nth(1).is_some_and(String::is_empty);
    let is_right = rest.is_empty() || is_cut_off && rest.len() <= 9 && rest.chars().all(|c| c == '\u{FFFD}');
    assert!(is_right, "{kind}, skip {skip}: {ids:?}: {pieces:?} lacks {rest:?}");
}

#[test]
fn recorded_ids_stream_as_decoding_at_once() {
    for kind in KINDS {
        let (golden, tokenizer) = load(kind);
        for case in golden.decode {
            check(kind, &tokenizer, &case.ids, true);
            check(kind, &tokenizer, &case.ids, false);
        }
    }
}

#[test]
fn random_ids_stream_as_decoding_at_once() {
    for kind in KINDS {
        let (golden, tokenizer) = load(kind);
        // Low ids are bytes and special tokens: half of all, so that sequences meet inside characters.
        let size = golden.size as u32;
        let ids = proptest::collection::vec(prop_oneof![0..300.min(size), 0..size + 3], 0..40);
        TestRunner::new(ProptestConfig::with_cases(500))
            .run(&(ids, any::<bool>()), |(ids, skip)| {
                check(kind, &tokenizer, &ids, skip);
                Ok(())
            })
            .unwrap();
    }
}

/// No piece of a text shows half a character, and nothing is left at its end.
#[test]
fn a_piece_never_splits_a_character() {
    for kind in KINDS {
        let (golden, tokenizer) = load(kind);
        for case in golden.encode.iter().filter(|case| !case.text.contains('\u{FFFD}')) {
            let mut detokenizer = Detokenizer::new(tokenizer.clone(), &[], options(false));
            for &id in &case.ids {
                let piece = detokenizer.push(id).unwrap();
                assert!(!piece.contains('\u{FFFD}'), "{kind}: {}: {piece:?}", case.name);
            }
            assert_eq!(detokenizer.finish(), "", "{kind}: {}", case.name);
        }
    }
}

/// The text after a prompt is what the whole text has more than the prompt, wherever the prompt is cut.
#[test]
fn a_prompt_is_continued_at_any_token() {
    for kind in KINDS {
        let (golden, tokenizer) = load(kind);
        let mut compared = 0;
        // A text's own U+FFFD looks like the end of a prompt that was cut inside a character.
        let plain = |text: &str| !text.contains('\u{FFFD}');
        for case in golden.encode.iter().filter(|c| c.ids_with_special.len() < 60 && plain(&c.text)) {
            let ids = &case.ids_with_special;
            let whole = tokenizer.decode(ids, true).unwrap();
            for cut in 0..ids.len() {
                let before = tokenizer.decode(&ids[..cut], true).unwrap();
                // Cut inside a character the prompt's own text ends in U+FFFD, and there is no such difference.
                let Some(after) = whole.strip_prefix(before.as_str()) else { continue };
                assert_eq!(stream(&tokenizer, &ids[..cut], &ids[cut..], true), after, "{kind}: {} at {cut}", case.name);
                compared += 1;
            }
        }
        assert!(compared > 500, "{kind}: only {compared} prompts");
    }
}

/// A tokenizer of these tokens with this decoder; of `added`, which follow, the first is special.
fn with_decoder(decoder: Value, vocab: &[&str], added: &[&str]) -> Arc<Tokenizer> {
    let mut json = byte_level(vocab);
    json["decoder"] = decoder;
    let token = |(i, content): (usize, &&str)| {
        json!({
            "id": vocab.len() + i, "content": content, "special": i == 0,
            "lstrip": false, "rstrip": false, "single_word": false, "normalized": false,
        })
    };
    json["added_tokens"] = added.iter().enumerate().map(token).collect();
    Arc::new(tokenizer_of(&[("tokenizer.json", &json)]).unwrap())
}

/// What each token shows, and the rest.
fn pieces(tokenizer: &Arc<Tokenizer>, ids: &[u32], options: DetokenizeOptions) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), &[], options);
    let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
    pieces.push(detokenizer.finish());
    pieces
}

#[test]
fn what_can_never_become_a_character_shows_at_once() {
    // The first byte of ä, then A.
    let decoder = byte_level(&[])["decoder"].clone();
    let byte_level = with_decoder(decoder, &["Ã", "A"], &[]);
    assert_eq!(pieces(&byte_level, &[0, 1, 1], options(true)), ["", "\u{FFFD}A", "A", ""]);
    let decoders = json!([{"type": "ByteFallback"}, {"type": "Fuse"}]);
    let fallback = with_decoder(json!({"type": "Sequence", "decoders": decoders}), &["<0xFF>", "A"], &[]);
    assert_eq!(pieces(&fallback, &[0, 0, 1], options(true)), ["\u{FFFD}", "\u{FFFD}", "A", ""]);
}

/// Tokens that end and begin inside ä.
#[test]
fn a_piece_never_ends_inside_a_character() {
    let tokenizer = with_decoder(byte_level(&[])["decoder"].clone(), &["aÃ", "¤b", "A"], &[]);
    let of = |ids: &[u32]| pieces(&tokenizer, ids, options(true));
    assert_eq!(of(&[0, 1, 2]), ["", "aäb", "A", ""]);
    // The end cuts a character off: only the text before it is text.
    assert_eq!(of(&[2, 0]), ["A", "", "a"]);
    assert_eq!(of(&[0, 0, 2]), ["", "", "a\u{FFFD}a\u{FFFD}A", ""]);
    // What never ends does not wait for ever.
    let endless = of(&[0; 200]);
    assert!(endless[..200].iter().any(|piece| !piece.is_empty()));
    assert_eq!(endless.concat(), "a\u{FFFD}".repeat(199) + "a");
    // The text before a character that the prompt begins is the prompt's.
    assert_eq!(stream(&tokenizer, &[0], &[1, 2], true), "äbA");
}

#[test]
fn a_decoder_that_joins_tokens_streams_what_each_adds() {
    let decoder = json!({"type": "WordPiece", "prefix": "##", "cleanup": false});
    let tokenizer = with_decoder(decoder, &["un", "##able", "b"], &[]);
    assert_eq!(pieces(&tokenizer, &[0, 1, 2, 0, 1], options(true)), ["un", "able", " b", " un", "able", ""]);
}

/// The three bytes of 狐, whose decoder knows no more than that: text waits for a character, but not for ever.
#[test]
fn a_decoder_of_bytes_waits_for_a_character() {
    let decoder = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}]});
    let tokenizer = with_decoder(decoder, &["a", "<0xE7>", "<0x8B>", "<0x90>"], &[]);
    let of = |ids: &[u32]| pieces(&tokenizer, ids, options(true));
    assert_eq!(of(&[0, 1, 2, 3, 0]), ["a", "", "", "狐", "a", ""]);
    assert_eq!(of(&[0, 1]), ["a", "", ""]);
    let mut expected = vec!["a".to_owned()];
    expected.extend(vec![String::new(); 7]);
    expected.extend(["\u{FFFD}".repeat(8), String::new()]);
    assert_eq!(of(&[0, 1, 1, 1, 1, 1, 1, 1, 1]), expected);
}

#[test]
fn spaces_between_added_tokens_are_left_out_if_asked() {
    let tokenizer = with_decoder(Value::Null, &["a", "b"], &["<x>", "<y>"]);
    let of = |skip_special_tokens, spaces_between_special_tokens| {
        pieces(&tokenizer, &[0, 2, 3, 1, 3], DetokenizeOptions { skip_special_tokens, spaces_between_special_tokens })
    };
    assert_eq!(of(false, true), ["a", " <x>", " <y>", " b", " <y>", ""]);
    assert_eq!(of(false, false), ["a", " <x>", "<y>", " b", " <y>", ""]);
    for spaces in [true, false] {
        assert_eq!(
            of(true, spaces),
            ["a", "", " <y>", " b", " <y>", ""],
            "the option counts only where special tokens show"
        );
    }
}

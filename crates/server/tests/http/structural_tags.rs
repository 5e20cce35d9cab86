//! Structural tags: which answers they hold to, beside xgrammar, and what is refused of them.

use std::sync::Arc;

use serde_json::{Value, json};
use vllm_apple::structured::{Structure, Structures};

use crate::structured::{grammar, is_answer};
use crate::support::tokenizer;

#[test]
fn structural_tags_hold_answers_as_xgrammar_does() {
    let tokenizer = Arc::new(tokenizer());
    let structures = Structures::new(Arc::clone(&tokenizer), tokenizer.eos_token_ids().into());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/structural_tags.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let tag = json!({"type": "structural_tag", "format": case["format"]});
        let structure = Structure::structural_tag("tag", tag.as_object().unwrap().clone());
        let structure = structure.unwrap_or_else(|refusal| panic!("{}: {refusal:?}", case["format"]));
        let form = structures.compile(&structure).unwrap_or_else(|error| panic!("{}: {error}", case["format"]));
        let grammar = grammar(&form);
        for text in case["texts"].as_array().unwrap() {
            let (text, expected) = (text[0].as_str().unwrap(), text[1].as_bool().unwrap());
            if is_answer(&*grammar, text) != expected {
                wrong.push(format!("{}: {text:?} should be {expected}", case["format"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn numbers_of_structural_tags_are_jsons() {
    let of = |format: Value| Structure::structural_tag("tag", json!({"format": format}).as_object().unwrap().clone());
    let text = |most: Value| of(json!({"type": "any_text", "max_chars": most}));
    assert_eq!(text(json!(8.0)).unwrap(), text(json!(8)).unwrap());
    let a = json!({"type": "const_string", "value": "a"});
    let repeat = |min: Value, max: Value| of(json!({"type": "repeat", "content": a, "min": min, "max": max}));
    assert_eq!(repeat(json!(1e0), json!(3.0)).unwrap(), repeat(json!(1), json!(3)).unwrap());
    assert_eq!(repeat(json!(0.0), json!(-1.0)).unwrap(), repeat(json!(0), json!(-1)).unwrap());
    assert_eq!(text(json!(8.5)).unwrap_err().path, "tag.format.max_chars");
    assert_eq!(repeat(json!(-1.0), json!(1)).unwrap_err().path, "tag.format.min");
}

#[test]
fn what_structural_tags_cannot_hold_to_is_refused_by_name() {
    let tag = json!({"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"});
    let (text, any) = (|value: &str| json!({"type": "const_string", "value": value}), json!({"type": "any_text"}));
    let digit = json!({"type": "json_schema", "json_schema": {"enum": [1]}});
    let open = json!({"type": "triggered_tags", "triggers": ["<a"], "tags": [tag]});
    let form = json!({"type": "dispatch", "rules": [["#", digit]]});
    for (format, path, word) in [
        (json!({"type": "token", "token": 5}), "tag.format.type", "\"token\""),
        (json!({"type": "qwen_xml_parameter", "json_schema": {}}), "tag.format.type", "qwen_xml_parameter"),
        (json!({"type": "json_schema", "json_schema": {}, "style": "glm_xml"}), "tag.format.style", "XML"),
        (json!({"type": "json_schema", "json_schema": {}, "any_order": true}), "tag.format.any_order", "order"),
        (json!({"type": "json_schema", "json_schema": "{}"}), "tag.format.json_schema", "an object"),
        (json!({"type": "any_text", "max_tokens": 3}), "tag.format.max_tokens", "max_chars"),
        (json!({"type": "grammar", "grammar": "start: \"a\""}), "tag.format.grammar", "EBNF"),
        (json!({"type": "const_string"}), "tag.format.value", "required"),
        (json!({"type": "regex", "pattern": "a)|(b"}), "tag.format.pattern", "unopened group"),
        (json!({"type": "dispatch", "rules": [["#", digit]], "loop": "no"}), "tag.format.loop", "true or false"),
        (json!({"type": "const_string", "value": "a", "valeu": "b"}), "tag.format.valeu", "not known"),
        (json!({"type": "or", "elements": [text("a"), {"type": "any"}]}), "tag.format.elements[1].type", "any_text"),
        (json!({"type": "repeat", "content": text("a"), "min": 2, "max": 1}), "tag.format.max", "`min`"),
        (
            json!({"type": "tag", "begin": {"type": "token", "token": 1}, "content": any, "end": "b"}),
            "tag.format.begin",
            "tokens",
        ),
        (json!({"type": "triggered_tags", "triggers": ["<b"], "tags": [tag]}), "tag.format.triggers", "<a>"),
        (json!({"type": "triggered_tags", "triggers": ["<", "<a"], "tags": [tag]}), "tag.format.triggers", "got 2"),
        (json!({"type": "triggered_tags", "triggers": ["<a", "b"], "tags": [tag]}), "tag.format.triggers", "\"b\""),
        // Nothing tells where free text ends.
        (json!({"type": "sequence", "elements": [any, digit]}), "tag.format", "free text ends"),
        (json!({"type": "sequence", "elements": [any, text("x"), digit]}), "tag.format", "free text ends"),
        (json!({"type": "sequence", "elements": [open, digit]}), "tag.format", "free text ends"),
        (json!({"type": "star", "content": form}), "tag.format", "free text ends"),
        (
            json!({"type": "dispatch", "rules": [["a", digit], ["ab", digit]], "excludes": ["xab"]}),
            "tag.format",
            "overlap",
        ),
        // Each beginning of the long string that ends with the short one would be written.
        (
            json!({"type": "dispatch", "rules": [["aa", any], ["a".repeat(60_000), any]]}),
            "tag.format",
            "too often in longer strings",
        ),
        (
            json!({"type": "dispatch", "rules": [["a", digit]], "excludes": ["a".repeat(3_000)]}),
            "tag.format",
            "too often",
        ),
        (json!({"type": "regex", "pattern": r"\w".repeat(2001)}), "tag.format.pattern", "2001 classes"),
        // More than the tables of an answer can hold.
        (json!({"type": "any_text", "max_chars": 30_000}), "tag.format", "`max_chars` may be at most 3000"),
        (json!({"type": "any_text", "max_chars": u64::MAX}), "tag.format", "`max_chars` may be at most 3000"),
        (
            json!({"type": "tag", "begin": "<a>", "content": {"type": "any_text", "max_chars": 2001}, "end": "</a>"}),
            "tag.format",
            "`max_chars` may be at most 2000",
        ),
        (json!({"type": "repeat", "content": text("ab"), "min": 0, "max": 1_000_000}), "tag.format", "at most 12000"),
        (json!({"type": "repeat", "content": text("ab"), "min": 20_000, "max": -1}), "tag.format", "at most 12000"),
    ] {
        let tag = json!({"type": "structural_tag", "format": format});
        let refusal = Structure::structural_tag("tag", tag.as_object().unwrap().clone()).unwrap_err();
        assert!(refusal.path == path && refusal.reason.contains(word), "{format}: {refusal:?}");
    }
}

/// At its last character, and at those that would be one too many.
#[test]
fn the_longest_text_of_a_form_can_be_held() {
    let tokenizer = Arc::new(tokenizer());
    let structures = Structures::new(Arc::clone(&tokenizer), tokenizer.eos_token_ids().into());
    let text = |most: usize| json!({"type": "any_text", "max_chars": most});
    let tag = |content: Value| json!({"type": "tag", "begin": "<a>", "content": content, "end": "</a>"});
    for (format, around, most) in [(text(3000), ["", ""], 3000), (tag(text(2000)), ["<a>", "</a>"], 2000)] {
        let structure = Structure::structural_tag("tag", json!({"format": format}).as_object().unwrap().clone());
        let grammar = grammar(&structures.compile(&structure.unwrap()).unwrap());
        for (letters, expected) in [("ab", true), ("é<", true), ("漢 ", true)] {
            let long: String = letters.chars().cycle().take(most).collect();
            for (text, expected) in [(long.clone(), expected), (long + "!", !expected)] {
                assert_eq!(is_answer(&*grammar, &format!("{}{text}{}", around[0], around[1])), expected, "{letters}");
            }
        }
    }
}

/// What would be written twice at each level of a form is written once, and much that is excluded in many places is refused.
#[test]
fn a_structural_tag_is_not_much_longer_as_a_grammar() {
    let mut format = json!({"type": "json_schema", "json_schema": {"enum": [1]}});
    for _ in 0..30 {
        let tag = json!({"begin": "<a>", "content": format, "end": "</a>"});
        format = json!({"type": "tags_with_separator", "separator": ",", "tags": [tag]});
        let tag = json!({"begin": "<b>", "content": format, "end": "</b>"});
        format = json!({"type": "triggered_tags", "triggers": ["<b>"], "tags": [tag], "at_least_one": true});
    }
    let of = |format: Value| Structure::structural_tag("tag", json!({"format": format}).as_object().unwrap().clone());
    assert!(of(format).unwrap().bytes() < 20_000);
    // A part before free text that ends with its first tag stands before both of its ways to go on.
    let mut format = json!({"type": "json_schema", "json_schema": {"enum": [1]}});
    for _ in 0..30 {
        let once = json!({"type": "dispatch", "rules": [["<", {"type": "json_schema", "json_schema": {"enum": [1]}}]], "loop": false});
        let content = json!({"type": "sequence", "elements": [format, once]});
        format = json!({"type": "tag", "begin": "", "content": content, "end": "E"});
    }
    assert!(of(format).unwrap().bytes() < 20_000);
    let texts: Vec<_> = (0..1000).map(|i| json!({"type": "any_text", "excludes": [i.to_string()]})).collect();
    let inside = json!({"type": "or", "elements": texts});
    let refusal = of(json!({"type": "tag", "begin": "", "content": inside, "end": "e".repeat(1000)})).unwrap_err();
    assert!(refusal.reason.contains("more than 131072 bytes"), "{refusal:?}");
}

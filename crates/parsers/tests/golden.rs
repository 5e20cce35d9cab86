//! What vLLM's parsers make of the same texts, however these are cut into pieces.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use vllm_apple_parsers::{OutputParser, Piece, ReasoningFormat, ToolFormat, ToolSchemas, joined};

/// The cases and the tools' parameters.
fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/parsers.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn parser(case: &Value, types: &Value) -> OutputParser {
    let parameters = json!({"type": "object", "properties": types});
    let schemas = ToolSchemas::new(["weather", "now"].map(|name| (name.to_owned(), parameters.clone())));
    let reasoning = case["reasoning"].as_str().map(|name| (ReasoningFormat::named(name).unwrap(), false));
    let tools = case["tools"].as_str().map(|name| ToolFormat::named(name).unwrap());
    OutputParser::new(reasoning, tools, schemas)
}

/// What becomes of the pieces.
fn pieces<'t>(mut parser: OutputParser, texts: impl IntoIterator<Item = &'t str>) -> Vec<Piece> {
    let mut out: Vec<_> = texts.into_iter().flat_map(|text| parser.push(text)).collect();
    out.extend(parser.finish());
    joined(out)
}

fn summary(pieces: &[Piece]) -> Value {
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::<(String, String)>::new());
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => reasoning.push_str(text),
            Piece::Content(text) => content.push_str(text),
            Piece::Call { name } => calls.push((name.clone(), String::new())),
            Piece::Arguments(text) => calls.last_mut().unwrap().1.push_str(text),
        }
    }
    let calls = calls.into_iter().map(|(name, arguments)| {
        let arguments: Value = serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"));
        json!([name, arguments])
    });
    json!({"reasoning": reasoning, "content": content, "calls": calls.collect::<Vec<_>>()})
}

#[test]
fn texts_mean_what_they_mean_to_vllm() {
    let golden = golden();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 40);
    let mut wrong = Vec::new();
    for case in cases {
        let got = summary(&pieces(parser(case, &golden["types"]), [case["text"].as_str().unwrap()]));
        // Where vLLM differs from this, the case says why.
        let expected = case.get("ours").unwrap_or(&case["expected"]);
        if &got != expected {
            wrong.push(format!("{}:\n  got      {got}\n  expected {expected}", case["name"]));
        }
        assert_eq!(case.get("ours").is_some(), case.get("why").is_some(), "{}", case["name"]);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Cut in two anywhere, and into characters.
#[test]
fn a_text_means_the_same_however_it_is_cut() {
    let golden = golden();
    for case in golden["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let parser = || parser(case, &golden["types"]);
        let whole = pieces(parser(), [text]);
        for at in (1..text.len()).filter(|&at| text.is_char_boundary(at)) {
            assert_eq!(pieces(parser(), [&text[..at], &text[at..]]), whole, "{} at {at}", case["name"]);
        }
        let characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
        assert_eq!(pieces(parser(), characters), whole, "{}", case["name"]);
    }
}

/// The object after the tag is read with the tag, not with the next text.
#[test]
fn an_object_without_a_list_is_read_at_once() {
    let mut parser = OutputParser::new(None, ToolFormat::named("mistral"), ToolSchemas::default());
    let pieces = parser.push("[TOOL_CALLS]{\"name\": \"now\", \"arguments\": {}}");
    assert_eq!(pieces, [Piece::Call { name: "now".to_owned() }, Piece::Arguments("{}".to_owned())]);
}

/// What models write wrongly: parts of the formats in any order, cut off anywhere.
fn damaged() -> impl Strategy<Value = Vec<String>> {
    let parts: Vec<String> = [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[",
        "]",
        "{",
        "}",
        "\"",
        ",",
        ":",
        "\\",
        " ",
        "\n",
        "name",
        "\"name\": \"f\"",
        "\"arguments\": ",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "f(a=1)",
        "('",
        ")",
        "=",
        "<function=f>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "\n```json\n",
        "```json\n",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"\t",
        "\n```",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "<|channel|>",
        "analysis",
        "commentary to=functions.f",
        "<|message|>",
        "<|call|>",
        "<|end|>",
        "<|start|>",
        "é",
        "1",
        "<",
    ]
    .map(str::to_owned)
    .to_vec();
    prop::collection::vec(prop::sample::select(parts), 0..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn damaged_texts_mean_the_same_however_they_are_cut(
        parts in damaged(),
        cuts in prop::collection::vec(0usize..200, 0..6),
        begun: bool,
    ) {
        let text = parts.concat();
        let mut cuts: Vec<_> = cuts.into_iter().filter(|&at| at < text.len() && text.is_char_boundary(at)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let formats = ToolFormat::names().filter_map(ToolFormat::named);
        for format in formats.chain([ToolFormat::Required, ToolFormat::Named("f".to_owned())]) {
            let parser = || OutputParser::new(Some((ReasoningFormat::Think, begun)), Some(format.clone()), ToolSchemas::default());
            let whole = pieces(parser(), [text.as_str()]);
            let cut = pieces(parser(), cuts.windows(2).map(|at| &text[at[0]..at[1]]));
            prop_assert_eq!(&cut, &whole, "{:?} {:?}", format, text);
            let characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
            prop_assert_eq!(pieces(parser(), characters), whole, "{:?} {:?}", format, text);
        }
    }
}

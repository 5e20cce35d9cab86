//! Mistral's chat formats by version: each line of the conversation as mistral_common writes it.

use serde_json::{Value, json};
use vllm_apple::text::{ChatInput, ChatTemplate, TextError, Tokenizer};

use crate::support::{golden_dir, tokenizer_of};

const NAMES: [&str; 22] = [
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
    "[CALL_ID]",
    "[ARGS]",
];

/// A tekken.json of single bytes.
fn tokenizer(version: u32) -> Tokenizer {
    let text = std::fs::read(golden_dir().join("models/mistral-tekken/tekken.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&text).unwrap();
    let special =
        NAMES.iter().enumerate().map(|(rank, name)| json!({"rank": rank, "token_str": name, "is_control": true}));
    json["special_tokens"] = special.collect();
    json["config"]["version"] = format!("v{version}").into();
    json["config"]["default_num_special_tokens"] = NAMES.len().into();
    json["config"]["default_vocab_size"] = (NAMES.len() + 256).into();
    tokenizer_of(&[("tekken.json", &json)]).unwrap()
}

fn prompt(version: u32, input: &ChatInput) -> Result<String, TextError> {
    let tokenizer = tokenizer(version);
    let template = ChatTemplate::from_dir(tempfile::tempdir().unwrap().path(), &tokenizer, None)?;
    tokenizer.decode(&template.prompt(&tokenizer, input)?, false)
}

fn call(name: &str, id: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[test]
fn each_version_writes_a_conversation_its_own_way() {
    let messages = [
        json!({"role": "system", "content": "S"}),
        json!({"role": "user", "content": "U"}),
        json!({"role": "assistant", "tool_calls": [call("f", "call00001", "{\"x\": 1}"), call("g", "", "")]}),
        json!({"role": "tool", "content": "T2", "tool_call_id": "null"}),
        json!({"role": "tool", "content": "T1", "tool_call_id": "call00001"}),
        json!({"role": "assistant", "content": "A"}),
        json!({"role": "user", "content": "V"}),
    ];
    let tools = [json!({"type": "function", "function": {"name": "f", "description": "D", "parameters": {}}})];
    let input = ChatInput { tools: Some(&tools), ..ChatInput::new(&messages) };
    let tools = "[AVAILABLE_TOOLS][{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"D\", \"parameters\": {}}}]\
                 [/AVAILABLE_TOOLS]";
    let calls = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}, \"id\": \"call00001\"}, {\"name\": \"g\", \"arguments\": {}}]</s>";
    let expected = [
        (
            3,
            format!(
                "<s>[INST]U[/INST]{calls}\
                 [TOOL_RESULTS]{{\"content\": \"T2\", \"call_id\": \"\"}}[/TOOL_RESULTS]\
                 [TOOL_RESULTS]{{\"content\": \"T1\", \"call_id\": \"call00001\"}}[/TOOL_RESULTS]A</s>{tools}[INST]S\n\nV[/INST]"
            ),
        ),
        (
            7,
            format!(
                "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]U[/INST]{calls}[TOOL_RESULTS][TOOL_CONTENT]T2[/TOOL_RESULTS]\
                 [TOOL_RESULTS]call00001[TOOL_CONTENT]T1[/TOOL_RESULTS]A</s>{tools}[INST]V[/INST]"
            ),
        ),
        (
            11,
            format!(
                "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]U[/INST][TOOL_CALLS]f[CALL_ID]call00001[ARGS]{{\"x\": 1}}\
                 [TOOL_CALLS]g[ARGS]{{}}</s>[TOOL_RESULTS]call00001[TOOL_CONTENT]T1[/TOOL_RESULTS]\
                 [TOOL_RESULTS][TOOL_CONTENT]T2[/TOOL_RESULTS]A</s>{tools}[INST]V[/INST]"
            ),
        ),
        (
            13,
            format!(
                "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]{tools}[INST]U[/INST][TOOL_CALLS]f[ARGS]{{\"x\": 1}}[TOOL_CALLS]g[ARGS]{{}}</s>\
                 [TOOL_RESULTS]T1[/TOOL_RESULTS][TOOL_RESULTS]T2[/TOOL_RESULTS]A</s>[INST]V[/INST]"
            ),
        ),
    ];
    for (version, expected) in expected {
        assert_eq!(prompt(version, &input).unwrap(), expected, "version {version}");
    }
    for version in [2, 14] {
        assert!(prompt(version, &input).unwrap_err().to_string().contains("not supported"));
    }
}

#[test]
fn content_beside_calls_is_refused_before_version_7() {
    let messages = [
        json!({"role": "user", "content": "U"}),
        json!({"role": "assistant", "content": "A", "tool_calls": [call("f", "call00001", "{}")]}),
        json!({"role": "tool", "content": "T", "tool_call_id": "call00001"}),
    ];
    let input = ChatInput::new(&messages);
    assert!(prompt(3, &input).unwrap_err().to_string().contains("both content and tool_calls"));
    assert!(prompt(7, &input).unwrap().contains("A[TOOL_CALLS]"));
}

#[test]
fn only_a_last_message_of_the_assistant_can_be_continued() {
    let prompt = |role: &str, continue_final_message| {
        let messages = [json!({"role": "user", "content": "U"}), json!({"role": role, "content": "A"})];
        let input = ChatInput { continue_final_message, add_generation_prompt: false, ..ChatInput::new(&messages) };
        prompt(7, &input).map_err(|error| error.to_string())
    };
    assert_eq!(prompt("assistant", true).unwrap(), "<s>[INST]U[/INST]A");
    assert_eq!(prompt("user", false).unwrap(), "<s>[INST]U\n\nA[/INST]");
    assert!(prompt("assistant", false).unwrap_err().contains("the last message must be from the user or a tool"));
    assert!(prompt("user", true).unwrap_err().contains("needs a last assistant message"));
}

/// Converters wrote Llama's pattern into files for Mistral's models, which cuts `oW` nowhere.
#[test]
fn texts_are_cut_by_the_pattern_of_the_tekken_json_beside() {
    let llama = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}";
    let step =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let file = |pre_tokenizer: Value| {
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": "o", "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {"o": 0, "W": 1, "oW": 2},
                "merges": [["o", "W"]],
            },
        })
    };
    let tekken = json!({"config": {"pattern": r"\p{Ll}+|\p{Lu}\p{Ll}*"}});
    for json in [file(json!({"type": "Sequence", "pretokenizers": [step(llama), bytes]})), file(step(llama))] {
        let alone = tokenizer_of(&[("tokenizer.json", &json)]).unwrap();
        assert_eq!(alone.encode("oW", false).unwrap(), [2]);
        let beside = tokenizer_of(&[("tokenizer.json", &json), ("tekken.json", &tekken)]).unwrap();
        assert_eq!(beside.encode("oW", false).unwrap(), [0, 1]);
    }
    let json = file(step(llama));
    let error = tokenizer_of(&[("tokenizer.json", &json), ("tekken.json", &json!({}))]).unwrap_err().to_string();
    assert!(error.contains("tekken.json") && error.contains("config"), "{error}");
    let wrong = json!({"config": {"pattern": "("}});
    assert!(tokenizer_of(&[("tokenizer.json", &json), ("tekken.json", &wrong)]).is_err());
}

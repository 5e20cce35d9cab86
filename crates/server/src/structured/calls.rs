//! Calls of tools in a model's own format, as a form: what holds an answer to them where one must come, or beside a form of its text. Knows formats and
//! schemas, no request.

use std::fmt::Write;

use serde_json::{Value, json};
use vllm_apple_parsers::ToolFormat;

use super::{Structure, calls_of_text, literal, with_whitespace};
use crate::text::Tokenizer;

impl Structure {
    /// A call of one of these tools, by name and schema, or `several` where the format has them one after the other. `None`: the format has none
    /// that an answer can be held to, or none with arguments of these schemas.
    pub fn calls(tokenizer: &Tokenizer, format: &ToolFormat, tools: &[(String, Value)], several: bool) -> Option<Self> {
        let tag = |text: &str| tag(tokenizer, text);
        // Others stand in texts of JSON, or would not be read back.
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte));
        let in_json = matches!(format, ToolFormat::Hermes | ToolFormat::LlamaJson | ToolFormat::Harmony);
        if !in_json && !tools.iter().all(|(name, _)| is_name(name)) {
            return None;
        }
        Some(match format {
            ToolFormat::Hermes => Self::lark(hermes(tools, several, tag)),
            ToolFormat::LlamaJson => Self::lark(llama(tools)),
            ToolFormat::Mistral if tokenizer.token_to_id("[ARGS]").is_some() => {
                Self::lark(mistral(tools, several, tag))
            }
            ToolFormat::Mistral => Self::lark(mistral_list(tools, several, tag)),
            ToolFormat::DeepSeekV3 => Self::lark(deepseek(tools, several, true, tag)),
            ToolFormat::DeepSeekV31 => Self::lark(deepseek(tools, several, false, tag)),
            ToolFormat::QwenXml => Self::lark(calls_of_text::qwen_xml(tools, several, tag)?),
            ToolFormat::Glm => Self::lark(calls_of_text::glm(tools, several, tag)?),
            ToolFormat::Harmony => Self::lark(harmony(tools, tag)),
            ToolFormat::Pythonic | ToolFormat::Required | ToolFormat::Named(_) => return None,
        })
    }
}

/// A tag as a grammar has it: a token of its own, or text.
fn tag(tokenizer: &Tokenizer, text: &str) -> String {
    match tokenizer.token_to_id(text).filter(|&id| tokenizer.is_special(id)) {
        Some(id) => format!("<[{id}]>"),
        None => literal(text),
    }
}

/// JSON of a tool's arguments, which are an object where the schema says nothing of it.
fn arguments(parameters: &Value) -> String {
    const SAY_WHAT: [&str; 7] = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
    let mut parameters = parameters.clone();
    if let Value::Object(fields) = &mut parameters
        && !SAY_WHAT.iter().any(|name| fields.contains_key(*name))
    {
        fields.insert("type".to_owned(), "object".into());
    }
    format!("%json {}", with_whitespace(parameters, None))
}

/// One of as many rules.
pub(super) fn one_of(rule: &str, count: usize) -> String {
    (0..count).map(|at| format!("{rule}_{at}")).collect::<Vec<_>>().join(" | ")
}

/// `<tool_call>`, `{"name": …, "arguments": {…}}`, `</tool_call>`
fn hermes(tools: &[(String, Value)], several: bool, tag: impl Fn(&str) -> String) -> String {
    let (begin, end) = (tag("<tool_call>"), tag("</tool_call>"));
    let more = if several { " (\"\\n\" call)*" } else { "" };
    let calls = one_of("call", tools.len());
    let mut lark = format!("start: call{more}\ncall: {begin} \"\\n\"? ({calls}) \"\\n\"? {end}\n");
    objects(&mut lark, tools, "arguments");
    lark
}

/// `{"name": …, "parameters": {…}}`
fn llama(tools: &[(String, Value)]) -> String {
    let mut lark = format!("start: {}\n", one_of("call", tools.len()));
    objects(&mut lark, tools, "parameters");
    lark
}

/// `[TOOL_CALLS]name[ARGS]{…}`
fn mistral(tools: &[(String, Value)], several: bool, tag: impl Fn(&str) -> String) -> String {
    let [begin, separator] = ["[TOOL_CALLS]", "[ARGS]"].map(tag);
    let more = if several { " call*" } else { "" };
    let mut lark = format!("start: call{more}\ncall: {begin} ({})\n", one_of("call", tools.len()));
    for (at, (name, parameters)) in tools.iter().enumerate() {
        let _ = writeln!(lark, "call_{at}: {} {separator} {}", literal(name), arguments(parameters));
    }
    lark
}

/// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`
fn mistral_list(tools: &[(String, Value)], several: bool, tag: impl Fn(&str) -> String) -> String {
    let more = if several { " (\", \" call)*" } else { "" };
    let (begin, calls) = (tag("[TOOL_CALLS]"), one_of("call", tools.len()));
    let mut lark = format!("start: {begin} \" \"? \"[\" call{more} \"]\"\ncall: {calls}\n");
    objects(&mut lark, tools, "arguments");
    lark
}

/// DeepSeek: V3 writes a type, a name and a block of JSON, V3.1 a name and JSON.
fn deepseek(tools: &[(String, Value)], several: bool, is_v3: bool, tag: impl Fn(&str) -> String) -> String {
    let [begin, end, call, separator, call_end] =
        ["calls▁begin", "calls▁end", "call▁begin", "sep", "call▁end"].map(|name| tag(&format!("<｜tool▁{name}｜>")));
    let more = if several { " (\"\\n\"? call)*" } else { "" };
    let calls = one_of("call", tools.len());
    let (kind, before, behind) = match is_v3 {
        true => (format!("\"function\" {separator} "), literal("\n```json\n"), literal("\n```")),
        false => (String::new(), separator, literal("")),
    };
    let mut lark = format!("start: {begin} call{more} {end}\ncall: {call} {kind}({calls}) {call_end}\n");
    for (at, (name, parameters)) in tools.iter().enumerate() {
        let _ = writeln!(lark, "call_{at}: {} {before} {} {behind}", literal(name), arguments(parameters));
    }
    lark
}

/// The call of each tool as an object, with its arguments under this name.
fn objects(lark: &mut String, tools: &[(String, Value)], name: &str) {
    for (at, (tool, parameters)) in tools.iter().enumerate() {
        let begin = literal(&format!("{{\"name\": {}, \"{name}\": ", json!(tool)));
        // Writing to a string cannot fail.
        let _ = writeln!(lark, "call_{at}: {begin} {} \"}}\"", arguments(parameters));
    }
}

/// gpt-oss: a message to a function, whose name stands before or behind the channel's. It says that JSON comes, as in vLLM.
fn harmony(tools: &[(String, Value)], tag: impl Fn(&str) -> String) -> String {
    let [channel, constrain, message] = ["<|channel|>", "<|constrain|>", "<|message|>"].map(tag);
    let mut lark = format!(
        "start: {}\nbehind: {channel} \"commentary\"\nbefore: {channel} (\"commentary\" | \"analysis\")\n\
         text: (\" json\" | \" \" {constrain} \"json\") {message}\n",
        one_of("call", tools.len())
    );
    for (at, (name, parameters)) in tools.iter().enumerate() {
        let to = literal(&format!(" to=functions.{name}"));
        let _ = writeln!(
            lark,
            "call_{at}: (to_{at} behind | before to_{at}) text {}\nto_{at}: {to}",
            arguments(parameters)
        );
    }
    lark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_written_as_models_do() {
        let tools = [("a".to_owned(), json!({"type": "object"})), ("b\"".to_owned(), json!({}))];
        let lark = hermes(&tools, true, |text| text.to_owned());
        assert!(
            lark.starts_with("start: call (\"\\n\" call)*\ncall: <tool_call> \"\\n\"? (call_0 | call_1) "),
            "{lark}"
        );
        assert!(lark.contains(r#"call_1: "{\"name\": \"b\\\"\", \"arguments\": " %json {"#), "{lark}");
        assert!(hermes(&tools, false, literal).starts_with("start: call\ncall: \"<tool_call>\""));
        assert!(llama(&tools).contains(r#"call_0: "{\"name\": \"a\", \"parameters\": " %json {"#));
        assert!(harmony(&tools, |text| text.to_owned()).contains("to_0: \" to=functions.a\"\n"));
    }
}

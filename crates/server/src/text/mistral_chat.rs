//! Mistral's instruction format, for checkpoints with a tekken.json and no template; equal to mistral_common's instruct tokenizers of
//! versions 3 to 13 for text and tools. Knows no Jinja, no tokens, images or audio.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::TextError;
use super::chat_template::{ChatInput, part_text};
use super::python_json::dumps;
use super::tekken::Piece;

/// Between the texts of joined messages, and after a system prompt that goes into a user message.
const JOIN: &str = "\n\n";
/// mistral_common takes call ids of this length only; longer ones are cut to their end, as vLLM does.
const CALL_ID_LEN: usize = 9;

/// One turn: neighbouring messages of the same role together.
enum Turn {
    System(String),
    User(String),
    Assistant { text: String, calls: Vec<Call>, open: bool },
    Tool { text: String, call_id: String },
}

struct Call {
    name: String,
    arguments: Value,
    id: String,
}

/// The prompt of a conversation in the format of tekken.json's `version`.
pub(super) fn pieces(version: u32, input: &ChatInput) -> Result<Vec<Piece>, TextError> {
    if !(3..=13).contains(&version) {
        return Err(refuse(format!(
            "the chat format of tekken.json version {version} is not supported; pass a --chat-template"
        )));
    }
    let mut turns = turns(input, version)?;
    let system = if version < 7 { take_system(&mut turns) } else { None };
    let is_user = |turn: &Turn| matches!(turn, Turn::User(_));
    let (first, last) = (turns.iter().position(is_user), turns.iter().rposition(is_user));
    let tools_at = if version < 13 { last } else { first };

    let mut out = Pieces(Vec::new());
    out.special("<s>");
    for (i, turn) in turns.into_iter().enumerate() {
        match turn {
            Turn::System(text) => out.between("[SYSTEM_PROMPT]", text, "[/SYSTEM_PROMPT]"),
            Turn::User(text) => {
                if let Some(tools) = input.tools.filter(|tools| Some(i) == tools_at && !tools.is_empty()) {
                    out.between("[AVAILABLE_TOOLS]", dumps(&tool_list(tools)), "[/AVAILABLE_TOOLS]");
                }
                let text = match &system {
                    Some(system) if Some(i) == last => format!("{system}{JOIN}{text}"),
                    _ => text,
                };
                out.between("[INST]", text, "[/INST]");
            }
            Turn::Assistant { text, calls, open } => out.assistant(version, &text, &calls, open)?,
            Turn::Tool { text, call_id } => out.tool(version, text, call_id),
        }
    }
    Ok(out.0)
}

struct Pieces(Vec<Piece>);

impl Pieces {
    fn special(&mut self, token: &'static str) {
        self.0.push(Piece::Special(token.into()));
    }

    fn text(&mut self, text: impl Into<String>) {
        self.0.push(Piece::Text(text.into()));
    }

    fn between(&mut self, begin: &'static str, text: String, end: &'static str) {
        self.special(begin);
        self.text(text);
        self.special(end);
    }

    fn assistant(&mut self, version: u32, text: &str, calls: &[Call], open: bool) -> Result<(), TextError> {
        if text.is_empty() && calls.is_empty() {
            return Err(refuse("an assistant message needs content or tool_calls"));
        }
        if version < 7 && !text.is_empty() && !calls.is_empty() {
            return Err(refuse("this model takes no assistant message with both content and tool_calls"));
        }
        self.text(text.trim_end_matches(' '));
        if version >= 11 {
            for call in calls {
                self.special("[TOOL_CALLS]");
                self.text(&call.name);
                if version < 13 && !call.id.is_empty() {
                    self.special("[CALL_ID]");
                    self.text(&call.id);
                }
                self.special("[ARGS]");
                self.text(dumps(&call.arguments));
            }
        } else if !calls.is_empty() {
            self.special("[TOOL_CALLS]");
            self.text(dumps(&calls.iter().map(Call::to_json).collect()));
        }
        if !open {
            self.special("</s>");
        }
        Ok(())
    }

    fn tool(&mut self, version: u32, text: String, call_id: String) {
        self.special("[TOOL_RESULTS]");
        if version < 7 {
            let content = if text.is_empty() { json!({}) } else { parse_or_text(&text) };
            self.text(dumps(&json!({"content": content, "call_id": call_id})));
        } else {
            if version < 13 {
                self.text(call_id);
                self.special("[TOOL_CONTENT]");
            }
            self.text(text);
        }
        self.special("[/TOOL_RESULTS]");
    }
}

impl Call {
    fn from_json(call: &Value) -> Option<Self> {
        let function = call.get("function")?;
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => json!({}),
            Some(Value::String(text)) if text.is_empty() => json!({}),
            Some(Value::String(text)) => parse_or_text(text),
            Some(other) => other.clone(),
        };
        let name = function.get("name")?.as_str()?.to_owned();
        Some(Self { name, arguments, id: call_id(call.get("id")) })
    }

    fn to_json(&self) -> Value {
        let mut call = json!({"name": self.name, "arguments": self.arguments});
        if !self.id.is_empty() {
            call["id"] = self.id.clone().into();
        }
        call
    }
}

fn refuse(reason: impl Into<String>) -> TextError {
    TextError::Template(reason.into())
}

fn parse_or_text(text: &str) -> Value {
    vllm_apple_model::json::parse(text.as_bytes()).unwrap_or_else(|_| text.into())
}

/// mistral_common writes "null" for no id.
fn call_id(id: Option<&Value>) -> String {
    let id = id.and_then(Value::as_str).filter(|id| *id != "null").unwrap_or_default();
    let skip = id.chars().count().saturating_sub(CALL_ID_LEN);
    id.chars().skip(skip).collect()
}

/// The tools with the fields and the order of fields that mistral_common writes.
fn tool_list(tools: &[Value]) -> Value {
    let describe = |tool: &Value| {
        let field = |name: &str, missing: Value| {
            let value = tool.get("function").and_then(|f| f.get(name)).filter(|v| !v.is_null());
            (name.to_owned(), value.cloned().unwrap_or(missing))
        };
        let function: Map<String, Value> =
            [field("name", json!("")), field("description", json!("")), field("parameters", json!({}))]
                .into_iter()
                .collect();
        json!({"type": "function", "function": function})
    };
    tools.iter().map(describe).collect()
}

/// Removes the system messages, which old versions put into the last user message, and joins them.
fn take_system(turns: &mut Vec<Turn>) -> Option<String> {
    let mut system = Vec::new();
    turns.retain(|turn| match turn {
        Turn::System(text) => {
            system.push(text.clone());
            false
        }
        _ => true,
    });
    system.retain(|text| !text.is_empty());
    (!system.is_empty()).then(|| system.join(JOIN))
}

/// Joins neighbouring user and assistant messages; system and tool messages stay by themselves.
fn turns(input: &ChatInput, version: u32) -> Result<Vec<Turn>, TextError> {
    let role = |message: &Value| message.get("role").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut turns = Vec::new();
    let mut call_order: HashMap<String, usize> = HashMap::new();
    for group in input.messages.chunk_by(|a, b| role(a) == role(b)) {
        let texts = group.iter().map(texts).collect::<Result<Vec<_>, _>>()?;
        match role(&group[0]).as_str() {
            "system" => turns.extend(texts.iter().map(|texts| Turn::System(texts.join(JOIN)))),
            "user" => turns.push(Turn::User(texts.concat().join(JOIN))),
            "assistant" => {
                let calls = group.iter().filter_map(|m| m.get("tool_calls")?.as_array()).flatten();
                let calls = calls.map(Call::from_json).collect::<Option<Vec<_>>>();
                let calls = calls.ok_or_else(|| refuse("a tool call needs a function with a name"))?;
                for call in &calls {
                    // The first of equals.
                    let place = call_order.len();
                    call_order.entry(call.id.clone()).or_insert(place);
                }
                turns.push(Turn::Assistant { text: texts.concat().join(JOIN), calls, open: false });
            }
            "tool" => {
                let mut results: Vec<_> = std::iter::zip(group, &texts)
                    .map(|(message, texts)| (call_id(message.get("tool_call_id")), texts.join(JOIN)))
                    .collect();
                if version >= 11 {
                    results.sort_by_key(|(id, _)| call_order.get(id).copied().unwrap_or(usize::MAX));
                }
                call_order.clear();
                turns.extend(results.into_iter().map(|(call_id, text)| Turn::Tool { text, call_id }));
            }
            other => return Err(refuse(format!("unknown role {other:?}: expected system, user, assistant or tool"))),
        }
    }
    match turns.last_mut() {
        Some(Turn::User(_) | Turn::Tool { .. }) if !input.continue_final_message => Ok(turns),
        Some(Turn::Assistant { open, .. }) if input.continue_final_message => {
            *open = true;
            Ok(turns)
        }
        _ if input.continue_final_message => Err(refuse("continue_final_message needs a last assistant message")),
        _ => Err(refuse("the last message must be from the user or a tool")),
    }
}

/// The texts of a message's content, the empty ones left out.
fn texts(message: &Value) -> Result<Vec<&str>, TextError> {
    let texts = match message.get("content") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| part_text(part).ok_or_else(|| refuse("this model takes only text parts as content")))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(refuse("a message's content must be a string or a list of parts")),
    };
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
}

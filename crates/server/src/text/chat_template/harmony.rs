//! What gpt-oss' own template cannot say of a conversation, and vLLM says: what the model said before a call beside what it thought, and several
//! calls of one message. Both are put so that the template writes what the model was taught. Knows that template's fields, no Jinja.

use serde_json::{Map, Value, json};

/// Names of what a model thinks.
pub(super) const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Between what it thought and what it said, in the message of the first that the template writes.
const THEN_SAID: &str = "<|end|><|start|>assistant<|channel|>commentary<|message|>";

/// Puts what an assistant said before its calls behind what it thought: as messages, one after the other, as the model writes them.
pub fn join_said(message: &mut Map<String, Value>) {
    let has_calls = message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    let text = |value: Option<&Value>| value?.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let thought = THOUGHTS.iter().find_map(|name| text(message.get(*name)));
    let (true, Some(thought), Some(said)) = (has_calls, thought, text(message.get("content"))) else { return };
    message.retain(|name, _| name != "content" && !THOUGHTS.contains(&name.as_str()));
    message.insert("thinking".to_owned(), format!("{thought}{THEN_SAID}{said}").into());
}

/// Messages of which each has one call at most, with its results right behind: the template shows the first of a message alone, and takes all results
/// for those of the last that it showed.
#[derive(Debug, Default)]
pub struct SingleCalls {
    /// Each with what answers it, while answers come.
    open: Vec<(Value, Vec<Value>)>,
}

impl SingleCalls {
    /// Takes in the next message, and gives those that are complete.
    pub fn take(&mut self, message: Value) -> Vec<Value> {
        if message["role"] == "tool" && !self.open.is_empty() {
            let id = &message["tool_call_id"];
            let answers = |(call, _): &(Value, Vec<Value>)| call["tool_calls"][0]["id"] == *id;
            // What answers none of them comes last.
            let at = self.open.iter().position(answers).unwrap_or(self.open.len() - 1);
            self.open[at].1.push(message);
            return Vec::new();
        }
        let mut complete = self.finish();
        match message.get("tool_calls").and_then(Value::as_array).map_or(0, Vec::len) {
            ..=1 => complete.push(message),
            _ => self.open = split(message),
        }
        complete
    }

    /// The messages that are left.
    pub fn finish(&mut self) -> Vec<Value> {
        let open = std::mem::take(&mut self.open).into_iter();
        open.flat_map(|(call, answers)| std::iter::once(call).chain(answers)).collect()
    }
}

/// A message for each call, of which the first has what else the message says.
fn split(mut message: Value) -> Vec<(Value, Vec<Value>)> {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls").map(Value::take) else { return Vec::new() };
    let mut first = Some(message);
    let mut with = |call: Value| {
        let mut message = first.take().unwrap_or_else(|| json!({"role": "assistant"}));
        message["tool_calls"] = json!([call]);
        (message, Vec::new())
    };
    calls.into_iter().map(&mut with).collect()
}

/// Defaults of choices as text, to which the template adds them as they are.
pub fn defaults_as_text(function: &mut Map<String, Value>) {
    let properties = function.get_mut("parameters").and_then(|parameters| parameters.get_mut("properties"));
    for property in properties.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        let is_choice = ["enum", "oneOf"].iter().any(|name| property.get(*name).is_some());
        if let Some(default) = property.get_mut("default").filter(|default| is_choice && !default.is_string()) {
            *default = default.to_string().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_follows_what_was_thought() {
        let call = json!([{"id": "1"}]);
        let joined = |message: Value| {
            let Value::Object(mut fields) = message else { panic!("an object") };
            join_said(&mut fields);
            Value::Object(fields)
        };
        let both = json!({"role": "assistant", "content": "I look.", "reasoning": "Hm.", "reasoning_content": "Hm.", "tool_calls": call});
        let expected = format!("Hm.{THEN_SAID}I look.");
        assert_eq!(joined(both), json!({"role": "assistant", "thinking": expected, "tool_calls": call}));
        for message in [
            json!({"content": "I look.", "reasoning": "Hm."}),
            json!({"content": "I look.", "reasoning": "Hm.", "tool_calls": []}),
            json!({"content": "", "reasoning": "Hm.", "tool_calls": call}),
            json!({"content": "I look.", "reasoning": "", "tool_calls": call}),
        ] {
            assert_eq!(joined(message.clone()), message);
        }
    }

    #[test]
    fn results_follow_their_calls() {
        let call = |id: &str| json!({"id": id, "function": {"name": id}});
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
        let of = |calls: &[Value]| json!({"role": "assistant", "tool_calls": calls});
        let user = json!({"role": "user", "content": "Hi!"});
        let mut first = of(&[call("a"), call("b"), call("c")]);
        first["thinking"] = json!("Hm.");
        let conversation = [first, result("b"), result("a"), result("x"), user.clone(), of(&[call("d")]), result("d")];
        let mut calls = SingleCalls::default();
        let mut written: Vec<Value> = conversation.into_iter().flat_map(|message| calls.take(message)).collect();
        written.extend(calls.finish());
        let mut first = of(&[call("a")]);
        first["thinking"] = json!("Hm.");
        let expected = [
            first,
            result("a"),
            of(&[call("b")]),
            result("b"),
            of(&[call("c")]),
            result("x"),
            user,
            of(&[call("d")]),
            result("d"),
        ];
        assert_eq!(written, expected);
    }
}

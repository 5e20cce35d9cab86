//! The conversation of another API, written as chat's messages: turns of an assistant are put together of what it thought, said and called.
//! Knows chat's messages, none of those APIs.

use std::collections::HashMap;
use std::fmt::Write;

use super::raw::quoted;

/// Messages, as text.
#[derive(Debug, Clone, Default)]
pub struct Dialogue {
    /// What the model is told before anything is said: many templates take such a message in the first place alone.
    system: String,
    /// Messages with commas between.
    messages: String,
    turn: Turn,
}

/// An assistant's message that may go on.
#[derive(Debug, Clone, Default)]
struct Turn {
    reasoning: String,
    content: Option<String>,
    /// With commas between.
    calls: String,
    /// Names of calls that nothing has answered yet, and how many have each. As long as there are some, the turn goes on: templates want calls
    /// right before what answers them.
    unanswered: HashMap<String, usize>,
    /// Messages of tools that come behind it, with commas between.
    outputs: String,
}

/// Bytes that an unanswered call takes besides its name.
const PER_UNANSWERED: usize = 64;

impl Dialogue {
    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let Turn { reasoning, content, calls, unanswered, outputs } = &self.turn;
        let content = content.as_ref().map_or(0, String::len);
        let unanswered: usize = unanswered.keys().map(|id| id.len() + PER_UNANSWERED).sum();
        let turn = reasoning.len() + content + calls.len() + unanswered + outputs.len();
        self.system.len() + self.messages.len() + turn
    }

    /// Instructions.
    pub fn system(&mut self, text: &str) {
        self.end_turn();
        if self.messages.is_empty() {
            add(&mut self.system, "\n\n", text);
        } else {
            self.message(format_args!(r#"{{"role":"system","content":{}}}"#, quoted(text)));
        }
    }

    /// What the user says.
    pub fn user(&mut self, text: &str) {
        self.end_turn();
        self.message(format_args!(r#"{{"role":"user","content":{}}}"#, quoted(text)));
    }

    /// What a tool answers to a call.
    pub fn tool(&mut self, call: &str, text: &str) {
        let message = format!(r#"{{"role":"tool","tool_call_id":{},"content":{}}}"#, quoted(call), quoted(text));
        if self.turn.unanswered.is_empty() {
            self.end_turn();
            self.message(format_args!("{message}"));
            return;
        }
        add(&mut self.turn.outputs, ",", &message);
        if let Some(times) = self.turn.unanswered.get_mut(call) {
            *times -= 1;
            if *times == 0 {
                self.turn.unanswered.remove(call);
            }
        }
        if self.turn.unanswered.is_empty() {
            self.end_turn();
        }
    }

    /// What the assistant thinks before it says or calls something, or between its calls.
    pub fn reasoning(&mut self, text: &str) {
        if self.turn.content.is_some() && self.turn.unanswered.is_empty() {
            self.end_turn();
        }
        add(&mut self.turn.reasoning, "\n", text);
    }

    /// What it says before it calls something, or between its calls.
    pub fn answer(&mut self, text: &str) {
        if self.turn.content.is_some() && self.turn.unanswered.is_empty() {
            self.end_turn();
        }
        add(self.turn.content.get_or_insert_default(), "\n", text);
    }

    /// What it calls.
    pub fn call(&mut self, id: &str, name: &str, arguments: &str) {
        *self.turn.unanswered.entry(id.to_owned()).or_default() += 1;
        let [id, name, arguments] = [id, name, arguments].map(quoted);
        let function = format!(r#"{{"name":{name},"arguments":{arguments}}}"#);
        add(&mut self.turn.calls, ",", &format!(r#"{{"id":{id},"type":"function","function":{function}}}"#));
    }

    /// What comes is said by somebody else.
    pub fn end_turn(&mut self) {
        let Turn { reasoning, content, calls, outputs, .. } = std::mem::take(&mut self.turn);
        if reasoning.is_empty() && content.is_none() && calls.is_empty() {
            return;
        }
        let mut message = r#"{"role":"assistant""#.to_owned();
        // Writing to a string cannot fail.
        let _ = write!(message, r#","content":{}"#, content.map_or("null".to_owned(), |text| quoted(&text)));
        if !reasoning.is_empty() {
            // As in vLLM, by both names that templates know.
            let reasoning = quoted(&reasoning);
            let _ = write!(message, r#","reasoning":{reasoning},"reasoning_content":{reasoning}"#);
        }
        if !calls.is_empty() {
            let _ = write!(message, r#","tool_calls":[{calls}]"#);
        }
        self.message(format_args!("{message}}}"));
        if !outputs.is_empty() {
            self.message(format_args!("{outputs}"));
        }
    }

    /// The list of messages, after these instructions. `None`: there is nothing.
    pub fn write(mut self, instructions: Option<&str>) -> Option<String> {
        self.end_turn();
        let mut system = instructions.unwrap_or_default().to_owned();
        if !self.system.is_empty() {
            add(&mut system, "\n\n", &self.system);
        }
        let mut list = String::with_capacity(self.messages.len() + system.len() + 64);
        list.push('[');
        if !system.is_empty() {
            let _ = write!(list, r#"{{"role":"system","content":{}}}"#, quoted(&system));
        }
        if !self.messages.is_empty() {
            add(&mut list, if system.is_empty() { "" } else { "," }, &self.messages);
        }
        list.push(']');
        (list.len() > 2).then_some(list)
    }

    fn message(&mut self, message: std::fmt::Arguments<'_>) {
        if !self.messages.is_empty() {
            self.messages.push(',');
        }
        let _ = self.messages.write_fmt(message);
    }
}

fn add(text: &mut String, separator: &str, more: &str) {
    if !text.is_empty() {
        text.push_str(separator);
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(dialogue: Dialogue, instructions: Option<&str>) -> Value {
        serde_json::from_str(&dialogue.write(instructions).unwrap()).unwrap()
    }

    #[test]
    fn a_turn_is_one_message() {
        let mut dialogue = Dialogue::default();
        dialogue.system("Be kind.");
        dialogue.user("\"Hi\"");
        dialogue.reasoning("Hm.");
        dialogue.answer("I look.");
        dialogue.call("1", "look", "{\"at\": 1}");
        dialogue.call("2", "look", "{}");
        dialogue.tool("1", "nothing");
        dialogue.system("Hurry.");
        dialogue.answer("a");
        dialogue.answer("b");
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
        let expected = json!([
            {"role": "system", "content": "You.\n\nBe kind."},
            {"role": "user", "content": "\"Hi\""},
            {"role": "assistant", "content": "I look.", "reasoning": "Hm.", "reasoning_content": "Hm.",
                "tool_calls": [call("1", "{\"at\": 1}"), call("2", "{}")]},
            {"role": "tool", "tool_call_id": "1", "content": "nothing"},
            {"role": "system", "content": "Hurry."},
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": "b"},
        ]);
        assert_eq!(written(dialogue, Some("You.")), expected);
        assert_eq!(Dialogue::default().write(None), None);
    }

    #[test]
    fn a_turn_goes_on_until_its_calls_are_answered() {
        let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}});
        let output = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "x"});
        let mut dialogue = Dialogue::default();
        dialogue.call("a", "look", "{}");
        dialogue.answer("I look.");
        dialogue.reasoning("Hm.");
        dialogue.call("b", "look", "{}");
        dialogue.tool("b", "x");
        dialogue.answer("And wait.");
        dialogue.tool("a", "x");
        // All are answered: what comes is another turn.
        dialogue.answer("c");
        dialogue.call("d", "look", "{}");
        dialogue.tool("e", "x");
        dialogue.user("f");
        dialogue.answer("g");
        let expected = json!([
            {"role": "assistant", "content": "I look.\nAnd wait.", "reasoning": "Hm.", "reasoning_content": "Hm.",
                "tool_calls": [call("a"), call("b")]},
            output("b"),
            output("a"),
            {"role": "assistant", "content": "c", "tool_calls": [call("d")]},
            output("e"),
            {"role": "user", "content": "f"},
            {"role": "assistant", "content": "g"},
        ]);
        assert_eq!(written(dialogue, None), expected);
    }
}

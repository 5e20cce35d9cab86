//! The conversation of another API, written as chat's messages: turns of an assistant are put together of what it thought, said and called.
//! Knows chat's messages, none of those APIs.

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
}

impl Dialogue {
    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let Turn { reasoning, content, calls } = &self.turn;
        let content = content.as_ref().map_or(0, String::len);
        self.system.len() + self.messages.len() + reasoning.len() + content + calls.len()
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
        self.end_turn();
        let (call, text) = (quoted(call), quoted(text));
        self.message(format_args!(r#"{{"role":"tool","tool_call_id":{call},"content":{text}}}"#));
    }

    /// What the assistant thinks before it says or calls something.
    pub fn reasoning(&mut self, text: &str) {
        if self.turn.content.is_some() || !self.turn.calls.is_empty() {
            self.end_turn();
        }
        add(&mut self.turn.reasoning, "\n", text);
    }

    /// What it says before it calls something.
    pub fn answer(&mut self, text: &str) {
        if self.turn.content.is_some() || !self.turn.calls.is_empty() {
            self.end_turn();
        }
        self.turn.content = Some(text.to_owned());
    }

    /// What it calls.
    pub fn call(&mut self, id: &str, name: &str, arguments: &str) {
        let [id, name, arguments] = [id, name, arguments].map(quoted);
        let function = format!(r#"{{"name":{name},"arguments":{arguments}}}"#);
        add(&mut self.turn.calls, ",", &format!(r#"{{"id":{id},"type":"function","function":{function}}}"#));
    }

    /// What comes is said by somebody else.
    pub fn end_turn(&mut self) {
        let Turn { reasoning, content, calls } = std::mem::take(&mut self.turn);
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
}

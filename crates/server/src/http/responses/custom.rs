//! Tools whose input is free text. As in vLLM, the model is shown a function with one string, and the string is the input. Knows its
//! arguments, no wording.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::error::ApiError;
use crate::http::raw::{object, quoted, text, word};
use crate::structured::tree;

/// What the parameters of such a function are like, in vLLM's words.
pub const PARAMETERS: &str = r#"{"type":"object","properties":{"input":{"type":"string","description":"The freeform text payload for this tool."}},"required":["input"],"additionalProperties":false}"#;

/// What stands before the input in arguments. There may be white space, but not within the name.
const OPENING: &[u8] = br#"{"input":""#;

/// What the model is told of the grammar that `format` of a tool of free text has, if it is one.
pub fn grammar(format: &RawValue, path: &str) -> Result<Option<String>, ApiError> {
    let [kind, syntax, definition] = object(path, format, ["type", "syntax", "definition"])?;
    match word(kind).as_deref() {
        Some("text") => return Ok(None),
        Some("grammar") => {}
        _ => {
            let param = format!("{path}.type");
            return Err(ApiError::param(&param, format!("`{param}` must be \"text\" or \"grammar\"")));
        }
    }
    let kind = match word(syntax).as_deref() {
        Some("lark") => "Lark grammar",
        Some("regex") => "regular expression",
        _ => {
            let param = format!("{path}.syntax");
            return Err(ApiError::param(&param, format!("`{param}` must be \"lark\" or \"regex\"")));
        }
    };
    let param = format!("{path}.definition");
    let definition = definition.ok_or_else(|| ApiError::param(&param, format!("`{param}` is required")))?;
    Ok(Some(format!("The input must match this {kind}:\n{}", text(definition, &param)?)))
}

/// The arguments of a call with this input.
pub fn arguments(input: &str) -> String {
    format!(r#"{{"input":{}}}"#, quoted(input))
}

/// The input of a call with these arguments, which may have been cut off.
pub fn input(arguments: &str) -> String {
    let mut input = Input::default();
    let begun = input.push(arguments);
    begun + &input.rest(arguments)
}

/// The input of a call whose arguments come in parts. However they are cut, its parts add up to the same.
#[derive(Debug, Default)]
pub struct Input {
    at: At,
    /// Letters of an escape that has begun, without its backslash.
    escape: String,
}

/// How far the arguments have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// So much of [`OPENING`] was there.
    Opening(usize),
    Text,
    Escape,
    /// Behind the text.
    Behind,
    /// They have another form, which shows at their end.
    Other,
}

impl Default for At {
    fn default() -> Self {
        Self::Opening(0)
    }
}

impl Input {
    /// What more of the arguments adds to it.
    pub fn push(&mut self, arguments: &str) -> String {
        let mut text = String::new();
        for letter in arguments.chars() {
            self.take(letter, &mut text);
        }
        text
    }

    /// What is still missing once all arguments are there. Those of another form are the input themselves, as in vLLM.
    pub fn rest(&self, arguments: &str) -> String {
        if self.at != At::Other {
            return String::new();
        }
        match tree::parse(arguments) {
            Ok(Value::String(text)) => text,
            Ok(Value::Object(mut fields)) => match fields.remove("input") {
                Some(Value::String(text)) => text,
                _ => arguments.to_owned(),
            },
            _ => arguments.to_owned(),
        }
    }

    fn take(&mut self, letter: char, text: &mut String) {
        match self.at {
            At::Opening(done) => {
                let may_be_white = matches!(OPENING[done], b'{' | b':') || matches!(OPENING[..done], [.., b'{' | b':']);
                self.at = match letter {
                    ' ' | '\t' | '\n' | '\r' if may_be_white => At::Opening(done),
                    _ if letter != char::from(OPENING[done]) => At::Other,
                    _ if done + 1 == OPENING.len() => At::Text,
                    _ => At::Opening(done + 1),
                }
            }
            At::Text => match letter {
                '"' => self.at = At::Behind,
                '\\' => self.at = At::Escape,
                _ => text.push(letter),
            },
            At::Escape => self.escaped(letter, text),
            At::Behind | At::Other => {}
        }
    }

    /// A letter of an escape. What is none stands for itself: models write such backslashes.
    fn escaped(&mut self, letter: char, text: &mut String) {
        self.escape.push(letter);
        if let Ok(meant) = serde_json::from_str::<String>(&format!("\"\\{}\"", self.escape)) {
            text.push_str(&meant);
            self.escape.clear();
            self.at = At::Text;
        } else if !may_go_on(&self.escape) {
            self.escape.pop();
            text.push('\\');
            text.push_str(&self.escape);
            self.escape.clear();
            self.at = At::Text;
            self.take(letter, text);
        }
    }
}

/// Whether letters can follow with which it is an escape: four digits, and the other half of a character.
fn may_go_on(escape: &str) -> bool {
    const FORM: &[u8] = b"uXXXX\\uXXXX";
    let fits = |(letter, form): (u8, &u8)| if *form == b'X' { letter.is_ascii_hexdigit() } else { letter == *form };
    escape.len() < FORM.len() && escape.bytes().zip(FORM).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_is_the_string() {
        for (arguments, expected) in [
            (r#"{"input":"a\n\"b\" € \u20ac \ud83d\ude00 \/ \\n"}"#, "a\n\"b\" € € 😀 / \\n"),
            ("\n{ \"input\" :\t\"a\nb\" }", "a\nb"),
            (r#"{"input":""}"#, ""),
            // Cut off.
            ("", ""),
            (r#"{"inp"#, ""),
            (r#"{"input": "*** Begin\nPat"#, "*** Begin\nPat"),
            (r#"{"input": "a\"#, "a"),
            (r#"{"input": "a\ud83d\u"#, "a"),
            // No escapes.
            (r#"{"input": "\d\.\u12 \ud83d!\u12"}"#, r"\d\.\u12 \ud83d!\u12"),
            // Other forms.
            (r#"{"reason": "x", "input": "a\n"}"#, "a\n"),
            (r#"{"patch": "a"}"#, r#"{"patch": "a"}"#),
            (r#"{"input": 3}"#, r#"{"input": 3}"#),
            (r#"{"in put": "a"}"#, r#"{"in put": "a"}"#),
            (r#""a\n""#, "a\n"),
            ("*** Begin Patch", "*** Begin Patch"),
            ("{}", "{}"),
        ] {
            assert_eq!(input(arguments), expected, "{arguments}");
            let mut parts = Input::default();
            let mut sum: String = arguments.chars().map(|letter| parts.push(&letter.to_string())).collect();
            sum.push_str(&parts.rest(arguments));
            assert_eq!(sum, expected, "{arguments}");
        }
        let text = "*** Begin Patch\n+\t\"\\d\" \u{7f}\u{0}😀\n";
        assert_eq!(input(&arguments(text)), text);
    }
}

//! Control characters in the texts of arguments. JSON has them as escapes alone, and models write new lines as they are.

use crate::schemas::quoted;

/// Escapes them in one call's arguments, part by part. Arguments that are no JSON stay as they are.
#[derive(Debug, Default)]
pub struct Escapes {
    is_json: Option<bool>,
    in_string: bool,
    escaped: bool,
}

impl Escapes {
    /// In the next part.
    pub fn escape(&mut self, text: &mut String) {
        if self.is_json.is_none() {
            self.is_json = text.trim_start().chars().next().map(|first| "{[\"".contains(first));
        }
        if self.is_json != Some(true) {
            return;
        }
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            if self.in_string && c < ' ' {
                // Where a backslash went before, the escape has its own already.
                let escape = quoted(c.encode_utf8(&mut [0; 4]));
                out.push_str(&escape[if self.escaped { 2 } else { 1 }..escape.len() - 1]);
            } else {
                out.push(c);
            }
            match c {
                '"' if !self.escaped => self.in_string = !self.in_string,
                _ => {}
            }
            self.escaped = self.in_string && c == '\\' && !self.escaped;
        }
        *text = out;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_texts_are_escaped() {
        for (parts, expected) in [
            (&["{\"a\":\n\"b\nc\td\"}"][..], "{\"a\":\n\"b\\nc\\td\"}"),
            (&[" ", "{\"a\": \"\\", "\n\\\\", "\n\u{1}", "\"}\n"], " {\"a\": \"\\n\\\\\\n\\u0001\"}\n"),
            (&["{\"a\": \"\\\"", "\r\"}"], "{\"a\": \"\\\"\\r\"}"),
            (&["print(\"a\nb\")"], "print(\"a\nb\")"),
        ] {
            let mut escapes = Escapes::default();
            let mut whole = String::new();
            for part in parts {
                let mut part = (*part).to_owned();
                escapes.escape(&mut part);
                whole.push_str(&part);
            }
            assert_eq!(whole, expected);
        }
    }
}

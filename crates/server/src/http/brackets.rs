//! Whether the arguments of a call are whole, told as they come and without keeping them: what is cut off leaves a bracket or a string open.
//! Knows no more of JSON.

/// Arguments so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Brackets {
    open: usize,
    in_string: bool,
    is_escaped: bool,
    has_begun: bool,
}

impl Brackets {
    /// Those of this text.
    pub fn of(text: &str) -> Self {
        let mut brackets = Self::default();
        brackets.push(text);
        brackets
    }

    /// More of the text.
    pub fn push(&mut self, text: &str) {
        for byte in text.bytes() {
            self.has_begun |= !byte.is_ascii_whitespace();
            match byte {
                _ if std::mem::take(&mut self.is_escaped) => {}
                b'\\' => self.is_escaped = self.in_string,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.open += 1,
                b'}' | b']' if !self.in_string => self.open = self.open.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Whether nothing is open.
    pub fn are_closed(self) -> bool {
        self.has_begun && self.open == 0 && !self.in_string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_beginning_of_an_object_is_closed() {
        let object = r#" {"a\"}": [{"b": "}\\"}, "ä"], "c": {}}"#;
        let mut brackets = Brackets::default();
        for character in object.chars() {
            assert!(!brackets.are_closed());
            brackets.push(character.encode_utf8(&mut [0; 4]));
        }
        assert!(brackets.are_closed() && Brackets::of("{} ").are_closed());
        assert!(!Brackets::of("").are_closed() && !Brackets::of(" ").are_closed());
    }
}

//! Grammars in EBNF, as llama.cpp (GBNF), SGLang and vLLM read them: written anew in llguidance's variant of Lark. Knows both notations,
//! nothing of tokens.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use super::literal;

/// Whether a grammar is in this notation.
pub fn is_ebnf(grammar: &str) -> bool {
    grammar.contains("::=")
}

/// The grammar in Lark. Its rule `root` is the start.
///
/// # Errors
/// What is wrong with it.
pub fn lark(grammar: &str) -> Result<String, String> {
    let mut reader = Reader(grammar.chars().peekable());
    let mut names = Names::default();
    let mut lark = String::new();
    // Whether something must stand before the next `|` or `)`: an alternative may be empty.
    let mut is_empty = true;
    while let Some(token) = reader.next()? {
        match &token {
            Token::Rule(name) => {
                end_rule(&mut lark, is_empty);
                names.define(name)?;
                lark.push_str(&format!("{}:", names.of(name)));
                is_empty = true;
                continue;
            }
            _ if lark.is_empty() => return Err(format!("it must begin with a rule, `name ::= …`, got {token:?}")),
            Token::Mark(mark @ ('|' | ')')) => {
                if is_empty {
                    lark.push_str(" \"\"");
                }
                lark.push(*mark);
                is_empty = *mark == '|';
                continue;
            }
            Token::Mark('(') => {
                lark.push_str(" (");
                is_empty = true;
                continue;
            }
            Token::Mark(mark) => lark.push(*mark),
            Token::Repeat(times) => lark.push_str(&format!("{{{times}}}")),
            Token::Name(name) => lark.push_str(&format!(" {}", names.of(name))),
            Token::Text(text) => lark.push_str(&format!(" {}", literal(text))),
            Token::Class(class) => lark.push_str(&format!(" /{class}/")),
        }
        is_empty = false;
    }
    end_rule(&mut lark, is_empty);
    names.check()?;
    Ok(lark)
}

fn end_rule(lark: &mut String, is_empty: bool) {
    if !lark.is_empty() {
        lark.push_str(if is_empty { " \"\"\n" } else { "\n" });
    }
}

/// Rules by the names that Lark takes.
#[derive(Default)]
struct Names(HashMap<String, (usize, bool)>);

impl Names {
    fn of(&mut self, name: &str) -> String {
        if name == "root" {
            self.0.entry(name.to_owned()).or_insert((0, false));
            return "start".to_owned();
        }
        let next = self.0.len();
        format!("r{}", self.0.entry(name.to_owned()).or_insert((next, false)).0)
    }

    fn define(&mut self, name: &str) -> Result<(), String> {
        self.of(name);
        match self.0.get_mut(name) {
            Some((_, defined @ false)) => *defined = true,
            _ => return Err(format!("the rule `{name}` stands there twice")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if !self.0.contains_key("root") {
            return Err("there is no rule `root`".to_owned());
        }
        match self.0.iter().filter(|(_, (_, defined))| !defined).map(|(name, _)| name).min() {
            Some(name) => Err(format!("the rule `{name}` is nowhere")),
            None => Ok(()),
        }
    }
}

#[derive(Debug)]
enum Token {
    /// `name ::=`
    Rule(String),
    Name(String),
    Text(String),
    /// A regular expression of one character.
    Class(String),
    /// `(`, `)`, `|`, `*`, `+` or `?`
    Mark(char),
    /// What stands between braces.
    Repeat(String),
}

struct Reader<'g>(Peekable<Chars<'g>>);

impl Reader<'_> {
    fn next(&mut self) -> Result<Option<Token>, String> {
        self.skip();
        let Some(first) = self.0.next() else { return Ok(None) };
        Ok(Some(match first {
            '"' | '\'' => Token::Text(self.text(first)?),
            '[' => Token::Class(self.class()?),
            '.' => Token::Class("(.|\\n)".to_owned()),
            '(' | ')' | '|' | '*' | '+' | '?' => Token::Mark(first),
            '{' => Token::Repeat(self.until('}')?),
            c if c.is_ascii_alphabetic() || c == '_' => self.name(c),
            other => return Err(format!("{other:?} means nothing here")),
        }))
    }

    fn skip(&mut self) {
        while let Some(&c) = self.0.peek() {
            if c == '#' {
                while self.0.next_if(|&c| c != '\n').is_some() {}
            } else if !c.is_whitespace() {
                return;
            } else {
                self.0.next();
            }
        }
    }

    fn name(&mut self, first: char) -> Token {
        let mut name = String::from(first);
        while let Some(c) = self.0.next_if(|&c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
            name.push(c);
        }
        self.skip();
        let mut ahead = self.0.clone();
        if [ahead.next(), ahead.next(), ahead.next()] == [Some(':'), Some(':'), Some('=')] {
            self.0 = ahead;
            return Token::Rule(name);
        }
        Token::Name(name)
    }

    fn until(&mut self, end: char) -> Result<String, String> {
        let mut text = String::new();
        loop {
            match self.0.next() {
                Some(c) if c == end => return Ok(text),
                Some(c) => text.push(c),
                None => return Err(format!("`{end}` is missing at its end")),
            }
        }
    }

    fn text(&mut self, quote: char) -> Result<String, String> {
        let mut text = String::new();
        loop {
            match self.0.next() {
                Some(c) if c == quote => return Ok(text),
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
                None => return Err(format!("{quote} is missing at its end")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, String> {
        let digits = match self.0.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if c.is_ascii_punctuation() => return Ok(c),
            other => return Err(format!("the escape \\{} is not known", other.map_or(String::new(), String::from))),
        };
        let code: String = self.0.by_ref().take(digits).collect();
        let character = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
        character.ok_or_else(|| format!("{code:?} is no character"))
    }

    /// A class as a regular expression: every character that could mean something is escaped.
    fn class(&mut self) -> Result<String, String> {
        let mut class = String::from("[");
        if self.0.next_if_eq(&'^').is_some() {
            class.push('^');
        }
        // A dash is a range between two letters, and a letter elsewhere: two of them would be a difference in regular expressions.
        let (mut may_begin, mut ends) = (false, false);
        loop {
            let c = match self.0.next() {
                Some(']') => break,
                Some('-') if may_begin && self.0.peek().is_some_and(|&next| next != ']') => {
                    class.push('-');
                    (may_begin, ends) = (false, true);
                    continue;
                }
                Some('\\') => self.escape()?,
                Some(c) => c,
                None => return Err("`]` is missing at its end".to_owned()),
            };
            (may_begin, ends) = (!ends, false);
            class.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
        }
        class.push(']');
        Ok(class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammars_are_written_anew() {
        let json = "# a comment\nroot ::= item (\",\" item)* | # or nothing\n\nitem-1 ::= [a-c^\\]]+ \"\\n\" {2,3}\nitem::=item-1 . 'x'?\n";
        let lark = lark(json).unwrap();
        assert_eq!(
            lark,
            "start: r1 ( \",\" r1)*| \"\"\nr2: /[\\u{61}-\\u{63}\\u{5e}\\u{5d}]/+ \"\\n\"{2,3}\nr1: r2 /(.|\\n)/ \"x\"?\n"
        );
    }

    #[test]
    fn what_means_something_to_llguidance_is_escaped() {
        assert_eq!(lark("root ::= \"\\x7f\"").unwrap(), "start: \"\\u007f\"\n");
        assert_eq!(
            lark("root ::= [+--] [--/] [a-]").unwrap(),
            "start: /[\\u{2b}-\\u{2d}]/ /[\\u{2d}-\\u{2f}]/ /[\\u{61}\\u{2d}]/\n"
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (grammar, word) in [
            ("\"a\"", "begin with a rule"),
            ("a ::= \"b\"", "no rule `root`"),
            ("root ::= b", "`b` is nowhere"),
            ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
            ("root ::= \"a", "missing"),
            ("root ::= [a", "missing"),
            ("root ::= \"\\q\"", "not known"),
            ("root ::= %", "'%'"),
        ] {
            let error = lark(grammar).unwrap_err();
            assert!(error.contains(word), "{grammar}: {error}");
        }
    }
}

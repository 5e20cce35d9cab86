//! Grammars in EBNF, as llama.cpp (GBNF), SGLang and vLLM read them: written anew in llguidance's variant of Lark. Knows both notations,
//! nothing of tokens.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use super::compile::MAX_OF_PART;
use super::literal;
use super::regex::CHARACTER_STATES;
use super::size::{self, Size};

/// What `.` stands for.
const ANY_LETTER: &str = "(.|\\n)";

/// Whether a grammar is in this notation.
pub fn is_ebnf(grammar: &str) -> bool {
    grammar.contains("::=")
}

/// A grammar. Its rule `root` is the start.
#[derive(Debug, Clone, PartialEq)]
pub struct Grammar {
    rules: Vec<Rule>,
    root: usize,
    /// Where no rule comes back to itself, about how many states it takes to follow a text through them, unless those are too many.
    pub states: Option<usize>,
}

/// What stands between a rule's `::=` and the next.
#[derive(Debug, Clone, PartialEq, Default)]
struct Rule {
    pieces: Vec<Piece>,
    size: Size,
}

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    /// The same in Lark.
    Lark(String),
    /// The rule with this number.
    Rule(usize),
}

impl Grammar {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(grammar: &str) -> Result<Self, String> {
        let tokens = tokens(grammar)?;
        let numbers = numbers(&tokens)?;
        let rules = rules(tokens, &numbers)?;
        let sizes: Vec<&Size> = rules.iter().map(|rule| &rule.size).collect();
        let states = size::total(&sizes).filter(|states| *states <= MAX_OF_PART);
        Ok(Self { root: numbers.get("root").copied().unwrap_or_default(), rules, states })
    }

    /// As a grammar in Lark. Its rules are terminals if they can be: in those nothing depends on how a text is cut into pieces.
    pub fn lark(&self) -> String {
        let (name, rules) = self.written(if self.states.is_some() { "R" } else { "r" });
        format!("start: {name}\n{rules}")
    }

    /// The name of its root, and its rules, whose names begin so.
    pub fn written(&self, prefix: &str) -> (String, String) {
        let mut lark = String::new();
        for (number, rule) in self.rules.iter().enumerate() {
            lark.push_str(&format!("{prefix}{number}:"));
            for piece in &rule.pieces {
                match piece {
                    Piece::Lark(text) => lark.push_str(text),
                    Piece::Rule(number) => lark.push_str(&format!(" {prefix}{number}")),
                }
            }
            lark.push('\n');
        }
        (format!("{prefix}{}", self.root), lark)
    }
}

impl Rule {
    fn add(&mut self, lark: impl Into<String>) {
        self.pieces.push(Piece::Lark(lark.into()));
    }

    /// An alternative ends: it may be empty, but something must stand there.
    fn end(&mut self, is_empty: bool) {
        if is_empty {
            self.add(" \"\"");
        }
    }
}

fn tokens(grammar: &str) -> Result<Vec<Token>, String> {
    let mut reader = Reader(grammar.chars().peekable());
    let mut tokens = Vec::new();
    while let Some(token) = reader.next()? {
        tokens.push(token);
    }
    Ok(tokens)
}

/// The rules' names, in their order.
fn numbers(tokens: &[Token]) -> Result<HashMap<String, usize>, String> {
    let mut numbers = HashMap::new();
    for token in tokens {
        if let Token::Rule(name) = token
            && numbers.insert(name.clone(), numbers.len()).is_some()
        {
            return Err(format!("the rule `{name}` stands there twice"));
        }
    }
    if !numbers.is_empty() && !numbers.contains_key("root") {
        return Err("there is no rule `root`".to_owned());
    }
    Ok(numbers)
}

fn rules(tokens: Vec<Token>, numbers: &HashMap<String, usize>) -> Result<Vec<Rule>, String> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut is_empty = true;
    for token in tokens {
        let rule = match (token, rules.last_mut()) {
            (Token::Rule(_), last) => {
                last.into_iter().for_each(|rule| rule.end(is_empty));
                rules.push(Rule::default());
                is_empty = true;
                continue;
            }
            (token, None) => return Err(format!("it must begin with a rule, `name ::= …`, got {token:?}")),
            (token, Some(rule)) => (token, rule),
        };
        let was_empty = std::mem::replace(&mut is_empty, false);
        match rule {
            (Token::Mark(mark @ ('|' | ')')), rule) => {
                rule.end(was_empty);
                rule.add(mark);
                is_empty = mark == '|';
                if mark == ')' {
                    rule.size.close();
                }
            }
            (Token::Mark('('), rule) => {
                rule.add(" (");
                rule.size.open();
                is_empty = true;
            }
            (Token::Mark(mark), rule) => rule.add(mark),
            (Token::Repeat(times), rule) => {
                rule.size.repeat(&times);
                rule.add(format!("{{{times}}}"));
            }
            (Token::Name(name), rule) => {
                for piece in pieces(&name, numbers)? {
                    match piece {
                        Piece::Rule(number) => rule.size.add_rule(number),
                        Piece::Lark(_) => rule.size.add(CHARACTER_STATES),
                    }
                    rule.pieces.push(piece);
                }
            }
            (Token::Text(text), rule) => {
                rule.size.add(text.len());
                rule.add(format!(" {}", literal(&text)));
            }
            (Token::Class(class), rule) => {
                rule.size.add(CHARACTER_STATES);
                rule.add(format!(" /{class}/"));
            }
            (Token::Rule(_), _) => {}
        }
    }
    rules.last_mut().into_iter().for_each(|rule| rule.end(is_empty));
    Ok(rules)
}

/// A name with dots may be that of a rule, as in xgrammar, or it is names with any letters between them, as in llama.cpp.
fn pieces(name: &str, numbers: &HashMap<String, usize>) -> Result<Vec<Piece>, String> {
    if let Some(number) = numbers.get(name) {
        return Ok(vec![Piece::Rule(*number)]);
    }
    let mut pieces = Vec::new();
    for (at, part) in name.split('.').enumerate() {
        if at > 0 {
            pieces.push(Piece::Lark(format!(" /{ANY_LETTER}/")));
        }
        match numbers.get(part) {
            Some(number) => pieces.push(Piece::Rule(*number)),
            None if part.is_empty() => {}
            None => return Err(format!("the rule `{part}` is nowhere")),
        }
    }
    Ok(pieces)
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
            '.' => Token::Class(ANY_LETTER.to_owned()),
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
        while let Some(c) = self.0.next_if(|&c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
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

    fn lark(grammar: &str) -> Result<String, String> {
        Grammar::read(grammar).map(|grammar| grammar.lark())
    }

    #[test]
    fn grammars_are_written_anew() {
        let json = "# a comment\nroot ::= item (\",\" item)* | # or nothing\n\nitem-1 ::= [a-c^\\]]+ \"\\n\" {2,3}\nitem::=item-1 . 'x'?\n";
        let lark = lark(json).unwrap();
        assert_eq!(
            lark,
            "start: R0\nR0: R2 ( \",\" R2)*| \"\"\nR1: /[\\u{61}-\\u{63}\\u{5e}\\u{5d}]/+ \"\\n\"{2,3}\nR2: R1 /(.|\\n)/ \"x\"?\n"
        );
    }

    #[test]
    fn what_means_something_to_llguidance_is_escaped() {
        assert_eq!(lark("root ::= \"\\x7f\"").unwrap(), "start: R0\nR0: \"\\u007f\"\n");
        assert_eq!(
            lark("root ::= [+--] [--/] [a-]").unwrap(),
            "start: R0\nR0: /[\\u{2b}-\\u{2d}]/ /[\\u{2d}-\\u{2f}]/ /[\\u{61}\\u{2d}]/\n"
        );
    }

    #[test]
    fn a_name_with_dots_is_a_rules_or_has_letters_between() {
        let of = |rules: &str| lark(&format!("root ::= a.b a.\n{rules}")).unwrap();
        assert!(of("a.b ::= \"x\"\na ::= \"y\"").starts_with("start: R0\nR0: R1 R2 /(.|\\n)/\n"));
        assert!(of("a ::= \"x\"\nb ::= \"y\"").starts_with("start: R0\nR0: R1 /(.|\\n)/ R2 R1 /(.|\\n)/\n"));
    }

    #[test]
    fn rules_that_come_back_and_long_ones_are_no_terminals() {
        for (rules, is_regular) in [
            ("a ::= \"x\"", true),
            ("a ::= \"x\" a", false),
            ("a ::= b\nb ::= \"(\" root \")\" | \"\"", false),
            ("a ::= [a-z]{2999}", true),
            ("a ::= ([a-z]{30} \"abc\"){100}", false),
            ("a ::= b{300}\nb ::= c{300}\nc ::= \"x\"", false),
        ] {
            let lark = lark(&format!("root ::= a\n{rules}")).unwrap();
            assert_eq!(lark.starts_with("start: R0"), is_regular, "{lark}");
        }
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

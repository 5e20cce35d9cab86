//! What a chat template reads: its variables, and the fields of what it goes through. Knows Jinja's words and strings, not what they do.

use std::collections::HashSet;

/// The names in the code of a template. Its texts, comments and strings that are only compared or written name nothing.
#[derive(Debug, Default, Clone)]
pub struct TemplateNames {
    variables: HashSet<String>,
    fields: HashSet<String>,
}

impl TemplateNames {
    /// Those of a template, which need not compile.
    pub(super) fn of(template: &str) -> Self {
        let tokens = tokens(template);
        let mut names = Self::default();
        // What is no thing of the conversation, though it has fields.
        let mut own = HashSet::from(["loop"]);
        own.extend(tokens.windows(3).filter_map(|three| match three {
            [Token::Word(name), Token::Mark('='), Token::Word("namespace")] => Some(*name),
            _ => None,
        }));
        for (at, token) in tokens.iter().enumerate() {
            match token {
                Token::Word(word) if !tokens[..at].ends_with(&[Token::Mark('.')]) => {
                    names.variables.insert((*word).to_owned());
                }
                Token::Word(name) | Token::Text(name) if is_read(&tokens[..at], *token, &tokens[at + 1..], &own) => {
                    // Filters take the path to a field.
                    names.fields.extend(name.split('.').map(str::to_owned));
                }
                _ => {}
            }
        }
        names
    }

    /// Whether a variable has this name.
    pub fn has_variable(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// Whether a field of this name is read.
    pub fn has_field(&self, name: &str) -> bool {
        self.fields.contains(name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    /// A name, a keyword or a number.
    Word(&'t str),
    /// What stands between quotes.
    Text(&'t str),
    Mark(char),
}

/// Filters and methods whose first argument is the name of a field.
const BY_NAME: [&str; 6] = ["attr", "get", "groupby", "rejectattr", "selectattr", "setdefault"];

/// Words before a `[` that begins a list, and no index.
const BEFORE_LIST: [&str; 8] = ["and", "else", "elif", "if", "in", "is", "not", "or"];

/// Whether a field is read by a name that stands between these tokens: `.name`, `['name']`, `.get('name'`, `attribute='name'`, `'name' in`.
fn is_read(before: &[Token], token: Token, after: &[Token], own: &HashSet<&str>) -> bool {
    use Token::{Mark, Text, Word};
    let is_own = |base: &[Token]| match base {
        [.., Mark('.'), Word(_)] => false,
        [.., Word(base)] => own.contains(base),
        _ => false,
    };
    match (before, token, after) {
        // A method is no field.
        (_, Word(_), [Mark('('), ..]) => false,
        ([base @ .., Mark('.')], Word(_), _) => !is_own(base),
        ([base @ .., Mark('[')], Text(_), [Mark(']'), ..]) => {
            let is_index = match base.last() {
                Some(Word(word)) => !BEFORE_LIST.contains(word),
                Some(Mark(mark)) => [')', ']'].contains(mark),
                _ => false,
            };
            is_index && !is_own(base)
        }
        ([.., Word(by), Mark('(')], Text(_), _) if BY_NAME.contains(by) => true,
        ([.., Word("attribute"), Mark('=')], Text(_), _) => true,
        (_, Text(_), [Word("in"), ..] | [Word("not"), Word("in"), ..]) => true,
        _ => false,
    }
}

/// The tokens of all its code, a `;` behind each piece.
fn tokens(template: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut rest) = (Vec::new(), template);
    while let Some(start) = rest.find('{') {
        let begun = &rest[start + 1..];
        rest = match begun.bytes().next() {
            Some(b'#') => begun.split_once("#}").map_or("", |(_, rest)| rest),
            Some(b'{' | b'%') => {
                let first = tokens.len();
                let end = code(&begun[1..], &mut tokens);
                let is_raw =
                    tokens[first..].iter().filter(|token| **token != Token::Mark('-')).eq([&Token::Word("raw")]);
                tokens.push(Token::Mark(';'));
                if is_raw { end.split_once("endraw").map_or("", |(_, rest)| rest) } else { end }
            }
            _ => begun,
        };
    }
    tokens
}

/// Adds the tokens of a piece of code, and returns what follows it.
fn code<'t>(mut text: &'t str, tokens: &mut Vec<Token<'t>>) -> &'t str {
    let mut open = 0usize;
    while let Some(letter) = text.chars().next() {
        let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let mut length = letter.len_utf8();
        match letter {
            '}' | '%' if open == 0 && text[1..].starts_with('}') => return &text[2..],
            '\'' | '"' => {
                let inner = &text[1..];
                let end = string_end(inner, letter);
                tokens.push(Token::Text(&inner[..end]));
                length = (end + 2).min(text.len());
            }
            _ if letter.is_whitespace() => {}
            _ if is_of_word(letter) => {
                length = text.find(|letter| !is_of_word(letter)).unwrap_or(text.len());
                tokens.push(Token::Word(&text[..length]));
            }
            mark => {
                match mark {
                    '(' | '[' | '{' => open += 1,
                    ')' | ']' | '}' => open = open.saturating_sub(1),
                    _ => {}
                }
                tokens.push(Token::Mark(mark));
            }
        }
        text = &text[length..];
    }
    ""
}

/// Where the quote stands that ends a string.
fn string_end(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    let ends = |letter: char| {
        let ends = letter == quote && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        ends
    };
    text.find(ends).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_field(template: &str) -> bool {
        TemplateNames::of(template).has_field("name")
    }

    #[test]
    fn fields_are_read_in_several_ways() {
        for code in [
            "m.name",
            "m['name']",
            "m[\"name\"]",
            "m . name",
            "ms[0]['name']",
            "f(m)['name']",
            "m.function.name",
            "m.get('name')",
            "m.get(\"name\", '')",
            "m|attr('name')",
            "ms | map(attribute='name') | list",
            "ms | map(attribute='function.name')",
            "ms | selectattr('name', 'equalto', 'x')",
            "'name' in m",
            "'name' not in m",
            "{'a': {'b': 1}}.a + m.name",
            "'}}' + m.name",
            "'\\'' + m.name",
        ] {
            assert!(has_field(&format!("a {{{{- {code} -}}}} b")), "{code}");
            assert!(has_field(&format!("a {{% if {code} %}} b {{% endif %}}")), "{code}");
        }
    }

    #[test]
    fn a_word_is_no_field() {
        for template in [
            "m.name",
            "{# m.name #}",
            "{{ name }}",
            "{{ 'name' }}",
            "{{ m.role == 'name' }}",
            "{{ m.role in ['name'] }}",
            "{{ ['name'] }}",
            "{{ m['name' + x] }}",
            "{{ m.names }}",
            "{{ m.name() }}",
            "{{ loop.name }}",
            "{% set ns = namespace(name=1) %}{{ ns.name }}{% set ns.name = 2 %}",
            "{{ '{{ m.name }}' }}",
            "{%- raw -%}{{ m.name }}{% endraw %}",
            "{{ 'm.name",
        ] {
            assert!(!has_field(template), "{template}");
        }
        // Only of variables that stand alone is known what they are.
        assert!(has_field("{% set ns = namespace(m=1) %}{{ ns.m.name }}{{ x.ns.name }}"));
    }

    #[test]
    fn variables_stand_alone() {
        let names = TemplateNames::of("tools {# tools #}{{ m.tools }}{{ 'tools' }}{%if builtin_tools %}{%endif%}");
        assert!(!names.has_variable("tools") && names.has_variable("builtin_tools"));
        assert!(TemplateNames::of("{%- if not tools is none %}").has_variable("tools"));
        assert!(TemplateNames::of("{%raw%}{{%endraw%}{{tools}}").has_variable("tools"));
    }
}

//! What Metal forbids and C++ allows, as far as tokens show it. What types show, clang finds; what calls show, `ir`.

use super::declarations::{ADDRESS_SPACES, Walk};
use super::lint::{Lint, Severity};
use super::syntax::Syntax;
use super::token::Kind;
use std::ops::Range;

/// Words that no kernel may use.
const FORBIDDEN: [(&str, &str); 15] = [
    ("virtual", "virtual functions do not exist in Metal: use a template"),
    ("double", "double does not exist in Metal: use float"),
    ("new", "new does not exist in Metal: memory comes from buffers and variables"),
    ("delete", "delete does not exist in Metal: memory comes from buffers and variables"),
    ("throw", "exceptions do not exist in Metal"),
    ("try", "exceptions do not exist in Metal"),
    ("catch", "exceptions do not exist in Metal"),
    ("dynamic_cast", "dynamic_cast does not exist in Metal"),
    ("typeid", "typeid does not exist in Metal"),
    ("goto", "goto does not exist in Metal"),
    ("thread_local", "thread_local does not exist in Metal: a local variable is the thread's own"),
    ("noexcept", "noexcept does not exist in Metal, which has no exceptions"),
    ("register", "register does not exist in Metal"),
    ("asm", "asm does not exist in Metal"),
    ("wchar_t", "wchar_t does not exist in Metal"),
];

/// A lint at a token.
pub(super) fn lint(syntax: &Syntax, at: usize, severity: Severity, message: String) -> Lint {
    let token = syntax.token(at.min(syntax.len() - 1));
    Lint {
        file: syntax.tokens.files[token.file].to_string(),
        line: token.line,
        column: token.column,
        severity,
        message,
    }
}

/// The rules for single words.
pub(super) fn words(syntax: &Syntax, lints: &mut Vec<Lint>) {
    let mut error = |at, message: &str| lints.push(lint(syntax, at, Severity::Error, message.to_owned()));
    for at in 0..syntax.len() {
        let text = syntax.text(at);
        match syntax.token(at).kind {
            Kind::Number if is_double(text) => error(at, "a double literal: Metal has no double"),
            Kind::Identifier if matches!(syntax.previous(at), "." | "->" | "::") => {}
            Kind::Identifier if text == "std" && syntax.text(at + 1) == "::" => {
                error(at, "std:: does not exist in Metal: its library is in metal::");
            }
            Kind::Identifier if text == "long" && syntax.text(at + 1) == "long" => {
                error(at, "long long does not exist in Metal: long has 64 bits");
            }
            Kind::Identifier if is_texture(text) && syntax.text(at + 1) == "<" => {
                error(at, "textures are not supported: only buffers and threadgroup memory are");
            }
            Kind::Identifier if text == "main" && syntax.text(at + 1) == "(" => {
                error(at, "Metal allows no function named main")
            }
            Kind::Punctuation if text == "[" && begins_lambda(syntax, at) => {
                error(at, "lambda expressions do not exist in Metal: use a function, or a struct with operator()");
            }
            Kind::Identifier if text == "delete" && syntax.previous(at) == "=" => {}
            Kind::Identifier => {
                if let Some((_, message)) = FORBIDDEN.iter().find(|(word, _)| *word == text) {
                    error(at, message);
                }
            }
            _ => {}
        }
    }
}

/// Whether a name is that of a texture's type.
fn is_texture(name: &str) -> bool {
    let rest = name.strip_prefix("texture").or_else(|| name.strip_prefix("depth"));
    rest.is_some_and(|rest| ["1d", "2d", "3d", "cube", "_buffer"].iter().any(|kind| rest.starts_with(kind)))
}

/// Whether a bracket opens a lambda's captures, and neither a subscript, a declarator, a designator nor attributes.
fn begins_lambda(syntax: &Syntax, at: usize) -> bool {
    let expression = ["=", "(", ",", "{", ";", "return", "?", ":", "&&", "||"].contains(&syntax.previous(at));
    let attribute =
        syntax.attributes.contains_key(&at) || at.checked_sub(1).is_some_and(|p| syntax.attributes.contains_key(&p));
    expression && !attribute && matches!(syntax.text(syntax.closing(at) + 1), "(" | "{")
}

/// Metal's specification has no derived classes, though its compiler takes them.
pub(super) fn bases(walk: &mut Walk, statement: usize, brace: usize) {
    if let Some(colon) = (statement..brace).find(|&i| walk.syntax.text(i) == ":") {
        walk.warning(colon, "derived classes are not in Metal's specification");
    }
}

/// `1.0l`, `1.0d`, `1.0lf`.
fn is_double(text: &str) -> bool {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    !hexadecimal
        && (text.contains('.') || text.contains(['e', 'E']))
        && (text.ends_with(['l', 'L', 'd', 'D']) || text.to_ascii_lowercase().ends_with("lf"))
}

/// Variables of program scope are constant.
pub(super) fn program_scope(walk: &mut Walk, statement: usize, end: usize) {
    let syntax = &*walk.syntax;
    let words: Vec<&str> = syntax.words(statement..end).into_iter().map(|i| syntax.text(i)).collect();
    const NOT_VARIABLES: [&str; 12] = [
        "using",
        "typedef",
        "struct",
        "class",
        "union",
        "enum",
        "template",
        "static_assert",
        "namespace",
        "friend",
        "kernel",
        "}",
    ];
    let Some(first) = words.first() else { return };
    let initialised = words.iter().position(|w| *w == "=");
    let called = words.iter().position(|w| *w == "(");
    let is_variable = match (initialised, called) {
        (Some(equals), Some(parenthesis)) => equals < parenthesis,
        (_, None) => words.len() > 1,
        (None, Some(_)) => false,
    };
    if is_variable && !NOT_VARIABLES.contains(first) && !words.contains(&"constant") {
        walk.error(statement, "a variable of program scope is in the constant address space: write `constant`");
    }
}

/// A function's static variables are constant.
pub(super) fn static_local(walk: &mut Walk, statement: usize, end: usize) {
    let syntax = &*walk.syntax;
    let words: Vec<&str> = syntax.words(statement..end).into_iter().map(|i| syntax.text(i)).collect();
    if words.first() == Some(&"static") && !words.iter().any(|w| matches!(*w, "constant" | "constexpr" | "const")) {
        walk.error(statement, "a static variable is in the constant address space: write `static constant`");
    }
}

/// The parameters of a function whose body begins at `brace`.
pub(super) fn parameter_list(syntax: &Syntax, statement: usize, brace: usize) -> Vec<Range<usize>> {
    let mut open = syntax.past_template(statement);
    while open < brace && syntax.text(open) != "(" {
        open = match syntax.text(open) {
            "operator" if syntax.text(open + 1) == "(" => open + 3,
            _ if syntax.attributes.contains_key(&open) => syntax.past_attributes(open),
            "decltype" | "__attribute__" | "alignas" => syntax.closing(open + 1) + 1,
            _ => open + 1,
        };
    }
    if open < brace { syntax.arguments(open + 1..syntax.closing(open)) } else { Vec::new() }
}

/// Pointers and references among a function's parameters name their address space.
pub(super) fn parameters(walk: &mut Walk, statement: usize, brace: usize) {
    let mut errors = Vec::new();
    for range in parameter_list(walk.syntax, statement, brace) {
        let words = walk.syntax.words(range.clone());
        let is = |word: &str| words.iter().any(|&i| walk.syntax.text(i) == word);
        if (is("*") || is("&")) && !ADDRESS_SPACES.iter().any(|space| is(space)) {
            errors.push((range.start, walk.syntax.spelled(range)));
        }
    }
    for (at, text) in errors {
        walk.error(at, format!("'{text}': a pointer or reference parameter names its address space"));
    }
}

//! How LLVM's text spells types, constants and operations of two operands. It knows nothing of what they are for.

/// `result = operation kind left, right metadata`
pub(super) struct Operation<'a> {
    pub result: &'a str,
    pub name: &'a str,
    pub kind: &'a str,
    pub left: &'a str,
    pub right: &'a str,
    /// What follows the operands, from its comma on.
    pub metadata: &'a str,
}

impl<'a> Operation<'a> {
    /// The operation that a line is, if it is one of these.
    pub fn read(line: &'a str, names: &[&str]) -> Option<Self> {
        let (result, rest) = line.split_once(" = ")?;
        let (name, rest) = rest.split_once(' ')?;
        if !names.contains(&name) {
            return None;
        }
        let rest = rest.strip_prefix("exact ").unwrap_or(rest);
        let (rest, metadata) = split_metadata(rest);
        let end = if rest.starts_with('<') { rest.find('>')? + 1 } else { rest.find(' ')? };
        let (kind, operands) = rest.split_at(end);
        let (left, right) = at_comma(operands.trim_start())?;
        Some(Self { result, name, kind, left, right, metadata })
    }

    /// The line as a call of a function that takes the two operands.
    pub fn call(&self, function: &str) -> String {
        let Self { result, kind, left, right, metadata, .. } = self;
        format!("{result} = call {kind} @{function}({kind} {left}, {kind} {right}){metadata}")
    }
}

/// An instruction's operands, and what follows them.
pub(super) fn split_metadata(text: &str) -> (&str, &str) {
    text.split_at(text.find(", !").unwrap_or(text.len()))
}

/// A type of `n` elements.
pub(super) fn vector(n: usize, element: &str) -> String {
    if n == 1 { element.to_owned() } else { format!("<{n} x {element}>") }
}

/// How many elements a type has, and which.
pub(super) fn elements(kind: &str) -> Option<(usize, &str)> {
    let Some(vector) = kind.strip_prefix('<') else { return Some((1, kind)) };
    let (n, element) = vector.strip_suffix('>')?.split_once(" x ")?;
    Some((n.parse().ok()?, element))
}

/// A constant whose `n` elements are all `value`.
pub(super) fn splat(n: usize, element: &str, value: i64) -> String {
    match n {
        1 => value.to_string(),
        _ => format!("<{}>", vec![format!("{element} {value}"); n].join(", ")),
    }
}

/// Two operands at the comma between them, which is in no bracket.
fn at_comma(operands: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (i, c) in operands.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => return Some((&operands[..i], operands[i + 1..].trim_start())),
            _ => {}
        }
    }
    None
}

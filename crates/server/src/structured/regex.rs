//! Regular expressions of requests, in Rust's notation. Knows no grammar but what one is between the slashes of Lark.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Most classes of Unicode in what describes a form: each is up to 800 ranges of characters, 6 KB, while it is read.
const MAX_CLASSES: usize = 2000;

/// The expression, read.
///
/// # Errors
/// What is wrong with it.
pub fn read(pattern: &str) -> Result<Hir, String> {
    check(pattern)?;
    regex_syntax::parse(pattern).map_err(|error| error.to_string())
}

/// Refuses more classes than can be read, in an expression or in a text with expressions, whose backslashes may be `\u005c` there.
pub fn check(text: &str) -> Result<(), String> {
    let is_class = |pair: &&[u8]| pair[0] == b'\\' && b"wWdDsSpPu".contains(&pair[1]);
    match text.as_bytes().windows(2).filter(is_class).count() {
        ..=MAX_CLASSES => Ok(()),
        count => {
            Err(format!("its expressions have {count} classes such as \\w, at most {MAX_CLASSES} can be followed"))
        }
    }
}

/// About how many states it takes to follow a text through it.
pub fn states(expression: &Hir) -> usize {
    match expression.kind() {
        HirKind::Empty | HirKind::Look(_) => 0,
        HirKind::Literal(literal) => literal.0.len(),
        HirKind::Class(class) => match class {
            Class::Unicode(class) if !class.is_ascii() => CHARACTER_STATES,
            _ => 1,
        },
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min.max(1));
            states(&repetition.sub).saturating_mul(times as usize)
        }
        HirKind::Capture(capture) => states(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().map(states).fold(0, usize::saturating_add),
    }
}

/// About how many of them one text can come through at most.
pub fn states_of_text(expression: &Hir) -> usize {
    let states_of_text = match expression.kind() {
        HirKind::Repetition(repetition) => match repetition.max {
            Some(max) => states_of_text(&repetition.sub).saturating_mul(max as usize),
            // It may go through all of it, one time after the other.
            None => states(expression),
        },
        HirKind::Capture(capture) => states_of_text(&capture.sub),
        HirKind::Concat(parts) => parts.iter().map(states_of_text).fold(0, usize::saturating_add),
        HirKind::Alternation(ways) => ways.iter().map(states_of_text).max().unwrap_or(0),
        _ => states(expression),
    };
    states_of_text.min(expression.properties().maximum_len().unwrap_or(usize::MAX))
}

/// States for one character of any kind: its bytes come one by one, and what may follow depends on the first.
pub const CHARACTER_STATES: usize = 8;

/// The expression as a terminal of Lark.
pub fn lark(pattern: &str) -> String {
    if pattern.is_empty() {
        return "\"\"".to_owned();
    }
    let mut written = String::from("/");
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => {
                written.push(letter);
                written.extend(letters.next().map(|letter| if letter == '\n' { 'n' } else { letter }));
            }
            '/' => written.push_str("\\/"),
            letter => written.push(letter),
        }
    }
    written + "/"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_counted_with_repetitions() {
        let count = |pattern: &str| states(&read(pattern).unwrap());
        assert_eq!(count("a{3}(bc)*[x-z]"), 6);
        assert_eq!(count("(a|b{10,}){0,1000}"), 11_000);
        assert_eq!(count("."), CHARACTER_STATES);
        assert_eq!(count("(a{4000000000}){4000000000}"), 16_000_000_000_000_000_000);
    }

    #[test]
    fn classes_are_counted_before_they_are_read() {
        assert!(read(&r"\w".repeat(MAX_CLASSES)).is_ok());
        for many in [r"\w", r"\pL", r"[^\d]", r"a\S"] {
            assert!(read(&many.repeat(MAX_CLASSES + 1)).unwrap_err().contains("classes such as"), "{many}");
        }
    }

    #[test]
    fn a_text_goes_one_way() {
        let count = |pattern: &str| states_of_text(&read(pattern).unwrap());
        assert_eq!(count(".{0,100}"), 400);
        assert_eq!(count("(a{2}x+|b{5}y+)z"), 7);
        assert_eq!(count("((ab|cd)*x){3}"), 15);
    }

    #[test]
    fn a_terminal_has_slashes_around() {
        assert_eq!(lark(r"a/b\/\\"), r"/a\/b\/\\/");
        assert_eq!(lark("a\\\n"), "/a\\n/");
        assert_eq!(lark(""), "\"\"");
    }
}

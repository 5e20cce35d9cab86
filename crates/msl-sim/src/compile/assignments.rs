//! Assignments of structs to memory. C++ has no assignment operator for an object of another address space, and tokens do not
//! show which assignments need one: clang says where, and the source is rewritten there.

use super::emit::Place;
use super::syntax::Syntax;
use super::token::Kind;
use std::collections::HashMap;

/// Rewrites `a = b` as a store wherever clang found no operator for it; whether there was any.
pub(super) fn rewrite(syntax: &mut Syntax, places: &HashMap<Place, usize>, stderr: &str) -> bool {
    let mut found: Vec<usize> = stderr.lines().filter_map(place).filter_map(|p| places.get(&p).copied()).collect();
    found.sort_unstable();
    found.dedup();
    let mut any = false;
    for index in found {
        let Some(at) = syntax.position(index) else { continue };
        let start = statement(syntax, at);
        let Some(end) = (at..syntax.len()).find(|&i| syntax.text(i) == ";") else { continue };
        syntax.token_mut(start).before.insert_str(0, " ::msl::store(");
        syntax.token_mut(at).text = ",".to_owned();
        syntax.token_mut(end).before.push(')');
        any = true;
    }
    any
}

/// Where an error says that an assignment has no operator.
fn place(line: &str) -> Option<Place> {
    let (place, _) = line.split_once(": error: no viable overloaded '='")?;
    let mut parts = place.rsplitn(3, ':');
    let (column, line) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((parts.next()?.to_owned(), line, column))
}

/// The first token of the statement that an `=` is in.
fn statement(syntax: &Syntax, mut at: usize) -> usize {
    while at > 0 {
        match syntax.previous(at) {
            ";" | "{" | "}" | "else" | "do" | ":" => break,
            ")" | "]" => {
                let open = opening(syntax, at - 1);
                if matches!(syntax.previous(open), "if" | "for" | "while" | "switch") {
                    break;
                }
                at = open;
            }
            _ => at -= 1,
        }
    }
    at
}

/// The bracket that the one at `close` closes.
fn opening(syntax: &Syntax, close: usize) -> usize {
    let mut depth = 0;
    for at in (0..=close).rev() {
        if syntax.token(at).kind != Kind::Literal {
            match syntax.text(at) {
                ")" | "]" | "}" => depth += 1,
                "(" | "[" | "{" => depth -= 1,
                _ => {}
            }
        }
        if depth == 0 {
            return at;
        }
    }
    0
}

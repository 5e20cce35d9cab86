//! Copies of structs into memory, and of packed vectors out of it. C++ has no assignment and no conversion of an object in
//! another address space, and tokens do not show which copies need one: clang says where, and the source is rewritten there.

use super::emit::Place;
use super::syntax::Syntax;
use std::collections::HashMap;

/// Rewrites `a = b` as a store, and `T a = b` as a load, wherever clang found no operator for it; whether there was any.
pub(super) fn rewrite(syntax: &mut Syntax, places: &HashMap<Place, usize>, stderr: &str) -> bool {
    let mut any = false;
    for (message, repair) in [
        (": error: no viable overloaded '='", store as fn(&mut Syntax, usize) -> bool),
        (": error: no viable conversion from ", load),
    ] {
        let found = stderr.lines().filter_map(|line| place(syntax, line, message));
        let mut found: Vec<usize> = found.filter_map(|place| places.get(&place).copied()).collect();
        found.sort_unstable();
        found.dedup();
        for index in found {
            any |= syntax.position(index).is_some_and(|at| repair(syntax, at));
        }
    }
    any
}

/// Where an error is that says a message.
fn place(syntax: &Syntax, line: &str, message: &str) -> Option<Place> {
    let (place, what) = line.split_once(message)?;
    if message.contains("conversion") && !what.contains("address_space") {
        return None;
    }
    let mut parts = place.rsplitn(3, ':');
    let (column, line) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let name = parts.next()?;
    let file = syntax.tokens.files.iter().position(|file| **file == *name)?;
    Some((file, line, column))
}

/// `a = b;` at the `=`.
fn store(syntax: &mut Syntax, at: usize) -> bool {
    let Some(end) = (at..syntax.len()).find(|&i| syntax.text(i) == ";") else { return false };
    if syntax.text(at) != "=" {
        return false;
    }
    let start = statement(syntax, at);
    syntax.token_mut(start).before.insert_str(0, " ::msl::store(");
    syntax.token_mut(at).text = ",".to_owned();
    syntax.token_mut(end).before.push(')');
    true
}

/// `T a = b;` at `a`.
fn load(syntax: &mut Syntax, at: usize) -> bool {
    let Some(end) = (at..syntax.len()).find(|&i| matches!(syntax.text(i), ";" | ",")) else { return false };
    if syntax.text(at + 1) != "=" || syntax.token(at + 1).after.contains("load(") {
        return false;
    }
    syntax.token_mut(at + 1).after = " ::msl::load(".to_owned();
    syntax.token_mut(end).before.push(')');
    true
}

/// The first token of the statement that a position is in.
fn statement(syntax: &Syntax, mut at: usize) -> usize {
    while at > 0 {
        match syntax.previous(at) {
            ";" | "{" | "}" | "else" | "do" | ":" => break,
            ")" | "]" => {
                let open = syntax.opening(at - 1);
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

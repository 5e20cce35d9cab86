//! Copies of structs into memory, and of packed vectors out of it, and elements of such objects in memory. C++ has no assignment, no
//! conversion and no subscript of an object in another address space, nor has a packed vector more than its components, and tokens do not show where one
//! of these is needed: clang says where,
//! and the source is rewritten there.

use super::emit::Place;
use super::syntax::Syntax;
use std::collections::HashMap;

/// Rewrites `a = b` as a store, `T a = b` as a load, `a[b]` as a choice of an element, and `a.xy` of a packed vector as that of a vector,
/// wherever clang found no operator for it; whether there was any.
pub(super) fn rewrite(syntax: &mut Syntax, places: &HashMap<Place, usize>, stderr: &str) -> bool {
    let mut any = false;
    for (message, repair) in [
        (": error: no viable overloaded '='", store as fn(&mut Syntax, usize) -> bool),
        (": error: no viable conversion from ", load),
        (": error: no viable overloaded operator[]", element),
        (": error: no member named '", components),
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
    let other = (message.contains("conversion") && !what.contains("address_space"))
        || (message.contains("member") && !what.contains("packed_vec<"));
    if other {
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

/// `a[b]` at the `[`: a becomes a pointer to its elements.
fn element(syntax: &mut Syntax, at: usize) -> bool {
    let start = operand(syntax, at);
    if syntax.text(at) != "[" || start == at {
        return false;
    }
    syntax.token_mut(start).before.push_str(" ::msl::elements(");
    syntax.token_mut(at).before.push(')');
    true
}

/// `a.xy` at the `xy`: the components of a vector with the same elements, to be read.
fn components(syntax: &mut Syntax, at: usize) -> bool {
    let Some(dot) = at.checked_sub(1) else { return false };
    let start = operand(syntax, dot);
    let load = match syntax.text(dot) {
        "." => " ::msl::load(",
        "->" => " ::msl::load(*",
        _ => return false,
    };
    if start == dot {
        return false;
    }
    syntax.token_mut(start).before.push_str(load);
    syntax.token_mut(dot).before.push(')');
    syntax.token_mut(dot).text = ".".to_owned();
    true
}

/// Where the operand of a subscript or a member at `at` begins: a name or a parenthesis, with what calls, subscripts and members it is of.
fn operand(syntax: &Syntax, mut at: usize) -> usize {
    let is_name = |at: usize| {
        let word = at.checked_sub(1).filter(|&p| syntax.is_identifier(p)).map(|p| syntax.text(p));
        word.is_some_and(|word| !matches!(word, "return" | "if" | "while" | "for" | "switch" | "else" | "do" | "case"))
    };
    loop {
        if matches!(syntax.previous(at), ")" | "]") {
            at = syntax.opening(at - 1);
            if !is_name(at) && !matches!(syntax.previous(at), ")" | "]") {
                return at;
            }
        } else if is_name(at) {
            at -= 1;
            if !matches!(syntax.previous(at), "." | "->" | "::") {
                return at;
            }
            at -= 1;
        } else {
            return at;
        }
    }
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

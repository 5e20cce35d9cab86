//! Python's ways with values — string methods, Jinja2's notion of a sequence — for templates that were written for Jinja2 in
//! Python. Knows no conversation and no checkpoint.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State, Value, escape_formatter, filters};
use minijinja_contrib::pycompat;

use super::python_json::python_float;

/// Jinja2's `is sequence`: whatever has a length and items, so strings, mappings and what is undefined, too. A slice of a list is an iterable here.
pub(super) fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Seq | Iterable | String | Map | Undefined)
}

/// Jinja2's `first`: of what is undefined, nothing.
pub(super) fn first(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { filters::first(value) }
}

/// Jinja2's `last`, likewise.
pub(super) fn last(value: Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::UNDEFINED) } else { filters::last(value) }
}

/// Jinja2's `items`: what is undefined has none. Tools without parameters come to it.
pub(super) fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::from(Vec::<Value>::new())) } else { filters::items(value) }
}

/// Jinja2's `is iterable`: unlike here, none is not, and templates ask `tools is iterable` before its length.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Jinja2's `length`: nothing has no items.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        Some(len) => Ok(len),
        None if value.is_undefined() => Ok(0),
        // An iterable of unknown length, such as a slice.
        None if value.kind() == ValueKind::Iterable => Ok(value.try_iter()?.count()),
        None => {
            let what = format!("a value of kind {} has no length", value.kind());
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
    }
}

/// Jinja2's `default(value, default, boolean)`, whose last argument may be named.
pub(super) fn default(
    value: &Value,
    other: Option<Value>,
    boolean: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let other = other.or(kwargs.get("default_value")?).unwrap_or_else(|| Value::from(""));
    let boolean = boolean.or(kwargs.get("boolean")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    Ok(if value.is_undefined() || boolean && !value.is_true() { other } else { value.clone() })
}

/// Jinja2's `indent(width, first, blank)`. It keeps a newline at the end, and the width may be a string.
pub(super) fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let indent = indentation(&width)?;
    let ended = format!("{text}\n");
    let mut out = String::new();
    for (i, (line, _)) in lines(&ended).enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i > 0 || first) && (blank || !line.is_empty() || i == 0) {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// An indentation given as text or as a number of spaces.
pub(super) fn indentation(value: &Value) -> Result<String, Error> {
    match (value.as_str(), value.as_i64()) {
        (Some(text), _) => Ok(text.to_owned()),
        (_, Some(width)) => Ok(" ".repeat(usize::try_from(width).unwrap_or(0).min(MAX_INDENT))),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "the indentation is neither a number nor a string")),
    }
}

/// Far above any template's indentation: a bound on what an expression can make us allocate.
const MAX_INDENT: usize = 1024;

/// Python's `str`, where the template engine writes a value differently.
pub(super) fn write(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match f64::try_from(value.clone()) {
        Ok(float) if value.kind() == ValueKind::Number && !value.is_integer() => {
            out.write_str(&python_float(float)).map_err(Error::from)
        }
        _ => escape_formatter(out, state, value),
    }
}

/// Python's methods of strings and mappings. What the `pycompat` collection lacks or does differently is here.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, name, args)
    {
        return result;
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let result = match name {
        "strip" | "lstrip" | "rstrip" => strip(text, name, args),
        "split" | "rsplit" => split(text, name == "rsplit", args),
        "splitlines" => splitlines(text, args),
        "removeprefix" => {
            from_args(args).map(|(prefix,): (&str,)| Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            from_args(args).map(|(suffix,): (&str,)| Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => from_args(args).map(|(separator,): (&str,)| {
            let (before, after) = text.split_once(separator).unwrap_or((text, ""));
            let found = if before.len() < text.len() { separator } else { "" };
            strings(&[before, found, after])
        }),
        "rpartition" => from_args(args).map(|(separator,): (&str,)| {
            let (before, after) = text.rsplit_once(separator).unwrap_or(("", text));
            let found = if after.len() < text.len() { separator } else { "" };
            strings(&[before, found, after])
        }),
        "index" => from_args(args).and_then(|(what,): (&str,)| match text.find(what) {
            Some(at) => Ok(Value::from(text[..at].chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        }),
        "casefold" | "swapcase" | "zfill" | "ljust" | "rjust" | "center" => {
            let what = format!("the string method {name} is not supported in chat templates");
            Err(Error::new(ErrorKind::UnknownMethod, what))
        }
        _ => return None,
    };
    Some(result)
}

fn strings(parts: &[&str]) -> Value {
    parts.iter().copied().collect()
}

/// What Python's `str.isspace` accepts: Unicode white space and the four ASCII separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

fn strip(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let matches = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    Ok(Value::from(match name {
        "lstrip" => text.trim_start_matches(matches),
        "rstrip" => text.trim_end_matches(matches),
        _ => text.trim_matches(matches),
    }))
}

fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get::<Option<&str>>("sep")?);
    let limit = limit.or(kwargs.get::<Option<i64>>("maxsplit")?);
    kwargs.assert_all_used()?;
    let limit = limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut rest = text;
    let trim = |s| -> &str {
        if from_right { str::trim_end_matches(s, is_space) } else { str::trim_start_matches(s, is_space) }
    };
    if separator.is_none() {
        rest = trim(rest);
    }
    while parts.len() < limit {
        let cut = match (separator, from_right) {
            (Some(""), _) => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
            (Some(separator), false) => rest.split_once(separator),
            (Some(separator), true) => rest.rsplit_once(separator).map(|(a, b)| (b, a)),
            (None, false) => rest.split_once(is_space),
            (None, true) => rest.rsplit_once(is_space).map(|(a, b)| (b, a)),
        };
        let Some((part, remaining)) = cut else { break };
        parts.push(part);
        rest = if separator.is_none() { trim(remaining) } else { remaining };
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(rest);
    }
    if from_right {
        parts.reverse();
    }
    Ok(strings(&parts))
}

fn splitlines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep_ends, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep_ends.or(kwargs.get("keepends")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    Ok(lines(text).map(|(line, with_end)| Value::from(if keep { with_end } else { line })).collect())
}

/// Python's lines of a text, without and with their ends.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_end =
        |c: char| matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut rest = text;
    std::iter::from_fn(move || {
        let (line, after) = match rest.find(is_end) {
            Some(at) if rest[at..].starts_with("\r\n") => (&rest[..at], &rest[at + 2..]),
            Some(at) => (&rest[..at], rest[at..].strip_prefix(is_end).unwrap_or_default()),
            None if rest.is_empty() => return None,
            None => (rest, ""),
        };
        let with_end = &rest[..rest.len() - after.len()];
        rest = after;
        Some((line, with_end))
    })
}

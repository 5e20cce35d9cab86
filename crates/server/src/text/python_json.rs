//! JSON and numbers as Python writes them: `json.dumps` and the `tojson` filter that transformers makes of it. Knows no
//! conversation.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, Serde, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::python::indentation;

/// transformers' `tojson`: `json.dumps` without escaping of HTML or, unless asked for, of non-ASCII characters.
pub(super) fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let option = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(args.get(index).cloned().or(kwargs.get(name)?).filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let indent = option(1, "indent")?.map(|value| indentation(&value)).transpose()?;
    let item_separator = if indent.is_some() { "," } else { ", " };
    let separators = match option(2, "separators")? {
        None => (item_separator.to_owned(), ": ".to_owned()),
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
    };
    let json = Json {
        ensure_ascii: option(0, "ensure_ascii")?.is_some_and(|v| v.is_true()),
        sort_keys: option(3, "sort_keys")?.is_some_and(|v| v.is_true()),
        indent,
        separators,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    json.write(&mut out, value, 0)?;
    Ok(out)
}

/// `json.dumps(value, ensure_ascii=False)`.
pub(super) fn dumps(value: &serde_json::Value) -> String {
    let separators = (", ".to_owned(), ": ".to_owned());
    let json = Json { ensure_ascii: false, sort_keys: false, indent: None, separators };
    let mut out = String::new();
    // Only values that are not JSON fail, and this one is.
    let _ = json.write(&mut out, &Value::from(Serde(value)), 0);
    out
}

/// The options of Python's `json.dumps`.
struct Json {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    separators: (String, String),
}

impl Json {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.block(out, ('[', ']'), &items, depth, |out, item| self.write(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.collect::<Vec<_>>();
                if self.sort_keys {
                    keys.sort();
                }
                self.block(out, ('{', '}'), &keys, depth, |out, key| {
                    match key.as_str() {
                        Some(text) => self.string(out, text),
                        // Numbers, booleans and None become strings with their JSON spelling.
                        None => {
                            out.push('"');
                            self.write(out, key, depth)?;
                            out.push('"');
                        }
                    }
                    out.push_str(&self.separators.1);
                    self.write(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            other => {
                let what = format!("tojson: a value of kind {other} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        }
        Ok(())
    }

    fn block(
        &self,
        out: &mut String,
        (open, close): (char, char),
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let newline = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.separators.0);
            }
            newline(out, depth + 1);
            write(out, item)?;
        }
        if !items.is_empty() {
            newline(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, out: &mut String, text: &str) {
        // serde_json escapes what json.dumps escapes: quotes, backslashes and control characters below U+0020.
        let quoted = Value::from(text);
        let quoted = serde_json::to_string(&quoted).unwrap_or_default();
        if !self.ensure_ascii {
            out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() && c != '\x7f' {
                out.push(c);
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
}

/// A number as Python writes it.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => python_float(float),
        _ => value.to_string(),
    }
}

/// Python's `repr` of a float: the shortest digits that read back equal, with an exponent below 1e-4 and from 1e16.
pub(super) fn python_float(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    if float != 0.0 && !(1e-4..1e16).contains(&float.abs()) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{float:?}")
}

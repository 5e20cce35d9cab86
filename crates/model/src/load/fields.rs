//! Typed access to the fields of a JSON file, with errors that name file and field. It knows no model.

use crate::load::error::LoadError;
use crate::load::{file, gguf, json};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// A JSON object and where it came from.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    path: PathBuf,
    prefix: String,
    object: Map<String, Value>,
}

/// Larger sizes are refused, so that products of them cannot overflow.
const MAX_SIZE: u64 = 1 << 24;

impl Fields {
    /// Reads the file. It must hold one JSON object.
    pub(crate) fn read(path: &Path) -> Result<Self, LoadError> {
        let text = file::read(path, file::MAX_JSON).map_err(|error| match path.parent() {
            // The file that stands for it.
            Some(gguf) if gguf::is_file(gguf) => LoadError::Gguf { path: gguf.to_owned(), reason: error.to_string() },
            _ => LoadError::unreadable(path, error),
        })?;
        Self::parse(path, &text)
    }

    /// The file's content. It must be one JSON object.
    pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Self, LoadError> {
        let object = json::object(text).map_err(|reason| LoadError::Json { path: path.to_owned(), reason })?;
        Ok(Self { path: path.to_owned(), prefix: String::new(), object })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The value of a field; `null` counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.object.get(name).filter(|v| !v.is_null())
    }

    /// Whether a field is there and not `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The names of all fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.object.keys().map(String::as_str)
    }

    /// Whether a field is there and `null`.
    pub(crate) fn has_null(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(Value::is_null)
    }

    /// The first of `names` that is present.
    pub(crate) fn first_of<'n>(&self, names: &[&'n str]) -> &'n str {
        names.iter().find(|n| self.get(n).is_some()).unwrap_or(&names[0])
    }

    /// A nested object, if present.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Self>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Self {
                path: self.path.clone(),
                prefix: format!("{}{name}.", self.prefix),
                object: object.clone(),
            })),
            Some(_) => Err(self.error(name, "an object")),
        }
    }

    /// A size from 1 to 2^24, if present.
    pub(crate) fn size(&self, name: &str) -> Result<Option<usize>, LoadError> {
        match self.integer(name)? {
            Some(0) => Err(self.error(name, "at least 1")),
            Some(n) if n > MAX_SIZE => Err(self.error(name, &format!("at most {MAX_SIZE}"))),
            n => Ok(n.map(|n| n as usize)),
        }
    }

    /// A size that must be there.
    pub(crate) fn required_size(&self, name: &str) -> Result<usize, LoadError> {
        self.size(name)?.ok_or_else(|| self.error(name, "present"))
    }

    /// A non-negative integer, if present.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<u64>, LoadError> {
        self.typed(name, "a non-negative integer", Value::as_u64)
    }

    /// A finite number, if present.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>, LoadError> {
        self.typed(name, "a finite number", |v| v.as_f64().filter(|n| n.is_finite()))
    }

    /// A number within the range, if present.
    pub(crate) fn number_in(&self, name: &str, range: &RangeInclusive<f64>) -> Result<Option<f64>, LoadError> {
        let read = |v: &Value| v.as_f64().filter(|n| range.contains(n));
        self.typed(name, &number_between(range), read)
    }

    /// A number within the range that must be there.
    pub(crate) fn required_number_in(&self, name: &str, range: &RangeInclusive<f64>) -> Result<f64, LoadError> {
        self.number_in(name, range)?.ok_or_else(|| self.error(name, &number_between(range)))
    }

    /// A list of numbers within the range, if present.
    pub(crate) fn numbers_in(&self, name: &str, range: &RangeInclusive<f64>) -> Result<Option<Vec<f64>>, LoadError> {
        let list = |v: &Value| v.as_array()?.iter().map(|v| v.as_f64().filter(|n| range.contains(n))).collect();
        self.typed(name, &format!("a list of numbers from {:?} to {:?}", range.start(), range.end()), list)
    }

    /// A boolean, if present.
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, LoadError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A string, if present.
    pub(crate) fn string(&self, name: &str) -> Result<Option<&str>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(v) => v.as_str().map(Some).ok_or_else(|| self.error(name, "a string")),
        }
    }

    /// A list of non-negative integers, if present.
    pub(crate) fn integers(&self, name: &str) -> Result<Option<Vec<u64>>, LoadError> {
        let list = |v: &Value| v.as_array()?.iter().map(Value::as_u64).collect();
        self.typed(name, "a list of non-negative integers", list)
    }

    /// A list of strings, if present.
    pub(crate) fn strings(&self, name: &str) -> Result<Option<Vec<String>>, LoadError> {
        let list = |v: &Value| v.as_array()?.iter().map(|s| s.as_str().map(str::to_owned)).collect();
        self.typed(name, "a list of strings", list)
    }

    /// An error about this field's value.
    pub(crate) fn error(&self, name: &str, expected: &str) -> LoadError {
        let field = format!("{}{name}", self.prefix);
        let (path, field) = match self.path.parent() {
            // The file that stands for it.
            Some(gguf) if gguf::is_file(gguf) => (gguf.to_owned(), gguf::name_in_file(gguf, &field).unwrap_or(field)),
            _ => (self.path.clone(), field),
        };
        LoadError::Field {
            path,
            field,
            expected: expected.to_owned(),
            got: self.get(name).map_or_else(|| "nothing".to_owned(), shorten),
        }
    }

    fn typed<T>(&self, name: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(v) => read(v).map(Some).ok_or_else(|| self.error(name, expected)),
        }
    }
}

fn number_between(range: &RangeInclusive<f64>) -> String {
    format!("a number from {:?} to {:?}", range.start(), range.end())
}

/// A value as JSON, cut so that a message stays one line.
pub(crate) fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

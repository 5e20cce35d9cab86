//! Objects of a conversation that hold more than is read: what servers and libraries add to an answer comes back with it. Knows no object.

use serde_json::value::RawValue;

use super::error::ApiError;
use super::field_names::nearest;
use super::raw::visit;

/// The fields that an object may have.
#[derive(Debug)]
pub struct Form {
    /// Those that are read, here or by a template.
    pub read: &'static [&'static str],
    /// Those that change nothing, by the paths that the answer's header has for them.
    pub idle: &'static [&'static str],
}

impl Form {
    /// Notes the fields without effect that hold something, and refuses the first that nobody knows.
    pub fn check(&self, path: &str, raw: &RawValue, without_effect: &mut Vec<&'static str>) -> Result<(), ApiError> {
        let mut stranger = None;
        self.strangers(raw, without_effect, |name| {
            stranger.get_or_insert_with(|| name.to_owned());
        });
        match stranger {
            Some(name) => Err(self.refused(&format!("{path}.{name}"), &name)),
            None => Ok(()),
        }
    }

    /// Notes the fields without effect that hold something, and tells those that nobody knows.
    pub fn strangers(&self, raw: &RawValue, without_effect: &mut Vec<&'static str>, mut tell: impl FnMut(&str)) {
        visit(raw, |name, value| {
            if self.read.contains(&name) {
                return;
            }
            match self.idle.iter().find(|path| last(path) == name) {
                Some(path) if !EMPTY.contains(&value.get()) => note(without_effect, path),
                Some(_) => {}
                None if value.get() != "null" => tell(name),
                None => {}
            }
        });
    }

    /// The refusal of a field that nobody knows.
    pub fn refused(&self, path: &str, name: &str) -> ApiError {
        ApiError::unknown_field(
            path,
            nearest(name, self.read.iter().copied().chain(self.idle.iter().map(|path| last(path)))),
        )
    }
}

/// What says nothing, so that nobody needs to know that it has no effect.
pub const EMPTY: [&str; 5] = ["null", "[]", "{}", "\"\"", "false"];

/// The name at the end of a path.
pub fn last(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(_, name)| name)
}

/// Adds a name, once.
pub fn note(names: &mut Vec<&'static str>, name: &'static str) {
    if !names.contains(&name) {
        names.push(name);
    }
}

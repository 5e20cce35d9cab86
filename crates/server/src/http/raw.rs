//! JSON that stays text: lists and objects whose values are looked at one by one, because a tree of a conversation is many times as large.
//! Knows no field.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::error::ApiError;
use super::field_names::nearest;

/// Most entries of a list, and of a conversation in all: with a hundred tokens each they fill the longest contexts there are. Every one
/// takes time here and in a template, so that a body full of small ones would keep the server busy for seconds.
pub const MAX_ENTRIES: usize = 8192;

/// A list that has more than [`MAX_ENTRIES`].
pub fn too_many(name: &str, what: &str) -> ApiError {
    ApiError::param(name, format!("`{name}` has more than {MAX_ENTRIES} {what}, the most this server reads"))
}

/// Does something with each value of a list, unread, and counts them. It ends with the first fault, or with one entry too many.
pub fn each<'a>(
    name: &str,
    raw: &'a RawValue,
    visit: impl FnMut(usize, &'a RawValue) -> Result<(), ApiError>,
) -> Result<usize, ApiError> {
    struct Items<'f, F> {
        name: &'f str,
        visit: F,
        fault: &'f mut Option<ApiError>,
    }
    impl<'de, F: FnMut(usize, &'de RawValue) -> Result<(), ApiError>> Visitor<'de> for Items<'_, F> {
        type Value = usize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut count = 0;
            while let Some(item) = items.next_element()? {
                let visited = match count {
                    MAX_ENTRIES => Err(too_many(self.name, "entries")),
                    _ => (self.visit)(count, item),
                };
                if let Err(fault) = visited {
                    *self.fault = Some(fault);
                    return Err(A::Error::custom("the rest is not read"));
                }
                count += 1;
            }
            Ok(count)
        }
    }
    let mut fault = None;
    let items = Items { name, visit, fault: &mut fault };
    let counted = Deserializer::deserialize_seq(&mut serde_json::Deserializer::from_str(raw.get()), items);
    counted.map_err(|_| fault.unwrap_or_else(|| ApiError::param(name, format!("`{name}` must be a list"))))
}

/// The values of some fields of an object, unread; of equal names the last, as in Python. `None` if it is no object.
pub fn named<'a, const N: usize>(raw: &'a RawValue, names: [&str; N]) -> Option<[Option<&'a RawValue>; N]> {
    struct Entries<'n, const N: usize>([&'n str; N]);
    impl<'de, const N: usize> Visitor<'de> for Entries<'_, N> {
        type Value = [Option<&'de RawValue>; N];

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut found = [None; N];
            while let Some(name) = entries.next_key::<Cow<'de, str>>()? {
                match self.0.iter().position(|known| *known == name) {
                    Some(at) => found[at] = entries.next_value()?,
                    None => _ = entries.next_value::<IgnoredAny>()?,
                }
            }
            Ok(found)
        }
    }
    Deserializer::deserialize_map(&mut serde_json::Deserializer::from_str(raw.get()), Entries(names)).ok()
}

/// Whether a value is a string.
pub fn is_string(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

/// A string. JSON can spell halves of characters, which are no text.
pub fn text(raw: &RawValue, path: &str) -> Result<String, ApiError> {
    if !is_string(raw) {
        return Err(ApiError::param(path, format!("`{path}` must be a string")));
    }
    serde_json::from_str(raw.get()).map_err(|_| {
        let message = format!("`{path}` has an escape such as \\ud83d without its other half, which is no character");
        ApiError::param(path, message)
    })
}

/// The word of a field that is one of a few. One that is longer than all of those is none: errors quote it.
pub fn word(raw: Option<&RawValue>) -> Option<String> {
    const LONG: usize = 256;
    raw.filter(|raw| is_string(raw) && raw.get().len() <= LONG).and_then(|raw| serde_json::from_str(raw.get()).ok())
}

/// Text as JSON.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// JSON that was put together as text.
pub fn unread(json: String) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(json).map_err(|error| ApiError::internal(format!("a request was not translated: {error}")))
}

/// An object, of which nothing but these fields is known.
pub fn object<'a, const N: usize>(
    path: &str,
    raw: &'a RawValue,
    names: [&str; N],
) -> Result<[Option<&'a RawValue>; N], ApiError> {
    let Some(found) = named(raw, names) else {
        return Err(ApiError::param(path, format!("`{path}` must be an object")));
    };
    only(path, raw, &names)?;
    Ok(found)
}

/// Refuses the first field of an object that is not one of these, unless it is `null`.
pub fn only(path: &str, raw: &RawValue, known: &[&str]) -> Result<(), ApiError> {
    match unknown(raw, |name| known.contains(&name)) {
        Some(name) => Err(ApiError::unknown_field(&format!("{path}.{name}"), nearest(&name, known.iter().copied()))),
        None => Ok(()),
    }
}

/// The first field of an object that is not known and not `null`.
fn unknown(raw: &RawValue, is_known: impl Fn(&str) -> bool) -> Option<String> {
    let mut first = None;
    visit(raw, |name, value| {
        if first.is_none() && !is_known(name) && value.get() != "null" {
            first = Some(name.to_owned());
        }
    });
    first
}

/// Shows each field of an object and its value, unread. What is no object has none.
pub fn visit(raw: &RawValue, visit: impl FnMut(&str, &RawValue)) {
    struct Entries<F>(F);
    impl<'de, F: FnMut(&str, &RawValue)> Visitor<'de> for Entries<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
            while let Some(name) = entries.next_key::<Cow<'de, str>>()? {
                (self.0)(&name, entries.next_value()?);
            }
            Ok(())
        }
    }
    // Its text was read before: there is no error but that it is no object.
    let _ = Deserializer::deserialize_map(&mut serde_json::Deserializer::from_str(raw.get()), Entries(visit));
}

/// An object of those that are there.
pub fn joined<const N: usize>(fields: [(&str, Option<&RawValue>); N]) -> String {
    let fields = fields.into_iter().filter_map(|(name, raw)| Some(format!(r#""{name}":{}"#, raw?.get())));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

/// Fields that are strings and must be there.
pub fn required<const N: usize>(item: &RawValue, path: &str, names: [&str; N]) -> Result<[String; N], ApiError> {
    let raw = named(item, names).unwrap_or([None; N]);
    let mut texts = [const { String::new() }; N];
    for (at, (raw, name)) in raw.into_iter().zip(names).enumerate() {
        let param = format!("{path}.{name}");
        let raw = raw.ok_or_else(|| ApiError::param(&param, format!("`{param}` is required")))?;
        texts[at] = text(raw, &param)?;
    }
    Ok(texts)
}

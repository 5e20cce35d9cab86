//! JSON from outside as a tree of values: of bounded depth and size, whatever its text. It knows no field.
//!
//! serde_json's own reader takes the text under a key that it reserves for itself, and reads it as JSON once more, with a fresh bound of
//! depth: a few KB of such texts within texts overflow the stack. And a tree is up to a hundred times as large as its text.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Error, Map, Value};

/// Most values in a tree, which then takes at most some 100 MB: several times as many as any file or conversation has.
const MAX_VALUES: usize = 1 << 20;

/// The key whose text serde_json's own reader reads as JSON.
const RESERVED: &str = "$serde_json::private::RawValue";

/// Reads a value.
///
/// # Errors
/// It is not JSON, has more values than any real file, or a key that cannot be read.
pub fn parse(text: &[u8]) -> Result<Value, Error> {
    read(text, true)
}

/// Reads an object.
///
/// # Errors
/// As [`parse`], or it is something else, and of what kind.
pub fn object(text: &[u8]) -> Result<Map<String, Value>, String> {
    let kind = match parse(text).map_err(|error| error.to_string())? {
        Value::Object(object) => return Ok(object),
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
    };
    Err(format!("expected a JSON object, found {kind}"))
}

/// Checks that a library which reads the text in its own way cannot overflow the stack.
///
/// # Errors
/// It is not JSON, or has a key that cannot be read.
pub fn check(text: &[u8]) -> Result<(), Error> {
    read(text, false).map(|_| ())
}

fn read(text: &[u8], keep: bool) -> Result<Value, Error> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = Tree { keep, left: &mut MAX_VALUES.clone() }.deserialize(&mut json)?;
    json.end()?;
    Ok(value)
}

/// Reads a value; nulls in place of all if it is not kept.
struct Tree<'a> {
    keep: bool,
    /// How many more values there may be.
    left: &'a mut usize,
}

impl Tree<'_> {
    fn part(&mut self) -> Tree<'_> {
        Tree { keep: self.keep, left: self.left }
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.keep {
            let too_many = || D::Error::custom(format_args!("more than {MAX_VALUES} values"));
            *self.left = self.left.checked_sub(1).ok_or_else(too_many)?;
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(if self.keep { text.into() } else { Value::Null })
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.part())? {
            if self.keep {
                list.push(item);
            }
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if key == RESERVED {
                return Err(A::Error::custom(format_args!("the key {key:?} cannot be read")));
            }
            let value = entries.next_value_seed(self.part())?;
            if self.keep {
                object.insert(key, value);
            }
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_serde_json_reads() {
        let texts = [
            r#"{"a": [1, -2, 1.5, 1e300, 18446744073709551615, true, false, null, "x\u00e9\n"], "b": {"c": {}}, "d": []}"#,
            r#"{"of equal keys": 1, "of equal keys": 2}"#,
            r#" "text" "#,
        ];
        for text in texts {
            assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
            check(text.as_bytes()).unwrap();
        }
        for text in ["", "{", "[1,]", "1 2", "1e400", r#""\ud800""#, "nul", &"[".repeat(1000)] {
            let theirs = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            assert_eq!(parse(text.as_bytes()).unwrap_err().to_string(), theirs);
            assert_eq!(check(text.as_bytes()).unwrap_err().to_string(), theirs);
        }
    }

    #[test]
    fn texts_within_texts_are_an_error_however_the_key_is_spelt() {
        for key in [RESERVED, "\\u0024serde_json::private::RawValue"] {
            let mut text = "[]".to_owned();
            for _ in 0..3 {
                let quoted = serde_json::to_string(&text).unwrap();
                text = format!("[[{{\"{key}\": {quoted}}}]]");
            }
            for error in [parse(text.as_bytes()).unwrap_err(), check(text.as_bytes()).unwrap_err()] {
                assert!(error.to_string().contains("cannot be read"), "{error}");
            }
        }
    }

    #[test]
    fn a_tree_has_a_largest_size() {
        let list = |values: usize| format!("[{}0]", "0,".repeat(values - 2));
        assert_eq!(parse(list(MAX_VALUES).as_bytes()).unwrap().as_array().unwrap().len(), MAX_VALUES - 1);
        let error = parse(list(MAX_VALUES + 1).as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("more than 1048576 values"), "{error}");
        check(list(MAX_VALUES + 1).as_bytes()).unwrap();
    }

    #[test]
    fn only_an_object_is_one() {
        assert_eq!(object(br#"{"a": 1}"#).unwrap()["a"], 1);
        for (text, kind) in [("[]", "an array"), ("1", "a number"), ("null", "null"), ("\"\"", "a string")] {
            assert_eq!(object(text.as_bytes()).unwrap_err(), format!("expected a JSON object, found {kind}"));
        }
        assert!(object(b"{").unwrap_err().contains("line 1"));
    }
}

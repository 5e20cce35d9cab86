//! A JSON value of a request, as a tree. It knows no field.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A value read as it is. `serde_json::Value` reads the text of a key that `serde_json` reserves for itself as JSON once more, with a limit
/// of depth that begins anew: a request could end the process with that.
pub struct Tree(pub Value);

/// Reads a text.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str::<Tree>(text).map(|tree| tree.0)
}

/// Shows each schema of a schema, which says whether to go on inside of it. What is data there is none.
pub fn each_schema(schema: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>) -> bool) {
    /// What they hold is data.
    const DATA: [&str; 5] = ["const", "default", "enum", "example", "examples"];
    /// What they hold are schemas by names, which may be any.
    const BY_NAME: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(items) => return items.iter_mut().for_each(|item| each_schema(item, visit)),
        _ => return,
    };
    if !visit(fields) {
        return;
    }
    for (name, value) in fields {
        match value {
            _ if DATA.contains(&name.as_str()) => {}
            Value::Object(named) if BY_NAME.contains(&name.as_str()) => {
                named.values_mut().for_each(|schema| each_schema(schema, visit));
            }
            value => each_schema(value, visit),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E: Error>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
                Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut list = Vec::new();
                while let Some(Tree(item)) = items.next_element()? {
                    list.push(item);
                }
                Ok(Value::Array(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
                let mut object = Map::new();
                while let Some((name, Tree(value))) = entries.next_entry::<String, Tree>()? {
                    object.insert(name, value);
                }
                Ok(Value::Object(object))
            }
        }
        deserializer.deserialize_any(AnyValue).map(Tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_key_is_a_key() {
        let text = r#"{"\u0024serde_json::private::RawValue": "[1]", "a": [null, true, 1, -1, 1.5, "x", {}]}"#;
        let Value::Object(object) = parse(text).unwrap() else { panic!("an object") };
        assert_eq!(object["$serde_json::private::RawValue"], Value::from("[1]"));
        assert_eq!(object["a"].to_string(), r#"[null,true,1,-1,1.5,"x",{}]"#);
        assert!(parse(&("[".repeat(200) + &"]".repeat(200))).unwrap_err().to_string().contains("recursion limit"));
    }
}

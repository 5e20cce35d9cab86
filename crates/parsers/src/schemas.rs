//! What tools take: for formats that write arguments as text, whose types only the tool knows.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Number, Value};

/// The schemas of the tools' parameters by the tools' names.
#[derive(Debug, Clone, Default)]
pub struct ToolSchemas(Arc<HashMap<String, Value>>);

/// JSON's types and the names that vLLM knows besides.
const TYPES: &[(&str, &[&str])] = &[
    ("string", &["str", "text", "varchar", "char", "enum"]),
    ("integer", &["int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"]),
    ("number", &["float", "float32", "float64", "double"]),
    ("boolean", &["bool"]),
    ("object", &["dict"]),
    ("array", &["arr", "list", "sequence"]),
];

impl ToolSchemas {
    /// Of these tools.
    pub fn new(tools: impl IntoIterator<Item = (String, Value)>) -> Self {
        Self(Arc::new(tools.into_iter().collect()))
    }

    /// An argument that was written as text, as JSON, by vLLM's rules: the first of null, integer, number, boolean, object, array and text that
    /// the parameter may be and the text can be. Else it is the JSON that it is, or a text.
    pub fn json(&self, tool: &str, parameter: &str, text: &str) -> String {
        let mut types = Vec::new();
        if let Some(root) = self.0.get(tool)
            && let Some(schema) = root.get("properties").and_then(|properties| properties.get(parameter))
        {
            add_types(schema, root, &mut { MAX_REFERENCES }, &mut types);
        }
        typed(text, &types).unwrap_or_else(|| quoted(text))
    }
}

/// References that are followed for one parameter.
const MAX_REFERENCES: usize = 16;

/// Adds the types that a schema within `root` names, or whose values it lists. One that says nothing means a text.
fn add_types<'s>(schema: &'s Value, root: &'s Value, references: &mut usize, types: &mut Vec<&'s str>) {
    let before = types.len();
    let path = schema.get("$ref").and_then(|path| path.as_str()?.strip_prefix('#'));
    if let (Some(schema), Some(left)) = (path.and_then(|path| root.pointer(path)), references.checked_sub(1)) {
        *references = left;
        add_types(schema, root, references, types);
    }
    match schema.get("type") {
        Some(Value::String(name)) => types.push(name),
        Some(Value::Array(list)) => types.extend(list.iter().filter_map(Value::as_str)),
        _ => {}
    }
    let list = |name| schema.get(name).and_then(Value::as_array).into_iter().flatten();
    types.extend(list("enum").chain(schema.get("const")).map(type_of));
    for name in ["anyOf", "oneOf", "allOf"] {
        list(name).for_each(|schema| add_types(schema, root, references, types));
    }
    if types.len() == before {
        types.push("string");
    }
}

fn type_of(value: &Value) -> &str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// `None`: it is a text, as it is where nobody knows a type.
fn typed(text: &str, types: &[&str]) -> Option<String> {
    let trimmed = text.trim();
    if types.is_empty() {
        return None;
    }
    let has = |name: &str| {
        let of_table = TYPES.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, others)| others);
        let is = |asked: &str| asked == name || of_table.contains(&asked);
        types.iter().any(|asked| is(&asked.trim().to_ascii_lowercase()))
    };
    if has("null") && trimmed.eq_ignore_ascii_case("null") {
        return Some("null".to_owned());
    }
    let number = || number(trimmed).filter(|_| has("number"));
    if let Some(number) = integer(trimmed).filter(|_| has("integer") || has("number")).or_else(number) {
        return Some(number);
    }
    if has("boolean") {
        match trimmed.to_ascii_lowercase().as_str() {
            "true" | "1" => return Some("true".to_owned()),
            "false" | "0" => return Some("false".to_owned()),
            _ => {}
        }
    }
    let value = serde_json::from_str(trimmed).ok()?;
    let fits = match value {
        Value::Object(_) => has("object"),
        Value::Array(_) => has("array"),
        _ => false,
    };
    (fits || !has("string")).then(|| trimmed.to_owned())
}

/// A whole number of any length, as JSON writes it.
fn integer(text: &str) -> Option<String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    Some(if digits.is_empty() { "0".to_owned() } else { format!("{sign}{digits}") })
}

/// A finite number, as it was written if JSON writes it so.
fn number(text: &str) -> Option<String> {
    let number = Number::from_f64(text.parse().ok()?)?;
    Some(if serde_json::from_str::<Number>(text).is_ok() { text.to_owned() } else { number.to_string() })
}

/// A text as JSON.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value, text: &str, expected: &str) {
        let tools = ToolSchemas::new([("f".to_owned(), json!({"properties": {"a": schema}}))]);
        assert_eq!(tools.json("f", "a", text), expected, "{schema}: {text:?}");
    }

    #[test]
    fn types_may_be_those_of_a_definition_or_of_the_only_value() {
        let parameters = json!({
            "properties": {"a": {"$ref": "#/$defs/b"}, "c": {"const": 5}, "again": {"$ref": "#/properties/again"}},
            "$defs": {"b": {"$ref": "#/$defs/d"}, "d": {"type": "integer"}},
        });
        let tools = ToolSchemas::new([("f".to_owned(), parameters)]);
        assert_eq!(["a", "c", "again"].map(|name| tools.json("f", name, "5")), ["5", "5", "\"5\""]);
    }

    #[test]
    fn a_text_is_the_first_type_that_it_can_be() {
        let long = "123456789012345678901234567890";
        for (schema, text, expected) in [
            (json!({"type": "integer"}), " 7 ", "7"),
            (json!({"type": "integer"}), long, long),
            (json!({"type": "integer"}), "-007", "-7"),
            (json!({"type": "integer"}), "+0", "0"),
            (json!({"type": "integer"}), "5.0", "5.0"),
            (json!({"type": "integer"}), "null", "null"),
            (json!({"type": "integer"}), "five", "\"five\""),
            (json!({"type": "integer"}), "{\"a\": 1}", "{\"a\": 1}"),
            (json!({"type": "int64"}), "7", "7"),
            (json!({"type": " Number "}), "1e-05", "1e-05"),
            (json!({"type": "number"}), ".5", "0.5"),
            (json!({"type": "number"}), "1e400", "\"1e400\""),
            (json!({"type": "number"}), "NaN", "\"NaN\""),
            (json!({"type": "boolean"}), "TRUE", "true"),
            (json!({"type": "boolean"}), "0", "false"),
            (json!({"type": "boolean"}), "2", "2"),
            (json!({"type": ["boolean", "integer"]}), "1", "1"),
            (json!({"type": "object"}), "[1]", "[1]"),
            (json!({"type": "array"}), "[1, 2", "\"[1, 2\""),
            (json!({"type": "string"}), "12", "\"12\""),
            (json!({"type": "str"}), "12", "\"12\""),
            (json!({"type": ["string", "null"]}), "NULL", "null"),
            (json!({"type": ["string", "array"]}), "[1]", "[1]"),
            (json!({"type": ["string", "array"]}), "1", "\"1\""),
        ] {
            check(&schema, text, expected);
        }
    }

    #[test]
    fn types_stand_in_many_places() {
        for (schema, text, expected) in [
            (json!({"allOf": [{"type": "object"}]}), "{\"a\": 1}", "{\"a\": 1}"),
            (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "5", "5"),
            (json!({"oneOf": [{"enum": [1]}, {"allOf": [{"type": "boolean"}]}]}), "true", "true"),
            (json!({"enum": [1, 2]}), "1", "1"),
            (json!({"enum": [true, false]}), "true", "true"),
            (json!({"enum": [1.5, null]}), "1.5", "1.5"),
            (json!({"enum": [[], {}]}), "{}", "{}"),
            (json!({"type": "string", "enum": ["1"]}), "1", "\"1\""),
            (json!({}), "1", "\"1\""),
            (json!({"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}), "1", "\"1\""),
            (json!({"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}), "null", "null"),
        ] {
            check(&schema, text, expected);
        }
        assert_eq!(ToolSchemas::default().json("f", "a", "1"), "\"1\"");
    }
}

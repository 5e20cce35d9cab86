//! Calls whose arguments are texts between tags (Qwen3-Coder's and GLM's), as a form. Knows schemas, no request.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::{literal, with_whitespace};

/// References and alternatives that are followed for one parameter.
const MAX_FOLLOWED: usize = 256;

/// What of a tool's schema says nothing of which arguments come together.
const OF_TOOL: [&str; 8] =
    ["type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description"];

/// What of a parameter's schema says nothing of its value.
const OF_VALUE: [&str; 6] = ["title", "description", "default", "examples", "deprecated", "$comment"];

/// What a parameter's values are.
#[derive(Debug, PartialEq)]
enum Values {
    /// Any text.
    Text,
    /// These texts.
    Texts(Vec<String>),
    /// JSON of this schema, no text among it.
    Json(Value),
}

/// `<tool_call>`, `<function=name>`, of each argument `<parameter=key>`, its value and `</parameter>`, `</function>`, `</tool_call>`, on lines of their own.
/// `None`: a schema says what such a form does not hold.
pub(super) fn qwen_xml(tools: &[(String, Value)], several: bool, tag: impl Fn(&str) -> String) -> Option<String> {
    let (begin, end) = (tag("<tool_call>"), tag("</tool_call>"));
    let mut lark = start(tools, several, &format!("{begin} \"\\n\""), &format!("\"\\n\" {end}"));
    // The first end is the end.
    lark.push_str("text[lazy]: /(?s:.*)\\n<\\/parameter>\\n/\n");
    for (at, (name, parameters)) in tools.iter().enumerate() {
        let around = |key: &str| (literal(&format!("<parameter={key}>\n")), literal("\n</parameter>\n"));
        let arguments = arguments(&mut lark, at, parameters, around)?;
        let begin = literal(&format!("<function={}>\n", plain(name)?));
        // Writing to a string cannot fail.
        let _ = writeln!(lark, "call_{at}: {begin} {arguments} \"</function>\"");
    }
    Some(lark)
}

/// `<tool_call>name`, of each argument `<arg_key>key</arg_key>` and `<arg_value>value</arg_value>`, `</tool_call>`, on lines of their own.
/// `None`: as of [`qwen_xml`].
pub(super) fn glm(tools: &[(String, Value)], several: bool, tag: impl Fn(&str) -> String) -> Option<String> {
    let [begin, end, key_begin, key_end, value_begin, value_end] =
        ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"].map(tag);
    let mut lark = start(tools, several, &begin, &end);
    // A token of its own is in no text.
    match value_end.starts_with("<[") {
        true => _ = writeln!(lark, "text: /(?s:.*)/ {value_end} \"\\n\"?"),
        false => lark.push_str("text: value \"\\n\"?\nvalue[lazy]: /(?s:.*)<\\/arg_value>/\n"),
    }
    for (at, (name, parameters)) in tools.iter().enumerate() {
        let around = |key: &str| {
            let key = literal(key);
            (format!("{key_begin} {key} {key_end} \"\\n\"? {value_begin}"), format!("{value_end} \"\\n\"?"))
        };
        let arguments = arguments(&mut lark, at, parameters, around)?;
        let _ = writeln!(lark, "call_{at}: {} \"\\n\"? {arguments}", literal(plain(name)?));
    }
    Some(lark)
}

/// One call, or several, of what stands between `begin` and `end`.
fn start(tools: &[(String, Value)], several: bool, begin: &str, end: &str) -> String {
    let more = if several { " (\"\\n\" call)*" } else { "" };
    format!("start: call{more}\ncall: {begin} ({}) {end}\n", super::calls::one_of("call", tools.len()))
}

/// A text that ends where its tag does, and begins where that begins.
fn plain(text: &str) -> Option<&str> {
    (!text.contains(['<', '>', '\n']) && text.trim() == text).then_some(text)
}

/// Adds a rule for each argument of tool `at`, which stands between what `around` gives of its key, and returns how they follow each other: in the schema's
/// order. The rule `text` is any text and the end behind it.
fn arguments(
    lark: &mut String,
    at: usize,
    schema: &Value,
    around: impl Fn(&str) -> (String, String),
) -> Option<String> {
    let none = Map::new();
    let fields = match schema {
        Value::Object(fields) => fields,
        _ => &none,
    };
    if fields.get("type").is_some_and(|name| name != "object")
        || fields.keys().any(|name| !OF_TOOL.contains(&name.as_str()) && !name.starts_with("x-") && name != "$schema")
    {
        return None;
    }
    let properties = match fields.get("properties") {
        None => &none,
        Some(Value::Object(properties)) => properties,
        Some(_) => return None,
    };
    let required: Vec<&str> =
        fields.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if required.iter().any(|name| !properties.contains_key(*name)) {
        return None;
    }
    let mut all = String::new();
    for (number, (key, of_key)) in properties.iter().enumerate() {
        let (begin, end) = around(plain(key)?);
        let value = match values(of_key, schema, &mut { MAX_FOLLOWED })? {
            Values::Text => "text".to_owned(),
            Values::Texts(texts) => {
                let texts = texts.iter().map(|text| plain(text).filter(|text| !text.is_empty()).map(literal));
                format!("({}) {end}", texts.collect::<Option<Vec<_>>>()?.join(" | "))
            }
            Values::Json(schema) => format!("%json {} {end}", with_whitespace(schema, None)),
        };
        let _ = writeln!(lark, "argument_{at}_{number}: {begin} {value}");
        let _ = write!(all, " argument_{at}_{number}{}", if required.contains(&key.as_str()) { "" } else { "?" });
    }
    Some(all)
}

/// `None`: a form does not hold what the schema says of texts, or text and JSON are both among its values.
fn values(schema: &Value, root: &Value, left: &mut usize) -> Option<Values> {
    *left = left.checked_sub(1)?;
    let fields = match schema {
        Value::Bool(true) => return Some(Values::Text),
        Value::Object(fields) => fields,
        _ => return None,
    };
    let said: Vec<&str> = fields.keys().map(String::as_str).filter(|name| !OF_VALUE.contains(name)).collect();
    let json = || {
        let mut schema = schema.clone();
        let refers = schema.to_string().contains("\"$ref\"");
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(name).filter(|_| refers) {
                schema[name] = definitions.clone();
            }
        }
        Some(Values::Json(schema))
    };
    match said[..] {
        // As it is read, too.
        [] => Some(Values::Text),
        ["$ref"] => {
            let path = fields["$ref"].as_str()?.strip_prefix('#')?;
            let is_defined = path.starts_with("/$defs/") || path.starts_with("/definitions/");
            values(root.pointer(path).filter(|_| is_defined)?, root, left)
        }
        [name @ ("anyOf" | "oneOf")] => {
            let of_each = fields[name].as_array()?.iter().map(|schema| values(schema, root, left));
            let of_each: Vec<_> = of_each.collect::<Option<_>>()?;
            if of_each.iter().all(|values| matches!(values, Values::Json(_))) {
                return json();
            }
            let is_null = |values: &Values| matches!(values, Values::Json(schema) if schema["type"] == "null");
            let mut texts = of_each.iter().filter(|values| !is_null(values));
            match (texts.next()?, texts.next()) {
                (Values::Text, None) => Some(Values::Text),
                (Values::Texts(texts), None) => {
                    Some(Values::Texts(texts.iter().cloned().chain(["null".to_owned()]).collect()))
                }
                _ => None,
            }
        }
        _ => {
            let constant = fields.get("const").map(std::slice::from_ref);
            if let Some(listed) = constant.or(fields.get("enum").and_then(Value::as_array).map(Vec::as_slice)) {
                let texts: Vec<_> = listed.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                return match texts.len() {
                    0 => json(),
                    // All that is said is which, and that they are texts.
                    all if all == listed.len()
                        && said.iter().all(|name| ["type", "enum", "const"].contains(name))
                        && fields.get("type").is_none_or(|name| name == "string") =>
                    {
                        Some(Values::Texts(texts))
                    }
                    _ => None,
                };
            }
            let types: Vec<&str> = match fields.get("type")? {
                Value::String(name) => vec![name],
                Value::Array(names) => names.iter().map(Value::as_str).collect::<Option<_>>()?,
                _ => return None,
            };
            match types.contains(&"string") {
                false => json(),
                // All that is said is the type.
                true if said == ["type"] && types.iter().all(|name| ["string", "null"].contains(name)) => {
                    Some(Values::Text)
                }
                true => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_texts_or_json_or_not_held() {
        let root = json!({"$defs": {"place": {"enum": ["a", "b"]}, "again": {"$ref": "#/$defs/again"}}});
        let values = |schema: Value| values(&schema, &root, &mut { MAX_FOLLOWED });
        let texts = |list: &[&str]| Some(Values::Texts(list.iter().map(|&text| text.to_owned()).collect()));
        for text in
            [json!(true), json!({}), json!({"type": "string", "description": "a"}), json!({"type": ["string", "null"]})]
        {
            assert_eq!(values(text.clone()), Some(Values::Text), "{text}");
        }
        assert_eq!(values(json!({"anyOf": [{"type": "string"}, {"type": "null"}]})), Some(Values::Text));
        assert_eq!(values(json!({"$ref": "#/$defs/place"})), texts(&["a", "b"]));
        assert_eq!(values(json!({"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]})), texts(&["a", "b", "null"]));
        for schema in [
            json!({"type": "integer", "minimum": 1}),
            json!({"enum": [1, 2]}),
            json!({"type": "array", "items": {"$ref": "#/$defs/place"}}),
        ] {
            let Some(Values::Json(held)) = values(schema.clone()) else { panic!("{schema}") };
            assert!(held.get("$defs") == root.get("$defs").filter(|_| schema.get("items").is_some()), "{held}");
        }
        for not_held in [
            json!({"type": "string", "pattern": "a"}),
            json!({"enum": ["a", 1]}),
            json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
            json!({"$ref": "#/$defs/again"}),
            json!({"type": "integer", "enum": ["a"]}),
            json!({"type": ["integer", "string"], "enum": ["5"]}),
            json!({"$ref": "other"}),
            json!({"allOf": [{"type": "string"}]}),
        ] {
            assert_eq!(values(not_held.clone()), None, "{not_held}");
        }
    }
}

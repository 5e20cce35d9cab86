//! Schemas in llguidance's words: keywords that it does not know and that say nothing are left out, some are said with those that it knows. What is
//! left of them is llguidance's to refuse. Knows keywords, no grammar.

use serde_json::{Map, Value, json};

use super::tree::each_schema;

/// Keywords beside which others may say something of the same properties.
const APPLICATORS: [&str; 11] = [
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "allOf",
    "anyOf",
    "dependentSchemas",
    "else",
    "if",
    "not",
    "oneOf",
    "then",
];

/// Keywords that say nothing of a value.
const NOTES: [&str; 8] =
    ["$comment", "default", "deprecated", "description", "example", "examples", "markdownDescription", "title"];

/// The least whole number that llguidance can compare with: it computes in floating point, and the next number there, -2^63, has no counterpart
/// above 0 in 64 bits.
const LEAST: i64 = -9_223_372_036_854_774_784;

/// Says a schema so, with the same meaning.
pub fn reword(schema: &mut Value) {
    each_schema(schema, &mut |fields| {
        if fields.get("not").is_some_and(is_anything) {
            // Nothing is: as one of no values. What else it says of them changes nothing.
            *fields = Map::from_iter([("enum".to_owned(), json!([]))]);
            return false;
        }
        fields.retain(|name, value| !says_nothing(name, value));
        unevaluated(fields);
        format(fields);
        bounds(fields);
        true
    });
}

/// A schema that every value keeps.
fn is_anything(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.keys().all(|name| NOTES.contains(&name.as_str())),
        schema => *schema == Value::Bool(true),
    }
}

/// The same of every name.
fn is_any_name(schema: &Value) -> bool {
    let says_nothing = |(name, value): (&String, &Value)| {
        NOTES.contains(&name.as_str())
            || name == "type" && value == "string"
            || name == "minLength" && *value == json!(0)
    };
    schema.as_object().map_or(*schema == Value::Bool(true), |fields| fields.iter().all(says_nothing))
}

fn says_nothing(name: &str, value: &Value) -> bool {
    match name {
        "uniqueItems" | "not" => *value == Value::Bool(false),
        "propertyNames" => is_any_name(value),
        "unevaluatedItems" | "unevaluatedProperties" => is_anything(value),
        "dependencies" | "dependentRequired" | "dependentSchemas" => value.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// `unevaluatedProperties` of a schema that nothing else applies to is `additionalProperties`, and beside it says nothing.
fn unevaluated(fields: &mut Map<String, Value>) {
    if APPLICATORS.iter().any(|name| fields.contains_key(*name)) {
        return;
    }
    if let Some(schema) = fields.shift_remove("unevaluatedProperties") {
        fields.entry("additionalProperties").or_insert(schema);
    }
}

/// Formats that are regular, as expressions.
fn format(fields: &mut Map<String, Value>) {
    let said = match fields.get("format").and_then(Value::as_str) {
        Some("json-pointer") => json!({"pattern": format!("^{POINTER}$")}),
        Some("relative-json-pointer") => json!({"pattern": format!("^(?:0|[1-9][0-9]*)(?:#|{POINTER})$")}),
        Some("uri-reference") => json!({"anyOf": [{"format": "uri"}, {"pattern": format!("^{RELATIVE}$")}]}),
        _ => return,
    };
    // There may be a pattern and other conditions: all hold.
    if let Value::Array(all) = fields.entry("allOf").or_insert_with(|| json!([])) {
        all.push(said);
        fields.shift_remove("format");
    }
}

/// RFC 6901: each part after a slash, `~0` for `~` and `~1` for `/` in it.
const POINTER: &str = "(?:/(?:[^~/]|~[01])*)*";

/// RFC 3986, `relative-ref`: a reference that begins with no scheme. Letters are ASCII's; what stands between brackets is an IPv6 address or what
/// may come after it.
const RELATIVE: &str = concat!(
    r"(?://(?:(?:[a-zA-Z0-9\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{2})*@)?",
    r"(?:\[(?:(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|(?:[0-9a-fA-F]{1,4}:){1,7}:|(?:[0-9a-fA-F]{1,4}:){1,6}:[0-9a-fA-F]{1,4}|",
    r"(?:[0-9a-fA-F]{1,4}:){1,5}(?::[0-9a-fA-F]{1,4}){1,2}|(?:[0-9a-fA-F]{1,4}:){1,4}(?::[0-9a-fA-F]{1,4}){1,3}|",
    r"(?:[0-9a-fA-F]{1,4}:){1,3}(?::[0-9a-fA-F]{1,4}){1,4}|(?:[0-9a-fA-F]{1,4}:){1,2}(?::[0-9a-fA-F]{1,4}){1,5}|",
    r"[0-9a-fA-F]{1,4}:(?::[0-9a-fA-F]{1,4}){1,6}|:(?::[0-9a-fA-F]{1,4}){1,7}|::|",
    r"v[0-9a-fA-F]+\.[a-zA-Z0-9\-._~!$&'()*+,;=:]+)\]|(?:[a-zA-Z0-9\-._~!$&'()*+,;=]|%[0-9a-fA-F]{2})*)(?::[0-9]*)?",
    r"(?:/(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})*)*",
    r"|/(?:(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})+(?:/(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})*)*)?",
    r"|(?:[a-zA-Z0-9\-._~!$&'()*+,;=@]|%[0-9a-fA-F]{2})+(?:/(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})*)*|)",
    r"(?:\?(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@/?]|%[0-9a-fA-F]{2})*)?(?:#(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@/?]|%[0-9a-fA-F]{2})*)?",
);

/// Bounds that every number keeps which floating point of 64 bits holds say nothing to who reads it. Those of whole numbers are brought into what
/// llguidance compares with, as it does itself above 0.
fn bounds(fields: &mut Map<String, Value>) {
    let is_whole = match fields.get("type") {
        Some(Value::String(kind)) => kind == "integer",
        Some(Value::Array(kinds)) => {
            kinds.iter().any(|kind| kind == "integer") && kinds.iter().all(|kind| kind != "number")
        }
        _ => false,
    };
    let bound = |fields: &Map<String, Value>, name: &str| fields.get(name).and_then(Value::as_f64);
    for name in ["minimum", "exclusiveMinimum"] {
        match bound(fields, name) {
            Some(least) if is_whole && least < LEAST as f64 => _ = fields.insert(name.to_owned(), json!(LEAST)),
            Some(least) if !is_whole && least == f64::MIN && name == "minimum" => _ = fields.shift_remove(name),
            _ => {}
        }
    }
    if !is_whole && bound(fields, "maximum") == Some(f64::MAX) {
        fields.shift_remove("maximum");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: Value, expected: Value) {
        let mut reworded = schema.clone();
        reword(&mut reworded);
        assert_eq!(reworded, expected, "{schema}");
        assert_eq!(reworded.to_string(), expected.to_string(), "{schema}");
    }

    #[test]
    fn what_says_nothing_is_left_out() {
        let record = json!({"type": "object", "additionalProperties": {"type": "number"}});
        for (name, value) in [
            ("propertyNames", json!({"type": "string"})),
            ("propertyNames", json!({"title": "a", "type": "string", "minLength": 0})),
            ("propertyNames", json!(true)),
            ("uniqueItems", json!(false)),
            ("not", json!(false)),
            ("unevaluatedProperties", json!(true)),
            ("unevaluatedProperties", json!(false)),
            ("unevaluatedItems", json!({"description": "a"})),
            ("dependentRequired", json!({})),
        ] {
            let mut schema = record.clone();
            schema[name] = value;
            check(schema, record.clone());
        }
        let number = json!({"type": "number", "title": "a"});
        check(json!({"type": "number", "minimum": f64::MIN, "maximum": f64::MAX, "title": "a"}), number);
        check(json!({"items": [{"maximum": f64::MAX}]}), json!({"items": [{}]}));
    }

    #[test]
    fn what_says_something_stays() {
        for schema in [
            json!({"propertyNames": {"pattern": "^a"}}),
            json!({"propertyNames": {"type": "string", "minLength": 1}}),
            json!({"propertyNames": {"type": "number"}}),
            json!({"propertyNames": false}),
            json!({"uniqueItems": true}),
            json!({"not": {"type": "string"}}),
            json!({"unevaluatedProperties": false, "allOf": [{"properties": {"a": {}}}]}),
            json!({"unevaluatedProperties": false, "$ref": "#/$defs/a"}),
            json!({"unevaluatedItems": false}),
            json!({"dependentRequired": {"a": ["b"]}}),
            json!({"maximum": f64::MIN}),
            json!({"maximum": 1e300, "minimum": -1e300}),
            json!({"exclusiveMaximum": f64::MAX}),
            json!({"type": "integer", "minimum": LEAST, "maximum": f64::MAX}),
            json!({"format": "uri", "type": "string"}),
            json!({"const": {"not": {}, "uniqueItems": false}, "enum": [{"format": "json-pointer"}]}),
        ] {
            check(schema.clone(), schema);
        }
        // A property may have any name.
        let property = json!({"properties": {"uniqueItems": {"type": "boolean"}, "not": {"type": "string"}}});
        check(property.clone(), property);
    }

    #[test]
    fn some_are_said_otherwise() {
        check(
            json!({"type": "object", "additionalProperties": {"not": {}}}),
            json!({"type": "object", "additionalProperties": {"enum": []}}),
        );
        check(
            json!({"properties": {"a": {}}, "unevaluatedProperties": false}),
            json!({"properties": {"a": {}}, "additionalProperties": false}),
        );
        check(
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            json!({"type": "integer", "minimum": LEAST, "maximum": i64::MAX}),
        );
        check(
            json!({"type": ["integer", "null"], "exclusiveMinimum": f64::MIN}),
            json!({"type": ["integer", "null"], "exclusiveMinimum": LEAST}),
        );
        let pointer = json!({"pattern": format!("^{POINTER}$")});
        check(
            json!({"type": "string", "format": "json-pointer", "pattern": "a"}),
            json!({"type": "string", "pattern": "a", "allOf": [pointer]}),
        );
    }
}

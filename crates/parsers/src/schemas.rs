//! What tools take: for formats that write arguments as text, whose types only the tool knows.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

/// The schemas of the tools' parameters by the tools' names.
#[derive(Debug, Clone, Default)]
pub struct ToolSchemas(Arc<HashMap<String, Value>>);

impl ToolSchemas {
    /// Of these tools.
    pub fn new(tools: impl IntoIterator<Item = (String, Value)>) -> Self {
        Self(Arc::new(tools.into_iter().collect()))
    }

    /// An argument that was written as text, as JSON. A text that is none of the parameter's types stays a text.
    pub fn json(&self, tool: &str, parameter: &str, text: &str) -> String {
        let schema = self.0.get(tool).and_then(|schema| schema.get("properties")?.get(parameter));
        match schema.map(types).unwrap_or_default() {
            // Nobody knows: as vLLM, a text.
            types if types.is_empty() => quoted(text),
            types => typed(text, &types).unwrap_or_else(|| quoted(text)),
        }
    }
}

/// The types that a schema names.
fn types(schema: &Value) -> Vec<&str> {
    let mut types = Vec::new();
    match schema.get("type") {
        Some(Value::String(name)) => types.push(name.as_str()),
        Some(Value::Array(list)) => types.extend(list.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for any in ["anyOf", "oneOf"] {
        let options = schema.get(any).and_then(Value::as_array).into_iter().flatten();
        types.extend(options.flat_map(self::types));
    }
    types
}

fn typed(text: &str, types: &[&str]) -> Option<String> {
    let trimmed = text.trim();
    let has = |name: &str| types.contains(&name);
    if has("null") && trimmed.eq_ignore_ascii_case("null") {
        return Some("null".to_owned());
    }
    if (has("boolean") || has("bool")) && ["true", "false"].iter().any(|word| trimmed.eq_ignore_ascii_case(word)) {
        return Some(trimmed.to_ascii_lowercase());
    }
    let value: Value = serde_json::from_str(trimmed).ok()?;
    let fits = match &value {
        Value::Number(number) => has("number") || has("float") || (has("integer") || has("int")) && !number.is_f64(),
        Value::Object(_) => has("object") || has("dict"),
        Value::Array(_) => has("array") || has("list"),
        _ => false,
    };
    fits.then(|| trimmed.to_owned())
}

/// A text as JSON.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

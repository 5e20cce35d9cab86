//! The fields that hold an answer to a form, by all their names: OpenAI's, vLLM's, its older ones, and what other servers call the same.
//! Knows the fields, not how a form is held to.

use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use vllm_apple_engine::Grammar;

use super::error::ApiError;
use super::fields::Fields;
use super::memory::{Held, PER_FORM};
use super::text_queue::TextQueue;
use crate::served::ServedModel;
use crate::structured::{CompileError, MAX_SOURCE, Refusal, Structure, tree};

/// Bytes that a tree of values takes at most for each of its text: lists in lists.
pub const PER_TREE_BYTE: usize = 64;

/// What an answer must be like, and the field that says so.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Its form.
    pub structure: Structure,
    /// For errors.
    pub field: String,
}

/// The form of the answer's text.
pub const RESPONSE_FORMAT: &str = "response_format";

/// Fields that each are a form.
const ALONE: [&str; 9] = [
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "regex",
    "format",
    "grammar",
    "ebnf",
];

/// Takes what the request says of its answer's form, which it may say once.
pub fn take(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let whitespace: Option<String> = fields.optional("guided_whitespace_pattern")?;
    for backend in ["guided_decoding_backend", "structured_outputs_backend"] {
        if let Some(name) = fields.optional::<String>(backend)?
            && !["auto", "guidance", "llguidance"].contains(&name.split(':').next().unwrap_or_default())
        {
            return Err(ApiError::unsupported(backend, "forms are held to by llguidance: leave it out"));
        }
    }
    let mut asked = one(take_response_format(fields)?, take_structured_outputs(fields)?)?;
    for name in ALONE {
        if let Some(value) = take_tree(fields, name)? {
            asked = one(asked, alone(name, value, whitespace.as_deref())?)?;
        }
    }
    let of_json = asked.as_ref().is_some_and(|asked| asked.field == "guided_json");
    match (asked, whitespace) {
        (_, Some(_)) if !of_json => {
            let message = "`guided_whitespace_pattern` is about the JSON of `guided_json`, which is not there";
            Err(ApiError::param("guided_whitespace_pattern", message))
        }
        (asked, _) => Ok(asked),
    }
}

/// The same, beside calls that must come. They leave no text for the form of `response_format`, which has no effect then, as in vLLM.
pub fn take_beside(
    fields: &mut Fields,
    calls: Option<Asked>,
) -> Result<(Option<Asked>, Option<&'static str>), ApiError> {
    let asked = take(fields)?;
    match asked {
        Some(asked) if calls.is_some() && asked.is_of_text() => Ok((calls, Some(RESPONSE_FORMAT))),
        asked => Ok((one(asked, calls)?, None)),
    }
}

/// What the answer must be like, of what two parts of a request say.
pub fn one(first: Option<Asked>, second: Option<Asked>) -> Result<Option<Asked>, ApiError> {
    match (first, second) {
        (Some(first), Some(second)) => {
            let message =
                format!("`{}` and `{}` both say what the answer must be like: send one", first.field, second.field);
            Err(ApiError::param(second.field, message))
        }
        (first, second) => Ok(first.or(second)),
    }
}

impl Asked {
    fn new(structure: Structure, field: impl Into<String>) -> Self {
        Self { structure, field: field.into() }
    }

    /// Whether it is OpenAI's: that of an answer's text.
    pub fn is_of_text(&self) -> bool {
        self.field.starts_with(RESPONSE_FORMAT)
    }

    /// What holds the answer to it.
    pub async fn compile(
        self,
        queue: &TextQueue,
        held: &Held,
        model: &Arc<ServedModel>,
    ) -> Result<Arc<dyn Grammar>, ApiError> {
        self.counted(queue, held, model, PER_FORM).await
    }

    /// The same beside another form, which the memory of an answer includes.
    pub async fn compile_beside(
        self,
        queue: &TextQueue,
        held: &Held,
        model: &Arc<ServedModel>,
    ) -> Result<Arc<dyn Grammar>, ApiError> {
        self.counted(queue, held, model, 0).await
    }

    async fn counted(
        self,
        queue: &TextQueue,
        held: &Held,
        model: &Arc<ServedModel>,
        included: usize,
    ) -> Result<Arc<dyn Grammar>, ApiError> {
        let (bytes, model, lease) = (self.structure.bytes(), Arc::clone(model), held.lease());
        let compile = move || {
            let form = model.structures.compile(&self.structure);
            form.map(|form| form.counted(lease, included)).map_err(|error| not_compiled(&self.field, &error))
        };
        queue.convert(bytes, held, compile).await
    }
}

/// Why the form of a field is not compiled: its own fault, or the system's.
fn not_compiled(field: &str, error: &CompileError) -> ApiError {
    let mut reason = error.to_string();
    // Behind the first line is a grammar that the client has not written.
    if ["tool_choice", "tools"].contains(&field) {
        reason.truncate(reason.find('\n').unwrap_or(reason.len()));
    }
    let message = format!("`{field}` cannot be held to: {reason}");
    match error {
        CompileError::Form(_) => ApiError::param(field, message),
        CompileError::NoThread(_) => ApiError::unavailable("no_thread", message),
    }
}

/// A field as a tree, which is counted while the fields are read.
pub fn take_tree(fields: &mut Fields, name: &'static str) -> Result<Option<Value>, ApiError> {
    let Some(raw) = fields.raw(name) else { return Ok(None) };
    counted_tree(fields, name, &raw).map(Some)
}

fn counted_tree(fields: &mut Fields, name: &str, raw: &RawValue) -> Result<Value, ApiError> {
    let bytes = raw.get().len();
    if bytes > MAX_SOURCE {
        return Err(ApiError::param(name, format!("`{name}` has {bytes} bytes, at most {MAX_SOURCE} are taken")));
    }
    fields.held.grow(bytes * PER_TREE_BYTE)?;
    tree::parse(raw.get()).map_err(|error| ApiError::param(name, format!("`{name}` is not valid: {error}")))
}

fn take_response_format(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    const NAME: &str = RESPONSE_FORMAT;
    let Some(value) = take_tree(fields, NAME)? else { return Ok(None) };
    let mut format = object(NAME, value)?;
    let kind = format.remove("type");
    let asked = match kind.as_ref().and_then(Value::as_str) {
        Some("text") => None,
        // llama.cpp's and others' form has the schema beside the type.
        Some("json_object") => Some(match format.remove("schema").filter(|schema| !schema.is_null()) {
            Some(schema) => Asked::new(schema_of("response_format.schema", schema)?, "response_format.schema"),
            None => Asked::new(Structure::json_object(), NAME),
        }),
        Some("json_schema") => {
            let param = "response_format.json_schema";
            let missing =
                || ApiError::param(param, format!("`{param}` is required: an object with `name` and `schema`"));
            let mut inner = object(param, format.remove("json_schema").ok_or_else(missing)?)?;
            let param = "response_format.json_schema.schema";
            let missing = || ApiError::param(param, format!("`{param}` is required"));
            let schema = inner.remove("schema").ok_or_else(missing)?;
            // Strict or not, the answer keeps to the schema.
            if inner.get("strict").is_some_and(|strict| !strict.is_boolean() && !strict.is_null()) {
                let param = "response_format.json_schema.strict";
                return Err(ApiError::param(param, format!("`{param}` must be true or false")));
            }
            for name in ["name", "description"] {
                if let Some(value) = inner.get(name).filter(|value| !value.is_null()) {
                    string(&format!("response_format.json_schema.{name}"), value)?;
                }
            }
            nothing_else("response_format.json_schema", &inner, &["name", "strict", "description"])?;
            Some(Asked::new(schema_of(param, schema)?, param))
        }
        Some("structural_tag") => Some(Asked::new(tags(NAME, std::mem::take(&mut format))?, NAME)),
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), |kind| format!("{kind:?}"));
            let message = format!(
                "`response_format.type` must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\", got {got}"
            );
            return Err(ApiError::param("response_format.type", message));
        }
    };
    nothing_else(NAME, &format, &[])?;
    Ok(asked)
}

fn take_structured_outputs(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    const NAME: &str = "structured_outputs";
    let Some(value) = take_tree(fields, NAME)? else { return Ok(None) };
    let mut outputs = object(NAME, value)?;
    outputs.retain(|_, value| !value.is_null());
    let pattern = outputs.remove("whitespace_pattern");
    let pattern = pattern.map(|value| string("structured_outputs.whitespace_pattern", &value)).transpose()?;
    let mut flag = |name: &str| match outputs.remove(name) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(flag),
        Some(_) => Err(ApiError::param(format!("{NAME}.{name}"), format!("`{NAME}.{name}` must be true or false"))),
    };
    let compact = flag("disable_any_whitespace")?;
    let is_json_object = flag("json_object")?;
    if flag("disable_additional_properties")? {
        let param = "structured_outputs.disable_additional_properties";
        return Err(ApiError::unsupported(param, "write `additionalProperties: false` into the schema"));
    }
    let pattern = if compact { Some("") } else { pattern.as_deref() };
    if pattern.is_some() && !outputs.contains_key("json") {
        let param =
            if compact { "structured_outputs.disable_any_whitespace" } else { "structured_outputs.whitespace_pattern" };
        let message = format!("`{param}` is about the JSON of `structured_outputs.json`, which is not there");
        return Err(ApiError::param(param, message));
    }
    let mut asked = Vec::new();
    if is_json_object {
        asked.push(Asked::new(Structure::json_object(), "structured_outputs.json_object"));
    }
    for (name, value) in std::mem::take(&mut outputs) {
        let param = format!("{NAME}.{name}");
        let structure = match name.as_str() {
            "json" => json_or_text(&param, value, pattern)?,
            "regex" => Structure::regex(string(&param, &value)?),
            "choice" => choice(&param, &value)?,
            "grammar" => grammar(&param, &value)?,
            "structural_tag" => tags_of_text(&param, value)?,
            _ => {
                let known = "json, json_object, regex, choice, grammar and structural_tag";
                return Err(ApiError::param(&param, format!("`{param}` is not known: `{NAME}` takes {known}")));
            }
        };
        asked.push(Asked::new(structure, param));
    }
    match <[Asked; 1]>::try_from(asked) {
        Ok([asked]) => Ok(Some(asked)),
        Err(none) if none.is_empty() => Ok(None),
        Err(several) => {
            let names: Vec<_> = several.iter().map(|asked| asked.field.as_str()).collect();
            Err(ApiError::param(NAME, format!("`{NAME}` must have one form, got {}", names.join(" and "))))
        }
    }
}

/// A field that is a form by itself; what asks for nothing is none.
fn alone(name: &str, value: Value, whitespace: Option<&str>) -> Result<Option<Asked>, ApiError> {
    let is_empty = match &value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    if is_empty && name != "guided_choice" {
        return Ok(None);
    }
    let structure = match name {
        "guided_json" => json_or_text(name, value, whitespace)?,
        "guided_regex" | "regex" => Structure::regex(string(name, &value)?),
        "guided_choice" => choice(name, &value)?,
        "guided_grammar" | "grammar" | "ebnf" => grammar(name, &value)?,
        // Ollama's: "json", or a schema.
        "format" if value == json!("json") => Structure::json_object(),
        "format" if value.is_string() => {
            return Err(ApiError::param(name, "`format` must be \"json\" or a JSON schema"));
        }
        _ => json_or_text(name, value, None)?,
    };
    Ok(Some(Asked::new(structure, name)))
}

/// A schema, as an object or as its text.
fn json_or_text(param: &str, value: Value, whitespace: Option<&str>) -> Result<Structure, ApiError> {
    let schema = match value {
        Value::String(text) => {
            tree::parse(&text).map_err(|error| ApiError::param(param, format!("`{param}` is no JSON: {error}")))?
        }
        value => value,
    };
    if !schema.is_object() && !schema.is_boolean() {
        return Err(ApiError::param(param, format!("`{param}` must be a JSON schema: an object or a boolean")));
    }
    Ok(Structure::schema(schema, whitespace))
}

fn schema_of(param: &str, schema: Value) -> Result<Structure, ApiError> {
    match schema {
        Value::String(_) => {
            Err(ApiError::param(param, format!("`{param}` must be a JSON schema: an object or a boolean")))
        }
        schema => json_or_text(param, schema, None),
    }
}

fn choice(param: &str, value: &Value) -> Result<Structure, ApiError> {
    let choices = value.as_array().filter(|choices| !choices.is_empty());
    let choices: Option<Vec<String>> =
        choices.and_then(|choices| choices.iter().map(|choice| choice.as_str().map(str::to_owned)).collect());
    match choices {
        Some(choices) => Ok(Structure::choice(&choices)),
        None => Err(ApiError::param(param, format!("`{param}` must be a list of at least one string"))),
    }
}

fn grammar(param: &str, value: &Value) -> Result<Structure, ApiError> {
    let grammar = string(param, value)?;
    Structure::grammar(&grammar)
        .map_err(|reason| ApiError::param(param, format!("`{param}` cannot be held to: {reason}")))
}

fn tags_of_text(param: &str, value: Value) -> Result<Structure, ApiError> {
    let value = match value {
        Value::String(text) => {
            tree::parse(&text).map_err(|error| ApiError::param(param, format!("`{param}` is no JSON: {error}")))?
        }
        value => value,
    };
    tags(param, object(param, value)?)
}

/// vLLM's structural tags.
fn tags(param: &str, fields: Map<String, Value>) -> Result<Structure, ApiError> {
    Structure::structural_tag(param, fields)
        .map_err(|Refusal { path, reason }| ApiError::param(&path, format!("`{path}` {reason}")))
}

fn string(param: &str, value: &Value) -> Result<String, ApiError> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| ApiError::param(param, format!("`{param}` must be a string")))
}

fn object(param: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(ApiError::param(param, format!("`{param}` must be an object"))),
    }
}

/// Refuses what is left of an object: ignoring it could ignore a constraint.
pub fn nothing_else(param: &str, object: &Map<String, Value>, but: &[&str]) -> Result<(), ApiError> {
    match object.iter().find(|(name, value)| !but.contains(&name.as_str()) && !value.is_null()) {
        Some((name, _)) => {
            let param = format!("{param}.{name}");
            Err(ApiError::param(&param, format!("`{param}` is not known to this server: leave it out")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_a_thread_is_not_the_requests_fault() {
        let bad = not_compiled("regex", &CompileError::Form("it never ends".to_owned()));
        assert_eq!((bad.status.as_u16(), bad.param.as_deref()), (400, Some("regex")));
        let busy = not_compiled("regex", &CompileError::NoThread(std::io::ErrorKind::WouldBlock.into()));
        assert_eq!((busy.status.as_u16(), busy.code, busy.param), (503, Some("no_thread"), None));
        assert!(busy.message.contains("`regex`") && busy.message.contains("try again"), "{}", busy.message);
    }
}

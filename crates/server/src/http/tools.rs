//! `tools` and `tool_choice`: what may be called, what must be, and how the answer's calls are found. Knows the fields, no template.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use vllm_apple_parsers::{ToolFormat, ToolSchemas};

use super::error::ApiError;
use super::field_names::nearest;
use super::fields::{Fields, fault, invalid};
use super::lists::Bounded;
use super::raw::{each, named, unread, visit};
use super::returned::note;
use super::structure::{Asked, PER_TREE_BYTE, nothing_else, take_tree};
use crate::structured::{Structure, tree};

/// Most tools of a request.
const MAX_TOOLS: usize = 512;

/// Most bytes of their parameters, which are held as trees. A call that is held to them has a form's limit besides.
const MAX_PARAMETERS: usize = 1 << 20;

/// As much of a tool as is read here: what else it holds, the template may show.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Tool {
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<Function>,
}

const OF_FUNCTION: [&str; 5] = ["name", "description", "parameters", "strict", "defer_loading"];

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Function {
    name: Option<String>,
    parameters: Option<Box<RawValue>>,
    strict: Option<bool>,
    defer_loading: Option<bool>,
}

/// What a request offers to call.
#[derive(Debug, Default)]
pub struct Tools {
    /// As the template sees it.
    pub raw: Option<Box<RawValue>>,
    list: Vec<Offered>,
    choice: Choice,
    /// Whether an answer may hold several calls.
    parallel: bool,
}

/// A tool.
#[derive(Debug)]
struct Offered {
    name: String,
    /// A schema.
    parameters: Value,
    /// Whether it asks for arguments that keep to the schema.
    strict: bool,
}

/// What an answer's form makes of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// There is no form.
    Free,
    /// They are held to schemas.
    Held,
    /// There can be none.
    Impossible,
}

/// Whether the model must call.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
enum Choice {
    #[default]
    None,
    Auto,
    Required,
    Named(String),
}

impl Tools {
    /// Takes the fields.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let parallel = fields.optional("parallel_tool_calls")?.unwrap_or(true);
        let raw = fields.raw("tools");
        let mut tools = Self { parallel, ..Self::default() };
        if let Some(raw) = &raw {
            tools.read(raw, fields)?;
        }
        // Some clients always send a list.
        tools.raw = raw.filter(|_| !tools.list.is_empty());
        let choice = take_tree(fields, "tool_choice")?.map(|choice| tools.allow(choice)).transpose()?;
        tools.choice = tools.choose(choice)?;
        Ok(tools)
    }

    /// OpenAI's choice among some of the tools: the others are not shown, and what is left of the choice is its mode.
    fn allow(&mut self, choice: Value) -> Result<Value, ApiError> {
        const NAME: &str = "tool_choice.allowed_tools";
        let is_among = choice.get("type").and_then(Value::as_str) == Some("allowed_tools");
        let Some(among) = is_among.then(|| choice.get("allowed_tools")) else { return Ok(choice) };
        let wrong = || {
            let form = r#"{"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": …}}]}"#;
            ApiError::param(NAME, format!("`{NAME}` must be {form}"))
        };
        let among = among.and_then(Value::as_object).ok_or_else(wrong)?;
        nothing_else(NAME, among, &["mode", "tools"])?;
        let mode = among.get("mode").filter(|mode| [json!("auto"), json!("required")].contains(mode));
        let tools = among.get("tools").and_then(Value::as_array).filter(|tools| !tools.is_empty()).ok_or_else(wrong)?;
        let name_of = |tool: &Value| Some(tool.get("function")?.get("name")?.as_str()?.to_owned());
        let names: Option<Vec<String>> = tools.iter().map(name_of).collect();
        let names = names.ok_or_else(wrong)?;
        if let Some(name) = names.iter().find(|name| !self.offers(name)) {
            return Err(ApiError::param(NAME, format!("`{NAME}` names {name:?}, which `tools` does not offer")));
        }
        let mut is_allowed = self.list.iter().map(|tool| names.contains(&tool.name));
        let raw = self.raw.as_ref().map_or("[]", |raw| raw.get());
        let Bounded::<Box<RawValue>, MAX_TOOLS>(mut all) =
            serde_json::from_str(raw).map_err(|error| invalid("tools", &error))?;
        all.retain(|_| is_allowed.next().unwrap_or(false));
        let all: Vec<&str> = all.iter().map(|tool| tool.get()).collect();
        self.raw = Some(unread(format!("[{}]", all.join(",")))?);
        self.list.retain(|tool| names.contains(&tool.name));
        mode.cloned().ok_or_else(wrong)
    }

    fn read(&mut self, raw: &RawValue, fields: &mut Fields) -> Result<(), ApiError> {
        let Bounded::<Tool, MAX_TOOLS>(list) =
            serde_json::from_str(raw.get()).map_err(|error| fault::<Bounded<Tool, MAX_TOOLS>>("tools", raw, &error))?;
        each("tools", raw, |at, tool| {
            let path = format!("tools[{at}]");
            check_names(&path, tool, &["type", "function"])?;
            let function = named(tool, ["function"]).and_then(|[function]| function);
            function.map_or(Ok(()), |function| check_names(&format!("{path}.function"), function, &OF_FUNCTION))
        })?;
        let bytes: usize =
            list.iter().filter_map(|tool| Some(tool.function.as_ref()?.parameters.as_ref()?.get().len())).sum();
        if bytes > MAX_PARAMETERS {
            let message = format!("the parameters of `tools` have {bytes} bytes, at most {MAX_PARAMETERS} are taken");
            return Err(ApiError::param("tools", message));
        }
        // For as long as the request lives.
        fields.held.grow(bytes * PER_TREE_BYTE)?;
        for (at, Tool { kind, function }) in list.into_iter().enumerate() {
            if kind.as_deref().is_some_and(|kind| kind != "function") {
                let param = format!("tools[{at}].type");
                return Err(ApiError::param(
                    &param,
                    format!("`{param}` must be \"function\": nothing else is called here"),
                ));
            }
            let param = format!("tools[{at}].function.name");
            let function = function.unwrap_or_default();
            let Some(name) = function.name.filter(|name| !name.is_empty()) else {
                return Err(ApiError::param(&param, format!("`{param}` must be a string that is not empty")));
            };
            if self.offers(&name) {
                return Err(ApiError::param(&param, format!("`{param}` is {name:?}, as that of another tool")));
            }
            let parameters = match function.parameters.map(|raw| tree::parse(raw.get())) {
                None | Some(Ok(Value::Null)) => json!({"type": "object", "properties": {}}),
                Some(Ok(schema @ Value::Object(_))) => schema,
                Some(_) => {
                    let param = format!("tools[{at}].function.parameters");
                    return Err(ApiError::param(&param, format!("`{param}` must be a JSON schema: an object")));
                }
            };
            if function.defer_loading == Some(true) {
                let param = format!("tools[{at}].function.defer_loading");
                return Err(ApiError::unsupported(&param, "all tools are shown to the model"));
            }
            self.list.push(Offered { name, parameters, strict: function.strict == Some(true) });
        }
        Ok(())
    }

    fn offers(&self, name: &str) -> bool {
        self.list.iter().any(|tool| tool.name == name)
    }

    fn choose(&self, choice: Option<Value>) -> Result<Choice, ApiError> {
        const NAME: &str = "tool_choice";
        let none_offered = self.list.is_empty();
        let choice = match &choice {
            None if none_offered => return Ok(Choice::None),
            None => return Ok(Choice::Auto),
            Some(Value::String(word)) => match word.as_str() {
                "none" => return Ok(Choice::None),
                "auto" if none_offered => return Ok(Choice::None),
                "auto" => Choice::Auto,
                "required" => Choice::Required,
                _ => return Err(invalid_choice()),
            },
            Some(Value::Object(fields)) if fields.get("type").and_then(Value::as_str) == Some("function") => {
                let function = fields.get("function").and_then(Value::as_object).ok_or_else(invalid_choice)?;
                nothing_else("tool_choice.function", function, &["name"])?;
                nothing_else(NAME, fields, &["type", "function"])?;
                let name = function.get("name").and_then(Value::as_str);
                Choice::Named(name.ok_or_else(invalid_choice)?.to_owned())
            }
            Some(_) => return Err(invalid_choice()),
        };
        if none_offered {
            return Err(ApiError::param(NAME, "`tool_choice` asks for a call, but `tools` offers nothing to call"));
        }
        if let Choice::Named(name) = &choice
            && !self.offers(name)
        {
            let offered: Vec<_> = self.list.iter().map(|tool| tool.name.as_str()).collect();
            let message = format!("`tool_choice` names {name:?}, but `tools` offers {}", offered.join(", "));
            return Err(ApiError::param(NAME, message));
        }
        Ok(choice)
    }

    /// What holds the answer to the choice.
    pub fn asked(&self) -> Option<Asked> {
        let schema = match &self.choice {
            Choice::None | Choice::Auto => return None,
            Choice::Named(name) => self.list.iter().find(|tool| tool.name == *name)?.parameters.clone(),
            Choice::Required => self.any_calls(),
        };
        Some(Asked { structure: Structure::schema(schema, None), field: "tool_choice".to_owned() })
    }

    /// At least one call, where the model's own format has no form: a list of names with parameters. References within a tool's schema go on to mean that tool's.
    fn any_calls(&self) -> Value {
        let call = |(at, tool): (usize, &Offered)| {
            let mut parameters = tool.parameters.clone();
            rebase(&mut parameters, &format!("#/items/anyOf/{at}/properties/parameters"));
            json!({
                "type": "object",
                "properties": {"name": {"const": tool.name}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": false,
            })
        };
        let calls: Vec<Value> = self.list.iter().enumerate().map(call).collect();
        let mut schema = json!({"type": "array", "minItems": 1, "items": {"anyOf": calls}});
        if !self.parallel {
            schema["maxItems"] = 1.into();
        }
        schema
    }

    /// Tools that the answer is held to calls of, by name and schema: where it must call, and where it may beside a form. The arguments of those that do
    /// not ask for their schema are free then. As in OpenAI's API, the form of a `text` is that of the last answer, whatever is called before; vLLM's own
    /// forms hold from the first token, unless a tool asks for its schema.
    pub fn held(&self, of_text: bool) -> Vec<(String, Value)> {
        let held = |tool: &Offered| {
            let parameters = match self.must_call() || tool.strict {
                true => tool.parameters.clone(),
                false => json!({"type": "object"}),
            };
            (tool.name.clone(), parameters)
        };
        let list = self.list.iter();
        match &self.choice {
            Choice::Named(name) => list.filter(|tool| tool.name == *name).map(held).collect(),
            Choice::Required => list.map(held).collect(),
            Choice::Auto if of_text || self.is_strict() => list.map(held).collect(),
            Choice::Auto | Choice::None => Vec::new(),
        }
    }

    /// Calls that an answer shows, at most.
    pub fn max_calls(&self) -> usize {
        match (&self.choice, self.parallel) {
            (Choice::None, _) => 0,
            (Choice::Named(_), _) | (_, false) => 1,
            (_, true) => usize::MAX,
        }
    }

    fn is_strict(&self) -> bool {
        self.list.iter().any(|tool| tool.strict)
    }

    /// Whether the model must call.
    pub fn must_call(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::Named(_))
    }

    /// How calls stand in the answer: as `own`, the model's, where it is free to call or `held` to calls of that format. `None`: there are none.
    ///
    /// # Errors
    /// Nobody knows how the model writes calls.
    pub fn format(&self, own: Option<&ToolFormat>, held: bool) -> Result<Option<ToolFormat>, ApiError> {
        Ok(Some(match &self.choice {
            Choice::None => return Ok(None),
            Choice::Required | Choice::Named(_) if held && own.is_some() => return Ok(own.cloned()),
            Choice::Required => ToolFormat::Required,
            Choice::Named(name) => ToolFormat::Named(name.clone()),
            Choice::Auto => own.cloned().ok_or_else(|| {
                let message = "this server does not know how the model writes calls of tools: start it with --tool-call-parser, \
                               or set `tool_choice` to \"required\", to one tool or to \"none\"";
                ApiError::param("tools", message)
            })?,
        }))
    }

    /// The types of their arguments.
    pub fn schemas(&self) -> ToolSchemas {
        ToolSchemas::new(self.list.iter().map(|tool| (tool.name.clone(), tool.parameters.clone())))
    }

    /// What of them changes nothing: that a tool asks for arguments of its schema, where the model is free to call; all of them, where a form leaves
    /// no place for calls.
    pub fn without_effect(&self, calls: Calls) -> Option<&'static str> {
        match calls {
            _ if self.choice != Choice::Auto => None,
            Calls::Held => None,
            Calls::Impossible => Some("tools"),
            Calls::Free => self.is_strict().then_some("tools.function.strict"),
        }
    }

    /// OpenAI's `finish_reason` of an answer with calls: one that names its tool stays `stop`.
    pub fn ends_with_calls(&self) -> bool {
        matches!(self.choice, Choice::Auto | Choice::Required)
    }
}

/// `defer_loading` of a tool at `path`: the model is shown all tools, those among them that it would have to search for.
pub fn check_deferred(
    defers: Option<&RawValue>,
    path: &str,
    without_effect: &mut Vec<&'static str>,
) -> Result<(), ApiError> {
    match defers.map(RawValue::get) {
        None | Some("false") => Ok(()),
        Some("true") => {
            note(without_effect, "tools.defer_loading");
            Ok(())
        }
        Some(_) => {
            let param = format!("{path}.defer_loading");
            Err(ApiError::param(&param, format!("`{param}` must be true or false")))
        }
    }
}

/// Refuses a field that is written almost as one of these. The template may show any other.
fn check_names(path: &str, object: &RawValue, known: &[&'static str]) -> Result<(), ApiError> {
    /// Most strangers that are compared: none has as many.
    const MAX_STRANGERS: usize = 64;
    let (mut meant, mut strangers) = (None, 0);
    visit(object, |name, _| {
        if meant.is_none() && strangers < MAX_STRANGERS && !known.contains(&name) {
            strangers += 1;
            meant = nearest(name, known.iter().copied()).map(|meant| (format!("{path}.{name}"), meant));
        }
    });
    meant.map_or(Ok(()), |(path, meant)| Err(ApiError::unknown_field(&path, Some(meant))))
}

/// Lets references to the root of a schema mean the place where it stands within another. What has a name of its own (`$id`) is a root itself.
fn rebase(schema: &mut Value, root: &str) {
    tree::each_schema(schema, &mut |fields| {
        if fields.get("$id").is_some_and(Value::is_string) {
            return false;
        }
        if let Some(Value::String(reference)) = fields.get_mut("$ref")
            && (reference == "#" || reference.starts_with("#/"))
        {
            reference.replace_range(..1, root);
        }
        true
    });
}

fn invalid_choice() -> ApiError {
    let message = "`tool_choice` must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
    ApiError::param("tool_choice", message)
}

//! `tools` and `tool_choice` of a message, put into chat's form, with what the conversation changes of the tools. Knows the fields, no wording.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::request::PER_TRANSLATED_BYTE;
use crate::http::error::ApiError;
use crate::http::fields::{Fields, asks_for_nothing};
use crate::http::raw::{each, is_string, joined, named, object, required, text, unread, word};
use crate::http::returned::{last, note};
use crate::http::tools::check_deferred;

/// Fields of tools.
const OF_TOOL: [&str; 10] = [
    "type",
    "name",
    "description",
    "input_schema",
    "strict",
    "defer_loading",
    "allowed_callers",
    "input_examples",
    "cache_control",
    "eager_input_streaming",
];

/// Tools that Anthropic runs, or that only its models know without being told, by the paths that the answer's header has for them: those of a type have
/// a date behind it.
const HOSTED: [&str; 10] = [
    "tools.advisor",
    "tools.bash",
    "tools.code_execution",
    "tools.computer",
    "tools.mcp_toolset",
    "tools.memory",
    "tools.text_editor",
    "tools.tool_search_tool",
    "tools.web_fetch",
    "tools.web_search",
];

/// What a conversation changes of the tools on its way. As in vLLM, templates show one list of them: those that there are at its end.
#[derive(Debug)]
pub struct Change {
    /// Where the tool stands.
    path: String,
    tool: Changed,
}

#[derive(Debug)]
enum Changed {
    /// A tool of this definition is there.
    Defined(Box<RawValue>),
    /// One of this name is there.
    Added(String),
    /// One of this name is not.
    Removed(String),
}

impl Change {
    /// What a block of a conversation says.
    pub fn of(block: &RawValue, path: &str, removes: bool) -> Result<Self, ApiError> {
        let path = format!("{path}.tool");
        let tool = named(block, ["tool"]).and_then(|[tool]| tool);
        let tool = tool.ok_or_else(|| ApiError::param(&path, format!("`{path}` is required")))?;
        let [kind, definition] = named(tool, ["type", "definition"]).unwrap_or_default();
        match (word(kind).as_deref(), definition) {
            (Some("tool_reference"), _) => {
                let [name] = required(tool, &path, ["name"])?;
                let path = format!("{path}.name");
                Ok(Self { path, tool: if removes { Changed::Removed(name) } else { Changed::Added(name) } })
            }
            (Some("tool_definition"), Some(definition)) if !removes => {
                Ok(Self { path: format!("{path}.definition"), tool: Changed::Defined(definition.to_owned()) })
            }
            _ => {
                let param = format!("{path}.type");
                let known = if removes { "" } else { ", or \"tool_definition\" with `definition`" };
                Err(ApiError::param(&param, format!("`{param}` must be \"tool_reference\"{known}")))
            }
        }
    }
}

/// A tool on its way to chat's form.
struct Offered {
    function: String,
    /// Where it stands in the request.
    path: String,
    is_there: bool,
}

#[derive(Default)]
struct Offer {
    list: Vec<Offered>,
    by_name: HashMap<String, usize>,
    has_examples: bool,
}

/// `tools`, with what is changed of them. Where those stand that the model is shown.
pub fn take_tools(
    fields: &mut Fields,
    changes: &[Change],
    without_effect: &mut Vec<&'static str>,
) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "tools";
    let mut offer = Offer::default();
    if let Some(raw) = fields.raw(NAME) {
        fields.held.grow(PER_TRANSLATED_BYTE * raw.get().len())?;
        let mut only_hosted = None;
        each(NAME, &raw, |at, tool| {
            let path = format!("{NAME}[{at}]");
            // Beside others, they are left out. By itself, such a tool is all that the request is for.
            if let Some(hosted) = hosted(tool) {
                note(without_effect, hosted);
                only_hosted.get_or_insert(ApiError::unsupported(
                    &format!("{path}.type"),
                    "this server has no tools of its own: describe it as a \"custom\" one",
                ));
                return Ok(());
            }
            let (name, tool) = offer.read(tool, path, without_effect)?;
            offer.add(name, tool);
            Ok(())
        })?;
        if let Some(error) = only_hosted.filter(|_| offer.list.is_empty()) {
            return Err(error);
        }
    }
    for Change { path, tool } in changes {
        match tool {
            Changed::Defined(tool) => {
                let (name, tool) = offer.read(tool, path.clone(), without_effect)?;
                offer.define(name, tool);
            }
            Changed::Added(name) => offer.named(name, path)?.is_there = true,
            Changed::Removed(name) => offer.named(name, path)?.is_there = false,
        }
    }
    // Chat templates have no place for them.
    if offer.has_examples {
        without_effect.push("tools.input_examples");
    }
    let shown = offer.list.into_iter().filter(|tool| tool.is_there);
    let (tools, paths): (Vec<_>, Vec<_>) = shown.map(|tool| (tool.function, tool.path)).unzip();
    if !tools.is_empty() {
        fields.set(NAME, unread(format!("[{}]", tools.join(",")))?);
    }
    Ok(paths)
}

/// Which of [`HOSTED`] it is.
fn hosted(tool: &RawValue) -> Option<&'static str> {
    let kind = word(named(tool, ["type"]).and_then(|[kind]| kind))?;
    let of_kind =
        |path: &&str| kind.strip_prefix(last(path)).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    HOSTED.into_iter().find(of_kind)
}

impl Offer {
    /// A tool at `path` and its name, if it has one: one without is refused where all are.
    fn read(
        &mut self,
        tool: &RawValue,
        path: String,
        without_effect: &mut Vec<&'static str>,
    ) -> Result<(Option<String>, Offered), ApiError> {
        let kind = named(tool, ["type"]).and_then(|[kind]| kind);
        if kind.is_some() && word(kind).as_deref() != Some("custom") {
            let param = format!("{path}.type");
            let got = word(kind).unwrap_or_default();
            let message = format!("`{param}` is {got:?}, but must be \"custom\": this server has no tools of its own");
            return Err(ApiError { code: Some("unsupported_parameter"), ..ApiError::param(param, message) });
        }
        // The last two change nothing: prefixes are always cached, and arguments always streamed.
        let [_, name, description, parameters, strict, defers, callers, examples, ..] = object(&path, tool, OF_TOOL)?;
        check_deferred(defers, &path, without_effect)?;
        if callers.is_some_and(|callers| !asks_for_nothing(callers, r#"["direct"]"#)) {
            return Err(ApiError::unsupported(&format!("{path}.allowed_callers"), "the model alone calls tools"));
        }
        self.has_examples |= examples.is_some();
        let param = format!("{path}.input_schema");
        let parameters = parameters.ok_or_else(|| ApiError::param(&param, format!("`{param}` is required")))?;
        let fields =
            [("name", name), ("description", description), ("parameters", Some(parameters)), ("strict", strict)];
        let function = format!(r#"{{"type":"function","function":{}}}"#, joined(fields));
        let name = name.filter(|name| is_string(name)).map(|name| text(name, &format!("{path}.name"))).transpose()?;
        Ok((name, Offered { function, path, is_there: true }))
    }

    fn add(&mut self, name: Option<String>, tool: Offered) {
        if let Some(name) = name {
            self.by_name.insert(name, self.list.len());
        }
        self.list.push(tool);
    }

    /// Adds a tool, in the place of another one of its name.
    fn define(&mut self, name: Option<String>, tool: Offered) {
        match name.as_ref().and_then(|name| self.by_name.get(name)) {
            Some(at) => self.list[*at] = tool,
            None => self.add(name, tool),
        }
    }

    /// The tool of a name that stands at `path`.
    fn named(&mut self, name: &str, path: &str) -> Result<&mut Offered, ApiError> {
        match self.by_name.get(name) {
            Some(at) => Ok(&mut self.list[*at]),
            None => Err(ApiError::param(path, format!("`{path}` is {name:?}, which `tools` does not have"))),
        }
    }
}

/// `tool_choice`.
pub fn take_tool_choice(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "tool_choice";
    let Some(raw) = fields.raw(NAME) else { return Ok(()) };
    let [kind, name, alone] = object(NAME, &raw, ["type", "name", "disable_parallel_tool_use"])?;
    let choice = match (word(kind).as_deref(), name.filter(|name| is_string(name))) {
        (Some("auto"), _) => r#""auto""#.to_owned(),
        (Some("any"), _) => r#""required""#.to_owned(),
        (Some("none"), _) => r#""none""#.to_owned(),
        (Some("tool"), Some(name)) => format!(r#"{{"type":"function","function":{{"name":{}}}}}"#, name.get()),
        _ => {
            let message = "`tool_choice.type` must be \"auto\", \"any\", \"none\", or \"tool\" with `name`";
            return Err(ApiError::param("tool_choice.type", message));
        }
    };
    fields.set(NAME, unread(choice)?);
    match alone.map(RawValue::get) {
        None | Some("false") => {}
        Some("true") => fields.set("parallel_tool_calls", unread("false".to_owned())?),
        Some(_) => {
            let param = "tool_choice.disable_parallel_tool_use";
            return Err(ApiError::param(param, format!("`{param}` must be true or false")));
        }
    }
    Ok(())
}

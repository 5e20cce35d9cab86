//! `tools` and `tool_choice` of a response, put into chat's form: functions, those of namespaces by longer names. Tools of OpenAI's are left out.
//! Knows the fields, no wording.

use std::collections::{HashMap, HashSet};

use serde_json::value::RawValue;

use super::request::{PER_TRANSLATED_BYTE, small};
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::memory::Held;
use crate::http::raw::{each, is_string, joined, named, object, only, quoted, text, unread, word};
use crate::http::returned::{last, note};
use crate::http::tools::check_deferred;

/// Bytes that a tool takes besides its text: its places in lists, and what chat's form has around it.
const PER_TOOL: usize = 512;

/// Tools that OpenAI runs, or that only its models know without being told, by the paths that the answer's header has for them. Other versions
/// of one have a date behind its name. As in vLLM, they are not shown to the model.
const HOSTED: &[&str] = &[
    "tools.apply_patch",
    "tools.code_interpreter",
    "tools.computer",
    "tools.computer_use",
    "tools.computer_use_preview",
    "tools.file_search",
    "tools.image_generation",
    "tools.local_shell",
    "tools.mcp",
    "tools.programmatic_tool_calling",
    "tools.shell",
    "tools.tool_search",
    "tools.web_search",
    "tools.web_search_preview",
];

const OF_FUNCTION: [&str; 9] = [
    "type",
    "name",
    "description",
    "parameters",
    "strict",
    "defer_loading",
    "output_schema",
    "allowed_callers",
    "async",
];

/// Functions of namespaces: by what the model calls them, their namespaces and their names in these.
#[derive(Debug, Default)]
pub struct Namespaced(HashMap<String, (String, String)>);

impl Namespaced {
    /// The namespace, if there is one, and the name of what the model calls so.
    pub fn parts<'a>(&'a self, called: &'a str) -> (Option<&'a str>, &'a str) {
        match self.0.get(called) {
            Some((namespace, name)) => (Some(namespace.as_str()), name.as_str()),
            None => (None, called),
        }
    }
}

/// What the model calls a function of a namespace, as in vLLM.
pub fn flat(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// What a request offers to call.
#[derive(Debug, Default)]
pub struct Offer {
    /// As it came.
    pub raw: Option<Box<RawValue>>,
    pub namespaced: Namespaced,
    /// Names of functions that are in no namespace.
    plain: HashSet<String>,
    /// Where the tools stand that the model is shown.
    paths: Vec<String>,
}

impl Offer {
    /// An error of chat's, which counts only the tools that the model is shown.
    pub fn placed(&self, error: ApiError) -> ApiError {
        let at: Option<usize> = error
            .param
            .as_deref()
            .and_then(|param| param.strip_prefix("tools["))
            .and_then(|rest| rest.split_once(']'))
            .and_then(|(at, _)| at.parse().ok());
        match at.and_then(|at| Some((at, self.paths.get(at)?))) {
            Some((at, path)) => {
                let ours = format!("tools[{at}]");
                error.in_words(&[(ours.as_str(), path.as_str())])
            }
            None => error,
        }
    }

    /// What the model calls the function that a choice names. As in vLLM, the name in its namespace is enough where no other function has it.
    fn called(&self, name: &str) -> Option<&str> {
        if self.plain.contains(name) || self.namespaced.0.contains_key(name) {
            return None;
        }
        let mut meant = None;
        for (called, (_, own)) in &self.namespaced.0 {
            if own.as_str() == name {
                if meant.is_some() {
                    return None;
                }
                meant = Some(called.as_str());
            }
        }
        meant
    }
}

/// `tools` on their way to chat's form.
struct Reading<'r> {
    offer: &'r mut Offer,
    /// With commas between.
    list: String,
    held: &'r mut Held,
    without_effect: &'r mut Vec<&'static str>,
}

/// `tools`: what chat has in `function` stands beside the type here.
pub fn take_tools(fields: &mut Fields, without_effect: &mut Vec<&'static str>) -> Result<Offer, ApiError> {
    const NAME: &str = "tools";
    let mut offer = Offer::default();
    let Some(raw) = fields.raw(NAME) else { return Ok(offer) };
    fields.held.grow(PER_TRANSLATED_BYTE * raw.get().len())?;
    let mut reading = Reading { offer: &mut offer, list: String::new(), held: &mut fields.held, without_effect };
    each(NAME, &raw, |at, tool| reading.tool(tool, format!("{NAME}[{at}]")))?;
    let list = reading.list;
    if !list.is_empty() {
        fields.set(NAME, unread(format!("[{list}]"))?);
    }
    offer.raw = Some(raw);
    Ok(offer)
}

impl Reading<'_> {
    fn tool(&mut self, tool: &RawValue, path: String) -> Result<(), ApiError> {
        let kind = kind_of(tool);
        match kind.as_deref() {
            Some("function") => self.function(tool, path, None),
            Some("namespace") => self.namespace(tool, &path),
            kind => match kind.and_then(hosted) {
                Some(name) => {
                    note(self.without_effect, name);
                    Ok(())
                }
                None => Err(unknown(&path, kind)),
            },
        }
    }

    fn namespace(&mut self, tool: &RawValue, path: &str) -> Result<(), ApiError> {
        let [_, name, description, tools] = object(path, tool, ["type", "name", "description", "tools"])?;
        // It is repeated with each function, so that it must be short.
        let name = word(name).filter(|name| !name.is_empty()).ok_or_else(|| {
            let param = format!("{path}.name");
            ApiError::param(&param, format!("`{param}` must be a short string that is not empty"))
        })?;
        // Chat templates have no place for it.
        if description.is_some() {
            note(self.without_effect, "tools.namespace.description");
        }
        let param = format!("{path}.tools");
        let tools = tools.ok_or_else(|| ApiError::param(&param, format!("`{param}` is required")))?;
        each(&param, tools, |at, tool| {
            let path = format!("{param}[{at}]");
            let kind = kind_of(tool);
            match kind.as_deref() {
                Some("function") => self.function(tool, path, Some(name.as_str())),
                kind => Err(unknown(&path, kind)),
            }
        })?;
        Ok(())
    }

    fn function(&mut self, tool: &RawValue, path: String, namespace: Option<&str>) -> Result<(), ApiError> {
        let [_, name, description, parameters, strict, defers, output, callers, asynchronous] =
            object(&path, tool, OF_FUNCTION)?;
        check_deferred(defers, &path, self.without_effect)?;
        if asynchronous.is_some_and(|asynchronous| asynchronous.get() != "false") {
            return Err(ApiError::unsupported(&format!("{path}.async"), "a call is answered before the model goes on"));
        }
        if let Some(callers) = callers {
            self.callers(callers, &format!("{path}.allowed_callers"))?;
        }
        // Chat templates have no place for it.
        if output.is_some() {
            note(self.without_effect, "tools.output_schema");
        }
        let called = match name {
            Some(name) if is_string(name) => self.name(text(name, &format!("{path}.name"))?, namespace)?,
            _ => None,
        };
        let name = called.as_deref().or(name);
        let function =
            joined([("name", name), ("description", description), ("parameters", parameters), ("strict", strict)]);
        let separator = if self.list.is_empty() { "" } else { "," };
        self.list.push_str(&format!(r#"{separator}{{"type":"function","function":{function}}}"#));
        self.offer.paths.push(path);
        Ok(())
    }

    /// Notes the name of a function. What the model calls it, if that is another one.
    fn name(&mut self, name: String, namespace: Option<&str>) -> Result<Option<Box<RawValue>>, ApiError> {
        let bytes = name.len() + namespace.map_or(0, str::len);
        self.held.grow(PER_TOOL + PER_TRANSLATED_BYTE * bytes)?;
        match namespace {
            // One without a name is refused where all are.
            Some(namespace) if !name.is_empty() => {
                let called = flat(namespace, &name);
                let written = unread(quoted(&called))?;
                self.offer.namespaced.0.insert(called, (namespace.to_owned(), name));
                Ok(Some(written))
            }
            _ => {
                self.offer.plain.insert(name);
                Ok(None)
            }
        }
    }

    /// Who may call a function: the model, and perhaps programs that OpenAI runs, of which there are none here.
    fn callers(&mut self, callers: &RawValue, param: &str) -> Result<(), ApiError> {
        let mut is_direct = false;
        let num_callers = each(param, callers, |_, caller| {
            is_direct |= word(Some(caller)).as_deref() == Some("direct");
            Ok(())
        })?;
        if !is_direct {
            return Err(ApiError::unsupported(param, "the model alone calls tools"));
        }
        if num_callers > 1 {
            note(self.without_effect, "tools.allowed_callers");
        }
        Ok(())
    }
}

fn kind_of(tool: &RawValue) -> Option<String> {
    named(tool, ["type"]).and_then(|[kind]| word(kind))
}

/// The path of a tool of OpenAI's.
fn hosted(kind: &str) -> Option<&'static str> {
    HOSTED.iter().copied().find(|path| {
        kind.strip_prefix(last(path)).is_some_and(|version| version.is_empty() || version.starts_with("_20"))
    })
}

fn unknown(path: &str, kind: Option<&str>) -> ApiError {
    let got = kind.map_or_else(|| "missing".to_owned(), |kind| format!("{kind:?}"));
    let param = format!("{path}.type");
    let message =
        format!("`{param}` is {got}, but only \"function\" is called here: this server has no tools of its own");
    ApiError { code: Some("unsupported_parameter"), ..ApiError::param(param, message) }
}

/// `tool_choice`, which may name what is offered.
pub fn take_tool_choice(fields: &mut Fields, offer: &Offer) -> Result<Option<Box<RawValue>>, ApiError> {
    const NAME: &str = "tool_choice";
    let Some(raw) = small(NAME, fields.raw(NAME))? else { return Ok(None) };
    let invalid = || {
        let message = "`tool_choice` must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": …}";
        ApiError::param(NAME, message)
    };
    if is_string(&raw) {
        if !matches!(word(Some(&raw)).as_deref(), Some("none" | "auto" | "required")) {
            return Err(invalid());
        }
        fields.set(NAME, raw.clone());
        return Ok(Some(raw));
    }
    let [kind, name, mode, tools] = named(&raw, ["type", "name", "mode", "tools"]).ok_or_else(invalid)?;
    if word(kind).as_deref() == Some("allowed_tools") {
        only(NAME, &raw, &["type", "mode", "tools"])?;
        fields.set(NAME, allowed_tools(mode, tools, offer)?);
        return Ok(Some(raw));
    }
    match (word(kind).as_deref(), name.filter(|name| is_string(name))) {
        (Some("function"), Some(name)) => {
            only(NAME, &raw, &["type", "name"])?;
            let name = text(name, "tool_choice.name")?;
            let called = quoted(offer.called(&name).unwrap_or(&name));
            fields.set(NAME, unread(format!(r#"{{"type":"function","function":{{"name":{called}}}}}"#))?);
            Ok(Some(raw))
        }
        (Some(kind), _) if kind != "function" => {
            Err(ApiError::unsupported("tool_choice.type", "\"function\" alone is: this server has no tools of its own"))
        }
        _ => Err(invalid()),
    }
}

/// A choice among some of the tools, in chat's form. Those that the model is not shown are not among them.
fn allowed_tools(mode: Option<&RawValue>, tools: Option<&RawValue>, offer: &Offer) -> Result<Box<RawValue>, ApiError> {
    let mut among = Vec::new();
    if let Some(tools) = tools {
        each("tool_choice.tools", tools, |at, tool| {
            if kind_of(tool).as_deref().and_then(hosted).is_some() {
                return Ok(());
            }
            let path = format!("tool_choice.tools[{at}]");
            let [_, name] = object(&path, tool, ["type", "name"])?;
            let called = match word(name).as_deref().and_then(|name| offer.called(name)) {
                Some(called) => Some(unread(quoted(called))?),
                None => None,
            };
            let name = called.as_deref().or(name);
            among.push(format!(r#"{{"type":"function","function":{}}}"#, joined([("name", name)])));
            Ok(())
        })?;
    }
    let tools = unread(format!("[{}]", among.join(",")))?;
    let among = joined([("mode", mode), ("tools", Some(&tools))]);
    unread(format!(r#"{{"type":"allowed_tools","allowed_tools":{among}}}"#))
}

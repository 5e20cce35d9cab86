//! `tools` of a response, put into chat's form: functions, those of namespaces by longer names, and tools of free text as functions of a string.
//! Tools of OpenAI's are left out. Knows the field, no wording.

use std::collections::{HashMap, HashSet};

use serde_json::value::RawValue;

use super::custom::{PARAMETERS, grammar};
use super::request::PER_TRANSLATED_BYTE;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::memory::Held;
use crate::http::raw::{each, is_string, joined, named, object, quoted, text, unread, word};
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

const OF_CUSTOM: [&str; 6] = ["type", "name", "description", "format", "defer_loading", "allowed_callers"];

/// What tools are, by what the model calls them.
#[derive(Debug, Default)]
pub struct Called {
    /// Of those of namespaces, their namespaces and their names in these.
    namespaced: HashMap<String, (String, String)>,
    /// Those whose input is free text.
    custom: HashSet<String>,
}

impl Called {
    /// The namespace, if there is one, and the name of what the model calls so.
    pub fn parts<'a>(&'a self, called: &'a str) -> (Option<&'a str>, &'a str) {
        match self.namespaced.get(called) {
            Some((namespace, name)) => (Some(namespace.as_str()), name.as_str()),
            None => (None, called),
        }
    }

    /// Whether its input is free text.
    pub fn is_custom(&self, called: &str) -> bool {
        self.custom.contains(called)
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
    pub called: Called,
    /// Names of tools that are in no namespace.
    plain: HashSet<String>,
    /// Where the tools stand that the model is shown.
    paths: Vec<String>,
}

impl Offer {
    /// An error of chat's, which counts only the tools that the model is shown.
    pub fn placed(&self, error: ApiError) -> ApiError {
        placed(error, &self.paths)
    }

    /// What the model calls the tool that a choice names, if that is another name. As in vLLM, the name in its namespace is enough where no
    /// other tool has it.
    pub fn called(&self, name: &str) -> Option<&str> {
        if self.plain.contains(name) || self.called.namespaced.contains_key(name) {
            return None;
        }
        let mut meant = None;
        for (called, (_, own)) in &self.called.namespaced {
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

/// An error of chat's about one of its tools, which stand at these places in the request.
pub fn placed(error: ApiError, paths: &[String]) -> ApiError {
    let at: Option<usize> = error
        .param
        .as_deref()
        .and_then(|param| param.strip_prefix("tools["))
        .and_then(|rest| rest.split_once(']'))
        .and_then(|(at, _)| at.parse().ok());
    match at.and_then(|at| Some((at, paths.get(at)?))) {
        Some((at, path)) => {
            let ours = format!("tools[{at}]");
            error.in_words(&[(ours.as_str(), path.as_str())])
        }
        None => error,
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
            Some("custom") => self.custom(tool, path, None),
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
                Some("custom") => self.custom(tool, path, Some(name.as_str())),
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
        let (name, _) = self.name(name, &path, namespace)?;
        let fields =
            [("name", name.as_deref()), ("description", description), ("parameters", parameters), ("strict", strict)];
        self.add(path, &joined(fields));
        Ok(())
    }

    /// A tool of free text. A grammar of it is shown to the model, and holds nothing: strings within JSON are held to none.
    fn custom(&mut self, tool: &RawValue, path: String, namespace: Option<&str>) -> Result<(), ApiError> {
        let [_, name, description, format, defers, callers] = object(&path, tool, OF_CUSTOM)?;
        check_deferred(defers, &path, self.without_effect)?;
        if let Some(callers) = callers {
            self.callers(callers, &format!("{path}.allowed_callers"))?;
        }
        let grammar = format.map(|format| grammar(format, &format!("{path}.format"))).transpose()?.flatten();
        let mut description = description.map(ToOwned::to_owned);
        if let Some(grammar) = grammar {
            note(self.without_effect, "tools.format");
            let told = match &description {
                Some(description) => format!("{}\n\n{grammar}", text(description, &format!("{path}.description"))?),
                None => grammar,
            };
            description = Some(unread(quoted(&told))?);
        }
        let (name, called) = self.name(name, &path, namespace)?;
        self.offer.called.custom.extend(called);
        let parameters = unread(PARAMETERS.to_owned())?;
        let fields =
            [("name", name.as_deref()), ("description", description.as_deref()), ("parameters", Some(&*parameters))];
        self.add(path, &joined(fields));
        Ok(())
    }

    /// Adds a function, which stands at `path` in the request.
    fn add(&mut self, path: String, function: &str) {
        let separator = if self.list.is_empty() { "" } else { "," };
        self.list.push_str(&format!(r#"{separator}{{"type":"function","function":{function}}}"#));
        self.offer.paths.push(path);
    }

    /// Notes the name of a tool. What the model calls it, as JSON and, if it is a name at all, as text.
    fn name(
        &mut self,
        name: Option<&RawValue>,
        path: &str,
        namespace: Option<&str>,
    ) -> Result<(Option<Box<RawValue>>, Option<String>), ApiError> {
        // One without a name is refused where all are.
        let Some(raw) = name.filter(|name| is_string(name)) else { return Ok((name.map(ToOwned::to_owned), None)) };
        let name = text(raw, &format!("{path}.name"))?;
        let bytes = name.len() + namespace.map_or(0, str::len);
        self.held.grow(PER_TOOL + PER_TRANSLATED_BYTE * bytes)?;
        match namespace {
            Some(namespace) if !name.is_empty() => {
                let called = flat(namespace, &name);
                let written = unread(quoted(&called))?;
                self.offer.called.namespaced.insert(called.clone(), (namespace.to_owned(), name));
                Ok((Some(written), Some(called)))
            }
            _ => {
                self.offer.plain.insert(name.clone());
                Ok((Some(raw.to_owned()), Some(name)))
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

/// The type of a tool.
pub fn kind_of(tool: &RawValue) -> Option<String> {
    named(tool, ["type"]).and_then(|[kind]| word(kind))
}

/// The path of a tool of OpenAI's.
pub fn hosted(kind: &str) -> Option<&'static str> {
    HOSTED.iter().copied().find(|path| {
        kind.strip_prefix(last(path)).is_some_and(|version| version.is_empty() || version.starts_with("_20"))
    })
}

fn unknown(path: &str, kind: Option<&str>) -> ApiError {
    let got = kind.map_or_else(|| "missing".to_owned(), |kind| format!("{kind:?}"));
    let param = format!("{path}.type");
    let message = format!(
        "`{param}` is {got}, but only \"function\" and \"custom\" are called here: this server has no tools of its own"
    );
    ApiError { code: Some("unsupported_parameter"), ..ApiError::param(param, message) }
}

//! A request of the Messages API, put into chat's fields. Knows the fields, no wording.

use super::content::Read;
use super::tools::{take_tool_choice, take_tools};
use crate::http::chat::ChatRequest;
use crate::http::error::ApiError;
use crate::http::field_names::Unsupported;
use crate::http::fields::{Fields, whole_number};
use crate::http::raw::{each, is_string, joined, named, object, unread, word};
use crate::http::responses::placed;
use crate::http::returned::note;
use crate::http::structure::RESPONSE_FORMAT;

/// Bytes that are held for each of a conversation's: as messages twice, which grow.
pub(super) const PER_TRANSLATED_BYTE: usize = 4;

/// Fewest tokens of a budget for thinking.
const MIN_BUDGET: u32 = 1024;

/// Of a conversation that the server keeps. Anthropic's client asks for one by itself.
pub const THREAD: &str = "thread";

/// Fields that this API does not have, or that ask for what this server cannot do.
const REFUSED: &[Unsupported] = &[
    ("add_generation_prompt", "null", "it is chat's: end `messages` with a message of the assistant to continue it"),
    ("container", "null", "this server runs no tools"),
    ("continue_final_message", "null", "it is chat's: end `messages` with a message of the assistant to continue it"),
    ("echo", "false", "use the completions API to see the prompt"),
    ("logprobs", "false", "use /v1/chat/completions"),
    ("max_completion_tokens", "null", "use `max_tokens`"),
    ("mcp_servers", "[]", "this server runs no tools"),
    ("n", "1", "send several requests"),
    ("parallel_tool_calls", "true", "use `tool_choice.disable_parallel_tool_use`"),
    ("prompt_logprobs", "null", "use /v1/chat/completions"),
    ("reasoning_effort", "null", "use `output_config.effort`"),
    ("request_id", "null", "the server names messages"),
    ("response_format", "null", "use `output_config.format`"),
    ("return_token_ids", "false", "use /v1/chat/completions"),
    ("return_tokens_as_token_ids", "false", "use /v1/chat/completions"),
    ("speed", "\"standard\"", "there is one speed"),
    ("stop", "[]", "use `stop_sequences`"),
    ("stream_options", "null", "a stream always ends with its usage"),
    (THREAD, "null", "send all messages each time"),
    ("top_logprobs", "0", "use /v1/chat/completions"),
];

/// What stands in errors for chat's fields.
const WORDS: &[(&str, &str)] = &[
    ("response_format.json_schema.schema", "output_config.format.schema"),
    ("response_format", "output_config.format"),
    (".function.parameters", ".input_schema"),
    (".function.", "."),
    ("reasoning_effort", "output_config.effort"),
    ("`stop`", "`stop_sequences`"),
    ("stop[", "stop_sequences["),
];

/// An error in the words of this API.
pub fn in_words(error: ApiError) -> ApiError {
    error.in_words(WORDS)
}

/// Takes `max_tokens`, which must be there.
pub fn take_max_tokens(fields: &mut Fields) -> Result<u32, ApiError> {
    fields.required("max_tokens")
}

/// Takes the fields; what counts tokens alone has no `max_tokens`.
pub fn take(mut fields: Fields, max_tokens: Option<u32>, trusts_template: bool) -> Result<ChatRequest, ApiError> {
    fields.refuse(REFUSED)?;
    let mut read = take_conversation(&mut fields)?;
    let list = read.dialogue.write(None);
    let list = list.ok_or_else(|| ApiError::param("messages", "`messages` holds nothing to answer"))?;
    fields.set("messages", unread(list)?);
    if read.is_begun {
        fields.set("continue_final_message", unread("true".to_owned())?);
    }
    if let Some(max_tokens) = max_tokens {
        fields.set("max_tokens", unread(max_tokens.to_string())?);
    }
    if let Some(stop) = fields.raw("stop_sequences") {
        if !stop.get().starts_with('[') {
            return Err(ApiError::param("stop_sequences", "`stop_sequences` must be a list of strings"));
        }
        fields.set("stop", stop);
    }
    take_thinking(&mut fields, max_tokens, &mut read.without_effect)?;
    take_output_config(&mut fields, &mut read.without_effect)?;
    let paths = take_tools(&mut fields, &read.changes, &mut read.without_effect)?;
    take_tool_choice(&mut fields)?;
    take_context_management(&mut fields, &mut read.without_effect)?;
    // Prefixes are always cached.
    if fields.raw("cache_control").is_some() {
        read.without_effect.push("cache_control");
    }
    for name in ["billing_policy", "diagnostics", "inference_geo", "user_profile_id", "workspace_id"] {
        if fields.raw(name).is_some() {
            read.without_effect.push(name);
        }
    }
    let mut request = ChatRequest::take(fields, trusts_template).map_err(|error| in_words(placed(error, &paths)))?;
    request.note(
        &read.without_effect,
        &[
            (RESPONSE_FORMAT, "output_config.format"),
            ("enable_thinking", "thinking"),
            ("reasoning_effort", "output_config.effort"),
        ],
    );
    Ok(request)
}

fn take_conversation(fields: &mut Fields) -> Result<Read, ApiError> {
    let mut read = Read::default();
    let messages = fields.raw("messages").ok_or_else(|| ApiError::param("messages", "`messages` is required"))?;
    let system = fields.raw("system");
    let bytes = messages.get().len() + system.as_ref().map_or(0, |system| system.get().len());
    fields.held.grow(PER_TRANSLATED_BYTE * bytes)?;
    if let Some(system) = system {
        read.system(&system)?;
    }
    read.messages(&messages)?;
    Ok(read)
}

/// `thinking`: whether the model thinks, in the variable that templates know. A budget is an aim, as Anthropic says, and has no effect here.
fn take_thinking(
    fields: &mut Fields,
    max_tokens: Option<u32>,
    without_effect: &mut Vec<&'static str>,
) -> Result<(), ApiError> {
    const NAME: &str = "thinking";
    let Some(raw) = fields.raw(NAME) else { return Ok(()) };
    let [kind, budget, display] = object(NAME, &raw, ["type", "budget_tokens", "display"])?;
    match word(kind).as_deref() {
        Some("enabled") => fields.set("enable_thinking", unread("true".to_owned())?),
        Some("disabled") => fields.set("enable_thinking", unread("false".to_owned())?),
        Some("adaptive") => {}
        _ => {
            let message = "`thinking.type` must be \"enabled\", \"disabled\" or \"adaptive\"";
            return Err(ApiError::param("thinking.type", message));
        }
    }
    if let Some(budget) = budget {
        let most = max_tokens.unwrap_or(u32::MAX);
        let budget = whole_number(budget.get()).unwrap_or_else(|| budget.get().to_owned());
        if !budget.parse().is_ok_and(|budget: u32| budget >= MIN_BUDGET && budget < most) {
            let message = format!("`thinking.budget_tokens` must be at least {MIN_BUDGET} and less than `max_tokens`");
            return Err(ApiError::param("thinking.budget_tokens", message));
        }
        without_effect.push("thinking.budget_tokens");
    }
    match display {
        None => {}
        Some(display) if word(Some(display)).as_deref() == Some("omitted") => {
            fields.set("include_reasoning", unread("false".to_owned())?);
        }
        // What the model thinks is shown in full, which is more than any other word asks for.
        Some(display) if is_string(display) => without_effect.push("thinking.display"),
        Some(_) => {
            let message = "`thinking.display` must be a string, such as \"summarized\" or \"omitted\"";
            return Err(ApiError::param("thinking.display", message));
        }
    }
    Ok(())
}

fn take_output_config(fields: &mut Fields, without_effect: &mut Vec<&'static str>) -> Result<(), ApiError> {
    const NAME: &str = "output_config";
    let Some(raw) = fields.raw(NAME) else { return Ok(()) };
    let [effort, format, budget] = object(NAME, &raw, ["effort", "format", "task_budget"])?;
    // An aim for all answers of a task together, of which this server sees one.
    if let Some(budget) = budget {
        if !budget.get().starts_with('{') {
            let message = "`output_config.task_budget` must be an object";
            return Err(ApiError::param("output_config.task_budget", message));
        }
        without_effect.push("output_config.task_budget");
    }
    if let Some(effort) = effort {
        if !matches!(word(Some(effort)).as_deref(), Some("low" | "medium" | "high" | "xhigh" | "max")) {
            let message = "`output_config.effort` must be \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"";
            return Err(ApiError::param("output_config.effort", message));
        }
        fields.set("reasoning_effort", effort.to_owned());
    }
    let Some(format) = format else { return Ok(()) };
    let [kind, schema] = object("output_config.format", format, ["type", "schema"])?;
    if word(kind).as_deref() != Some("json_schema") {
        let message = "`output_config.format.type` must be \"json_schema\"";
        return Err(ApiError::param("output_config.format.type", message));
    }
    let schema = joined([("schema", schema)]);
    fields.set("response_format", unread(format!(r#"{{"type":"json_schema","json_schema":{schema}}}"#))?);
    Ok(())
}

/// `context_management`: edits, which agents send. Those that keep all are done; of others that may be left out, nothing is: the model
/// then sees more than was asked for, and nothing is lost.
fn take_context_management(fields: &mut Fields, without_effect: &mut Vec<&'static str>) -> Result<(), ApiError> {
    const NAME: &str = "context_management";
    let Some(raw) = fields.raw(NAME) else { return Ok(()) };
    let [edits] = object(NAME, &raw, ["edits"])?;
    let Some(edits) = edits else { return Ok(()) };
    each("context_management.edits", edits, |at, edit| {
        let param = format!("{NAME}.edits[{at}]");
        let Some([kind, keep]) = named(edit, ["type", "keep"]) else {
            return Err(ApiError::param(&param, format!("`{param}` must be an object")));
        };
        // Either `"all"` or `{"type": "all"}`.
        let kept = keep.and_then(|keep| named(keep, ["type"])).map_or(keep, |[kind]| kind);
        let clears = |kind: &str| kind == "clear_tool_uses_20250919" || kind.starts_with("clear_thinking");
        match word(kept).as_deref() {
            Some("all") => Ok(()),
            _ if keep.is_none() || word(kind).as_deref().is_some_and(clears) => {
                note(without_effect, "context_management.edits");
                Ok(())
            }
            _ => Err(ApiError::unsupported(&param, "shorten the messages before sending them")),
        }
    })?;
    Ok(())
}

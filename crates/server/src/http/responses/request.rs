//! A request of the Responses API, put into chat's fields: what it has under other names, or nowhere else. Knows the fields, no wording.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::input::Reading;
use super::store::Store;
use super::tool_choice::take_tool_choice;
use super::tools::{Called, take_tools};
use crate::http::chat::ChatRequest;
use crate::http::dialogue::Dialogue;
use crate::http::error::ApiError;
use crate::http::field_names::Unsupported;
use crate::http::fields::Fields;
use crate::http::lists::Bounded;
use crate::http::raw::{joined, named, object, unread, word};
use crate::http::structure::RESPONSE_FORMAT;

/// Most entries of small lists and objects, several times as many as any API has.
const MAX_ENTRIES: usize = 64;

/// Bytes that are held for each of a conversation's: as messages twice, which grow.
pub(super) const PER_TRANSLATED_BYTE: usize = 4;

/// Most bytes of `metadata`, as OpenAI's limits add up to, and of `tool_choice` and the like.
const MAX_SMALL: usize = 16 << 10;

/// Fields that this API does not have, or that ask for what this server cannot do.
const REFUSED: &[Unsupported] = &[
    ("add_generation_prompt", "null", "it is chat's: the answer begins a new message here"),
    ("background", "false", "wait for the answer, or stream it"),
    ("context_management", "[]", "shorten the input before sending it"),
    ("continue_final_message", "false", "it is chat's: use /v1/chat/completions"),
    ("conversation", "null", "use `previous_response_id`"),
    ("echo", "false", "use the completions API to see the prompt"),
    ("logprobs", "false", "use /v1/chat/completions"),
    ("max_completion_tokens", "null", "use `max_output_tokens`"),
    ("max_tokens", "null", "use `max_output_tokens`"),
    ("messages", "[]", "use `input`"),
    ("moderation", "null", "this server moderates nothing"),
    ("n", "1", "send several requests"),
    ("prompt", "null", "this server keeps no prompts: use `input` and `instructions`"),
    ("prompt_logprobs", "null", "use /v1/chat/completions"),
    ("reasoning_effort", "null", "use `reasoning.effort`"),
    ("request_id", "null", "the server names responses"),
    ("response_format", "null", "use `text.format`"),
    ("return_token_ids", "false", "use /v1/chat/completions"),
    ("return_tokens_as_token_ids", "false", "use /v1/chat/completions"),
    ("top_logprobs", "0", "use /v1/chat/completions"),
];

/// What stands in errors for chat's fields. Longer names come first.
const WORDS: &[(&str, &str)] = &[
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    (".function.", "."),
    ("`messages`", "`input`"),
    ("reasoning_effort", "reasoning.effort"),
    ("verbosity", "text.verbosity"),
];

/// An error in the words of this API.
pub fn in_words(error: ApiError) -> ApiError {
    let is_whole = error.param.as_deref() == Some("messages");
    let error = error.in_words(WORDS);
    if is_whole { ApiError { param: Some("input".to_owned()), ..error } } else { error }
}

/// What a response repeats of its request, and what is kept with it.
#[derive(Debug)]
pub struct Asked {
    pub instructions: Option<String>,
    pub previous_response_id: Option<String>,
    pub max_output_tokens: Option<u32>,
    pub parallel_tool_calls: bool,
    pub metadata: Option<Box<RawValue>>,
    pub reasoning: Option<Box<RawValue>>,
    pub text: Option<Box<RawValue>>,
    pub tools: Option<Box<RawValue>>,
    /// What they are.
    pub called: Called,
    pub tool_choice: Option<Box<RawValue>>,
    /// Whether it is kept.
    pub store: bool,
    /// What was said so far, without instructions.
    pub dialogue: Dialogue,
}

/// Takes the fields.
pub fn take(mut fields: Fields, store: &Store, trusts_template: bool) -> Result<(Asked, ChatRequest), ApiError> {
    let mut without_effect = Vec::new();
    fields.refuse(REFUSED)?;
    // As in vLLM no header names a response. Who knows its name may read it.
    fields.named = None;
    let instructions: Option<String> = fields.optional("instructions")?;
    let previous_response_id: Option<String> = fields.optional("previous_response_id")?;
    let dialogue = take_dialogue(&mut fields, previous_response_id.as_deref(), store, &mut without_effect)?;
    let written = dialogue.clone().write(instructions.as_deref());
    let written = written.ok_or_else(|| ApiError::param("input", "`input` must hold at least one message"))?;
    fields.set("messages", unread(written)?);
    let mut offer = take_tools(&mut fields, &mut without_effect)?;
    let asked = Asked {
        instructions,
        previous_response_id,
        max_output_tokens: fields.optional("max_output_tokens")?,
        parallel_tool_calls: fields.optional("parallel_tool_calls")?.unwrap_or(true),
        metadata: take_metadata(&mut fields)?,
        reasoning: take_reasoning(&mut fields, &mut without_effect)?,
        text: take_text(&mut fields)?,
        tool_choice: take_tool_choice(&mut fields, &offer)?,
        tools: offer.raw.take(),
        called: std::mem::take(&mut offer.called),
        store: fields.optional("store")?.unwrap_or(true),
        dialogue,
    };
    if let Some(limit) = asked.max_output_tokens {
        fields.set("max_completion_tokens", unread(limit.to_string())?);
    }
    fields.set("parallel_tool_calls", unread(asked.parallel_tool_calls.to_string())?);
    if take_include(&mut fields)? {
        without_effect.push("include");
    }
    // It limits the calls of tools that OpenAI runs, of which there are none here.
    if fields.optional::<u32>("max_tool_calls")?.is_some() {
        without_effect.push("max_tool_calls");
    }
    // It is of answers in the background alone.
    if fields.raw("background_options").is_some() {
        without_effect.push("background_options");
    }
    take_truncation(&mut fields, &mut without_effect)?;
    take_stream_options(&mut fields, &mut without_effect)?;
    let mut request = ChatRequest::take(fields, trusts_template).map_err(|error| in_words(offer.placed(error)))?;
    request.note(
        &without_effect,
        &[
            (RESPONSE_FORMAT, "text.format"),
            ("reasoning_effort", "reasoning.effort"),
            ("verbosity", "text.verbosity"),
            ("max_completion_tokens", "max_output_tokens"),
        ],
    );
    Ok((asked, request))
}

/// What was said before, and what `input` adds.
fn take_dialogue(
    fields: &mut Fields,
    previous: Option<&str>,
    store: &Store,
    without_effect: &mut Vec<&'static str>,
) -> Result<Dialogue, ApiError> {
    let mut dialogue = Dialogue::default();
    if let Some(id) = previous {
        let stored = store.get(id).ok_or_else(|| {
            let message = "the response that `previous_response_id` names is not kept: it never was, or it was deleted or is too old";
            ApiError { code: Some("previous_response_not_found"), ..ApiError::param("previous_response_id", message) }
        })?;
        fields.held.grow(PER_TRANSLATED_BYTE * stored.dialogue.bytes())?;
        dialogue = stored.dialogue.clone();
    }
    match fields.raw("input") {
        Some(input) => {
            fields.held.grow(PER_TRANSLATED_BYTE * input.get().len())?;
            Reading { dialogue: &mut dialogue, store, held: &mut fields.held, without_effect }.input(&input)?;
        }
        None if previous.is_none() => return Err(ApiError::param("input", "`input` is required")),
        None => {}
    }
    Ok(dialogue)
}

/// A field that is repeated, and small.
pub(super) fn small(name: &str, raw: Option<Box<RawValue>>) -> Result<Option<Box<RawValue>>, ApiError> {
    match &raw {
        Some(raw) if raw.get().len() > MAX_SMALL => {
            Err(ApiError::param(name, format!("`{name}` has more than {MAX_SMALL} bytes")))
        }
        _ => Ok(raw),
    }
}

fn take_metadata(fields: &mut Fields) -> Result<Option<Box<RawValue>>, ApiError> {
    const NAME: &str = "metadata";
    let raw = small(NAME, fields.raw(NAME))?;
    let is_valid = |raw: &RawValue| serde_json::from_str::<HashMap<String, String>>(raw.get()).is_ok();
    if raw.as_ref().is_some_and(|raw| !is_valid(raw)) {
        return Err(ApiError::param(NAME, "`metadata` must be an object of strings"));
    }
    Ok(raw)
}

fn take_reasoning(
    fields: &mut Fields,
    without_effect: &mut Vec<&'static str>,
) -> Result<Option<Box<RawValue>>, ApiError> {
    const NAME: &str = "reasoning";
    let Some(raw) = small(NAME, fields.raw(NAME))? else { return Ok(None) };
    let [effort, summary, generate_summary, context, mode] =
        object(NAME, &raw, ["effort", "summary", "generate_summary", "context", "mode"])?;
    if let Some(effort) = effort {
        fields.set("reasoning_effort", effort.to_owned());
    }
    if summary.or(generate_summary).is_some() {
        without_effect.push("reasoning.summary");
    }
    // Which thoughts are shown again is the template's choice.
    if context.is_some() {
        without_effect.push("reasoning.context");
    }
    if mode.is_some() {
        without_effect.push("reasoning.mode");
    }
    Ok(Some(raw))
}

/// `text`: the answer's form, as chat's `response_format`.
fn take_text(fields: &mut Fields) -> Result<Option<Box<RawValue>>, ApiError> {
    const NAME: &str = "text";
    let Some(raw) = fields.raw(NAME) else { return Ok(None) };
    let [format, verbosity] = object(NAME, &raw, ["format", "verbosity"])?;
    if let Some(verbosity) = verbosity {
        fields.set("verbosity", verbosity.to_owned());
    }
    let Some(format) = format else { return Ok(Some(raw)) };
    let kind = named(format, ["type"]).and_then(|[kind]| word(kind));
    if kind.as_deref() != Some("json_schema") {
        fields.set("response_format", format.to_owned());
        return Ok(Some(raw));
    }
    // The schema and its name stand beside the type here.
    let [_, name, description, schema, strict] =
        object("text.format", format, ["type", "name", "description", "schema", "strict"])?;
    let fields_of_it = [("name", name), ("description", description), ("schema", schema), ("strict", strict)];
    fields
        .set("response_format", unread(format!(r#"{{"type":"json_schema","json_schema":{}}}"#, joined(fields_of_it)))?);
    Ok(Some(raw))
}

/// `include`: whether it names something. What tools of OpenAI's would bring is not there to include.
fn take_include(fields: &mut Fields) -> Result<bool, ApiError> {
    const NAME: &str = "include";
    let Some(Bounded(names)) = fields.optional::<Bounded<String, MAX_ENTRIES>>(NAME)? else { return Ok(false) };
    for (at, name) in names.iter().enumerate() {
        let param = format!("{NAME}[{at}]");
        match name.as_str() {
            "reasoning.encrypted_content"
            | "code_interpreter_call.outputs"
            | "computer_call_output.output.image_url"
            | "file_search_call.results"
            | "message.input_image.image_url"
            | "web_search_call.results"
            | "web_search_call.action.sources" => {}
            "message.output_text.logprobs" => return Err(ApiError::unsupported(&param, "use /v1/chat/completions")),
            _ => {
                return Err(ApiError::param(&param, format!("`{param}` is not known to this server: leave it out")));
            }
        }
    }
    Ok(!names.is_empty())
}

/// `truncation`, which could only shorten what is too long: that stays an error.
fn take_truncation(fields: &mut Fields, without_effect: &mut Vec<&'static str>) -> Result<(), ApiError> {
    const NAME: &str = "truncation";
    match fields.optional::<String>(NAME)?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some("auto") => {
            without_effect.push(NAME);
            Ok(())
        }
        Some(_) => Err(ApiError::param(NAME, "`truncation` must be \"auto\" or \"disabled\"")),
    }
}

/// `stream_options`, which can ask for nothing that is not there but a padding of events, and an order of summaries, of which there are none.
fn take_stream_options(fields: &mut Fields, without_effect: &mut Vec<&'static str>) -> Result<(), ApiError> {
    const OBFUSCATION: &str = "stream_options.include_obfuscation";
    let Some(raw) = fields.raw("stream_options") else { return Ok(()) };
    let [obfuscation, delivery, _usage] =
        object("stream_options", &raw, ["include_obfuscation", "reasoning_summary_delivery", "include_usage"])?;
    if delivery.is_some() {
        without_effect.push("stream_options.reasoning_summary_delivery");
    }
    match obfuscation.map(RawValue::get) {
        None | Some("false") => Ok(()),
        Some("true") => {
            without_effect.push(OBFUSCATION);
            Ok(())
        }
        Some(_) => Err(ApiError::param(OBFUSCATION, format!("`{OBFUSCATION}` must be true or false"))),
    }
}

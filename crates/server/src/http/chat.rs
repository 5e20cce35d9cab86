//! `POST /v1/chat/completions`. Knows the fields and the wording of chat completions.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use vllm_apple_engine::Prompt;

use super::App;
use super::chat_messages::Conversation;
use super::error::ApiError;
use super::fields::{Fields, Unsupported};
use super::logprobs::{self, TokenNames};
use super::memory::Held;
use super::respond::{Job, Streaming, Wording};
use super::sampling::{self, check_choices, room, stop_reason};
use super::structure::{self, Asked};
use crate::generation::{Delta, Finish, GenerationRequest, PromptLogprobs, SamplingOptions};
use crate::served::ServedModel;

/// The fields of a chat request.
struct ChatRequest {
    conversation: Conversation,
    options: SamplingOptions,
    asked: Option<Asked>,
    /// The field that `options.max_tokens` comes from.
    limit: &'static str,
    n: usize,
    streaming: Streaming,
    request_id: Option<String>,
    cache_salt: Option<String>,
    show: Show,
    held: Held,
}

/// What a choice shows besides the generated text.
#[derive(Debug, Clone, Copy)]
struct Show {
    logprobs: bool,
    prompt_logprobs: Option<u32>,
    names_as_ids: bool,
    token_ids: bool,
}

/// Fields that only the completions API knows.
const OF_COMPLETIONS: &[Unsupported] =
    &[("best_of", "1", "use n"), ("prompt", "null", "use `messages`, or /v1/completions")];

/// Answers a chat request.
pub async fn create(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let model = Arc::clone(app.model_named(fields.optional::<String>("model")?.as_deref())?);
    let trusts_template = app.config.trust_request_chat_template;
    let ChatRequest { conversation, options, asked, limit, n, streaming, request_id, cache_salt, show, held } =
        app.text.read(fields.bytes, move || ChatRequest::take(fields, trusts_template)).await?;
    check_choices(&model, 1, n)?;
    let prompt = Prompt::salted(conversation.tokenize(&app.text, &held, &model).await?, cache_salt.as_deref());
    let renamed = |error: ApiError| error.renamed(limit);
    room(&model, prompt.len(), options.max_tokens).map_err(renamed)?;
    let grammar = match asked {
        Some(asked) => Some(asked.compile(&app.text, &held, &model).await?),
        None => None,
    };
    let request = GenerationRequest::new(&model, prompt.clone(), &options);
    let requests = vec![GenerationRequest { grammar, ..request }];
    let wording = ChatWording { model: Arc::clone(&model), prompt, show, prompt_logprobs: None };
    Job { model, requests, n, streaming, request_id, wording, held }.run(arrived).await.map_err(renamed)
}

impl ChatRequest {
    fn take(mut fields: Fields, trusts_template: bool) -> Result<Self, ApiError> {
        let conversation = Conversation::take(&mut fields, trusts_template)?;
        let mut options = sampling::take(&mut fields)?;
        let n = sampling::take_n(&mut fields)?;
        let streaming = Streaming::take(&mut fields)?;
        let old_max_tokens = fields.optional("max_tokens")?;
        let max_completion_tokens = fields.optional("max_completion_tokens")?;
        let limit = if max_completion_tokens.is_some() { "max_completion_tokens" } else { "max_tokens" };
        options.max_tokens = max_completion_tokens.or(old_max_tokens);
        let show = Show {
            logprobs: fields.flag("logprobs")?,
            prompt_logprobs: sampling::take_prompt_logprobs(&mut fields, &mut options, streaming)?,
            names_as_ids: fields.flag("return_tokens_as_token_ids")?,
            token_ids: fields.flag("return_token_ids")?,
        };
        let top_logprobs: Option<u32> = fields.optional("top_logprobs")?;
        if !show.logprobs && top_logprobs.is_some_and(|top| top > 0) {
            return Err(ApiError::param("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
        options.logprobs = show.logprobs.then(|| top_logprobs.unwrap_or(0));
        if fields.flag("echo")? {
            return Err(ApiError::unsupported("echo", "use the completions API to see the prompt"));
        }
        let request_id = sampling::take_request_id(&mut fields)?;
        let cache_salt = sampling::take_cache_salt(&mut fields)?;
        let asked = structure::take(&mut fields)?;
        let held = fields.finish(OF_COMPLETIONS)?;
        Ok(Self { conversation, options, asked, limit, n, streaming, request_id, cache_salt, show, held })
    }
}

struct ChatWording {
    model: Arc<ServedModel>,
    prompt: Prompt,
    show: Show,
    prompt_logprobs: Option<PromptLogprobs>,
}

impl ChatWording {
    /// A choice whose text is in `field`: `message` or `delta`.
    fn word(&self, index: usize, field: &str, message: Value, delta: &Delta) -> Value {
        let names = TokenNames { tokenizer: &self.model.tokenizer, as_ids: self.show.names_as_ids };
        let mut choice = json!({
            "index": index,
            field: message,
            "logprobs": self.show.logprobs.then(|| logprobs::chat(&delta.tokens, names)),
            "finish_reason": delta.finish.as_ref().map(Finish::reason),
            "stop_reason": delta.finish.as_ref().and_then(stop_reason),
        });
        if self.show.token_ids {
            choice["token_ids"] = delta.tokens.iter().map(|sample| sample.token_id).collect();
        }
        choice
    }
}

impl Wording for ChatWording {
    const ID_PREFIX: &'static str = "chatcmpl";
    const OBJECT: &'static str = "chat.completion";
    const CHUNK_OBJECT: &'static str = "chat.completion.chunk";

    fn prompt_field(&self, _index: usize) -> String {
        "messages".to_owned()
    }

    fn opening(&self, index: usize) -> Option<Value> {
        let message = json!({"role": "assistant", "content": ""});
        Some(json!({"index": index, "delta": message, "logprobs": null, "finish_reason": null}))
    }

    fn chunk(&mut self, index: usize, delta: Delta) -> Value {
        let message = match delta.text.is_empty() {
            true => json!({}),
            false => json!({"content": delta.text}),
        };
        self.word(index, "delta", message, &delta)
    }

    fn choice(&mut self, index: usize, whole: Delta) -> Value {
        self.prompt_logprobs = self.prompt_logprobs.take().or_else(|| whole.prompt_logprobs.clone());
        let message = json!({"role": "assistant", "content": whole.text, "refusal": null});
        self.word(index, "message", message, &whole)
    }

    fn extend(&self, answer: &mut Value) {
        if let (Some(samples), Some(top)) = (&self.prompt_logprobs, self.show.prompt_logprobs) {
            answer["prompt_logprobs"] = logprobs::prompt(samples, top, &self.model.tokenizer);
        }
        if self.show.token_ids {
            answer["prompt_token_ids"] = json!(*self.prompt);
        }
    }
}

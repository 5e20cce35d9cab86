//! `POST /v1/completions`. Knows the fields and the wording of text completions.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};
use vllm_apple_executor::Sample;

use super::App;
use super::error::ApiError;
use super::field_names::Unsupported;
use super::fields::{Fields, Known, Rest, naming};
use super::logprobs::{self, TokenNames};
use super::prompt::{Places, PromptInput, TokenizedPrompt, Tokenizing};
use super::respond::{Job, Streaming, Wording};
use super::sampling::{self, check_choices, room, stop_reason};
use super::structure::{self, Asked};
use crate::generation::{Delta, Finish, GenerationRequest, SamplingOptions};
use crate::served::ServedModel;

/// OpenAI's default for `max_tokens`.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// The fields of a completion request.
struct CompletionRequest {
    prompt: PromptInput,
    add_special_tokens: bool,
    cache_salt: Option<String>,
    options: SamplingOptions,
    asked: Option<Asked>,
    n: usize,
    streaming: Streaming,
    request_id: Option<String>,
    show: Show,
    rest: Rest,
}

/// Fields that only the chat API knows.
const OF_CHAT: &[Unsupported] = &[
    ("chat_template_kwargs", "{}", "only the chat API renders a template"),
    ("continue_final_message", "false", "only the chat API takes `messages`"),
    ("documents", "[]", "only the chat API takes documents"),
    ("max_completion_tokens", "null", "use max_tokens"),
    ("messages", "[]", "use /v1/chat/completions"),
    ("tool_choice", "\"none\"", "only the chat API takes tools"),
    ("tools", "[]", "only the chat API takes tools"),
    ("top_logprobs", "0", "`logprobs` is the number of alternatives here"),
];

/// What a choice shows besides the generated text.
#[derive(Debug, Clone, Copy)]
struct Show {
    /// The prompt goes before the text.
    echo: bool,
    /// `max_tokens` is 0: with `echo`, nothing but the prompt is wanted.
    only_prompt: bool,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    names_as_ids: bool,
    token_ids: bool,
}

/// What a request may have.
pub fn known(fields: Fields) -> Result<Vec<Known>, ApiError> {
    Ok(CompletionRequest::take(fields)?.rest.known)
}

/// Answers a completion request.
pub async fn create(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let model = Arc::clone(app.generator(fields.optional::<String>("model")?.as_deref())?);
    let CompletionRequest {
        prompt,
        add_special_tokens,
        cache_salt,
        options,
        asked,
        n,
        streaming,
        request_id,
        show,
        rest: Rest { held, mut without_effect, .. },
    } = app.text.read(fields.bytes, move || CompletionRequest::take(fields)).await?;
    check_choices(&model, prompt.len(), n)?;
    let how = Tokenizing {
        places: Places(vec![("prompt", prompt.len())]),
        add_special_tokens,
        keep_text: show.echo,
        cache_salt,
        min_output_tokens: 1,
        truncation: None,
    };
    let prompts = prompt.tokenize(&app.text, &held, &model, how).await?;
    let grammar = match asked {
        Some(asked) => Some(asked.compile(&app.text, &held, &model).await?),
        None => None,
    };
    // Who asks for more than there is room for at least is told so by the engine.
    let room = |prompt: &TokenizedPrompt| room(&model, prompt.tokens.len()).max(options.min_tokens.unwrap_or(0));
    if options.max_tokens.is_some_and(|most| prompts.iter().any(|prompt| most > room(prompt))) {
        without_effect.push("max_tokens");
    }
    let request = |prompt: &TokenizedPrompt| {
        let max_tokens = Some(options.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS).min(room(prompt)));
        let options = SamplingOptions { max_tokens, ..options.clone() };
        let request = GenerationRequest::new(&model, prompt.tokens.clone(), &options);
        GenerationRequest { grammar: grammar.clone(), ..request }
    };
    let requests = prompts.iter().map(request).collect();
    let choices = vec![ChoiceState::default(); prompts.len() * n];
    let wording = CompletionWording { model: Arc::clone(&model), prompts, n, show, choices };
    let job = Job { model, requests, n, streaming, request_id, wording, held, keep_alive: app.config.keep_alive };
    Ok(naming(job.run(arrived).await?, &without_effect))
}

impl CompletionRequest {
    fn take(mut fields: Fields) -> Result<Self, ApiError> {
        let mut options = sampling::take(&mut fields)?;
        let n = sampling::take_n(&mut fields)?;
        if let Some(best_of) = fields.optional::<usize>("best_of")?
            && best_of != n
        {
            return Err(ApiError::unsupported("best_of", "ask for `n` answers and choose among them"));
        }
        let echo = fields.flag("echo")?;
        let streaming = Streaming::take(&mut fields)?;
        let show = Show {
            echo,
            only_prompt: false,
            logprobs: None,
            prompt_logprobs: sampling::take_prompt_logprobs(&mut fields, &mut options, streaming)?,
            names_as_ids: fields.flag("return_tokens_as_token_ids")?,
            token_ids: fields.flag("return_token_ids")?,
        };
        options.logprobs = fields.optional("logprobs")?;
        options.max_tokens = fields.optional("max_tokens")?;
        let show = Show { only_prompt: echo && options.max_tokens == Some(0), logprobs: options.logprobs, ..show };
        if echo {
            // Scored once for both; each shows as many alternatives as it was asked for.
            options.prompt_logprobs = options.prompt_logprobs.max(options.logprobs);
        }
        if show.only_prompt {
            // As in vLLM: the engine computes a token, nobody sees it.
            options.max_tokens = Some(1);
        }
        let prompt = fields.required("prompt")?;
        let add_special_tokens = fields.optional("add_special_tokens")?.unwrap_or(true);
        let request_id = sampling::take_request_id(&mut fields)?;
        let cache_salt = sampling::take_cache_salt(&mut fields)?;
        let asked = structure::take(&mut fields)?;
        let rest = fields.finish(OF_CHAT)?;
        Ok(Self { prompt, add_special_tokens, cache_salt, options, asked, n, streaming, request_id, show, rest })
    }
}

/// How far a choice has been written.
#[derive(Debug, Clone, Default)]
struct ChoiceState {
    echoed: bool,
    /// Characters before the next token, for `text_offset`.
    offset: usize,
}

struct CompletionWording {
    model: Arc<ServedModel>,
    prompts: Vec<TokenizedPrompt>,
    n: usize,
    show: Show,
    choices: Vec<ChoiceState>,
}

impl CompletionWording {
    /// Puts the prompt before the first delta of a choice.
    fn echo(&self, prompt: &TokenizedPrompt, delta: &mut Delta) {
        let ids = &prompt.tokens;
        let text = match &prompt.text {
            Some(text) => text.to_string(),
            None => self.model.tokenizer.decode(ids, false).unwrap_or_default(),
        };
        let scored = delta.prompt_logprobs.iter().flat_map(|scores| scores.iter().cloned()).map(|mut sample| {
            let logprobs = sample.logprobs.iter_mut();
            logprobs.for_each(|logprobs| logprobs.top.truncate(self.show.logprobs.unwrap_or(0) as usize));
            sample
        });
        // The first token follows nothing, so it has no probability.
        let first = ids.iter().take(1).map(|&token_id| Sample { token_id, logprobs: None });
        let mut tokens: Vec<_> = first.chain(scored).collect();
        if self.show.only_prompt {
            delta.text = text;
        } else {
            delta.text.insert_str(0, &text);
            tokens.append(&mut delta.tokens);
        }
        delta.tokens = tokens;
    }

    fn word(&mut self, index: usize, mut delta: Delta) -> Value {
        let prompt = &self.prompts[index / self.n];
        let stop_reason = stop_reason(&delta, &self.model);
        let is_first = !std::mem::replace(&mut self.choices[index].echoed, true);
        let shown = if self.show.only_prompt { &[] } else { &*delta.tokens };
        let token_ids: Vec<_> = shown.iter().map(|sample| sample.token_id).collect();
        if self.show.echo && is_first {
            self.echo(prompt, &mut delta);
        }
        let names = TokenNames { tokenizer: &self.model.tokenizer, as_ids: self.show.names_as_ids };
        let offset = &mut self.choices[index].offset;
        let logprobs = self.show.logprobs.map(|_| logprobs::completion(&delta.tokens, names, offset));
        let mut choice = json!({
            "index": index,
            "text": delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.finish.as_ref().map(Finish::reason),
            "stop_reason": stop_reason,
        });
        if self.show.token_ids {
            choice["token_ids"] = json!(token_ids);
            choice["prompt_token_ids"] = json!(is_first.then_some(&*prompt.tokens));
        }
        choice
    }
}

impl Wording for CompletionWording {
    const ID_PREFIX: &'static str = "cmpl";
    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";

    fn prompt_field(&self, index: usize) -> String {
        Places(vec![("prompt", self.prompts.len())]).field(index)
    }

    fn chunk(&mut self, index: usize, delta: Delta) -> Value {
        self.word(index, delta)
    }

    fn of_prompt(&self, whole: &Delta) -> Map<String, Value> {
        let (samples, num_top) = (whole.prompt_logprobs.as_ref(), self.show.prompt_logprobs);
        let worded = samples.zip(num_top).map(|(samples, top)| logprobs::prompt(samples, top, &self.model.tokenizer));
        worded.map(|worded| ("prompt_logprobs".to_owned(), worded)).into_iter().collect()
    }

    fn choice(&mut self, index: usize, whole: Delta) -> Value {
        self.word(index, whole)
    }
}

//! How an answer is told apart, and what holds it to a form: both depend on what the end of the prompt has begun. Knows formats of models, no fields.

use std::sync::Arc;

use vllm_apple_engine::Grammar;
use vllm_apple_parsers::{ReasoningFormat, ToolFormat};

use crate::http::App;
use crate::http::error::ApiError;
use crate::http::memory::Held;
use crate::http::structure::Asked;
use crate::http::told_apart::Telling;
use crate::http::tools::{Calls, Tools};
use crate::served::ServedModel;
use crate::structured::{Channels, Either, LastMessage, MAX_SOURCE, Open, Reasoned, Structure};

/// Tokens at the end of a prompt among which a tag of reasoning is looked for: more than a template writes behind it.
const TAIL: usize = 16;

/// An answer to a prompt.
pub struct Answer<'a> {
    pub app: &'a App,
    pub model: &'a Arc<ServedModel>,
    /// The memory of the request.
    pub held: &'a Held,
    pub tools: &'a Tools,
    pub prompt: &'a [u32],
    /// Whether it goes on with the last message.
    pub continues: bool,
}

/// What became of it.
pub struct Formed {
    /// How it is told apart.
    pub telling: Telling,
    /// What holds it to its form.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// What the form makes of calls.
    pub calls: Calls,
}

impl Answer<'_> {
    /// Finds how the answer is told apart, and what holds it to the form that is asked for.
    ///
    /// # Errors
    /// Nobody knows how the model writes calls; the form, or that of the calls, cannot be held to.
    pub async fn form(&self, asked: Option<Asked>, shows_reasoning: bool) -> Result<Formed, ApiError> {
        let (tokenizer, tools) = (&self.model.tokenizer, self.tools);
        let reasoning = self.reasoning();
        let has_channels = matches!(reasoning, Some((ReasoningFormat::Harmony, _)));
        let open = Open::of(tokenizer, self.prompt);
        // What goes on with an answer is nothing else. A form cannot stand in channels that the tokenizer has no tokens for.
        let is_plain = open == Open::Answer || asked.is_some() && !Channels::are_known(tokenizer);
        let in_channels = has_channels && !is_plain;
        let own = self.model.formats.tools.as_ref();
        // gpt-oss' are written in channels alone.
        let plain = own.filter(|own| tools.must_call() && !has_channels && **own != ToolFormat::Harmony);
        let of_calls = plain.and_then(|own| self.structure(own, false));
        let format = match has_channels {
            true if in_channels => Some(ToolFormat::Harmony),
            true if !tools.must_call() => None,
            true => tools.format(None, false)?,
            false => tools.format(own, of_calls.is_some())?,
        };
        let reasoning = reasoning.filter(|_| in_channels || !has_channels);
        let (schemas, max_calls) = (tools.schemas(), tools.max_calls());
        let is_held = asked.is_some();
        let mut telling = Telling { reasoning, tools: format, schemas, is_held, shows_reasoning, max_calls };
        let Some(asked) = asked else { return Ok(Formed { telling, grammar: None, calls: Calls::Free }) };
        let of_format = || self.structure(telling.tools.as_ref()?, asked.is_of_text());
        let held_calls = self.calls(of_calls.or_else(of_format)).await?;
        let calls = if held_calls.is_some() { Calls::Held } else { Calls::Impossible };
        let grammar: Arc<dyn Grammar> = if in_channels {
            let is_json = asked.structure.is_json();
            let text = if tools.must_call() { None } else { Some((self.compile(asked).await?, is_json)) };
            let last = LastMessage { text, calls: held_calls };
            let channels = Channels::new(tokenizer, &self.model.eos_token_ids, open, last);
            Arc::new(channels.ok_or_else(|| ApiError::internal("the tokenizer cannot write channels".to_owned()))?)
        } else {
            let form: Arc<dyn Grammar> = match held_calls {
                Some(calls) if tools.must_call() => calls,
                Some(calls) => Arc::new(Either(vec![self.compile(asked).await?, calls])),
                None => self.compile(asked).await?,
            };
            self.after_reasoning(form, &mut telling)
        };
        Ok(Formed { telling, grammar: Some(grammar), calls })
    }

    /// How the model reasons, and whether the prompt has begun that. `None`: it does not, or it is over.
    fn reasoning(&self) -> Option<(ReasoningFormat, bool)> {
        let format = self.model.formats.reasoning?;
        let Some((start, end)) = format.tags() else { return Some((format, false)) };
        let tail = &self.prompt[self.prompt.len().saturating_sub(TAIL)..];
        let tail = self.model.tokenizer.decode(tail, false).unwrap_or_default();
        let ends_with = |tag: &str| tail.trim_end().ends_with(tag);
        match (ends_with(end), ends_with(start), self.last_tag(start, end)) {
            (true, ..) | (.., Some(false)) => None,
            (_, true, _) | (.., Some(true)) => Some((format, true)),
            _ => Some((format, format == ReasoningFormat::ThinkAlways)),
        }
    }

    /// Whether the last tag in a message that the answer goes on with begins reasoning. Messages of others may speak of tags: they end where a
    /// special token stands.
    fn last_tag(&self, start: &str, end: &str) -> Option<bool> {
        let tokenizer = &self.model.tokenizer;
        let (start, end) = (tokenizer.token_to_id(start)?, tokenizer.token_to_id(end)?);
        let ends_message = |token: u32| tokenizer.is_special(token) && ![start, end].contains(&token);
        let message = self.prompt.iter().rev().take_while(|&&token| self.continues && !ends_message(token));
        message.copied().find(|token| [start, end].contains(token)).map(|token| token == start)
    }

    /// Calls of this format that the answer may be, or must.
    fn structure(&self, format: &ToolFormat, of_text: bool) -> Option<Structure> {
        let (tools, list) = (self.tools, self.tools.held(of_text));
        let is_any = !list.is_empty();
        let calls = || Structure::calls(&self.model.tokenizer, format, &list, tools.max_calls() > 1);
        // Where the arguments' schemas are short enough, so is another form of them.
        is_any.then(calls).flatten().filter(|calls| calls.bytes() <= MAX_SOURCE)
    }

    /// What holds the answer to calls that it may be, or must.
    async fn calls(&self, structure: Option<Structure>) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
        let Self { app, model, held, tools, .. } = self;
        Ok(match structure {
            Some(structure) if tools.must_call() => {
                let field = "tool_choice".to_owned();
                Some(Asked { structure, field }.compile(&app.text, held, model).await?)
            }
            Some(structure) => {
                let field = "tools".to_owned();
                Some(Asked { structure, field }.compile_beside(&app.text, held, model).await?)
            }
            None => None,
        })
    }

    async fn compile(&self, asked: Asked) -> Result<Arc<dyn Grammar>, ApiError> {
        asked.compile(&self.app.text, self.held, self.model).await
    }

    /// A form that holds once the model has thought.
    fn after_reasoning(&self, grammar: Arc<dyn Grammar>, telling: &mut Telling) -> Arc<dyn Grammar> {
        let tags = telling.reasoning.and_then(|(format, begun)| Some((format.tags()?, begun)));
        let token = |tag: &str| self.model.tokenizer.token_to_id(tag);
        let Some(((start, end), begun)) = tags else { return grammar };
        match (token(start), token(end)) {
            (Some(start), Some(end)) => {
                let start = (!begun).then_some(start);
                Arc::new(Reasoned { grammar, start, end, eos_token_ids: Arc::clone(&self.model.eos_token_ids) })
            }
            // What the tokenizer has no tokens for, the model was not taught: the form holds at once, and nothing before it is thought.
            _ => {
                telling.reasoning = None;
                grammar
            }
        }
    }
}

/// Whether tags that are looked for are special tokens, which text leaves out.
pub fn has_special_tags(model: &ServedModel, telling: &Telling) -> bool {
    let reasoning = telling.reasoning.and_then(|(format, _)| format.tags()).map(|(start, end)| [start, end]);
    let tools = telling.tools.iter().flat_map(|format| format.tags().iter().copied());
    let is_special = |tag: &str| model.tokenizer.token_to_id(tag).is_some_and(|id| model.tokenizer.is_special(id));
    reasoning.into_iter().flatten().chain(tools).any(is_special)
}

//! What was said so far, and the next reply to it. Once the context is full, the oldest turns are left out. Knows no terminal but its output.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use crate::cli::{CliError, tell};
use crate::generation::{Finish, Generation, GenerationRequest, SamplingOptions};
use crate::served::ServedModel;
use crate::text::{ChatRequest, TextError};

/// A reply has room for this part of the context, or the oldest turns are left out…
const LEAST_ROOM: usize = 8;

/// … until it has this part: with more at once, the turns that stay need not be computed anew for each reply.
const ROOM: usize = 4;

pub struct Conversation {
    model: Arc<ServedModel>,
    options: SamplingOptions,
    system_prompt: Option<String>,
    /// What the user said, and the reply as far as it came.
    turns: Vec<[String; 2]>,
}

impl Conversation {
    pub fn new(model: Arc<ServedModel>, options: SamplingOptions, system_prompt: Option<String>) -> Self {
        Self { model, options, system_prompt, turns: Vec::new() }
    }

    pub fn model_name(&self) -> &str {
        self.model.name()
    }

    /// Forgets what was said.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// Prints the reply as it comes and keeps it. Dropped halfway, what was said so far is kept.
    pub async fn reply(&mut self, text: String) -> Result<(), CliError> {
        let (prompt, left_out) = self.prompt(&text)?;
        let prompt_tokens = prompt.len();
        let request = GenerationRequest::new(&self.model, prompt.into(), &self.options);
        let mut generation = Generation::start(Arc::clone(&self.model), request, Instant::now())?;
        if left_out > 0 {
            self.turns.drain(..left_out);
            tell(format_args!("[the context is full: from here on without the oldest turns, {left_out} of them]"));
        }
        self.turns.push([text, String::new()]);
        let mut stdout = io::stdout();
        let mut finish = None;
        while let Some(delta) = generation.next().await {
            let delta = delta?;
            stdout.write_all(delta.text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::Stdout)?;
            if let Some([_, reply]) = self.turns.last_mut() {
                reply.push_str(&delta.text);
            }
            finish = delta.finish;
        }
        writeln!(stdout).map_err(CliError::Stdout)?;
        if finish == Some(Finish::Length) {
            let (tokens, most) = (generation.num_tokens(), self.model.max_model_len);
            match prompt_tokens + tokens >= most {
                true => tell(format_args!("[cut off: the context of {most} tokens is full]")),
                false => tell(format_args!("[cut off after {tokens} tokens: a larger --max-tokens gives more]")),
            }
        }
        Ok(())
    }

    /// The prompt for a message, and how many of the oldest turns it leaves out.
    fn prompt(&self, text: &str) -> Result<(Vec<u32>, usize), TextError> {
        let max = self.model.max_model_len;
        let SamplingOptions { min_tokens, max_tokens, .. } = self.options;
        // A reply that may only be short needs no more.
        let longest = max_tokens.or(self.model.defaults.max_new_tokens).map_or(max, |tokens| tokens as usize);
        let room_for = |part: usize| (max / part).min(longest).max(min_tokens.unwrap_or(0) as usize);
        let mut wanted = room_for(LEAST_ROOM);
        let mut left_out = 0;
        loop {
            let prompt = self.model.chat_template.prompt(&self.model.tokenizer, &self.request(left_out, text));
            let room = match &prompt {
                Ok(prompt) => max.saturating_sub(prompt.len()),
                Err(TextError::TooLong { .. }) => 0,
                Err(_) => wanted,
            };
            if room < wanted && left_out < self.turns.len() {
                left_out += 1;
                wanted = room_for(ROOM);
                continue;
            }
            let prompt = prompt?;
            return match room {
                0 => Err(TextError::TooLong { bytes: text.len(), least: prompt.len(), max }),
                _ => Ok((prompt, left_out)),
            };
        }
    }

    /// What is asked without so many of the oldest turns.
    fn request(&self, left_out: usize, text: &str) -> ChatRequest {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let turns = self.turns[left_out..].iter();
        let turns = turns.flat_map(|[asked, replied]| [message("user", asked), message("assistant", replied)]);
        let system = self.system_prompt.iter().map(|text| message("system", text));
        let messages: Vec<Value> = system.chain(turns).chain([message("user", text)]).collect();
        ChatRequest::new(&messages)
    }
}

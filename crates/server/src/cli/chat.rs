//! `vllm-apple chat`: a conversation in the terminal, or over a pipe. Knows lines and history, no protocol.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use super::args::ModelArgs;
use super::load;
use super::sampling_args::SamplingArgs;
use super::{CliError, tell};
use crate::generation::{Generation, GenerationRequest, SamplingOptions};
use crate::served::{OutputFormats, ServedModel};
use crate::text::ChatRequest;

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

pub async fn run(args: ChatArgs) -> Result<(), CliError> {
    let opened = load::open(&args.model)?;
    let load = move || opened.load(Vec::new(), 1, usize::MAX, OutputFormats::default());
    let model = tokio::task::spawn_blocking(load).await.map_err(io::Error::other)??;
    let system = args.system_prompt.map(|text| json!({"role": "system", "content": text}));
    let mut chat = Conversation { model, options: args.sampling.options(None), messages: system.into_iter().collect() };
    // The editor writes what it shows to the output.
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return chat.in_terminal().await;
    }
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|source| CliError::Input { path: "standard input".to_owned(), source })?;
        if !line.trim().is_empty() {
            chat.reply(line).await?;
        }
    }
    Ok(())
}

struct Conversation {
    model: Arc<ServedModel>,
    options: SamplingOptions,
    messages: Vec<Value>,
}

impl Conversation {
    async fn in_terminal(&mut self) -> Result<(), CliError> {
        tell(format_args!("{}: Ctrl-C stops a reply, Ctrl-D ends the conversation", self.model.name()));
        let mut editor = DefaultEditor::new()?;
        loop {
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if line.trim().is_empty() {
                continue;
            }
            // Without a history of lines the conversation still goes on.
            let _ = editor.add_history_entry(line.as_str());
            tokio::select! {
                replied = self.reply(line) => match replied {
                    // What the model refuses, a shorter or another message may repair.
                    Err(error @ (CliError::Submit(_) | CliError::Text(_))) => tell(format_args!("error: {error}")),
                    replied => replied?,
                },
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted?;
                    writeln!(io::stdout())?;
                }
            }
        }
    }

    /// Prints the reply as it comes and keeps it. Dropped halfway, what was said so far is kept.
    async fn reply(&mut self, text: String) -> Result<(), CliError> {
        let mut messages = self.messages.clone();
        messages.push(json!({"role": "user", "content": text}));
        let prompt = self.model.chat_template.prompt(&self.model.tokenizer, &ChatRequest::new(&messages))?;
        let request = GenerationRequest::new(&self.model, prompt.into(), &self.options);
        let mut generation = Generation::start(Arc::clone(&self.model), request, Instant::now())?;
        messages.push(json!({"role": "assistant", "content": ""}));
        self.messages = messages;
        let mut reply = String::new();
        let mut stdout = io::stdout();
        while let Some(delta) = generation.next().await {
            let delta = delta?;
            stdout.write_all(delta.text.as_bytes())?;
            stdout.flush()?;
            reply.push_str(&delta.text);
            if let Some(last) = self.messages.last_mut() {
                last["content"] = reply.as_str().into();
            }
        }
        writeln!(stdout)?;
        Ok(())
    }
}

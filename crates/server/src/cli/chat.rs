//! `vllm-apple chat`: a conversation in the terminal, or over a pipe. Knows lines and commands, no prompts.

mod command;
mod conversation;

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::args::ModelArgs;
use super::load;
use super::sampling_args::SamplingArgs;
use super::{CliError, tell};
use crate::served::OutputFormats;
use crate::settings::word;
use command::{Command, HELP};
use conversation::Conversation;

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
    let opened = load::open_generator(&args.model)?;
    let load = move || opened.load(Vec::new(), 1, usize::MAX, OutputFormats::default());
    let model = tokio::task::spawn_blocking(load).await;
    let model = model.map_err(|panic| CliError::Load(format!("loading the model failed: {panic}")))??;
    let mut chat = Conversation::new(model, args.sampling.options(None), args.system_prompt);
    // The editor writes what it shows to the output.
    match io::stdin().is_terminal() && io::stdout().is_terminal() {
        true => in_terminal(&mut chat).await,
        false => over_pipe(&mut chat).await,
    }
}

async fn in_terminal(chat: &mut Conversation) -> Result<(), CliError> {
    let name = chat.model_name();
    tell(format_args!("{name}: Ctrl-C stops a reply, Ctrl-D ends the conversation, /help tells more"));
    let mut editor = DefaultEditor::new()?;
    let mut knows_how_to_end = false;
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Eof) => return Ok(()),
            // As in shells, it gives up the line. A conversation must not be lost to one that comes just after the reply that it was to stop.
            Err(ReadlineError::Interrupted) => {
                if !knows_how_to_end {
                    tell("Ctrl-D ends the conversation");
                }
                knows_how_to_end = true;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if line.trim().is_empty() {
            continue;
        }
        // Without a history of lines the conversation still goes on.
        let _ = editor.add_history_entry(line.as_str());
        match Command::of(&line) {
            Some(Command::Exit) => return Ok(()),
            Some(Command::Clear) => {
                chat.clear();
                tell("the conversation begins anew");
            }
            Some(Command::Help) => tell(HELP),
            Some(Command::Unknown(name)) => tell(format_args!("there is no {name}, and it was not sent: see /help")),
            None => tokio::select! {
                replied = chat.reply(line) => {
                    if let Some(reason) = refusal(replied)? {
                        tell(format_args!("error: {reason}"));
                    }
                }
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted.map_err(CliError::Signals)?;
                    writeln!(io::stdout()).map_err(CliError::Stdout)?;
                }
            },
        }
    }
}

/// A line that cannot be answered fails alone.
async fn over_pipe(chat: &mut Conversation) -> Result<(), CliError> {
    let (mut total, mut failed) = (0, 0);
    for (number, line) in (1..).zip(io::stdin().lock().split(b'\n')) {
        let line = line.map_err(|source| CliError::Input { path: "standard input".to_owned(), source })?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        total += 1;
        let text = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(&line));
        let reason = match text {
            Ok(text) => refusal(chat.reply(text.to_owned()).await)?,
            Err(error) => Some(format!("not UTF-8: {error}")),
        };
        if let Some(reason) = reason {
            failed += 1;
            tell(format_args!("error: line {number}: {reason}"));
        }
    }
    if failed == 0 { Ok(()) } else { Err(CliError::Lines { failed, total }) }
}

/// Why the model refuses a message, if it does: another one it may answer. What else goes wrong ends the conversation.
fn refusal(replied: Result<(), CliError>) -> Result<Option<String>, CliError> {
    match replied {
        Ok(()) => Ok(None),
        Err(error @ (CliError::Submit(_) | CliError::Text(_))) => Ok(Some(word(&error.to_string()).into_owned())),
        Err(error) => Err(error),
    }
}

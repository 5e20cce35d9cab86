//! The command line: commands, logging and exit codes. Knows no engine; each command has its file.

mod args;
mod bench;
mod chat;
mod cors_args;
mod demo_model;
mod doctor;
mod file_limit;
mod first_run;
mod foreign_commands;
mod foreign_flags;
mod generate;
mod invariance;
mod load;
mod log_level;
mod pooling_args;
mod progress;
mod quantize;
mod sampling_args;
mod serve;
mod speculative_config;
mod tokenize;
mod variables;
mod verify;

use std::backtrace::Backtrace;
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::process::ExitCode;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use clap::{Parser, Subcommand};
use tracing_appender::non_blocking::NonBlockingBuilder;
use variables::OptionError;
use vllm_apple_device::DeviceError;
use vllm_apple_engine::SubmitError;
use vllm_apple_model::LoadError;
use vllm_apple_model::hub::HubError;
use vllm_apple_verify::VerifyError;

use crate::generation::GenerationError;
use crate::http::ServeError;
use crate::settings::word;
use crate::text::{TextError, template_worker};

#[derive(Debug, Parser)]
#[command(name = "vllm-apple", version, about = "Serve language models as vLLM does, on Apple silicon and CPUs")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer an OpenAI-compatible HTTP API
    Serve(Box<serve::ServeArgs>),
    /// Continue one prompt, or each line of a file
    Generate(Box<generate::GenerateArgs>),
    /// Talk to the model in the terminal
    Chat(Box<chat::ChatArgs>),
    /// Measure the speed of a model on this machine
    Bench(Box<bench::BenchArgs>),
    /// Check every op on this machine's device against its reference
    Doctor(Box<doctor::DoctorArgs>),
    /// Examine a model on this machine's device: equivalence, invariance, limits, speed, stability
    Verify(Box<verify::VerifyArgs>),
    /// Write a checkpoint again with quantised weights, for this program and for vLLM
    Quantize(quantize::QuantizeArgs),
    /// Print the token ids of a text, and the pieces that they stand for
    Tokenize(tokenize::TokenizeArgs),
    /// Compile and render chat templates for the process that started this one
    #[command(hide = true)]
    TemplateWorker,
}

/// Why a command failed: one line for the terminal.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error("{0}")]
    Load(String),
    #[error(transparent)]
    Unpack(#[from] demo_model::UnpackError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Checkpoint(#[from] LoadError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot listen on {address}: {source}; choose another --host or --port")]
    Bind { address: String, source: io::Error },
    #[error("cannot read {path}: {source}")]
    Input { path: String, source: io::Error },
    #[error("cannot write {path}: {source}")]
    Output { path: String, source: io::Error },
    #[error(
        "the system gives this process no more threads: {0}; end other programs, or raise what its user or its container may have (`ulimit -u`, --pids-limit)"
    )]
    Threads(io::Error),
    #[error("give one of `prompt` and `prompt_token_ids`")]
    OnePrompt,
    #[error("{failed} of {total} lines failed")]
    Lines { failed: usize, total: usize },
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(transparent)]
    Generation(#[from] GenerationError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Op(#[from] vllm_apple_ops::Error),
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error("{failed} of {total} ops do not meet their tolerance on this device; please report this output")]
    Doctor { failed: usize, total: usize },
    #[error("all ops meet their tolerance, but not all is well on this device, see `problems` ({problems})")]
    DoctorProblems { problems: usize },
    #[error(transparent)]
    Examination(#[from] VerifyError),
    #[error("{flag} is for the section {section}, which --only leaves out")]
    Unread { flag: &'static str, section: &'static str },
    #[error(
        "MODEL is missing: write it before {flag}, which takes all values behind it, as in `vllm-apple serve {model} {flag} …`"
    )]
    SwallowedModel { flag: &'static str, model: String },
    #[error("nothing was examined: every line says why")]
    NothingExamined,
    #[error("{failed} of {total} lines fail")]
    Verify { failed: usize, total: usize },
    #[error("cannot write standard output: {0}")]
    Stdout(io::Error),
    #[error("cannot remove {path}, which was begun: {source}; remove it yourself")]
    Remains { path: String, source: io::Error },
    #[error("the system does not tell this process of signals: {0}; raise how many files it may open (`ulimit -n`)")]
    Signals(io::Error),
    #[error(
        "what waits for the network cannot be started: {0}; raise how many threads and files this process may have (`ulimit -u`, `ulimit -n`)"
    )]
    Runtime(io::Error),
    #[error(transparent)]
    LogLevel(#[from] log_level::LogLevelError),
    #[error("the line editor failed: {0}")]
    Editor(#[from] rustyline::error::ReadlineError),
}

impl CliError {
    /// Whether the device does not compute what the model needs: another may.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Checkpoint(error) if error.is_refusal())
    }
}

/// What commands log whose user waits for them: what is wrong, and how far they are with what takes long.
const FOR_USERS: &str = "warn,progress=info";

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let (Cli { command }, warnings) = foreign_flags::parse(&arguments).unwrap_or_else(|error| error.exit());
    warnings.iter().for_each(tell);
    file_limit::let_large_files_fail();
    let result = match command {
        Command::Serve(args) => with_runtime("info", serve::run(*args)),
        Command::Generate(args) => with_runtime(FOR_USERS, generate::run(*args)),
        Command::Chat(args) => with_runtime(FOR_USERS, chat::run(*args)),
        Command::Bench(args) => with_log(FOR_USERS, || bench::run(*args)),
        Command::Doctor(args) => with_log(FOR_USERS, || doctor::run(*args)),
        Command::Verify(args) => with_log("error,progress=info", || verify::run(*args)),
        Command::Quantize(args) => with_runtime(FOR_USERS, quantize::run(args)),
        Command::Tokenize(args) => with_log(FOR_USERS, || tokenize::run(args)),
        Command::TemplateWorker => template_worker::run()
            .map_err(|error| CliError::Load(format!("the process of chat templates failed: {error}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output wants no more of it.
        Err(CliError::Stdout(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            last_words(format!("error: {}", word(&error.to_string())));
            ExitCode::FAILURE
        }
    }
}

/// Tells the user something beside the output. Where nobody reads that, the work goes on.
fn tell(words: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{words}");
}

/// Writes why the program ends. Where nobody reads that, the program ends without having said it.
fn last_words(words: String) {
    let (says, said) = mpsc::channel();
    let write = move || {
        let _ = writeln!(io::stderr(), "{words}");
        let _ = says.send(());
    };
    if std::thread::Builder::new().spawn(write).is_ok() {
        let _ = said.recv_timeout(PATIENCE);
    }
}

/// How long a program that ends waits for somebody who reads its log.
const PATIENCE: Duration = Duration::from_secs(2);

/// Threads that a server takes, processes among them: the log's, the runtime's, those that load and compute on a small machine, the engine's, and what
/// renders chat templates.
const THREADS: usize = 9;

/// Makes sure that there can be as many at once: libraries panic without them, and the runtime's never ends then.
fn check_threads() -> Result<(), CliError> {
    let gate = Mutex::new(());
    let closed = gate.lock();
    std::thread::scope(|scope| {
        let wait = || drop(gate.lock());
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, wait).map(drop);
        let spawned = (0..THREADS).try_for_each(spawn);
        drop(closed);
        spawned.map_err(CliError::Threads)
    })
}

/// Runs a command with logging. The threads of the runtime only wait for the network; computing has its own.
fn with_runtime(log_level: &str, command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    with_log(log_level, || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(CliError::Runtime)?;
        let result = runtime.block_on(command);
        // A thread that still loads or tokenizes must not hold the process.
        runtime.shutdown_background();
        result
    })
}

/// Whether the environment has a terminal show colours (no-color.org).
fn takes_colours(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty()) && variable("TERM").is_none_or(|name| name != "dumb")
}

/// Lines that wait for a reader of the log; with more, lines are lost.
const LOG_LINES: usize = 4096;

/// Logs to stderr at the level of RUST_LOG, else vLLM's VLLM_LOGGING_LEVEL, else `level`, while `command` runs. A thread writes the lines:
/// a log that nobody reads, or that cannot be written, is in nobody's way.
fn with_log(level: &str, command: impl FnOnce() -> Result<(), CliError>) -> Result<(), CliError> {
    check_threads()?;
    let (filter, warning) = log_level::filter(level, args::variable)?;
    warning.iter().for_each(tell);
    let colours = io::stderr().is_terminal() && takes_colours(args::variable);
    let (writer, _flushed_at_the_end) =
        NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LOG_LINES).finish(Worded(io::stderr()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(colours)
        .with_target(false)
        .log_internal_errors(false)
        .init();
    // As a line of the log, which keeps nobody waiting: a thread that panics must get as far as to say so to those who wait for it.
    panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        tracing::error!("thread {name} {info}\n{}", Backtrace::capture());
    }));
    command()
}

/// Log lines with the settings that libraries name as this program's user writes them. Each line comes in one piece.
struct Worded<W>(W);

impl<W: Write> Write for Worded<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) => self.0.write_all(word(text).as_bytes())?,
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_or_a_terminal_without_colours_gets_none() {
        let takes = |name: &str, value: &str| takes_colours(|asked| (asked == name).then(|| value.to_owned()));
        assert!(takes("TERM", "xterm") && takes("NO_COLOR", ""));
        assert!(!takes("TERM", "dumb") && !takes("NO_COLOR", "1"));
    }

    #[test]
    fn log_lines_name_flags() {
        let mut out = Vec::new();
        let mut log = Worded(&mut out);
        log.write_all(b"WARN use a smaller `max_num_seqs`\n").unwrap();
        log.write_all(b"\xff").unwrap();
        assert_eq!(out, b"WARN use a smaller --max-num-seqs\n\xff");
    }
}

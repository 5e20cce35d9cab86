//! Conversations to prompts for a server: templates are compiled and rendered by worker processes, so that none can harm this
//! one. Knows how many workers there are, but neither Jinja nor HTTP.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::TextError;
use super::tekken::Piece;
use super::template_limits::{MAX_WORKERS, TIME, TemplateLimit};
use super::template_names::TemplateNames;
use super::template_process::{Lost, Process};
use super::template_protocol::{Answer, Ask, RenderAsk, Reply};
use super::template_source::{DEFAULT, JinjaSource, REQUEST, TOOL_USE, TemplateSource};
use super::tokenizer::{Source, Tokenizer};

/// A conversation as the JSON text that the request brought. It stays text here, because as a tree it is many times as large.
#[derive(Debug)]
pub struct ChatRequest {
    /// The list of messages.
    pub messages: Box<RawValue>,
    /// The list of tools that the model may call.
    pub tools: Option<Box<RawValue>>,
    /// The list of documents for retrieval-augmented generation.
    pub documents: Option<Box<RawValue>>,
    /// End the prompt with the beginning of an answer. Off with `continue_final_message`.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`: further variables such as `enable_thinking`.
    pub kwargs: BTreeMap<String, Box<RawValue>>,
    /// A template of the request's own.
    pub template: Option<String>,
}

impl ChatRequest {
    /// The usual request: an answer to `messages`.
    pub fn new(messages: &[Value]) -> Self {
        let messages = to_raw_value(messages).expect("JSON values are JSON");
        Self {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: BTreeMap::new(),
            template: None,
        }
    }
}

/// A prompt as a template wrote it.
#[derive(Debug)]
pub struct Rendered(Parts);

/// What a prompt consists of.
#[derive(Debug)]
enum Parts {
    Text(String),
    Pieces(Vec<Piece>),
}

impl Rendered {
    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        self.texts().map(str::len).sum()
    }

    /// About how many bytes its texts have when they are tokenized.
    pub fn normalized_len(&self, tokenizer: &Tokenizer) -> usize {
        self.texts().map(|text| tokenizer.normalized_len(text)).sum()
    }

    /// Its tokens.
    ///
    /// # Errors
    /// It must have more tokens than the tokenizer takes, or could take too much memory.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TextError> {
        match &self.0 {
            Parts::Text(text) => tokenizer.encode(text, false),
            Parts::Pieces(pieces) => tokenizer.encode_pieces(pieces),
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let (text, pieces) = match &self.0 {
            Parts::Text(text) => (Some(text.as_str()), [].as_slice()),
            Parts::Pieces(pieces) => (None, pieces.as_slice()),
        };
        text.into_iter().chain(pieces.iter().filter_map(Piece::text))
    }
}

/// The chat template of a checkpoint, rendered by worker processes.
#[derive(Debug)]
pub struct TemplateRenderer {
    source: Own,
    names: TemplateNames,
    pool: Pool,
}

/// How conversations become prompts that bring no template of their own.
#[derive(Debug)]
enum Own {
    Jinja(Arc<JinjaSource>),
    Mistral,
    Missing { dir: PathBuf },
}

impl TemplateRenderer {
    /// Takes the template that [`super::ChatTemplate::from_dir`] takes, and lets a worker compile it. `program` is the
    /// `vllm-apple` binary.
    ///
    /// # Errors
    /// The template cannot be read or compiled, exceeds a limit, or there can be no worker.
    pub fn start(
        program: PathBuf,
        dir: &Path,
        tokenizer: &Tokenizer,
        override_text: Option<&str>,
    ) -> Result<Self, TextError> {
        let pool = Pool { program, time: TIME, workers: Mutex::default(), freed: Condvar::new() };
        let source = match TemplateSource::find(dir, tokenizer, override_text)? {
            TemplateSource::Jinja(source) => {
                let source = Arc::new(source);
                pool.with_worker(|worker| worker.compile(&source, pool.time))?;
                Own::Jinja(source)
            }
            TemplateSource::Mistral => Own::Mistral,
            TemplateSource::Missing { dir } => Own::Missing { dir },
        };
        let mut renderer = Self { source, names: TemplateNames::default(), pool };
        renderer.names = renderer.text().map(TemplateNames::of).unwrap_or_default();
        Ok(renderer)
    }

    /// The text of the template that is rendered for requests with tools; `None` if it is no text.
    pub fn text(&self) -> Option<&str> {
        let Own::Jinja(source) = &self.source else { return None };
        let named =
            |name: &str| source.templates.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str());
        named(TOOL_USE).or_else(|| named(DEFAULT))
    }

    /// Whether prompts are in Mistral's own format.
    pub fn is_mistral(&self) -> bool {
        matches!(self.source, Own::Mistral)
    }

    /// Whether the model sees the tools of a request, which may bring a template of its own: one that never names them does not show them.
    pub fn shows_tools(&self, own: Option<&str>) -> bool {
        self.names(own).has_variable("tools") || own.is_none() && self.is_mistral()
    }

    /// What the template reads, the request's own one or the model's.
    pub fn names(&self, own: Option<&str>) -> Cow<'_, TemplateNames> {
        own.map_or(Cow::Borrowed(&self.names), |text| Cow::Owned(TemplateNames::of(text)))
    }

    /// The same with another limit of the time for compiling and for rendering.
    pub fn with_time_limit(mut self, time: Duration) -> Self {
        self.pool.time = time;
        self
    }

    /// The prompt's tokens. Blocks until they are there.
    ///
    /// # Errors
    /// The template refuses the conversation, fails or exceeds a limit, or there is no template.
    pub fn prompt(&self, tokenizer: &Tokenizer, request: &ChatRequest) -> Result<Vec<u32>, TextError> {
        self.write(tokenizer, request)?.encode(tokenizer)
    }

    /// The prompt before it is tokenized. Blocks until it is there.
    ///
    /// # Errors
    /// As [`prompt`](Self::prompt), and if it must have more tokens than the tokenizer takes.
    pub fn write(&self, tokenizer: &Tokenizer, request: &ChatRequest) -> Result<Rendered, TextError> {
        let rendered = Rendered(match (&self.source, &tokenizer.source) {
            (Own::Mistral, Source::Tekken(tekken)) if request.template.is_none() => {
                let frame = to_frame(&Ask::Mistral { version: tekken.version(), ask: ask(request) })?;
                Parts::Pieces(self.pool.with_worker(|worker| worker.pieces(Arc::clone(&frame), self.pool.time))?)
            }
            _ => Parts::Text(self.render(tokenizer, request)?),
        });
        tokenizer.check_lengths(|| rendered.texts())?;
        Ok(rendered)
    }

    /// The prompt's text. Blocks until it is there.
    ///
    /// # Errors
    /// As [`prompt`](Self::prompt); the format of a tekken.json has no text form.
    pub fn render(&self, tokenizer: &Tokenizer, request: &ChatRequest) -> Result<String, TextError> {
        let source = match (&request.template, &self.source) {
            (Some(text), _) => Arc::new(JinjaSource::single(text, tokenizer, REQUEST)),
            (None, Own::Jinja(source)) => Arc::clone(source),
            (None, Own::Missing { dir }) => return Err(TextError::NoChatTemplate { dir: dir.clone() }),
            (None, Own::Mistral) => {
                return Err(TextError::Template(
                    "a tekken.json model's prompt has no text form, only tokens".to_owned(),
                ));
            }
        };
        let frame = to_frame(&Ask::Render(ask(request)))?;
        self.pool.with_worker(|worker| {
            worker.compile(&source, self.pool.time)?;
            worker.render(Arc::clone(&frame), self.pool.time)
        })
    }
}

/// A request as the worker gets it.
fn ask(request: &ChatRequest) -> RenderAsk<'_> {
    RenderAsk {
        messages: &request.messages,
        tools: request.tools.as_deref(),
        documents: request.documents.as_deref(),
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message,
        kwargs: request.kwargs.iter().map(|(name, value)| (name.clone(), &**value)).collect(),
    }
}

fn to_frame(ask: &Ask) -> Result<Arc<Vec<u8>>, TextError> {
    Ok(serde_json::to_vec(ask).map_err(|error| TextError::TemplateProcess(error.to_string()))?.into())
}

/// A worker and the templates that it has compiled.
#[derive(Debug)]
struct Worker {
    process: Process,
    holds: Option<Arc<JinjaSource>>,
    /// Whether it must not be asked again.
    is_spent: bool,
}

/// Why a worker gave no result.
enum Failure {
    /// The question did not end the worker: another one may answer it.
    Killed,
    /// The answer is an error.
    Text(TextError),
}

impl Worker {
    /// Compiles templates, if they are not those that the worker has.
    fn compile(&mut self, source: &Arc<JinjaSource>, time: Duration) -> Result<(), Failure> {
        if self.holds.as_ref().is_some_and(|held| Arc::ptr_eq(held, source)) {
            return Ok(());
        }
        self.holds = None;
        let frame = to_frame(&Ask::Compile((**source).clone())).map_err(Failure::Text)?;
        match self.ask(frame, time)? {
            Reply::Compiled => self.holds = Some(Arc::clone(source)),
            Reply::Syntax(reason) => {
                let origin = source.origin.clone();
                return Err(Failure::Text(TextError::TemplateSyntax { origin, reason }));
            }
            reply => return Err(Failure::Text(self.error(reply))),
        }
        Ok(())
    }

    fn render(&mut self, frame: Arc<Vec<u8>>, time: Duration) -> Result<String, Failure> {
        match self.ask(frame, time)? {
            Reply::Rendered(text) => Ok(text),
            reply => Err(Failure::Text(self.error(reply))),
        }
    }

    fn pieces(&mut self, frame: Arc<Vec<u8>>, time: Duration) -> Result<Vec<Piece>, Failure> {
        match self.ask(frame, time)? {
            Reply::Pieces(pieces) => Ok(pieces),
            reply => Err(Failure::Text(self.error(reply))),
        }
    }

    fn ask(&mut self, frame: Arc<Vec<u8>>, time: Duration) -> Result<Reply, Failure> {
        match self.process.ask(frame, time) {
            Ok(Answer { reply, is_spent }) => {
                self.is_spent = is_spent;
                Ok(reply)
            }
            Err(lost) => {
                self.is_spent = true;
                Err(match lost {
                    Lost::Killed => Failure::Killed,
                    Lost::Ended(limit) => Failure::Text(TextError::TemplateLimit(limit)),
                })
            }
        }
    }

    /// The error that a reply stands for.
    fn error(&mut self, reply: Reply) -> TextError {
        match reply {
            Reply::Steps => TextError::TemplateLimit(TemplateLimit::Steps),
            Reply::Text => TextError::TemplateLimit(TemplateLimit::Text),
            Reply::Refused(reason) | Reply::Syntax(reason) => TextError::Template(reason),
            Reply::Compiled | Reply::Rendered(_) | Reply::Pieces(_) => {
                self.is_spent = true;
                TextError::TemplateProcess("it answers what nobody asked".to_owned())
            }
        }
    }
}

/// The workers of a server: started when needed, kept when idle.
#[derive(Debug)]
struct Pool {
    program: PathBuf,
    /// For one question.
    time: Duration,
    workers: Mutex<Workers>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Workers {
    idle: Vec<Worker>,
    busy: usize,
}

impl Pool {
    /// Does `work` with a worker of its own, waiting for one while all are busy. If the system kills it, a new one gets the work.
    fn with_worker<T>(&self, mut work: impl FnMut(&mut Worker) -> Result<T, Failure>) -> Result<T, TextError> {
        let mut place = self.place();
        for _ in 0..2 {
            let worker = match &mut place.worker {
                Some(kept) => kept,
                none => none.insert(self.new_worker()?),
            };
            match work(worker) {
                Err(Failure::Killed) => place.worker = None,
                Err(Failure::Text(error)) => return Err(error),
                Ok(result) => return Ok(result),
            }
        }
        Err(TextError::TemplateProcess("it ended before it answered, and so did another one".to_owned()))
    }

    fn new_worker(&self) -> Result<Worker, TextError> {
        let process = Process::start(&self.program)
            .map_err(|error| TextError::TemplateProcess(format!("{}: {error}", self.program.display())))?;
        Ok(Worker { process, holds: None, is_spent: false })
    }

    /// Waits until fewer than [`MAX_WORKERS`] are busy.
    fn place(&self) -> Place<'_> {
        let mut workers = self.lock();
        while workers.busy >= MAX_WORKERS {
            workers = self.freed.wait(workers).unwrap_or_else(PoisonError::into_inner);
        }
        workers.busy += 1;
        Place { pool: self, worker: workers.idle.pop() }
    }

    fn lock(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to keep one worker busy. Dropped, the worker is idle again, or gone if it is spent.
struct Place<'a> {
    pool: &'a Pool,
    worker: Option<Worker>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // A spent worker is reaped here, outside the lock.
        let worker = self.worker.take().filter(|worker| !worker.is_spent);
        let mut workers = self.pool.lock();
        workers.busy -= 1;
        workers.idle.extend(worker);
        drop(workers);
        self.pool.freed.notify_one();
    }
}

//! The engine on a thread of its own, and the channels to it. It knows no HTTP and no text.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use vllm_apple_executor::{Executor, ExecutorInfo};

use crate::admission::{Admission, SubmitError};
use crate::engine::Engine;
use crate::request::{EngineRequest, FinishReason, Request, RequestId, RequestOutput};
use crate::stats::EngineStats;

/// What the engine's thread is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Life {
    Serving,
    /// Finishing what it has.
    Draining,
    /// Ended as asked.
    Stopped,
    /// Ended abnormally, with the reason.
    Dead(String),
}

enum Command {
    Submit(Box<Submission>),
    Abort(RequestId),
    AbortAll,
    ResetPrefixCache(oneshot::Sender<bool>),
    /// Only wakes the thread: that it should end is in [`Life`].
    Shutdown,
}

struct Submission {
    request: Request,
    events: UnboundedSender<Event>,
    permit: OwnedSemaphorePermit,
}

/// An output and when things happened on the engine's thread.
struct Event {
    output: RequestOutput,
    scheduled: Option<Instant>,
    emitted: Instant,
}

/// A clonable way to the engine's thread. The thread ends when the engine is shut down, or when all handles and streams
/// are gone and the last request has finished.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    admission: Arc<Admission>,
    /// One permit per request in the engine, up to its capacity.
    permits: Arc<Semaphore>,
    life: Arc<watch::Sender<Life>>,
    stats: watch::Receiver<EngineStats>,
}

impl EngineHandle {
    /// Moves the engine to a new thread.
    ///
    /// # Panics
    /// If the operating system gives no thread.
    pub fn spawn<E: Executor + 'static>(engine: Engine<E>) -> Self {
        let (commands, receiver) = channel();
        let admission = engine.admission();
        let capacity = admission.capacity().min(Semaphore::MAX_PERMITS);
        let (stats_sender, stats) = watch::channel(engine.stats());
        let life = Arc::new(watch::Sender::new(Life::Serving));
        let worker_life = Arc::clone(&life);
        let outputs = Vec::with_capacity(engine.max_outputs());
        let worker = Worker { engine, outputs, streams: HashMap::new(), stats: stats_sender };
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || run(worker, &receiver, &worker_life))
            .expect("the operating system gives no thread for the engine");
        Self { commands, admission, permits: Arc::new(Semaphore::new(capacity)), life, stats }
    }

    /// The executor's limits.
    pub fn info(&self) -> &ExecutorInfo {
        &self.admission.info
    }

    /// Most requests in the engine, running and waiting: beyond it [`SubmitError::QueueFull`].
    pub fn capacity(&self) -> usize {
        self.admission.capacity()
    }

    /// Queues a request. It is checked on the calling thread; only a failing step can still end it with an error.
    ///
    /// # Errors
    /// If it is invalid, can never fit, or the engine is full, shutting down or dead.
    pub fn submit(&self, request: EngineRequest) -> Result<RequestStream, SubmitError> {
        self.check_serving()?;
        let request = self.admission.prepare(request)?;
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| self.admission.queue_full())?;
        // After all that may refuse it: whoever asks a full engine again and again costs little.
        self.admission.hash(&request);
        let (events, receiver) = unbounded_channel();
        let id = request.id;
        let stream = RequestStream {
            id,
            events: receiver,
            commands: self.commands.clone(),
            life: Arc::clone(&self.life),
            finished: false,
            times: RequestTimes { submitted: Instant::now(), scheduled: None, first_token: None, last_token: None },
        };
        let submission = Command::Submit(Box::new(Submission { request, events, permit }));
        if self.commands.send(submission).is_err() {
            return Err(self.check_serving().err().unwrap_or(SubmitError::ShuttingDown));
        }
        Ok(stream)
    }

    /// Whether a request could be queued, if there were room for it.
    ///
    /// # Errors
    /// If it is invalid or can never fit.
    pub fn check(&self, request: EngineRequest) -> Result<(), SubmitError> {
        self.admission.prepare(request).map(drop)
    }

    /// Whether requests are taken now.
    ///
    /// # Errors
    /// Why every request is refused: the engine finishes what it has, or has ended.
    pub fn check_serving(&self) -> Result<(), SubmitError> {
        match &*self.life.borrow() {
            Life::Serving => Ok(()),
            Life::Draining | Life::Stopped => Err(SubmitError::ShuttingDown),
            Life::Dead(reason) => Err(SubmitError::EngineDead(reason.clone())),
        }
    }

    /// The engine's state after its last step.
    pub fn stats(&self) -> EngineStats {
        *self.stats.borrow()
    }

    /// Requests in the engine now, running and waiting.
    pub fn num_requests(&self) -> usize {
        self.capacity().min(Semaphore::MAX_PERMITS) - self.permits.available_permits()
    }

    /// Empties the prefix cache between two steps, if no request runs then. Whether it did; an engine that has ended has none.
    pub async fn reset_prefix_cache(&self) -> bool {
        let (done, answer) = oneshot::channel();
        self.commands.send(Command::ResetPrefixCache(done)).is_ok() && answer.await.unwrap_or(false)
    }

    /// Whether the engine can serve or finish requests.
    ///
    /// # Errors
    /// Why the engine ended.
    pub fn health(&self) -> Result<(), String> {
        match &*self.life.borrow() {
            Life::Serving | Life::Draining => Ok(()),
            Life::Stopped => Err("the engine was shut down".to_owned()),
            Life::Dead(reason) => Err(reason.clone()),
        }
    }

    /// Takes no more requests, finishes those there are, then ends the engine's thread. Does not wait for it.
    pub fn shutdown(&self) {
        self.life.send_if_modified(|life| {
            let serving = *life == Life::Serving;
            if serving {
                *life = Life::Draining;
            }
            serving
        });
        // Fails only if the thread has ended, which is what is asked for.
        let _ = self.commands.send(Command::Shutdown);
    }

    /// As [`EngineHandle::shutdown`], and waits until the engine's thread has nothing left to do.
    pub async fn drain(&self) {
        self.shutdown();
        let ended = |life: &Life| matches!(life, Life::Stopped | Life::Dead(_));
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.life.subscribe().wait_for(ended).await;
    }

    /// Ends all requests now with [`FinishReason::Abort`], for a shutdown that cannot wait longer.
    pub fn abort_all(&self) {
        // Fails only if the thread has ended, and then there are no requests.
        let _ = self.commands.send(Command::AbortAll);
    }

    /// Waits until the engine ends abnormally and returns why. Never returns after an orderly end.
    pub async fn died(&self) -> String {
        let mut life = self.life.subscribe();
        // The sender lives as long as `self`, so waiting cannot fail.
        if let Ok(life) = life.wait_for(|life| matches!(life, Life::Dead(_))).await
            && let Life::Dead(reason) = &*life
        {
            return reason.clone();
        }
        std::future::pending().await
    }
}

/// When a request passed each station. The times of outputs are taken on the engine's thread, so a slow reader does not
/// lengthen them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTimes {
    /// Submission.
    pub submitted: Instant,
    /// Begin of the first step with this request.
    pub scheduled: Option<Instant>,
    /// End of the step that brought the first output token.
    pub first_token: Option<Instant>,
    /// End of the step that brought the latest output that was received.
    pub last_token: Option<Instant>,
}

/// The outputs of one request. Dropping it before the end aborts the request.
#[derive(Debug)]
pub struct RequestStream {
    id: RequestId,
    events: UnboundedReceiver<Event>,
    commands: Sender<Command>,
    life: Arc<watch::Sender<Life>>,
    finished: bool,
    times: RequestTimes,
}

impl RequestStream {
    /// The request's id.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The times as of the last output received.
    pub fn times(&self) -> RequestTimes {
        self.times
    }

    /// The next output; the one that says why the request ended is the last, then `None`.
    pub async fn recv(&mut self) -> Option<RequestOutput> {
        if self.finished {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.take(event))
    }

    /// As [`RequestStream::recv`], for threads outside an async runtime.
    ///
    /// # Panics
    /// If called inside an async runtime.
    pub fn blocking_recv(&mut self) -> Option<RequestOutput> {
        if self.finished {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.take(event))
    }

    /// Ends the request now: its blocks are freed, and nothing more is received. Dropping the stream does the same.
    pub fn abort(&mut self) {
        if !self.finished {
            self.finished = true;
            // Fails only if the thread has ended, and then there is nothing to abort.
            let _ = self.commands.send(Command::Abort(self.id));
        }
    }

    fn take(&mut self, event: Option<Event>) -> RequestOutput {
        let Some(Event { output, scheduled, emitted }) = event else {
            // The engine's thread is gone and with it the other end of the channel.
            self.finished = true;
            let reason = match &*self.life.borrow() {
                Life::Dead(reason) => reason.clone(),
                _ => "the engine was shut down".to_owned(),
            };
            return RequestOutput::ended(self.id, 0, FinishReason::Error(reason));
        };
        self.finished = output.finish.is_some();
        self.times.scheduled = scheduled;
        if output.sample.is_some() {
            self.times.first_token.get_or_insert(emitted);
            self.times.last_token = Some(emitted);
        }
        output
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        self.abort();
    }
}

/// The thread's side of a stream.
struct StreamEnd {
    events: UnboundedSender<Event>,
    scheduled: Option<Instant>,
    /// Returned when the request leaves the engine.
    permit: Option<OwnedSemaphorePermit>,
}

struct Worker<E: Executor> {
    engine: Engine<E>,
    /// Empty between steps.
    outputs: Vec<RequestOutput>,
    streams: HashMap<RequestId, StreamEnd>,
    stats: watch::Sender<EngineStats>,
}

/// The thread: serves until told to stop, and says how it ended before the streams close.
fn run<E: Executor>(mut worker: Worker<E>, commands: &Receiver<Command>, life: &watch::Sender<Life>) {
    let end = catch_unwind(AssertUnwindSafe(|| worker.serve(commands, life)));
    let end = end.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Life::Dead(format!("the engine panicked: {}", text.as_deref().unwrap_or("without a message")))
    });
    if let Life::Dead(reason) = &end {
        tracing::error!("the engine's thread ends: {reason}");
    }
    life.send_replace(end);
}

impl<E: Executor> Worker<E> {
    fn serve(&mut self, commands: &Receiver<Command>, life: &watch::Sender<Life>) -> Life {
        loop {
            while let Ok(command) = commands.try_recv() {
                self.obey(command);
            }
            if self.engine.has_unfinished_requests() {
                if let Err(reason) = self.step() {
                    return Life::Dead(reason);
                }
                continue;
            }
            self.stats.send_replace(self.engine.stats());
            if *life.borrow() == Life::Draining {
                return Life::Stopped;
            }
            match commands.recv() {
                Ok(command) => self.obey(command),
                Err(_) => return Life::Stopped,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => {
                let Submission { request, events, permit } = *submission;
                self.streams.insert(request.id, StreamEnd { events, scheduled: None, permit: Some(permit) });
                self.engine.add(request);
            }
            Command::Abort(id) => {
                // A request that has finished meanwhile is unknown here, and that is fine.
                self.engine.abort(id);
                self.streams.remove(&id);
            }
            Command::AbortAll => {
                let outputs = self.engine.abort_all();
                self.deliver(outputs.into_iter());
            }
            Command::ResetPrefixCache(done) => {
                // Fails only if nobody waits any more.
                let _ = done.send(self.engine.reset_prefix_cache());
            }
            Command::Shutdown => (),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let started = Instant::now();
        let mut outputs = std::mem::take(&mut self.outputs);
        self.engine.step(&mut outputs).map_err(|error| error.reason)?;
        for id in self.engine.newly_scheduled() {
            if let Some(stream) = self.streams.get_mut(id) {
                stream.scheduled.get_or_insert(started);
            }
        }
        self.stats.send_replace(self.engine.stats());
        self.deliver(outputs.drain(..));
        self.outputs = outputs;
        Ok(())
    }

    fn deliver(&mut self, outputs: impl Iterator<Item = RequestOutput>) {
        let emitted = Instant::now();
        for output in outputs {
            let id = output.id;
            let is_last = output.finish.is_some();
            let Some(StreamEnd { events, scheduled, permit }) = self.streams.get_mut(&id) else { continue };
            if is_last {
                // Before the reader knows: it may submit its next request at once.
                *permit = None;
            }
            // Fails only if the reader has dropped its stream; its abort is on the way.
            let _ = events.send(Event { output, scheduled: *scheduled, emitted });
            if is_last {
                self.streams.remove(&id);
            }
        }
    }
}

//! The engine on its thread: streams, dropped readers, shutdown, death, the bound of the queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use vllm_apple_engine::fake::{FakeExecutor, Fault, expected_output};
use vllm_apple_engine::{Engine, EngineConfig, EngineHandle, EngineRequest, FinishReason, RequestStream, SubmitError};
use vllm_apple_executor::{Batch, Executor, ExecutorError, ExecutorInfo, RowResult, SamplingRow};

use crate::{Got, engine, fake, greedy, prompt, small_info};

/// A hang is a failure, not a wait; far above what any of these tests takes.
const HANG: Duration = Duration::from_secs(60);

async fn read(stream: &mut RequestStream) -> Got {
    let mut got = Got::default();
    while let Some(output) = tokio::time::timeout(HANG, stream.recv()).await.expect("the stream hangs") {
        got.add(output);
    }
    got
}

/// Waits until the engine's thread has reached a state.
async fn until(reached: impl Fn() -> bool) {
    let poll = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HANG, poll).await.expect("the engine does not get there");
}

/// A fake whose steps wait for a message, if there is a gate, and that says when it is dropped, with the engine's thread.
struct Watched {
    fake: FakeExecutor,
    gate: Option<Receiver<()>>,
    dropped: Arc<AtomicBool>,
}

/// An engine that runs one step for each message. Steps at closed gates make the tests independent of time.
fn gated(fake: FakeExecutor, max_waiting: usize) -> (EngineHandle, Sender<()>) {
    let (gate, steps) = channel();
    let watched = Watched { fake, gate: Some(steps), dropped: Arc::default() };
    let config = EngineConfig { max_waiting, ..EngineConfig::default() };
    (EngineHandle::spawn(Engine::new(watched, config).unwrap()), gate)
}

fn allow(gate: &Sender<()>, num_steps: usize) {
    for _ in 0..num_steps {
        // Fails only if the engine has ended.
        let _ = gate.send(());
    }
}

impl Executor for Watched {
    fn info(&self) -> &ExecutorInfo {
        self.fake.info()
    }

    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        if let Some(gate) = &self.gate {
            gate.recv().map_err(|error| ExecutorError::Fatal(error.to_string()))?;
        }
        self.fake.forward(batch)
    }

    fn sample(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        self.fake.sample(rows, out)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn concurrent_streams_get_their_own_tokens_and_times() {
    let handle = EngineHandle::spawn(engine(&small_info(), &[]));
    let requests: Vec<_> = (0..12).map(|i| greedy(prompt(i, 3 + i), 1 + i)).collect();
    let streams: Vec<_> = requests.iter().map(|request| handle.submit(request.clone()).unwrap()).collect();
    for (mut stream, request) in streams.into_iter().zip(&requests) {
        assert_eq!(read(&mut stream).await.done(), expected_output(handle.info(), request));
        assert_eq!(stream.recv().await, None);
        let times = stream.times();
        let (scheduled, first) = (times.scheduled.unwrap(), times.first_token.unwrap());
        assert!(times.submitted <= scheduled && scheduled <= first && first <= times.last_token.unwrap());
    }
    let stats = handle.stats();
    assert_eq!((stats.num_running, stats.num_waiting, stats.num_used_blocks), (0, 0, 0));
    assert_eq!(stats.generation_tokens, (1..=12).sum::<u64>());
}

#[tokio::test]
async fn the_time_of_the_first_token_stays_that_of_the_first() {
    let (handle, gate) = gated(fake(&small_info(), &[]), 4);
    let mut stream = handle.submit(greedy(prompt(0, 5), 3)).unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        allow(&gate, 1);
        tokio::time::timeout(HANG, stream.recv()).await.expect("the stream hangs").unwrap();
        seen.push(stream.times());
    }
    assert!(seen.iter().all(|times| times.first_token == seen[0].first_token && times.first_token.is_some()));
    assert_eq!(seen[0].first_token, seen[0].last_token);
    assert!(seen[0].last_token < seen[1].last_token && seen[1].last_token < seen[2].last_token);
}

/// Whoever is woken by a request's last output finds its place free: here, on the engine's own thread, in the very moment.
#[test]
fn a_place_is_free_before_the_reader_knows() {
    struct Submits {
        handle: EngineHandle,
        result: Mutex<Option<Result<RequestStream, SubmitError>>>,
    }
    impl Wake for Submits {
        fn wake(self: Arc<Self>) {
            let submitted = self.handle.submit(greedy([1], 1));
            self.result.lock().unwrap().get_or_insert(submitted);
        }
    }
    let info = ExecutorInfo { max_num_seqs: 1, ..small_info() };
    let (handle, gate) = gated(fake(&info, &[]), 0);
    let mut stream = handle.submit(greedy(prompt(0, 5), 1)).unwrap();
    let submits = Arc::new(Submits { handle: handle.clone(), result: Mutex::default() });
    let waker = Waker::from(Arc::clone(&submits));
    let mut last = Box::pin(stream.recv());
    assert!(last.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    allow(&gate, 2);
    let started = Instant::now();
    while submits.result.lock().unwrap().is_none() {
        assert!(started.elapsed() < HANG, "the reader is not woken");
        std::thread::yield_now();
    }
    let again = submits.result.lock().unwrap().take();
    assert!(again.unwrap().is_ok());
}

#[test]
fn a_stream_can_be_read_without_a_runtime() {
    let handle = EngineHandle::spawn(engine(&small_info(), &[]));
    let mut stream = handle.submit(greedy(prompt(0, 5), 4)).unwrap();
    let mut got = Got::default();
    while let Some(output) = stream.blocking_recv() {
        got.add(output);
    }
    assert_eq!(got.done(), expected_output(handle.info(), &greedy(prompt(0, 5), 4)));
}

#[tokio::test]
async fn two_hundred_dropped_streams_leave_no_block_and_no_place_taken() {
    let config = EngineConfig { max_waiting: 4, ..EngineConfig::default() };
    let handle = EngineHandle::spawn(Engine::new(fake(&small_info(), &[]), config).unwrap());
    for i in 0..200 {
        let mut stream = submit_when_free(&handle, greedy(prompt(i, 10), 50)).await;
        if i % 3 > 0 {
            stream.recv().await.unwrap();
        }
    }
    let mut all_places = Vec::new();
    for i in 0..8 {
        all_places.push(submit_when_free(&handle, greedy([i], 50)).await);
    }
    for stream in &mut all_places {
        assert_eq!(read(stream).await.finish, Some(FinishReason::Length));
    }
    assert_eq!((handle.stats().num_running, handle.stats().num_used_blocks), (0, 0));
}

/// Submits as soon as there is a place: that of a dropped stream is free once the engine's thread has heard of it.
async fn submit_when_free(handle: &EngineHandle, request: EngineRequest) -> RequestStream {
    let poll = async {
        loop {
            match handle.submit(request.clone()) {
                Ok(stream) => return stream,
                Err(error) => assert!(matches!(error, SubmitError::QueueFull { .. }), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HANG, poll).await.expect("places are lost")
}

#[tokio::test]
async fn a_dropped_stream_ends_its_request_before_the_next_step_but_one() {
    let (handle, gate) = gated(fake(&small_info(), &[]), 10);
    let mut stream = handle.submit(greedy(prompt(0, 10), 50)).unwrap();
    allow(&gate, 1);
    stream.recv().await.unwrap();
    drop(stream);
    // The next step may have begun before the abort came; the one after it may not, and would wait at the gate for ever.
    allow(&gate, 1);
    until(|| handle.stats().num_running == 0).await;
    assert_eq!(handle.stats().num_used_blocks, 0);
    assert!(handle.stats().generation_tokens <= 2);
}

#[tokio::test]
async fn a_preempted_request_keeps_the_time_of_its_start() {
    let (handle, gate) = gated(fake(&ExecutorInfo { num_blocks: 9, max_model_len: 24, ..small_info() }, &[]), 10);
    let _old = handle.submit(greedy(prompt(0, 8), 15)).unwrap();
    let mut young = handle.submit(greedy(prompt(20, 8), 15)).unwrap();
    allow(&gate, 50);
    young.recv().await.unwrap();
    let started = young.times().scheduled;
    while young.recv().await.is_some() {
        assert_eq!(young.times().scheduled, started);
    }
    assert!(handle.stats().num_preemptions > 0);
}

#[tokio::test]
async fn a_full_engine_refuses_and_a_finished_request_makes_room() {
    let (handle, gate) = gated(fake(&ExecutorInfo { max_num_seqs: 1, ..small_info() }, &[]), 1);
    let mut running = handle.submit(greedy([1], 3)).unwrap();
    let mut waiting = handle.submit(greedy([2], 1)).unwrap();
    assert_eq!(handle.capacity(), 2);
    let refused = handle.submit(greedy([3], 1)).unwrap_err();
    assert_eq!(refused, SubmitError::QueueFull { max_num_seqs: 1, max_waiting: 1 });
    allow(&gate, 3);
    assert_eq!(read(&mut running).await.finish, Some(FinishReason::Length));
    let mut third = handle.submit(greedy([3], 1)).unwrap();
    allow(&gate, 2);
    assert_eq!(read(&mut waiting).await.finish, Some(FinishReason::Length));
    assert_eq!(read(&mut third).await.finish, Some(FinishReason::Length));
}

#[tokio::test]
async fn an_invalid_request_is_refused_at_once_and_takes_no_place() {
    let (handle, _gate) = gated(fake(&ExecutorInfo { max_num_seqs: 1, ..small_info() }, &[]), 0);
    assert_eq!(handle.submit(greedy([], 1)).unwrap_err(), SubmitError::EmptyPrompt);
    assert!(matches!(handle.submit(greedy([50], 1)), Err(SubmitError::TokenOutOfVocab { index: 0, token: 50, .. })));
    assert!(handle.submit(greedy([1], 1)).is_ok());
}

#[tokio::test]
async fn a_failed_step_ends_its_streams_and_the_engine_goes_on() {
    let handle = EngineHandle::spawn(engine(&small_info(), &[(1, Fault::Forward)]));
    let mut failed = handle.submit(greedy(prompt(0, 4), 5)).unwrap();
    assert!(matches!(read(&mut failed).await.finish, Some(FinishReason::Error(_))));
    assert_eq!(handle.health(), Ok(()));
    let request = greedy(prompt(0, 4), 5);
    let mut stream = handle.submit(request.clone()).unwrap();
    assert_eq!(read(&mut stream).await.done(), expected_output(handle.info(), &request));
}

#[tokio::test]
async fn drain_finishes_what_runs_and_refuses_what_comes() {
    let (handle, gate) = gated(fake(&small_info(), &[]), 10);
    let request = greedy(prompt(0, 4), 5);
    let mut stream = handle.submit(request.clone()).unwrap();
    handle.shutdown();
    assert_eq!(handle.submit(request.clone()).unwrap_err(), SubmitError::ShuttingDown);
    assert_eq!(handle.health(), Ok(()), "it still serves what it has");
    assert_eq!(handle.check_serving(), Err(SubmitError::ShuttingDown), "and takes no more");
    let mut drain = Box::pin(handle.drain());
    let early = tokio::time::timeout(Duration::from_millis(10), drain.as_mut()).await;
    assert!(early.is_err(), "it waits for what runs");
    allow(&gate, 5);
    tokio::time::timeout(HANG, drain).await.expect("drain hangs");
    assert_eq!(read(&mut stream).await.done(), expected_output(handle.info(), &request));
    assert_eq!(handle.submit(request).unwrap_err(), SubmitError::ShuttingDown);
    assert!(handle.health().is_err());
    tokio::time::timeout(HANG, handle.drain()).await.expect("draining twice hangs");
}

#[tokio::test]
async fn abort_all_cuts_a_drain_short() {
    let (handle, gate) = gated(fake(&small_info(), &[]), 10);
    let mut stream = handle.submit(greedy(prompt(0, 4), 50)).unwrap();
    allow(&gate, 1);
    stream.recv().await.unwrap();
    handle.shutdown();
    handle.abort_all();
    allow(&gate, 1);
    tokio::time::timeout(HANG, handle.drain()).await.expect("drain hangs");
    assert_eq!(read(&mut stream).await.finish, Some(FinishReason::Abort));
    assert_eq!(handle.stats().num_used_blocks, 0);
}

#[tokio::test]
async fn death_reaches_every_stream_and_everyone_who_asks() {
    for (fault, reason) in [(Fault::Fatal, "fake fatal fault in step 2"), (Fault::Panic, "fake panic in step 2")] {
        let info = ExecutorInfo { max_num_seqs: 1, ..small_info() };
        let (handle, gate) = gated(fake(&info, &[(2, fault)]), 1);
        let mut running = handle.submit(greedy([1], 10)).unwrap();
        let mut waiting = handle.submit(greedy([2], 10)).unwrap();
        allow(&gate, 3);
        let died = tokio::time::timeout(HANG, handle.died()).await.expect("nobody says that it died");
        assert!(died.contains(reason), "{died}");
        for stream in [&mut running, &mut waiting] {
            let finish = read(stream).await.finish;
            assert!(matches!(&finish, Some(FinishReason::Error(text)) if text.contains(reason)), "{finish:?}");
        }
        assert!(handle.health().unwrap_err().contains(reason));
        assert!(matches!(handle.submit(greedy([1], 1)), Err(SubmitError::EngineDead(text)) if text.contains(reason)));
        tokio::time::timeout(HANG, handle.drain()).await.expect("a dead engine has nothing to drain");
    }
}

#[tokio::test]
async fn the_thread_ends_with_its_last_handle_and_stream() {
    let dropped = Arc::new(AtomicBool::new(false));
    let watched = Watched { fake: fake(&small_info(), &[]), gate: None, dropped: Arc::clone(&dropped) };
    let handle = EngineHandle::spawn(Engine::new(watched, EngineConfig::default()).unwrap());
    let request = greedy(prompt(0, 4), 9);
    let mut stream = handle.submit(request.clone()).unwrap();
    drop(handle);
    assert_eq!(read(&mut stream).await.done(), expected_output(&small_info(), &request));
    assert!(!dropped.load(Ordering::SeqCst), "the stream still holds the thread");
    drop(stream);
    until(|| dropped.load(Ordering::SeqCst)).await;
}

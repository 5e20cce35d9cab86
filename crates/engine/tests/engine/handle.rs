//! The engine on its thread: streams, dropped readers, shutdown, death, the bound of the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vllm_apple_engine::fake::{FakeConfig, FakeExecutor, Fault, expected_output};
use vllm_apple_engine::{Engine, EngineConfig, EngineHandle, FinishReason, RequestStream, SubmitError};
use vllm_apple_model::{Batch, Executor, ExecutorError, ExecutorInfo, Sample, SamplingRow};

use crate::{Got, engine, greedy, prompt, small_info};

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

/// Steps slow enough that a request of 50 tokens is still running when the test looks at it.
fn slow_handle(info: ExecutorInfo, max_waiting: usize) -> EngineHandle {
    let fake = FakeConfig { info, step_time: Duration::from_millis(20), ..FakeConfig::default() };
    let config = EngineConfig { max_waiting, ..EngineConfig::default() };
    EngineHandle::spawn(Engine::new(FakeExecutor::new(fake), config).unwrap())
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
    let info = small_info();
    let config = EngineConfig { max_waiting: 4, ..EngineConfig::default() };
    let fake = FakeConfig { info, step_time: Duration::from_micros(200), ..FakeConfig::default() };
    let handle = EngineHandle::spawn(Engine::new(FakeExecutor::new(fake), config).unwrap());
    for i in 0..200 {
        until(|| handle.stats().num_waiting == 0).await;
        let submitted = handle.submit(greedy(prompt(i, 10), 50));
        let Ok(mut stream) = submitted else {
            until(|| handle.submit(greedy([1], 1)).is_ok()).await;
            continue;
        };
        if i % 3 > 0 {
            stream.recv().await.unwrap();
        }
    }
    until(|| handle.stats().num_running == 0 && handle.stats().num_waiting == 0).await;
    assert_eq!(handle.stats().num_used_blocks, 0);
    let all: Vec<_> = (0..8).map(|i| handle.submit(greedy([i], 1)).unwrap()).collect();
    for mut stream in all {
        assert_eq!(read(&mut stream).await.finish, Some(FinishReason::Length));
    }
}

#[tokio::test]
async fn a_full_engine_refuses_and_a_finished_request_makes_room_before_its_reader_knows() {
    let handle = slow_handle(ExecutorInfo { max_num_seqs: 1, ..small_info() }, 1);
    let mut running = handle.submit(greedy([1], 3)).unwrap();
    let mut waiting = handle.submit(greedy([2], 1)).unwrap();
    let refused = handle.submit(greedy([3], 1)).unwrap_err();
    assert_eq!(refused, SubmitError::QueueFull { max_num_seqs: 1, max_waiting: 1 });
    assert_eq!(read(&mut running).await.finish, Some(FinishReason::Length));
    let mut third = handle.submit(greedy([3], 1)).unwrap();
    assert_eq!(read(&mut waiting).await.finish, Some(FinishReason::Length));
    assert_eq!(read(&mut third).await.finish, Some(FinishReason::Length));
}

#[tokio::test]
async fn an_invalid_request_is_refused_at_once_and_takes_no_place() {
    let handle = slow_handle(ExecutorInfo { max_num_seqs: 1, ..small_info() }, 0);
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
    let handle = slow_handle(small_info(), 10);
    let request = greedy(prompt(0, 4), 5);
    let mut stream = handle.submit(request.clone()).unwrap();
    handle.shutdown();
    assert_eq!(handle.submit(request.clone()).unwrap_err(), SubmitError::ShuttingDown);
    assert_eq!(handle.health(), Ok(()), "it still serves what it has");
    tokio::time::timeout(HANG, handle.drain()).await.expect("drain hangs");
    assert_eq!(read(&mut stream).await.done(), expected_output(handle.info(), &request));
    assert_eq!(handle.submit(request).unwrap_err(), SubmitError::ShuttingDown);
    assert!(handle.health().is_err());
    tokio::time::timeout(HANG, handle.drain()).await.expect("draining twice hangs");
}

#[tokio::test]
async fn abort_all_cuts_a_drain_short() {
    let handle = slow_handle(small_info(), 10);
    let mut stream = handle.submit(greedy(prompt(0, 4), 50)).unwrap();
    stream.recv().await.unwrap();
    handle.shutdown();
    handle.abort_all();
    tokio::time::timeout(HANG, handle.drain()).await.expect("drain hangs");
    assert_eq!(read(&mut stream).await.finish, Some(FinishReason::Abort));
    assert_eq!(handle.stats().num_used_blocks, 0);
}

#[tokio::test]
async fn death_reaches_every_stream_and_everyone_who_asks() {
    for (fault, reason) in [(Fault::Fatal, "fake fatal fault in step 2"), (Fault::Panic, "fake panic in step 2")] {
        let info = ExecutorInfo { max_num_seqs: 1, ..small_info() };
        let handle = EngineHandle::spawn(engine(&info, &[(2, fault)]));
        let mut running = handle.submit(greedy([1], 10)).unwrap();
        let mut waiting = handle.submit(greedy([2], 10)).unwrap();
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

/// Says when it is dropped, and with it the engine's thread.
struct Mortal {
    fake: FakeExecutor,
    dropped: Arc<AtomicBool>,
}

impl Executor for Mortal {
    fn info(&self) -> &ExecutorInfo {
        self.fake.info()
    }

    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        self.fake.forward(batch)
    }

    fn sample(&mut self, rows: &[SamplingRow<'_>]) -> Result<Vec<Sample>, ExecutorError> {
        self.fake.sample(rows)
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_thread_ends_with_its_last_handle_and_stream() {
    let dropped = Arc::new(AtomicBool::new(false));
    let fake = FakeExecutor::new(FakeConfig { info: small_info(), ..FakeConfig::default() });
    let mortal = Mortal { fake, dropped: Arc::clone(&dropped) };
    let handle = EngineHandle::spawn(Engine::new(mortal, EngineConfig::default()).unwrap());
    let request = greedy(prompt(0, 4), 9);
    let mut stream = handle.submit(request.clone()).unwrap();
    drop(handle);
    assert_eq!(read(&mut stream).await.done(), expected_output(&small_info(), &request));
    assert!(!dropped.load(Ordering::SeqCst), "the stream still holds the thread");
    drop(stream);
    until(|| dropped.load(Ordering::SeqCst)).await;
}

//! Requests whose output is held to a grammar: masks are computed beside the step, and nothing else changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use vllm_apple_engine::fake::FakeExecutor;
use vllm_apple_engine::{Engine, EngineRequest, FinishReason, Grammar, GrammarError, Matcher};
use vllm_apple_executor::{ExecutorInfo, SamplingParams};

use crate::{check, engine, greedy, outputs, prompt, run, small_info};

const END: u32 = 49;

/// The `i`-th token is one of `10 * i`, …, `10 * i + 9`, for as many tokens as `num`; then the end.
#[derive(Debug, Clone)]
struct Tens {
    num: u32,
    /// How long a mask takes.
    time: Duration,
    /// The token after which nothing is known any more, and why.
    fails_at: Option<(u32, GrammarError)>,
}

struct Answer {
    tens: Tens,
    taken: u32,
}

impl Grammar for Tens {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(Answer { tens: self.clone(), taken: 0 })
    }
}

impl Matcher for Answer {
    fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        assert_eq!(token / 10, self.taken, "the engine took a token that the mask forbids");
        self.taken += 1;
        match &self.tens.fails_at {
            Some((at, error)) if *at == self.taken => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        std::thread::sleep(self.tens.time);
        assert!(mask.iter().all(|&word| word == 0));
        let first = 10 * self.taken;
        let tokens = if self.taken < self.tens.num { first..first + 10 } else { END..END + 1 };
        tokens.for_each(|token| mask[token as usize / 32] |= 1 << (token % 32));
        Ok(())
    }
}

const FAST: Tens = Tens { num: 3, time: Duration::ZERO, fails_at: None };

fn held(start: u32, tens: &Tens, change: fn(&mut SamplingParams)) -> EngineRequest {
    let mut request = greedy(prompt(start, 9), 20);
    request.eos_token_ids = Arc::from([END]);
    request.grammar = Some(Arc::new(tens.clone()));
    change(&mut request.params);
    request
}

fn tokens_of(engine: &mut Engine<FakeExecutor>, requests: &[EngineRequest]) -> Vec<(Vec<u32>, FinishReason)> {
    let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let got = run(engine);
    ids.iter().map(|id| got[id].done()).collect()
}

#[test]
fn an_output_is_one_of_the_grammars_however_long_masks_take() {
    let slow = Tens { time: Duration::from_millis(3), ..FAST };
    let requests = |tens: &Tens| {
        let mut requests: Vec<_> = (0..6).map(|i| held(i * 7, tens, |_| ())).collect();
        requests.push(greedy(prompt(3, 20), 9));
        requests.push(held(5, tens, |params| params.temperature = 1.5));
        requests
    };
    let fast = tokens_of(&mut engine(&small_info(), &[]), &requests(&FAST));
    for (tokens, finish) in fast.iter().take(6).chain(&fast[7..]) {
        let tens: Vec<_> = tokens[..3].iter().map(|token| token / 10).collect();
        assert_eq!((tens, &tokens[3..], finish), (vec![0, 1, 2], &[END][..], &FinishReason::Stop { token: END }));
    }
    assert_eq!(tokens_of(&mut engine(&small_info(), &[]), &requests(&slow)), fast);
    // Alone, and where requests are preempted all the time.
    let alone =
        requests(&slow).into_iter().map(|request| tokens_of(&mut engine(&small_info(), &[]), &[request]).remove(0));
    let same_seeds = |all: &[(Vec<u32>, FinishReason)]| all[..7].to_vec();
    assert_eq!(same_seeds(&alone.collect::<Vec<_>>()), same_seeds(&fast));
    let tight = ExecutorInfo { num_blocks: 8, ..small_info() };
    let mut preempting = engine(&tight, &[]);
    assert_eq!(same_seeds(&tokens_of(&mut preempting, &requests(&slow))), same_seeds(&fast));
    assert!(preempting.stats().num_preemptions > 0);
}

#[test]
fn ends_are_the_grammars() {
    let one = |request| tokens_of(&mut engine(&small_info(), &[]), &[request]).remove(0);
    // More than it allows cannot be had.
    assert_eq!(one(held(1, &FAST, |params| params.ignore_eos = true)).1, FinishReason::Stop { token: END });
    let (tokens, finish) = one(held(1, &FAST, |params| params.max_tokens = Some(2)));
    assert_eq!((tokens.len(), finish), (2, FinishReason::Length));
    let FinishReason::Invalid(reason) = one(held(1, &FAST, |params| params.min_tokens = 8)).1 else { panic!() };
    assert!(reason.contains("min_tokens"), "{reason}");
    let (why, says) = (|| "no idea".to_owned(), || "the grammar cannot go on: no idea".to_owned());
    for (error, expected) in [
        (GrammarError::Form(why()), FinishReason::Invalid(says())),
        (GrammarError::OutOfMemory(why()), FinishReason::OutOfMemory(says())),
        (GrammarError::Internal(why()), FinishReason::Error(says())),
    ] {
        let (tokens, finish) = one(held(1, &Tens { fails_at: Some((2, error)), ..FAST }, |_| ()));
        assert_eq!(tokens.len(), 2);
        assert_eq!(finish, expected);
    }
}

/// What follows it panics: that is nobody's fault who asked.
#[derive(Debug)]
struct Panics;

impl Grammar for Panics {
    fn start(&self) -> Box<dyn Matcher> {
        panic!("a panic of a test's grammar");
    }
}

#[test]
fn a_panic_fails_its_request_alone() {
    let mut request = held(1, &FAST, |_| ());
    request.grammar = Some(Arc::new(Panics));
    let answers = tokens_of(&mut engine(&small_info(), &[]), &[request, held(1, &FAST, |_| ())]);
    assert_eq!(answers[0].1, FinishReason::Error("the grammar cannot go on: it panicked".to_owned()));
    assert_eq!(answers[1].1, FinishReason::Stop { token: END });
}

/// Allows all, once it may.
#[derive(Debug, Clone, Default)]
struct Gated {
    is_open: Arc<AtomicBool>,
    has_answered: Arc<AtomicBool>,
}

impl Grammar for Gated {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(self.clone())
    }
}

impl Matcher for Gated {
    fn accept(&mut self, _: u32) -> Result<(), GrammarError> {
        Ok(())
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        let started = Instant::now();
        // An engine that waits for it fails the test, and does not hang.
        while !self.is_open.load(SeqCst) && started.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.has_answered.store(true, SeqCst);
        mask.fill(u32::MAX);
        Ok(())
    }
}

#[test]
fn a_step_waits_for_no_mask_that_it_does_not_use() {
    let mut engine = engine(&small_info(), &[]);
    let gated = Gated::default();
    let long = || EngineRequest { grammar: Some(Arc::new(gated.clone())), ..greedy(prompt(0, 40), 3) };
    let aborted = engine.submit(long()).unwrap();
    // 32 of 40 tokens: no token is picked yet.
    assert!(outputs(&mut engine).is_empty() && outputs(&mut engine).is_empty());
    assert!(engine.abort(aborted).is_some());
    check(&mut engine, &[greedy(prompt(20, 9), 5)]);
    assert!(!gated.has_answered.load(SeqCst));
    gated.is_open.store(true, SeqCst);
    // The mask of the aborted one may come between: it is not taken for that of another.
    check(&mut engine, &[long(), greedy(prompt(20, 9), 5)]);
}

//! The masks of requests that have a grammar, computed on threads beside the step. It knows no scheduling: a matcher is either here, with the
//! mask of its request's next token, or on a thread that computes this.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::grammar::{Grammar, GrammarError, Matcher};
use crate::request::{Request, RequestId};

/// Threads that compute masks, at most: a mask takes a small part of a step, and the pool that computes the step has the others.
const MAX_THREADS: usize = 4;

/// The masks of all requests that have a grammar.
pub(crate) struct Masks {
    guides: HashMap<RequestId, Guide>,
    num_away: usize,
    num_words: usize,
    threads: Option<Threads>,
}

/// Jobs go out on one channel and come back on the other. The threads end when their channel closes.
struct Threads {
    jobs: Sender<Job>,
    done: Receiver<Job>,
}

enum Guide {
    /// On a thread.
    Away,
    Here(Box<Job>),
}

/// A matcher on its way to a mask.
struct Job {
    id: RequestId,
    /// `None` before it has started.
    matcher: Option<Box<dyn Matcher>>,
    grammar: Arc<dyn Grammar>,
    /// End tokens that are not wanted while others may come (`ignore_eos`).
    unwanted: Arc<[u32]>,
    /// Tokens that the matcher has taken in.
    num_taken: usize,
    /// The next of these.
    token: Option<u32>,
    mask: Vec<u32>,
    failure: Option<GrammarError>,
}

impl Masks {
    /// Of a vocabulary of so many tokens.
    pub fn new(vocab_size: usize) -> Self {
        Self { guides: HashMap::new(), num_away: 0, num_words: vocab_size.div_ceil(32), threads: None }
    }

    /// Sends the matchers that do not know their request's last token, or are new, to a thread.
    pub fn want(&mut self, running: &[Request]) {
        for request in running {
            let Some(grammar) = &request.grammar else { continue };
            let output = request.output_token_ids();
            let job = match self.guides.insert(request.id, Guide::Away) {
                None => Box::new(Job::new(request, grammar, self.num_words)),
                // One that failed has no next mask: its request ends with the coming answer.
                Some(Guide::Here(mut job)) if job.num_taken < output.len() && job.failure.is_none() => {
                    debug_assert_eq!(job.num_taken + 1, output.len(), "a step brings one token");
                    job.token = output.last().copied();
                    job.num_taken = output.len();
                    job
                }
                Some(here_or_away) => {
                    self.guides.insert(request.id, here_or_away);
                    continue;
                }
            };
            self.num_away += 1;
            let threads = self.threads.get_or_insert_with(Threads::spawn);
            threads.jobs.send(*job).expect("the threads live as long as their channel");
        }
    }

    /// Whether the masks of those that the coming step picks a token for are here. Others may come later: of prompts that go on after the step,
    /// and of requests that no longer run.
    pub fn are_here(&mut self, running: &[Request]) -> bool {
        while self.num_away > 0
            && let Some(Ok(job)) = self.threads.as_ref().map(|threads| threads.done.try_recv())
        {
            self.take_back(job);
        }
        self.has_all(running)
    }

    /// Waits until they are.
    pub fn wait(&mut self, running: &[Request]) {
        while !self.has_all(running) {
            let job = self.threads.as_ref().and_then(|threads| threads.done.recv().ok());
            self.take_back(job.expect("the threads live as long as their channel"));
        }
    }

    fn has_all(&self, running: &[Request]) -> bool {
        let is_away = |request: &Request| matches!(self.guides.get(&request.id), Some(Guide::Away));
        self.num_away == 0 || !running.iter().any(|request| request.picks_token() && is_away(request))
    }

    fn take_back(&mut self, job: Job) {
        self.num_away -= 1;
        // That of a request that has ended meanwhile is dropped.
        if let Some(guide) = self.guides.get_mut(&job.id) {
            *guide = Guide::Here(Box::new(job));
        }
    }

    /// The tokens that may come next. `None` for a request without a grammar.
    pub fn of(&self, id: RequestId) -> Option<&[u32]> {
        match self.guides.get(&id)? {
            Guide::Here(job) => Some(&job.mask),
            Guide::Away => unreachable!("rows are made when their masks are here"),
        }
    }

    /// Why a request's grammar cannot go on. Its mask allows nothing then, so that its row has no token.
    pub fn failure(&self, id: RequestId) -> Option<&GrammarError> {
        match self.guides.get(&id)? {
            Guide::Here(job) => job.failure.as_ref(),
            Guide::Away => None,
        }
    }

    /// The request has ended.
    pub fn forget(&mut self, id: RequestId) {
        self.guides.remove(&id);
    }

    /// All have.
    pub fn forget_all(&mut self) {
        self.guides.clear();
    }
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masks").field("guides", &self.guides.len()).field("away", &self.num_away).finish()
    }
}

impl Job {
    fn new(request: &Request, grammar: &Arc<dyn Grammar>, num_words: usize) -> Self {
        Self {
            id: request.id,
            matcher: None,
            grammar: Arc::clone(grammar),
            unwanted: if request.params.ignore_eos { Arc::clone(&request.eos_token_ids) } else { Arc::default() },
            num_taken: 0,
            token: None,
            mask: vec![0; num_words],
            failure: None,
        }
    }

    fn run(&mut self) {
        self.mask.fill(0);
        let computed = catch_unwind(AssertUnwindSafe(|| self.compute()));
        let failure = computed.unwrap_or_else(|_| Err(GrammarError::Internal("it panicked".to_owned()))).err();
        if failure.is_some() {
            self.mask.fill(0);
        }
        self.failure = failure;
    }

    fn compute(&mut self) -> Result<(), GrammarError> {
        let grammar = &self.grammar;
        let matcher = self.matcher.get_or_insert_with(|| grammar.start());
        if let Some(token) = self.token.take() {
            matcher.accept(token)?;
        }
        matcher.allowed(&mut self.mask)?;
        leave_out(&self.unwanted, &mut self.mask);
        Ok(())
    }
}

/// Clears the bits of tokens, unless nothing else may come.
fn leave_out(tokens: &[u32], mask: &mut [u32]) {
    let mut bits = Vec::with_capacity(tokens.len());
    for &token in tokens {
        let Some(word) = mask.get_mut(token as usize / 32) else { continue };
        let bit = *word & 1 << (token % 32);
        *word &= !bit;
        bits.push((token, bit));
    }
    if mask.iter().all(|&word| word == 0) {
        bits.into_iter().for_each(|(token, bit)| mask[token as usize / 32] |= bit);
    }
}

impl Threads {
    fn spawn() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (jobs, waiting) = channel::<Job>();
        let (finished, done) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..cores.div_ceil(2).min(MAX_THREADS) {
            let (waiting, finished) = (Arc::clone(&waiting), finished.clone());
            let work = move || {
                loop {
                    let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(mut job) = job else { return };
                    job.run();
                    if finished.send(job).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new()
                .name("masks".to_owned())
                .spawn(work)
                .expect("the operating system gives no thread for masks");
        }
        Self { jobs, done }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwanted_tokens_are_left_out_where_others_may_come() {
        let mut mask = [0b1110, 1];
        leave_out(&[1, 32, 700], &mut mask);
        assert_eq!(mask, [0b1100, 0]);
        let mut only_end = [0b10, 0];
        leave_out(&[1, 32], &mut only_end);
        assert_eq!(only_end, [0b10, 0]);
    }
}

//! Counts the memory that requests hold, so that no request and no number of requests takes more than the server was given. Knows
//! bytes, no endpoint.

use std::sync::Arc;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::ApiError;
use crate::structured::Memory;

/// Bytes counted for each byte of a body: the body itself, its fields, and what is read from them.
pub const PER_BODY_BYTE: usize = 4;

/// Bytes counted for each answer to a prompt: its place in the engine, its stream and its text.
pub const PER_CHOICE: usize = 8 << 10;

/// Bytes that an answer takes besides if it is held to a form: its tables, which are counted as they grow beyond this.
pub const PER_FORM: usize = 1 << 20;

/// Bytes counted for each streamed answer, for tokens that wait to be sent; those beyond are counted as they come.
pub const PER_UNREAD_CHOICE: usize = 8 << 10;

/// Bytes counted for each token with log-probabilities that waits to be written, and for each alternative of it.
pub const PER_LOGPROB: usize = 96;

/// Bytes counted for each log-probability while it is put into words: a tree of values.
pub const PER_WORDED_LOGPROB: usize = 1536;

/// Freed memory is given back to the system after a request that held this much, and when the last ends of many that held as much together:
/// allocators keep it otherwise.
const TRIM_FROM: usize = 4 << 20;

/// The memory of all requests.
#[derive(Debug)]
pub struct RequestMemory {
    used: AtomicUsize,
    limit: usize,
    /// Given back by requests since the system got free memory last.
    freed: AtomicUsize,
}

impl RequestMemory {
    /// None of `limit` bytes is used.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit, freed: AtomicUsize::new(0) })
    }

    /// The memory of a request that holds nothing yet.
    pub fn hold(self: &Arc<Self>) -> Held {
        Held(Arc::new(Lease { memory: Arc::clone(self), bytes: AtomicUsize::new(0), most: AtomicUsize::new(0) }))
    }
}

/// What one request holds. It is given back when this and every [`Lease`] of it are dropped.
#[derive(Debug)]
pub struct Held(Arc<Lease>);

/// The memory of a request, for work that goes on when its client has left.
#[derive(Debug)]
pub struct Lease {
    memory: Arc<RequestMemory>,
    bytes: AtomicUsize,
    most: AtomicUsize,
}

impl Held {
    /// Takes more, before it is allocated.
    ///
    /// # Errors
    /// 400 if this request alone asks for more than there is, 503 if all together do.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let Lease { memory, bytes: own, .. } = &*self.0;
        let wanted = own.load(Ordering::Relaxed).saturating_add(bytes);
        if wanted > memory.limit {
            return Err(ApiError::too_much_memory(wanted, memory.limit));
        }
        self.0.grow(bytes).map_err(|used| ApiError::out_of_request_memory(used, memory.limit))
    }

    /// Gives some back.
    pub fn shrink(&mut self, bytes: usize) {
        self.0.give_back(bytes);
    }

    /// Memory beside this, given back on its own; none yet.
    pub fn beside(&self) -> Self {
        self.0.memory.hold()
    }

    /// Keeps the memory counted until it is dropped, too.
    pub fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.0)
    }
}

impl Lease {
    /// Takes more, or says how much all requests hold.
    fn grow(&self, bytes: usize) -> Result<(), usize> {
        let take = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.memory.limit);
        self.memory.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)?;
        let own = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(own, Ordering::Relaxed);
        Ok(())
    }
}

/// For what grows on threads of the engine.
impl Memory for Lease {
    fn take(&self, bytes: usize) -> bool {
        self.grow(bytes).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(bytes <= before);
        self.memory.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn could_take(&self, bytes: usize) -> bool {
        self.bytes.load(Ordering::Relaxed).saturating_add(bytes) <= self.memory.limit
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (bytes, most) = (*self.bytes.get_mut(), *self.most.get_mut());
        let is_last = self.memory.used.fetch_sub(bytes, Ordering::Relaxed) == bytes;
        let freed = self.memory.freed.fetch_add(most, Ordering::Relaxed) + most;
        if most >= TRIM_FROM || is_last && freed >= TRIM_FROM {
            self.memory.freed.store(0, Ordering::Relaxed);
            trim_soon();
        }
    }
}

/// Gives free memory of the allocator back to the system, in a moment: what a request held besides is freed just after this. Once for all
/// that ask until then.
pub fn trim_soon() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        static PENDING: AtomicBool = AtomicBool::new(false);
        if PENDING.swap(true, Ordering::AcqRel) {
            return;
        }
        let trim = || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            PENDING.store(false, Ordering::Release);
            // SAFETY: it has no preconditions.
            unsafe { libc::malloc_trim(0) };
        };
        // Where there can be no thread, the next request that ends tries again.
        if std::thread::Builder::new().name("trim".to_owned()).spawn(trim).is_err() {
            PENDING.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn all_requests_together_hold_no_more_than_there_is() {
        let memory = RequestMemory::new(100);
        let (mut a, mut b) = (memory.hold(), memory.hold());
        a.grow(60).unwrap();
        b.grow(40).unwrap();
        assert_eq!(b.grow(1).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        a.shrink(10);
        b.grow(10).unwrap();
        drop(a);
        b.grow(50).unwrap();
        let alone = b.grow(1).unwrap_err();
        assert_eq!(alone.status, StatusCode::BAD_REQUEST);
        assert!(alone.message.contains("--max-request-memory"), "{}", alone.message);
        // Work for a client that has left still holds what it holds.
        let lease = b.lease();
        drop(b);
        assert_eq!(memory.used.load(Ordering::Relaxed), 100);
        drop(lease);
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }

    /// A long stream is many small ones.
    #[test]
    fn memory_is_given_back_after_the_last_of_many() {
        let memory = RequestMemory::new(1 << 30);
        let stream = memory.hold();
        let mut last = memory.hold();
        last.grow(10).unwrap();
        for _ in 0..TRIM_FROM / 1000 + 1 {
            let mut piece = stream.beside();
            piece.grow(1000).unwrap();
        }
        assert!(memory.freed.load(Ordering::Relaxed) >= TRIM_FROM);
        drop(last);
        assert_eq!(memory.freed.load(Ordering::Relaxed), 0);
    }
}

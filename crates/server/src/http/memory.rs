//! Counts the memory that requests hold, so that no request and no number of requests takes more than the server was given. Knows
//! bytes, no endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::ApiError;

/// Bytes counted for each byte of a body: the body itself, its fields, and what is read from them.
pub const PER_BODY_BYTE: usize = 4;

/// Bytes counted for each answer to a prompt: its place in the engine, its stream and its text.
pub const PER_CHOICE: usize = 8 << 10;

/// Bytes counted for each token with log-probabilities that waits to be written, and for each alternative of it.
pub const PER_LOGPROB: usize = 96;

/// Bytes counted for each log-probability while it is put into words: a tree of values.
pub const PER_WORDED_LOGPROB: usize = 1536;

/// Freed memory is given back to the system after a request that held this much: allocators keep it otherwise.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_FROM: usize = 4 << 20;

/// The memory of all requests.
#[derive(Debug)]
pub struct RequestMemory {
    used: AtomicUsize,
    limit: usize,
}

impl RequestMemory {
    /// None of `limit` bytes is used.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit })
    }

    /// The memory of a request that holds nothing yet.
    pub fn hold(self: &Arc<Self>) -> Held {
        Held { memory: Arc::clone(self), bytes: 0, most: 0 }
    }
}

/// What one request holds. Dropping it gives it back.
#[derive(Debug)]
pub struct Held {
    memory: Arc<RequestMemory>,
    bytes: usize,
    most: usize,
}

impl Held {
    /// Takes more, before it is allocated.
    ///
    /// # Errors
    /// 400 if this request alone asks for more than there is, 503 if all together do.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let limit = self.memory.limit;
        let wanted = self.bytes.saturating_add(bytes);
        if wanted > limit {
            return Err(ApiError::too_much_memory(wanted, limit));
        }
        let take = |used: usize| used.checked_add(bytes).filter(|used| *used <= limit);
        match self.memory.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => {
                self.bytes = wanted;
                self.most = self.most.max(wanted);
                Ok(())
            }
            Err(used) => Err(ApiError::out_of_request_memory(used, limit)),
        }
    }

    /// Gives some back.
    pub fn shrink(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.bytes);
        self.bytes -= bytes;
        self.memory.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        if self.most >= TRIM_FROM {
            // It takes milliseconds, and what the request held besides is freed just after this.
            std::thread::spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                // SAFETY: it has no preconditions: it gives free memory of the allocator back to the system.
                unsafe { libc::malloc_trim(0) };
            });
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
        drop(b);
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }
}

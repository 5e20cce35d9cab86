//! Responses that are kept for `previous_response_id` and for those who ask for them again: so many bytes, the oldest go first. Knows no wording.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;

use crate::http::dialogue::Dialogue;

/// Most responses that are kept, however small they are.
const MAX_RESPONSES: usize = 4096;

/// Bytes that one takes besides its text: its places in lists, and what allocators add to its parts.
const PER_RESPONSE: usize = 1024;

/// What is kept of a response.
#[derive(Debug)]
pub struct Stored {
    /// As it was answered.
    pub response: Bytes,
    /// The conversation up to its end, without its instructions.
    pub dialogue: Dialogue,
}

impl Stored {
    fn bytes(&self) -> usize {
        // Texts that grew have up to twice the room.
        PER_RESPONSE + self.response.len() + 2 * self.dialogue.bytes()
    }
}

/// The responses of a server.
#[derive(Debug)]
pub struct Store {
    kept: Mutex<Kept>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Kept {
    by_id: HashMap<String, Arc<Stored>>,
    /// Oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl Store {
    /// None of `max_bytes` is used.
    pub fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self { kept: Mutex::default(), max_bytes })
    }

    /// Whether there is a place for a response of so many bytes, its conversation counted as [`Store::keep`] does.
    pub fn has_place_for(&self, response: usize, dialogue: usize) -> bool {
        PER_RESPONSE + response + 2 * dialogue <= self.max_bytes
    }

    /// Keeps a response if it is no larger than all may be, in the place of the oldest.
    pub fn keep(&self, id: String, stored: Stored) {
        let bytes = stored.bytes();
        if bytes > self.max_bytes {
            return;
        }
        let mut kept = self.lock();
        while kept.bytes + bytes > self.max_bytes || kept.by_id.len() >= MAX_RESPONSES {
            let Some(oldest) = kept.order.front().cloned() else { break };
            kept.remove(&oldest);
        }
        kept.bytes += bytes;
        kept.order.push_back(id.clone());
        kept.by_id.insert(id, Arc::new(stored));
    }

    /// The response of this name.
    pub fn get(&self, id: &str) -> Option<Arc<Stored>> {
        self.lock().by_id.get(id).cloned()
    }

    /// Forgets it. Whether it was there.
    pub fn delete(&self, id: &str) -> bool {
        self.lock().remove(id)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn remove(&mut self, id: &str) -> bool {
        let Some(stored) = self.by_id.remove(id) else { return false };
        self.bytes -= stored.bytes();
        if let Some(at) = self.order.iter().position(|other| other == id) {
            self.order.remove(at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(bytes: usize) -> Stored {
        Stored { response: Bytes::from(vec![0; bytes]), dialogue: Dialogue::default() }
    }

    #[test]
    fn the_oldest_make_room() {
        let store = Store::new(3 * (PER_RESPONSE + 100));
        for id in ["a", "b", "c", "d"] {
            store.keep(id.to_owned(), stored(100));
        }
        assert!(store.get("a").is_none() && store.get("b").is_some() && store.get("d").is_some());
        assert!(store.delete("b") && !store.delete("b"));
        store.keep("e".to_owned(), stored(100));
        assert!(store.get("c").is_some());
        // One that is as large as all, and one that is larger.
        store.keep("f".to_owned(), stored(2 * PER_RESPONSE + 300));
        assert!(store.get("e").is_none() && store.get("f").is_some());
        store.keep("g".to_owned(), stored(2 * PER_RESPONSE + 301));
        assert!(store.get("f").is_some() && store.get("g").is_none());
        assert!(store.delete("f"));
        let kept = store.lock();
        assert_eq!((kept.bytes, kept.order.len()), (0, 0));
    }

    #[test]
    fn there_are_only_so_many() {
        let store = Store::new(usize::MAX);
        for id in 0..MAX_RESPONSES + 2 {
            store.keep(id.to_string(), stored(0));
        }
        let kept = store.lock();
        assert_eq!((kept.by_id.len(), kept.order.len()), (MAX_RESPONSES, MAX_RESPONSES));
        assert!(!kept.by_id.contains_key("1") && kept.by_id.contains_key("2"));
    }
}

//! Responses that are kept for `previous_response_id`, for names of their items, and for those who ask for them again: so many bytes, the oldest
//! go first. Knows no wording.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde_json::value::RawValue;

use super::names::place;
use crate::http::dialogue::Dialogue;
use crate::http::raw::{each, named, word};

/// Most responses that are kept, however small they are.
pub const MAX_RESPONSES: usize = 4096;

/// Bytes that one takes besides its text: its places in lists, and what allocators add to its parts.
const PER_RESPONSE: usize = 1024;

/// What is kept of a response.
#[derive(Debug)]
pub struct Stored {
    /// As it was answered.
    pub response: Bytes,
    /// The conversation up to its end, without its instructions.
    pub dialogue: Dialogue,
    /// Where the items of the answer stand in `response`.
    items: Vec<Range<usize>>,
}

impl Stored {
    /// A response, which is JSON, and its conversation.
    pub fn new(response: Bytes, dialogue: Dialogue) -> Self {
        let items = items_of(&response);
        Self { response, dialogue, items }
    }

    fn bytes(&self) -> usize {
        // Texts that grew have up to twice the room.
        PER_RESPONSE + self.response.len() + 2 * self.dialogue.bytes() + size_of_val(&self.items[..])
    }

    /// The items of the answer.
    pub fn items(&self) -> impl Iterator<Item = &RawValue> {
        (0..self.items.len()).filter_map(|index| self.item(index))
    }

    fn item(&self, index: usize) -> Option<&RawValue> {
        serde_json::from_slice(&self.response[self.items.get(index)?.clone()]).ok()
    }
}

/// Where the items of a response's `output` stand in its text.
fn items_of(response: &[u8]) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    let output = serde_json::from_slice(response).ok().and_then(|response| named(response, ["output"]));
    if let Some([Some(output)]) = output {
        // More items than a list may have are not found by their names.
        let _ = each("output", output, |_, item| {
            let start = item.get().as_ptr().addr() - response.as_ptr().addr();
            items.push(start..start + item.get().len());
            Ok(())
        });
    }
    items.shrink_to_fit();
    items
}

/// An item of an answer that is kept. It stays while it is read.
#[derive(Debug)]
pub struct KeptItem {
    stored: Arc<Stored>,
    index: usize,
}

impl KeptItem {
    /// As it was answered.
    pub fn raw(&self) -> Option<&RawValue> {
        self.stored.item(self.index)
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

    /// Keeps a response if it is no larger than all may be, in the place of the oldest. Whether it is kept.
    pub fn keep(&self, id: String, stored: Stored) -> bool {
        let bytes = stored.bytes();
        if bytes > self.max_bytes {
            return false;
        }
        let mut kept = self.lock();
        while kept.bytes + bytes > self.max_bytes || kept.by_id.len() >= MAX_RESPONSES {
            let Some(oldest) = kept.order.front().cloned() else { break };
            kept.remove(&oldest);
        }
        kept.bytes += bytes;
        kept.order.push_back(id.clone());
        kept.by_id.insert(id, Arc::new(stored));
        true
    }

    /// The response of this name.
    pub fn get(&self, id: &str) -> Option<Arc<Stored>> {
        self.lock().by_id.get(id).cloned()
    }

    /// The item of this name, of the answer of a response that is kept.
    pub fn item(&self, id: &str) -> Option<KeptItem> {
        let (response, index) = place(id)?;
        let item = KeptItem { stored: self.get(&response)?, index };
        let [own] = named(item.raw()?, ["id"])?;
        (word(own)? == id).then_some(item)
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
    use super::super::names;
    use super::*;

    fn stored(bytes: usize) -> Stored {
        Stored::new(Bytes::from(vec![0; bytes]), Dialogue::default())
    }

    #[test]
    fn the_oldest_make_room() {
        let store = Store::new(3 * (PER_RESPONSE + 100));
        for id in ["a", "b", "c", "d"] {
            assert!(store.keep(id.to_owned(), stored(100)));
        }
        assert!(store.get("a").is_none() && store.get("b").is_some() && store.get("d").is_some());
        assert!(store.delete("b") && !store.delete("b"));
        store.keep("e".to_owned(), stored(100));
        assert!(store.get("c").is_some());
        // One that is as large as all, and one that is larger.
        assert!(store.keep("f".to_owned(), stored(2 * PER_RESPONSE + 300)));
        assert!(store.get("e").is_none() && store.get("f").is_some());
        assert!(!store.keep("g".to_owned(), stored(2 * PER_RESPONSE + 301)));
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

    #[test]
    fn items_are_found_by_their_names_while_they_are_kept() {
        let (store, id) = (Store::new(1 << 20), names::response());
        let [thought, said] = [names::item("rs", &id, 0), names::item("msg", &id, 1)];
        let response = format!(r#"{{"output":[{{"id":"{thought}"}}, {{"a":[{{}}],"id":"{said}"}}],"tools":[{{}}]}}"#);
        store.keep(id.clone(), Stored::new(response.into(), Dialogue::default()));
        let found = |name: &str| store.item(name).map(|item| item.raw().unwrap().get().to_owned());
        assert_eq!(found(&thought), Some(format!(r#"{{"id":"{thought}"}}"#)));
        assert_eq!(found(&said), Some(format!(r#"{{"a":[{{}}],"id":"{said}"}}"#)));
        for other in [names::item("msg", &id, 0), names::item("msg", &id, 2), said.replace("0001", "+001")] {
            assert_eq!(found(&other), None, "{other}");
        }
        assert_eq!(store.get(&id).unwrap().items().count(), 2);
        store.delete(&id);
        assert_eq!(found(&said), None);
    }
}

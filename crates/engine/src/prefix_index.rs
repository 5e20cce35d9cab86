//! Finds blocks by their content. It knows block ids and hashes, not who holds a block.

use std::hash::{BuildHasher, RandomState};

/// Names the content of a full block: a hash over its tokens and the hash of the block before it, so over all tokens up to
/// its end. SHA-256, because a collision would serve one request's prefix to another.
pub(crate) type BlockHash = [u8; 32];

/// The end of a chain.
const NONE: u32 = u32::MAX;

/// A hash table whose chains run through one entry per block: its memory is fixed, and all of it is in use from the start.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    /// The first block of each chain. Their number is a power of two.
    buckets: Vec<u32>,
    entries: Vec<Entry>,
    /// Callers choose the tokens: without a key that they do not know, they could fill one chain.
    key: RandomState,
}

#[derive(Debug, Clone)]
struct Entry {
    hash: Option<BlockHash>,
    next: u32,
}

impl PrefixIndex {
    pub fn new(num_blocks: usize) -> Self {
        let buckets = vec![NONE; num_blocks.next_power_of_two()];
        Self { buckets, entries: vec![Entry { hash: None, next: NONE }; num_blocks], key: RandomState::new() }
    }

    /// The block that holds this content.
    pub fn find(&self, hash: &BlockHash) -> Option<u32> {
        let mut block = self.buckets[self.bucket(hash)];
        while block != NONE {
            let entry = &self.entries[block as usize];
            if entry.hash.as_ref() == Some(hash) {
                return Some(block);
            }
            block = entry.next;
        }
        None
    }

    /// The content of a block, if it is known.
    pub fn hash_of(&self, block: u32) -> Option<&BlockHash> {
        self.entries[block as usize].hash.as_ref()
    }

    /// Makes the content of a block known, unless another block is known to hold the same.
    pub fn insert(&mut self, block: u32, hash: BlockHash) {
        debug_assert!(self.hash_of(block).is_none());
        if self.find(&hash).is_none() {
            let bucket = self.bucket(&hash);
            let next = std::mem::replace(&mut self.buckets[bucket], block);
            self.entries[block as usize] = Entry { hash: Some(hash), next };
        }
    }

    /// Forgets the content of a block.
    pub fn remove(&mut self, block: u32) {
        let Entry { hash, next } = &mut self.entries[block as usize];
        let (Some(hash), after) = (hash.take(), *next) else { return };
        let bucket = self.bucket(&hash);
        let mut link = &mut self.buckets[bucket];
        while *link != block {
            let before = *link as usize;
            link = &mut self.entries[before].next;
        }
        *link = after;
    }

    /// Hashes are even already: a part of one is enough.
    fn bucket(&self, hash: &BlockHash) -> usize {
        self.key.hash_one(hash.first_chunk::<8>()) as usize & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few blocks and fewer contents, so that chains are long and contents meet.
        #[test]
        fn knows_what_a_map_knows(changes in prop::collection::vec((0u32..24, 0u8..20, any::<bool>()), 0..300)) {
            let mut index = PrefixIndex::new(24);
            index.buckets.truncate(4);
            let mut blocks: HashMap<BlockHash, u32> = HashMap::new();
            for (block, content, remove) in changes {
                if remove || index.hash_of(block).is_some() {
                    index.remove(block);
                    blocks.retain(|_, known| *known != block);
                } else {
                    index.insert(block, [content; 32]);
                    blocks.entry([content; 32]).or_insert(block);
                }
                for content in 0..20 {
                    prop_assert_eq!(index.find(&[content; 32]), blocks.get(&[content; 32]).copied());
                }
                let known = (0..24).filter(|&block| index.hash_of(block).is_some()).count();
                prop_assert_eq!(known, blocks.len());
            }
        }
    }
}

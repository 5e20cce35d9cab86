//! The blocks of the KV cache: who may use which, and which hold a known prefix. It knows block ids and hashes, no requests.

use sha2::{Digest, Sha256};

use crate::prefix_index::{BlockHash, PrefixIndex};

/// The hash of a block whose tokens follow the block named `parent`; `None` for a first block.
pub(crate) fn hash_block(parent: Option<&BlockHash>, tokens: &[u32]) -> BlockHash {
    let mut hasher = Sha256::new();
    hasher.update(parent.unwrap_or(&[0; 32]));
    for token in tokens {
        hasher.update(token.to_le_bytes());
    }
    hasher.finalize().into()
}

/// What stands before the first block of prompts with this salt. No block is hashed like it: that begins with another hash, or zeros.
pub(crate) fn hash_salt(salt: &str) -> BlockHash {
    Sha256::new().chain_update("cache_salt ").chain_update(salt).finalize().into()
}

/// The chained hashes of the full blocks of `tokens`. `root` stands before the first one.
pub(crate) fn hash_full_blocks(root: Option<&BlockHash>, tokens: &[u32], block_size: usize) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::with_capacity(tokens.len() / block_size);
    for block in tokens.chunks_exact(block_size) {
        hashes.push(hash_block(hashes.last().or(root), block));
    }
    hashes
}

#[derive(Debug, Clone, Default)]
struct Block {
    ref_count: u32,
    /// Neighbours in the list of free blocks, while `ref_count` is 0.
    prev: u32,
    next: u32,
}

/// Free blocks form a doubly linked list through the blocks themselves, so that taking one out of the middle (a cache hit)
/// costs O(1). It is ordered: blocks without known content first, then by least recent use.
#[derive(Debug)]
pub(crate) struct BlockPool {
    /// One more than there are blocks: the last entry is the list's sentinel.
    blocks: Vec<Block>,
    num_free: usize,
    /// Blocks whose content is known.
    cached: PrefixIndex,
}

impl BlockPool {
    pub fn new(num_blocks: usize) -> Self {
        let len = num_blocks as u32 + 1;
        let blocks =
            (0..len).map(|i| Block { prev: (i + len - 1) % len, next: (i + 1) % len, ..Block::default() }).collect();
        Self { blocks, num_free: num_blocks, cached: PrefixIndex::new(num_blocks) }
    }

    pub fn num_blocks(&self) -> usize {
        self.blocks.len() - 1
    }

    pub fn num_free(&self) -> usize {
        self.num_free
    }

    pub fn is_free(&self, block: u32) -> bool {
        self.blocks[block as usize].ref_count == 0
    }

    /// The block that holds this content.
    pub fn lookup(&self, hash: &BlockHash) -> Option<u32> {
        self.cached.find(hash)
    }

    /// A block to write to: one without known content, else the least recently used, which the cache then forgets.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.blocks[self.sentinel()].next;
        if block as usize == self.sentinel() {
            return None;
        }
        self.cached.remove(block);
        self.acquire(block);
        Some(block)
    }

    /// Holds a block whose content is wanted, whether others hold it or not.
    pub fn acquire(&mut self, block: u32) {
        if self.is_free(block) {
            self.unlink(block);
        }
        self.blocks[block as usize].ref_count += 1;
    }

    /// Lets go of a block. Its content stays known until it is allocated again.
    pub fn release(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        assert!(entry.ref_count > 0, "block {block} is released more often than it was taken");
        entry.ref_count -= 1;
        if entry.ref_count > 0 {
            return;
        }
        let sentinel = self.sentinel() as u32;
        match self.cached.hash_of(block) {
            Some(_) => self.link_before(block, sentinel),
            None => self.link_before(block, self.blocks[sentinel as usize].next),
        }
    }

    /// Makes a block's content known. If another block holds the same content, that one stays known and this one is not:
    /// block tables only grow, so the request cannot be moved over to it.
    pub fn insert(&mut self, block: u32, hash: BlockHash) {
        debug_assert!(!self.is_free(block));
        self.cached.insert(block, hash);
    }

    /// Forgets the content of a block that somebody holds: nobody finds it again.
    pub fn forget(&mut self, block: u32) {
        // One in the free list would stand behind those with known content.
        debug_assert!(!self.is_free(block));
        self.cached.remove(block);
    }

    /// Forgets the content of all blocks, if nobody holds one. Whether it did.
    pub fn forget_all(&mut self) -> bool {
        let all_free = self.num_free == self.num_blocks();
        if all_free {
            (0..self.num_blocks() as u32).for_each(|block| self.cached.remove(block));
        }
        all_free
    }

    fn sentinel(&self) -> usize {
        self.blocks.len() - 1
    }

    fn unlink(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        self.blocks[prev as usize].next = next;
        self.blocks[next as usize].prev = prev;
        self.num_free -= 1;
    }

    fn link_before(&mut self, block: u32, next: u32) {
        let prev = self.blocks[next as usize].prev;
        self.blocks[block as usize].prev = prev;
        self.blocks[block as usize].next = next;
        self.blocks[prev as usize].next = block;
        self.blocks[next as usize].prev = block;
        self.num_free += 1;
    }

    /// Checks the pool against the block tables that hold its blocks: free and held blocks add up to all, every holder is
    /// counted, and the hashes lead to the blocks that have them.
    pub fn check_integrity<'a>(&self, tables: impl Iterator<Item = &'a [u32]>) -> Result<(), String> {
        let mut holders = vec![0; self.num_blocks()];
        for &block in tables.flatten() {
            holders[block as usize] += 1;
        }
        for (block, &expected) in holders.iter().enumerate() {
            let ref_count = self.blocks[block].ref_count;
            if ref_count != expected {
                return Err(format!("block {block} counts {ref_count} holders, the block tables {expected}"));
            }
            if let Some(hash) = self.cached.hash_of(block as u32)
                && self.cached.find(hash) != Some(block as u32)
            {
                return Err(format!("block {block} has a hash that the prefix cache does not lead back from"));
            }
        }
        let num_held = holders.iter().filter(|&&count| count > 0).count();
        let num_listed = self.count_free_list()?;
        if num_listed != self.num_free || num_listed + num_held != self.num_blocks() {
            let (counted, total) = (self.num_free, self.num_blocks());
            return Err(format!("{num_listed} blocks listed free, {counted} counted, {num_held} held, of {total}"));
        }
        Ok(())
    }

    /// Walks the list of free blocks, checking both directions' links: those lead round a list that comes back to its start.
    fn count_free_list(&self) -> Result<usize, String> {
        let mut count = 0;
        let mut block = self.sentinel();
        loop {
            let next = self.blocks[block].next as usize;
            if self.blocks[next].prev as usize != block {
                return Err(format!("the free list is torn between blocks {block} and {next}"));
            }
            if next == self.sentinel() {
                return Ok(count);
            }
            if !self.is_free(next as u32) {
                return Err(format!("block {next} is in the free list and in use"));
            }
            count += 1;
            block = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(pool: &mut BlockPool, n: usize) -> Vec<u32> {
        (0..n).map(|_| pool.allocate().unwrap()).collect()
    }

    fn check(pool: &BlockPool, held: &[u32]) {
        assert_eq!(pool.check_integrity(std::iter::once(held)), Ok(()));
    }

    #[test]
    fn a_hash_names_all_tokens_up_to_its_end() {
        let ab = hash_full_blocks(None, &[1, 2, 3, 4, 5], 2);
        assert_eq!(ab.len(), 2);
        assert_eq!(ab, hash_full_blocks(None, &[1, 2, 3, 4], 2));
        let other_start = hash_full_blocks(None, &[9, 2, 3, 4], 2);
        assert_ne!(ab[1], other_start[1], "same tokens after another prefix");
        assert_ne!(hash_block(None, &[1, 2]), hash_block(None, &[2, 1]));
    }

    #[test]
    fn an_empty_pool_gives_nothing_and_released_blocks_come_back() {
        let mut pool = BlockPool::new(3);
        let held = allocate(&mut pool, 3);
        assert_eq!(pool.allocate(), None);
        check(&pool, &held);
        pool.release(held[1]);
        assert_eq!(pool.num_free(), 1);
        assert_eq!(pool.allocate(), Some(held[1]));
        check(&pool, &held);
    }

    #[test]
    fn all_is_forgotten_when_nobody_holds_a_block() {
        let mut pool = BlockPool::new(3);
        let held = allocate(&mut pool, 2);
        let hashes = hash_full_blocks(None, &[1, 2], 1);
        held.iter().zip(&hashes).for_each(|(&block, &hash)| pool.insert(block, hash));
        pool.release(held[0]);
        assert!(!pool.forget_all() && pool.lookup(&hashes[0]).is_some());
        pool.release(held[1]);
        assert!(pool.forget_all());
        assert_eq!((pool.lookup(&hashes[0]), pool.lookup(&hashes[1])), (None, None));
        check(&pool, &[]);
        assert_eq!(allocate(&mut pool, 3).len(), 3);
    }

    #[test]
    fn a_forgotten_block_is_not_found_and_the_next_to_be_overwritten() {
        let mut pool = BlockPool::new(3);
        let held = allocate(&mut pool, 2);
        let hash = hash_block(None, &[1]);
        pool.insert(held[0], hash);
        pool.acquire(held[0]);
        pool.forget(held[0]);
        pool.forget(held[1]);
        assert_eq!(pool.lookup(&hash), None);
        check(&pool, &[held[0], held[0], held[1]]);
        held.iter().chain([&held[0]]).for_each(|&block| pool.release(block));
        assert_eq!(pool.allocate(), Some(held[0]));
        // The same content in another block is known again.
        pool.insert(held[0], hash);
        assert_eq!(pool.lookup(&hash), Some(held[0]));
        check(&pool, &held[..1]);
    }

    #[test]
    fn unknown_content_is_overwritten_first_then_the_least_recently_used() {
        let mut pool = BlockPool::new(3);
        let held = allocate(&mut pool, 3);
        let hashes = hash_full_blocks(None, &[1, 2, 3], 1);
        pool.insert(held[0], hashes[0]);
        pool.insert(held[1], hashes[1]);
        pool.release(held[1]);
        pool.release(held[0]);
        pool.release(held[2]);
        check(&pool, &[]);
        assert_eq!(allocate(&mut pool, 3), [held[2], held[1], held[0]]);
        assert_eq!(pool.lookup(&hashes[0]), None);
    }

    #[test]
    fn a_hit_takes_the_block_out_of_the_free_list_and_counts_its_holders() {
        let mut pool = BlockPool::new(2);
        let held = allocate(&mut pool, 2);
        let hash = hash_block(None, &[1]);
        pool.insert(held[0], hash);
        pool.release(held[0]);
        let hit = pool.lookup(&hash).unwrap();
        pool.acquire(hit);
        pool.acquire(hit);
        assert_eq!(pool.num_free(), 0);
        check(&pool, &[hit, hit, held[1]]);
        pool.release(hit);
        assert!(!pool.is_free(hit));
        pool.release(hit);
        assert!(pool.is_free(hit) && pool.lookup(&hash) == Some(hit));
    }

    #[test]
    fn of_two_blocks_with_the_same_content_the_first_stays_known() {
        let mut pool = BlockPool::new(2);
        let held = allocate(&mut pool, 2);
        let hash = hash_block(None, &[1]);
        pool.insert(held[0], hash);
        pool.insert(held[1], hash);
        assert_eq!(pool.lookup(&hash), Some(held[0]));
        check(&pool, &held);
    }

    #[test]
    fn the_integrity_check_notices_a_leak_and_a_double_use() {
        let mut pool = BlockPool::new(2);
        let block = pool.allocate().unwrap();
        assert!(pool.check_integrity(std::iter::empty()).is_err());
        assert!(pool.check_integrity([&[block, block][..]].into_iter()).is_err());
    }

    #[test]
    fn the_integrity_check_notices_a_damaged_list_and_a_wrong_count() {
        let damaged = |damage: fn(&mut BlockPool, u32)| {
            let mut pool = BlockPool::new(4);
            let held = pool.allocate().unwrap();
            check(&pool, &[held]);
            damage(&mut pool, held);
            pool.check_integrity(std::iter::once(&[held][..])).unwrap_err()
        };
        assert!(damaged(|pool, _| pool.num_free += 1).contains("counted"));
        assert!(damaged(|pool, held| pool.unlink((held + 1) % 4)).contains("of 4"), "a block is neither free nor held");
        assert!(damaged(|pool, held| pool.blocks[held as usize + 1].prev = held).contains("torn"));
        // The numbers are right: one free block is missing, and a held one is in its place.
        let swap = |pool: &mut BlockPool, held| {
            pool.unlink((held + 1) % 4);
            pool.link_before(held, pool.sentinel() as u32);
        };
        assert!(damaged(swap).contains("in use"));
    }
}

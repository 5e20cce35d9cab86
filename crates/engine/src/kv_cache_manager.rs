//! Which blocks of the KV cache each request holds: prefix lookup, growth, freeing. It knows no order among requests.

use crate::block_pool::{BlockPool, hash_block};
use crate::request::Request;

/// Gives requests their blocks. The only place that takes blocks from the pool and the only one that gives them back.
#[derive(Debug)]
pub(crate) struct KvCacheManager {
    pool: BlockPool,
    block_size: usize,
    prefix_caching: bool,
    pub prefix_cache_queries: u64,
    pub prefix_cache_hits: u64,
}

impl KvCacheManager {
    pub fn new(num_blocks: usize, block_size: usize, prefix_caching: bool) -> Self {
        let pool = BlockPool::new(num_blocks);
        Self { pool, block_size, prefix_caching, prefix_cache_queries: 0, prefix_cache_hits: 0 }
    }

    pub fn num_blocks(&self) -> usize {
        self.pool.num_blocks()
    }

    pub fn num_used_blocks(&self) -> usize {
        self.pool.num_blocks() - self.pool.num_free()
    }

    pub fn block_size(&self) -> usize {
        self.block_size
    }

    pub fn prefix_caching(&self) -> bool {
        self.prefix_caching
    }

    /// Starts a request that holds no blocks: gives it the cached blocks of its longest known prefix, and new ones for all
    /// its other tokens, though its first chunk may be shorter. A request that started with less would soon be preempted, or
    /// preempt a younger one that took the rest, and work would be lost.
    /// Changes nothing and returns false if not all fits.
    ///
    /// A request that scores its prompt needs the logits of all its tokens and looks nothing up, as in vLLM; so does one for the mean of their
    /// hidden states.
    pub fn start(&mut self, request: &mut Request) -> bool {
        debug_assert!(request.block_table.is_empty() && request.num_computed_tokens == 0);
        let looks_up = self.prefix_caching && !request.needs_prompt_rows();
        let num_hits = if looks_up { self.find_prefix(request) } else { 0 };
        let table = &mut request.block_table;
        let num_free_hits = table.iter().filter(|&&block| self.pool.is_free(block)).count();
        let num_new = request.token_ids.len().div_ceil(self.block_size) - num_hits;
        // A hit that nobody holds is a free block until it is taken.
        if num_new + num_free_hits > self.pool.num_free() {
            table.clear();
            return false;
        }
        for &block in table.iter() {
            self.pool.acquire(block);
        }
        table.extend((0..num_new).map_while(|_| self.pool.allocate()));
        request.num_cached_blocks = num_hits;
        request.num_computed_tokens = num_hits * self.block_size;
        if looks_up && request.num_cached_tokens.is_none() {
            self.prefix_cache_queries += request.num_tokens() as u64;
            self.prefix_cache_hits += request.num_computed_tokens as u64;
        }
        request.num_cached_tokens.get_or_insert(request.num_computed_tokens);
        true
    }

    /// The first block of a request's prefix that is not known, if it would be looked up: by its number.
    pub fn first_unknown(&self, request: &Request) -> Option<usize> {
        if !self.prefix_caching || request.needs_prompt_rows() {
            return None;
        }
        let most = (request.num_tokens() - 1) / self.block_size;
        let hashes = &request.block_hashes[..most.min(request.block_hashes.len())];
        hashes.iter().position(|hash| self.pool.lookup(hash).is_none())
    }

    /// Puts the known blocks of the request's prefix into its block table, not yet held, and counts them.
    /// At least the last token is left to compute, because its logits are needed.
    fn find_prefix(&self, request: &mut Request) -> usize {
        let most = (request.num_tokens() - 1) / self.block_size;
        let known = request.block_hashes.iter().take(most).map_while(|hash| self.pool.lookup(hash));
        request.block_table.extend(known);
        request.block_table.len()
    }

    /// Grows the request's block table to hold `num_tokens` more than are computed, or changes nothing and returns false.
    pub fn grow(&mut self, request: &mut Request, num_tokens: usize) -> bool {
        let needed = (request.num_computed_tokens + num_tokens).div_ceil(self.block_size);
        let num_new = needed.saturating_sub(request.block_table.len());
        if num_new > self.pool.num_free() {
            return false;
        }
        request.block_table.extend((0..num_new).map_while(|_| self.pool.allocate()));
        true
    }

    /// Gives back the blocks behind a request's known tokens, which were for drafts.
    pub fn shrink(&mut self, request: &mut Request) {
        let needed = request.num_tokens().div_ceil(self.block_size);
        for block in request.block_table.drain(needed.min(request.block_table.len())..).rev() {
            self.pool.release(block);
        }
    }

    /// Makes the blocks of the prompt that the coming step fills known to the prefix cache: a request that starts in the same step finds them. Every layer
    /// writes the keys and values of all requests before any of them is attended to.
    pub fn offer(&mut self, request: &mut Request) {
        if !self.prefix_caching {
            return;
        }
        let full = (request.num_computed_tokens + request.chunk.num_tokens) / self.block_size;
        for i in request.num_cached_blocks..full.min(request.block_hashes.len()) {
            self.pool.insert(request.block_table[i], request.block_hashes[i]);
            request.num_cached_blocks = i + 1;
        }
    }

    /// The step failed: takes out what a request offered for it.
    pub fn withdraw(&mut self, request: &Request) {
        let computed = request.num_computed_tokens / self.block_size;
        for &block in request.block_table[..request.num_cached_blocks].iter().skip(computed) {
            self.pool.forget(block);
        }
    }

    /// Records that `num_tokens` more are computed, and makes the blocks that this filled known to the prefix cache.
    /// Called only after the step has succeeded.
    pub fn commit(&mut self, request: &mut Request, num_tokens: usize) {
        request.num_computed_tokens += num_tokens;
        if !self.prefix_caching {
            return;
        }
        let num_full = request.num_computed_tokens / self.block_size;
        for i in request.num_cached_blocks..num_full {
            if i == request.block_hashes.len() {
                let tokens = &request.token_ids[i * self.block_size..(i + 1) * self.block_size];
                let hash = hash_block(request.block_hashes.last().or(request.prompt.root().as_ref()), tokens);
                request.block_hashes.push(hash);
            }
            self.pool.insert(request.block_table[i], request.block_hashes[i]);
        }
        request.num_cached_blocks = num_full.max(request.num_cached_blocks);
    }

    /// Takes all blocks from a request. It may start again, and may then find its own blocks in the prefix cache.
    /// The last blocks are freed first, so that they are evicted before the prefix that others may share.
    pub fn free(&mut self, request: &mut Request) {
        for &block in request.block_table.iter().rev() {
            self.pool.release(block);
        }
        request.block_table.clear();
        request.num_cached_blocks = 0;
        request.num_computed_tokens = 0;
    }

    /// Takes the blocks that a request holds out of the prefix cache, those that it shares among them: some of their content is not to be
    /// trusted, and nobody knows since which token.
    pub fn forget(&mut self, request: &Request) {
        for &block in &request.block_table {
            self.pool.forget(block);
        }
    }

    /// Empties the prefix cache, if no request holds a block. Whether it did.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.forget_all()
    }

    /// Checks the pool against all requests that may hold blocks, and the order of each request's lengths.
    pub fn check_integrity<'a>(&self, requests: impl Iterator<Item = &'a Request> + Clone) -> Result<(), String> {
        self.pool.check_integrity(requests.clone().map(|request| request.block_table.as_slice()))?;
        for request in requests {
            let cached = request.num_cached_blocks * self.block_size;
            let (computed, known) = (request.num_computed_tokens, request.num_tokens());
            let room = request.block_table.len() * self.block_size;
            if !(cached <= computed && computed <= known && computed <= room) {
                return Err(format!(
                    "request {}: expected cached {cached} <= computed {computed} <= known {known}, room {room}",
                    request.id.0
                ));
            }
        }
        Ok(())
    }
}

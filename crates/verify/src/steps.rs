//! Steps by hand: which tokens of which requests are computed together, and in which blocks. It knows no model.

use std::ops::Range;

use vllm_apple_executor::Batch;

/// Requests with their places in the KV cache.
pub(crate) struct Steps {
    requests: Vec<Vec<u32>>,
    /// Of each request: in no order, and no two neighbours.
    blocks: Vec<Vec<u32>>,
    block_size: usize,
}

/// Tokens of a request that a step computes.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub request: usize,
    pub tokens: Range<usize>,
    /// Of how many of the last ones there are logits.
    pub logits: usize,
}

impl Chunk {
    pub fn new(request: usize, tokens: Range<usize>) -> Self {
        Self { request, tokens, logits: 1 }
    }
}

impl Steps {
    pub fn new(requests: Vec<Vec<u32>>, block_size: usize) -> Self {
        let num_blocks = |request: &Vec<u32>| request.len().div_ceil(block_size);
        let longest = requests.iter().map(num_blocks).max().unwrap_or(0);
        let count = requests.len();
        let block = |request: usize, i: usize| ((longest - 1 - i) * count + request) as u32;
        let of = |(r, request): (usize, &Vec<u32>)| (0..num_blocks(request)).map(|i| block(r, i)).collect();
        Self { blocks: requests.iter().enumerate().map(of).collect(), requests, block_size }
    }

    pub fn set_token(&mut self, request: usize, position: usize, token: u32) {
        self.requests[request][position] = token;
    }

    pub fn len_of(&self, request: usize) -> usize {
        self.requests[request].len()
    }

    pub fn batch(&self, chunks: &[Chunk]) -> Batch {
        let mut batch = Batch::default();
        batch.clear(self.blocks.iter().map(Vec::len).max().unwrap_or(0));
        for Chunk { request, tokens, logits } in chunks {
            let token_ids = &self.requests[*request][tokens.clone()];
            batch.push_request(token_ids, tokens.start, &self.blocks[*request], self.block_size, *logits);
        }
        batch
    }

    /// The request and the position of each token of such a step.
    pub fn places(chunks: &[Chunk]) -> Vec<(usize, usize)> {
        chunks.iter().flat_map(|chunk| chunk.tokens.clone().map(move |position| (chunk.request, position))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_is_anothers_and_no_two_are_in_order() {
        let steps = Steps::new(vec![vec![1; 40], vec![2; 3], vec![3; 33]], 16);
        let mut all: Vec<u32> = steps.blocks.concat();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(steps.blocks.iter().all(|blocks| blocks.windows(2).all(|pair| pair[0] > pair[1] + 1)));
        let batch = steps.batch(&[Chunk::new(2, 30..33), Chunk::new(0, 0..1)]);
        assert_eq!((batch.token_ids, batch.seq_lens, batch.logit_rows), (vec![3, 3, 3, 1], vec![33, 1], vec![2, 3]));
    }
}

//! One step's work as flat arrays: what the scheduler hands to the executor. It holds lengths and block ids, no tensors.

use crate::info::ExecutorInfo;

/// The tokens of one step, request after request, and where their keys and values live.
///
/// `T` is the number of tokens in the step, `R` the number of requests. The vectors are reused from step to step.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Batch {
    /// `[T]` token ids.
    pub token_ids: Vec<u32>,
    /// `[T]` absolute position of each token in its request.
    pub positions: Vec<u32>,
    /// `[T]` slot in the KV cache that each token's key and value are written to: `block * block_size + offset`.
    pub slot_mapping: Vec<u32>,
    /// `[R + 1]` tokens of request `r` are `query_start_loc[r]..query_start_loc[r + 1]`.
    pub query_start_loc: Vec<u32>,
    /// `[R]` tokens of each request that attention sees after this step: `num_computed_tokens` + its tokens here.
    pub seq_lens: Vec<u32>,
    /// `[R, block_table_stride]` block ids, row-major; a row's entries past its sequence are not read.
    pub block_table: Vec<u32>,
    /// Length of a row of `block_table`.
    pub block_table_stride: usize,
    /// Indices into `T` of the tokens whose logits, or hidden states, are wanted, ascending. Row `i` of these is `logit_rows[i]`.
    pub logit_rows: Vec<u32>,
}

impl Batch {
    /// An empty batch with room for the largest step within the limits.
    pub fn with_room_for(info: &ExecutorInfo) -> Self {
        let (tokens, seqs) = (info.max_num_batched_tokens, info.max_num_seqs);
        Self {
            token_ids: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            slot_mapping: Vec::with_capacity(tokens),
            query_start_loc: Vec::with_capacity(seqs + 1),
            seq_lens: Vec::with_capacity(seqs),
            block_table: Vec::with_capacity(seqs * info.max_model_len.div_ceil(info.block_size)),
            block_table_stride: 0,
            logit_rows: Vec::with_capacity(info.max_logit_rows),
        }
    }

    /// Number of tokens in the step, `T`.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// Number of requests in the step, `R`.
    pub fn num_requests(&self) -> usize {
        self.seq_lens.len()
    }

    /// Empties the batch and keeps its memory. `block_table_stride` is the longest block list of the step to come.
    pub fn clear(&mut self, block_table_stride: usize) {
        self.token_ids.clear();
        self.positions.clear();
        self.slot_mapping.clear();
        self.query_start_loc.clear();
        self.query_start_loc.push(0);
        self.seq_lens.clear();
        self.block_table.clear();
        self.block_table_stride = block_table_stride;
        self.logit_rows.clear();
    }

    /// Appends one request: its next `token_ids`, of which `num_computed_tokens` precede, in `blocks` of `block_size`.
    /// Logits are wanted for its last `num_logits` tokens.
    ///
    /// # Panics
    /// If `blocks` does not cover the tokens or is longer than the stride: the scheduler's own invariants.
    pub fn push_request(
        &mut self,
        token_ids: &[u32],
        num_computed_tokens: usize,
        blocks: &[u32],
        block_size: usize,
        num_logits: usize,
    ) {
        let seq_len = num_computed_tokens + token_ids.len();
        assert!(seq_len <= blocks.len() * block_size && blocks.len() <= self.block_table_stride);
        assert!(num_logits <= token_ids.len());
        self.token_ids.extend_from_slice(token_ids);
        for position in num_computed_tokens..seq_len {
            self.positions.push(position as u32);
            let slot = blocks[position / block_size] as usize * block_size + position % block_size;
            self.slot_mapping.push(slot as u32);
        }
        let end = self.token_ids.len() as u32;
        self.query_start_loc.push(end);
        self.seq_lens.push(seq_len as u32);
        self.block_table.extend_from_slice(blocks);
        self.block_table.resize(self.seq_lens.len() * self.block_table_stride, 0);
        self.logit_rows.extend(end - num_logits as u32..end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_requests_are_laid_out_one_after_the_other() {
        let mut batch = Batch::default();
        batch.clear(3);
        batch.push_request(&[7, 8, 9], 3, &[5, 2], 4, 1);
        batch.push_request(&[4], 0, &[1], 4, 0);
        assert_eq!(batch.positions, [3, 4, 5, 0]);
        assert_eq!(batch.slot_mapping, [23, 8, 9, 4]);
        assert_eq!(batch.query_start_loc, [0, 3, 4]);
        assert_eq!(batch.seq_lens, [6, 1]);
        assert_eq!(batch.block_table, [5, 2, 0, 1, 0, 0]);
        assert_eq!(batch.logit_rows, [2]);
    }
}

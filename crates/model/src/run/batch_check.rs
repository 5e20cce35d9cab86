//! Checks a batch against the executor's limits, so that no op meets an index out of range. It computes nothing.

use vllm_apple_executor::Batch;
use vllm_apple_executor::ExecutorInfo;

/// Working memory of the check.
pub(crate) struct BatchCheck {
    /// A bit per slot of the KV cache; all zero between checks.
    written: Vec<u64>,
}

impl BatchCheck {
    pub(crate) fn new(info: &ExecutorInfo) -> Self {
        Self { written: vec![0; (info.num_blocks * info.block_size).div_ceil(64)] }
    }

    /// Says what is wrong with the batch, if anything.
    pub(crate) fn check(&mut self, batch: &Batch, info: &ExecutorInfo) -> Result<(), String> {
        check_shape(batch, info)?;
        check_indices(batch, info)?;
        for r in 0..batch.num_requests() {
            check_request(batch, r, info)?;
        }
        self.check_slots_differ(batch)
    }

    fn check_slots_differ(&mut self, batch: &Batch) -> Result<(), String> {
        let bit = |slot: u32| (slot as usize / 64, 1u64 << (slot % 64));
        let mut twice = None;
        for &slot in &batch.slot_mapping {
            let (word, mask) = bit(slot);
            if self.written[word] & mask != 0 {
                twice = Some(slot);
            }
            self.written[word] |= mask;
        }
        for &slot in &batch.slot_mapping {
            self.written[bit(slot).0] = 0;
        }
        twice.map_or(Ok(()), |slot| Err(format!("slot {slot} of the KV cache is written twice")))
    }
}

fn check_shape(b: &Batch, info: &ExecutorInfo) -> Result<(), String> {
    let (tokens, requests) = (b.num_tokens(), b.num_requests());
    let at_most = |what: &str, got: usize, max: usize| match got <= max {
        true => Ok(()),
        false => Err(format!("the batch has {got} {what}, at most {max} are allowed")),
    };
    at_most("tokens", tokens, info.max_num_batched_tokens)?;
    at_most("requests", requests, info.max_num_seqs)?;
    at_most("rows of logits", b.logit_rows.len(), info.max_logit_rows)?;
    at_most("blocks in a row", b.block_table_stride, info.max_model_len.div_ceil(info.block_size))?;
    for (what, got, expected) in [
        ("positions", b.positions.len(), tokens),
        ("slot_mapping", b.slot_mapping.len(), tokens),
        ("query_start_loc", b.query_start_loc.len(), requests + 1),
        ("block_table", b.block_table.len(), requests * b.block_table_stride),
    ] {
        if got != expected {
            return Err(format!("the batch's {what} has {got} entries instead of {expected}"));
        }
    }
    let bounds = (b.query_start_loc.first().copied(), b.query_start_loc.last().map(|&end| end as usize));
    let ascending = b.query_start_loc.is_sorted_by(|x, y| x < y);
    match bounds == (Some(0), Some(tokens)) && ascending {
        true => Ok(()),
        false => Err(format!("the batch's query_start_loc does not ascend from 0 to {tokens}")),
    }
}

fn check_indices(b: &Batch, info: &ExecutorInfo) -> Result<(), String> {
    if let Some(id) = b.token_ids.iter().find(|&&id| id as usize >= info.vocab_size) {
        return Err(format!("token id {id} is not below the vocabulary size {}", info.vocab_size));
    }
    if let Some(row) = b.logit_rows.iter().find(|&&row| row as usize >= b.num_tokens()) {
        return Err(format!("logits are wanted of token {row} of {}", b.num_tokens()));
    }
    Ok(())
}

/// Positions must end at the request's length, and each slot must be where the block table says.
fn check_request(b: &Batch, r: usize, info: &ExecutorInfo) -> Result<(), String> {
    let tokens = b.query_start_loc[r] as usize..b.query_start_loc[r + 1] as usize;
    let seq_len = b.seq_lens[r] as usize;
    let table = &b.block_table[r * b.block_table_stride..][..b.block_table_stride];
    let blocks = seq_len.div_ceil(info.block_size);
    if seq_len > info.max_model_len || tokens.len() > seq_len || blocks > table.len() {
        let (new, max) = (tokens.len(), info.max_model_len);
        let held = table.len();
        return Err(format!("request {r} has {new} tokens of {seq_len} in {held} blocks, at most {max} are allowed"));
    }
    if let Some(block) = table[..blocks].iter().find(|&&block| block as usize >= info.num_blocks) {
        return Err(format!("request {r} uses block {block} of {}", info.num_blocks));
    }
    for (position, t) in (seq_len - tokens.len()..seq_len).zip(tokens) {
        let slot = table[position / info.block_size] as usize * info.block_size + position % info.block_size;
        let (got_position, got_slot) = (b.positions[t] as usize, b.slot_mapping[t] as usize);
        if (got_position, got_slot) != (position, slot) {
            return Err(format!(
                "token {t} of request {r} is at position {got_position}, slot {got_slot} instead of {position}, {slot}"
            ));
        }
    }
    Ok(())
}

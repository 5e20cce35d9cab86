//! Sampling on the host, by the op's reference.

use vllm_apple_ops::sample::{Adjustment, MAX_TOP, Picked, Reference, SampleRow};
use vllm_apple_ops::{Result, Sample, sample};

use super::host::Host;
use crate::gpu::Gpu;
use crate::recorder::region::Region;

pub(crate) fn sample<G: Gpu>(host: &Host<'_, G>, op: Sample<'_, Region<G>>) -> Result<()> {
    let vocab = op.logits.cols();
    let logits = host.floats(op.logits, op.logits.rows());
    let words = host.integers(op.params, op.rows * SampleRow::WORDS);
    let params: Vec<SampleRow> = words.as_chunks().0.iter().map(|words| SampleRow::of_words(*words)).collect();
    let words = host.integers(op.adjustments, op.adjustments.rows() * Adjustment::WORDS);
    let adjustments: Vec<Adjustment> = words.as_chunks().0.iter().map(|words| Adjustment::of_words(*words)).collect();
    let masks = host.integers(op.masks, op.masks.rows() * op.masks.cols());
    let results = host.parallel(op.rows, |i| {
        let row = &params[i];
        let logits = &logits[row.logit_row as usize * vocab..][..vocab];
        answer(row, &sample::reference(logits, row, &adjustments, &masks))
    });
    let (mut picked, mut top) = (Vec::new(), Vec::new());
    for (row_picked, row_top) in results {
        picked.extend(row_picked.words());
        top.extend(row_top);
    }
    host.recorder.write(op.picked, bytemuck::cast_slice(&picked));
    host.recorder.write(op.top, bytemuck::cast_slice(&top));
    Ok(())
}

/// What was picked, and a row of `top`.
fn answer(row: &SampleRow, found: &Reference) -> (Picked, [u32; 2 * MAX_TOP]) {
    let logprob = |token: u32| found.logprobs[token as usize] as f32;
    let (logprob_of_token, rank) = match row.num_top {
        Some(_) => (logprob(found.token), found.rank),
        None => (0.0, 0),
    };
    let mut top = [0; 2 * MAX_TOP];
    let num_top = row.num_top.unwrap_or(0) as usize;
    let ids = found.ranking.iter().map(|&id| (id, logprob(id).to_bits())).chain(std::iter::repeat((u32::MAX, 0)));
    for (entry, (id, bits)) in top.chunks_exact_mut(2).zip(ids).take(num_top) {
        entry.copy_from_slice(&[id, bits]);
    }
    (Picked { token: found.token, max: found.max, logprob: logprob_of_token, rank }, top)
}

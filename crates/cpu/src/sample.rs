//! Picks or scores a token of each row of logits, rows side by side. A row's result depends on nothing but the row: not on other rows,
//! their order or the number of threads.

mod draw;
mod logprobs;
mod passes;
mod process;
mod top;

use vllm_apple_ops::sample::{Adjustment, MAX_TOP, NAME, Picked, SampleRow, mask_words};
use vllm_apple_ops::{Error, Result, Sample};

use crate::CpuBackend;
use crate::memory::{Memory, elements, elements_mut};
use crate::pack::SendPtr;
use crate::rows::for_each_row;
use crate::simd::{Kernel, Simd};
use draw::Candidates;

/// Memory that the op reuses from call to call, one slot per thread. [`Sampling::reserve`] grows it, and so does a call that nobody has
/// announced.
pub(crate) struct Sampling {
    slots: Vec<Slot>,
}

/// Working memory for one row: written before it is read.
struct Slot {
    processed: Vec<f32>,
    candidates: Candidates,
    top: Vec<(f32, u32)>,
}

impl Sampling {
    pub(crate) fn new(threads: usize) -> Self {
        let slot = || Slot {
            processed: Vec::new(),
            candidates: Candidates::default(),
            top: Vec::with_capacity(top::room(MAX_TOP)),
        };
        Self { slots: (0..threads).map(|_| slot()).collect() }
    }

    /// Makes room for rows of `vocab_size` logits.
    pub(crate) fn reserve(&mut self, vocab_size: usize) {
        for slot in &mut self.slots {
            if slot.processed.len() < vocab_size {
                // Nothing of the old content is needed, and zeros from the system cost nothing until they are touched.
                slot.processed = Vec::new();
                slot.processed = vec![0.0; vocab_size];
                slot.candidates = Candidates::new(vocab_size);
            }
        }
    }

    /// Bytes that [`Sampling::reserve`] grows to.
    pub(crate) fn bytes(&self, vocab_size: usize) -> usize {
        self.slots.len() * (vocab_size * size_of::<f32>() + Candidates::bytes(vocab_size))
    }
}

pub(crate) fn run(backend: &mut CpuBackend, op: Sample<'_, Memory>) -> Result<()> {
    let vocab = op.logits.cols();
    let rows = elements::<u32>(op.params, op.rows).as_chunks::<{ SampleRow::WORDS }>().0;
    let tables = Tables {
        vocab,
        logits: elements(op.logits, op.logits.rows()),
        adjustments: elements::<u32>(op.adjustments, op.adjustments.rows()).as_chunks().0,
        masks: elements(op.masks, op.masks.rows()),
    };
    for words in rows {
        tables.check(&SampleRow::of_words(*words))?;
    }
    backend.sampling.reserve(vocab);
    let CpuBackend { pool, dispatch, sampling, .. } = backend;
    let slots = SendPtr(sampling.slots.as_mut_ptr());
    let (picked, top) = (elements_mut::<u32>(op.picked, op.rows), elements_mut::<u32>(op.top, op.rows));
    for_each_row(pool, op.rows, picked, top, |i, thread, picked, top| {
        // SAFETY: no two calls of the same thread overlap.
        let slot = unsafe { &mut *slots.get().add(thread) };
        let row = SampleRow::of_words(rows[i]);
        let inputs = tables.inputs(&row);
        dispatch.run(Row { inputs, row, slot, picked, top });
    });
    Ok(())
}

/// What rows point into.
struct Tables<'a> {
    vocab: usize,
    logits: &'a [f32],
    adjustments: &'a [[u32; Adjustment::WORDS]],
    masks: &'a [u32],
}

/// A row's part of the tables.
struct Inputs<'a> {
    logits: &'a [f32],
    adjustments: &'a [[u32; Adjustment::WORDS]],
    mask: Option<&'a [u32]>,
    seen: Option<&'a [u32]>,
}

impl<'a> Tables<'a> {
    /// Refuses what would lead out of the tables.
    fn check(&self, row: &SampleRow) -> Result<()> {
        let within = |what, got: u64, end: usize| match got < end as u64 {
            true => Ok(()),
            false => {
                Err(Error::InvalidArgument { op: NAME, what, expected: format!("below {end}"), got: got.to_string() })
            }
        };
        within("logit_row", row.logit_row.into(), self.logits.len() / self.vocab)?;
        let [first, count] = row.adjustments.map(u64::from);
        within("the end of a row's adjustments", first + count, self.adjustments.len() + 1)?;
        let masks = self.masks.len() / mask_words(self.vocab);
        for (what, mask) in [("mask", row.mask), ("the mask of what was seen", row.seen)] {
            mask.map_or(Ok(()), |mask| within(what, mask.into(), masks))?;
        }
        within("the token to score", row.score.unwrap_or(0).into(), self.vocab)?;
        within("num_top", row.num_top.unwrap_or(0).into(), MAX_TOP + 1)
    }

    fn inputs(&self, row: &SampleRow) -> Inputs<'a> {
        let [first, count] = row.adjustments.map(|n| n as usize);
        let words = mask_words(self.vocab);
        let mask = |mask: Option<u32>| mask.map(|mask| &self.masks[mask as usize * words..][..words]);
        Inputs {
            logits: &self.logits[row.logit_row as usize * self.vocab..][..self.vocab],
            adjustments: &self.adjustments[first..first + count],
            mask: mask(row.mask),
            seen: mask(row.seen),
        }
    }
}

struct Row<'a> {
    inputs: Inputs<'a>,
    row: SampleRow,
    slot: &'a mut Slot,
    picked: &'a mut [u32],
    top: &'a mut [u32],
}

impl Kernel for Row<'_> {
    type Output = ();

    /// The passes are plain loops, which the compiler turns into the instructions that `S` stands for: it neither contracts nor
    /// reorders, so that all sets compute the same bits.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { inputs, row, slot, picked, top } = self;
        let logits = inputs.logits;
        let processed = process::process(&mut slot.processed[..logits.len()], &inputs, row.repetition_penalty);
        let (best, max) = passes::argmax(processed);
        let token = match row.score {
            Some(token) => token,
            None if row.scale == 0.0 || !max.is_finite() => best,
            None => slot.candidates.draw(processed, max, &row),
        };
        let mut result = Picked { token, max, logprob: 0.0, rank: 0 };
        if let Some(num_top) = row.num_top
            && max.is_finite()
        {
            // Of what the mask leaves: nothing else that changes logits counts.
            let own = Inputs { adjustments: &[], seen: None, ..inputs };
            let own = process::process(&mut slot.processed[..logits.len()], &own, 1.0);
            (result.logprob, result.rank) = logprobs::compute(own, token, num_top as usize, &mut slot.top, top);
        }
        picked.copy_from_slice(&result.words());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_ops::{Backend, DType, Tensor};

    fn tensor(backend: &CpuBackend, cols: usize, words: &[u32]) -> Tensor<Memory> {
        let mut tensor = backend.allocate(DType::U32, words.len() / cols, cols).unwrap();
        backend.write(&mut tensor, bytemuck::cast_slice(words));
        tensor
    }

    /// Samples from two rows of 33 logits, with one adjustment and one mask.
    fn sample(row: SampleRow) -> Result<Picked> {
        let mut backend = CpuBackend::new(Some(1));
        let mut logits = backend.allocate(DType::F32, 2, 33)?;
        let values: Vec<f32> = (0..66).map(|i| if i < 33 { i } else { 100 - i } as f32).collect();
        backend.write(&mut logits, bytemuck::cast_slice(&values));
        let params = tensor(&backend, SampleRow::WORDS, &row.words());
        let forbid = Adjustment { token: 0, seen: false, bias: f32::NEG_INFINITY, subtract: 0.0 };
        let mut adjustments = tensor(&backend, Adjustment::WORDS, &forbid.words());
        let masks = tensor(&backend, 2, &[0b011, 1]);
        let mut picked = backend.allocate(DType::U32, 1, Picked::WORDS)?;
        let mut top = backend.allocate(DType::U32, 1, 2 * MAX_TOP)?;
        let (logits, adjustments) = (&mut logits, &mut adjustments);
        let op =
            Sample { rows: 1, logits, params: &params, adjustments, masks: &masks, picked: &mut picked, top: &mut top };
        op.run(&mut backend)?;
        let words: &[u32] = bytemuck::cast_slice(backend.read(&picked));
        Ok(Picked::of_words(words.try_into().unwrap()))
    }

    #[test]
    fn a_row_that_leads_out_of_its_tables_is_refused_by_name() {
        let last = SampleRow { adjustments: [0, 1], mask: Some(0), num_top: Some(20), ..SampleRow::greedy(1) };
        assert_eq!(sample(last).unwrap().token, 1);
        assert_eq!(sample(SampleRow { score: Some(32), ..last }).unwrap().token, 32);
        assert_eq!(sample(SampleRow { adjustments: [1, 0], mask: None, ..last }).unwrap().token, 0);
        let bad = [
            (SampleRow { logit_row: 2, ..last }, "logit_row must be below 2, got 2"),
            (SampleRow { adjustments: [1, 1], ..last }, "adjustments must be below 2, got 2"),
            (SampleRow { adjustments: [u32::MAX, u32::MAX], ..last }, "adjustments"),
            (SampleRow { mask: Some(1), ..last }, "mask must be below 1, got 1"),
            (SampleRow { seen: Some(1), ..last }, "seen must be below 1, got 1"),
            (SampleRow { score: Some(33), ..last }, "score must be below 33, got 33"),
            (SampleRow { num_top: Some(21), ..last }, "num_top must be below 21, got 21"),
        ];
        for (row, expected) in bad {
            let error = sample(row).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_mask_counts_in_log_probabilities_and_a_ban_does_not() {
        let near = |got: f32, expected: f64| assert!((f64::from(got) - expected).abs() < 1e-6, "{got} {expected}");
        // Logits 67, 66, 65 and so on; the first is banned.
        let row = SampleRow { adjustments: [0, 1], num_top: Some(0), ..SampleRow::greedy(1) };
        let free = sample(row).unwrap();
        assert_eq!((free.token, free.max, free.rank), (1, 66.0, 2));
        near(free.logprob, -1.0 - (0..33).map(|i| f64::from(-i).exp()).sum::<f64>().ln());
        let held = sample(SampleRow { mask: Some(0), ..row }).unwrap();
        assert_eq!((held.token, held.max, held.rank), (1, 66.0, 2));
        near(held.logprob, -1.0 - (1.0 + (-1f64).exp() + (-32f64).exp()).ln());
        let forbidden = sample(SampleRow { mask: Some(0), score: Some(2), ..row }).unwrap();
        assert_eq!((forbidden.token, forbidden.logprob, forbidden.rank), (2, f32::NEG_INFINITY, 4));
    }

    #[test]
    fn what_is_reserved_is_what_is_counted() {
        for vocab in [100, 32_000] {
            let mut sampling = Sampling::new(3);
            sampling.reserve(vocab);
            let slot = |slot: &Slot| size_of_val(&slot.processed[..]) + slot.candidates.taken();
            assert_eq!(sampling.bytes(vocab), sampling.slots.iter().map(slot).sum::<usize>());
            // Shorter rows need nothing more.
            let before = sampling.slots[0].processed.as_ptr();
            sampling.reserve(vocab);
            sampling.reserve(vocab - 1);
            assert_eq!((sampling.slots[0].processed.as_ptr(), sampling.slots[0].processed.len()), (before, vocab));
        }
    }
}

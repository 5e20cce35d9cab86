//! Scratch of the ops: one buffer, divided into a slot per use, sized before a step. It knows no op's layout of its slot.
//!
//! An op that needs scratch gets a [`Slot`] and says in [`Slot::bytes`] how much a step needs at most. While it encodes it takes
//! its memory by `backend.scratch(Slot::…, bytes)?`: the first bytes of the slot, aligned to 256, of no defined content, the same
//! memory for every dispatch that asks within a step. What was written for one op is lost when the next takes the same slot; hazard
//! tracking orders the two.

use vllm_apple_ops::{Error, Result, StepSize};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;
use crate::memory::Region;

/// What a part of the scratch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// What the parts of a sequence contribute to attention, before they are combined.
    AttentionPartials,
    /// Pairs of a token and an expert, sorted by expert.
    ExpertGroups,
}

const SLOTS: [Slot; 2] = [Slot::AttentionPartials, Slot::ExpertGroups];

impl Slot {
    /// Bytes that a step of this size needs at most. Grows with each of the sizes.
    fn bytes(self, step: &StepSize) -> usize {
        match self {
            Self::AttentionPartials => crate::paged_attention::scratch_bytes(step),
            Self::ExpertGroups => crate::grouped_matmul::scratch_bytes(step),
        }
    }
}

/// Slots begin at multiples of this.
const ALIGNMENT: usize = 256;

type Lens = [usize; SLOTS.len()];

/// The buffer behind all slots.
pub(crate) struct Arena<G: Gpu> {
    region: Option<Region<G>>,
    lens: Lens,
    limit: Option<usize>,
}

impl<G: Gpu> Arena<G> {
    /// An empty arena that may grow to `limit` bytes.
    pub fn new(limit: Option<usize>) -> Self {
        Self { region: None, lens: Lens::default(), limit }
    }

    /// Bytes of all slots for a step.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if that is more than the limit.
    pub fn check(&self, step: &StepSize, device: &str) -> Result<usize> {
        let needed = total(&SLOTS.map(|slot| slot.bytes(step).next_multiple_of(ALIGNMENT)));
        match self.limit {
            Some(limit) if needed > limit => {
                let purpose = format!(
                    "scratch of the largest step; VLLM_METAL_SCRATCH_POOL_MB allows {limit}: raise it, or use a smaller \
                     --max-num-batched-tokens or --max-num-seqs"
                );
                Err(Error::OutOfMemory { device: device.to_owned(), bytes: needed, purpose })
            }
            _ => Ok(needed),
        }
    }

    /// The sizes to grow to, if `needs` do not fit: all slots by half, as far as the limit allows.
    fn growth(&self, needs: &Lens) -> Option<Lens> {
        if self.region.is_some() && needs.iter().zip(&self.lens).all(|(need, len)| need <= len) {
            return None;
        }
        let zip = |by: &dyn Fn(usize) -> usize| std::array::from_fn(|i| needs[i].max(by(self.lens[i])));
        let within = |lens: &Lens| self.limit.is_none_or(|limit| total(lens) <= limit);
        let larger: Lens = zip(&|len| (len + len / 2).next_multiple_of(ALIGNMENT));
        let no_smaller: Lens = zip(&|len| len);
        [larger, no_smaller].into_iter().find(within).or(Some(*needs))
    }
}

fn total(lens: &Lens) -> usize {
    lens.iter().sum()
}

impl<G: Gpu> MetalBackend<G> {
    /// Grows the arena for a step: the one place where it grows, before anything of the step is recorded.
    pub(crate) fn prepare_arena(&mut self, step: &StepSize) -> Result<()> {
        self.arena.check(step, self.gpu.facts().backend)?;
        self.fit_arena(SLOTS.map(|slot| slot.bytes(step).next_multiple_of(ALIGNMENT)))
    }

    /// The first `bytes` of a slot.
    ///
    /// # Errors
    /// Only outside of prepared steps, where it may have to grow: what is recorded runs first then.
    pub(crate) fn scratch(&mut self, slot: Slot, bytes: usize) -> Result<Region<G>> {
        let mut needs = self.arena.lens;
        needs[slot as usize] = needs[slot as usize].max(bytes.next_multiple_of(ALIGNMENT));
        self.fit_arena(needs)?;
        let offset = self.arena.lens[..slot as usize].iter().sum();
        let region = self.arena.region.as_ref().expect("it has just been made to fit");
        Ok(region.slice(offset, bytes))
    }

    fn fit_arena(&mut self, needs: Lens) -> Result<()> {
        let Some(lens) = self.arena.growth(&needs) else { return Ok(()) };
        self.flush()?;
        // Before the new one is allocated: both may not fit.
        (self.arena.region, self.arena.lens) = (None, Lens::default());
        let region = self.region(total(&lens), "scratch of the ops; use a smaller --max-num-batched-tokens")?;
        (self.arena.region, self.arena.lens) = (Some(region), lens);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vllm_apple_ops::{Backend, DType, ModelSize};

    use super::*;
    use crate::MetalOptions;
    use crate::gpu::fake::FakeGpu;

    fn step(num_tokens: usize) -> StepSize {
        let model = ModelSize {
            dtype: DType::BF16,
            vocab_size: 1000,
            hidden_size: 64,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 64,
            intermediate_size: 0,
            num_experts: 16,
            top_k: 4,
            expert_intermediate_size: 96,
        };
        StepSize { num_tokens, num_requests: 1, max_query_len: 1, max_seq_len: 4096, num_logit_rows: 1, model }
    }

    fn backend(options: MetalOptions) -> MetalBackend<FakeGpu> {
        MetalBackend::new(FakeGpu::recording(), options).unwrap()
    }

    #[test]
    fn what_was_prepared_for_does_not_grow() {
        let mut backend = backend(MetalOptions::default());
        backend.prepare(&step(64)).unwrap();
        let id = backend.arena.region.as_ref().unwrap().id;
        assert_eq!(total(&backend.arena.lens) as u64, backend.scratch_bytes(&step(64)));
        for tokens in [1, 64, 7] {
            backend.prepare(&step(tokens)).unwrap();
            for slot in SLOTS {
                assert_eq!(backend.scratch(slot, slot.bytes(&step(tokens))).unwrap().id, id);
            }
        }
    }

    #[test]
    fn slots_lie_side_by_side() {
        let mut backend = backend(MetalOptions::default());
        backend.prepare(&step(64)).unwrap();
        let slices = SLOTS.map(|slot| backend.scratch(slot, backend.arena.lens[slot as usize]).unwrap());
        for pair in slices.windows(2) {
            assert_eq!(pair[0].offset + pair[0].len, pair[1].offset);
            assert!(pair[1].offset.is_multiple_of(ALIGNMENT));
        }
    }

    #[test]
    fn all_slots_grow_together_by_half() {
        let mut backend = backend(MetalOptions::default());
        backend.fit_arena([2048, 1024]).unwrap();
        backend.fit_arena([2304, 256]).unwrap();
        assert_eq!(backend.arena.lens, [3072, 1536]);
        backend.fit_arena([256, 9984]).unwrap();
        assert_eq!(backend.arena.lens, [4608, 9984]);
    }

    #[test]
    fn the_limit_is_kept_and_named() {
        let mut backend = backend(MetalOptions { scratch_pool: Some(4096), ..MetalOptions::default() });
        backend.fit_arena([2048, 1024]).unwrap();
        // By half would be too much.
        backend.fit_arena([3072, 256]).unwrap();
        assert_eq!(backend.arena.lens, [3072, 1024]);
        // As would be both at their largest.
        backend.fit_arena([256, 2048]).unwrap();
        assert_eq!(backend.arena.lens, [256, 2048]);
        let error = backend.prepare(&step(64)).unwrap_err().to_string();
        let bytes = total(&SLOTS.map(|slot| slot.bytes(&step(64)).next_multiple_of(ALIGNMENT))).to_string();
        assert!(error.contains("VLLM_METAL_SCRATCH_POOL_MB") && error.contains(&bytes), "{error}");
    }

    #[test]
    fn more_tokens_than_a_step_may_have_are_refused() {
        let backend = backend(MetalOptions { max_batch_size: 64, ..MetalOptions::default() });
        backend.check_step(&step(64)).unwrap();
        let error = backend.check_step(&step(65)).unwrap_err().to_string();
        assert!(error.contains("VLLM_METAL_MAX_BATCH_SIZE") && error.contains("65 tokens"), "{error}");
    }
}

//! Scratch of the ops: one buffer, divided into slots, sized before a step. It knows no op.
//!
//! An op that needs scratch has a [`Slot`], and the backend says before a step how much of each slot the step needs at most. While
//! an op records it takes its memory by `recorder.scratch(slot, bytes)?`: the first bytes of the slot, aligned to 256, of no defined
//! content, the same memory for every dispatch that asks within a step. What was written for one op is lost when the next writes to the
//! same slot; hazard tracking orders the two.

use vllm_apple_ops::{Error, Result};

use super::Recorder;
use super::region::Region;
use crate::gpu::Gpu;

/// A part of the scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(pub usize);

/// Slots there are.
pub(crate) const NUM_SLOTS: usize = 2;

/// Slots begin at multiples of this.
const ALIGNMENT: usize = 256;

/// Bytes of each slot.
pub(crate) type Lens = [usize; NUM_SLOTS];

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

    /// Bytes of all slots for a step that needs so much of each.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if that is more than the limit.
    pub fn check(&self, needs: Lens, device: &str) -> Result<usize> {
        let needed = total(&aligned(needs));
        match self.limit {
            Some(limit) if needed > limit => {
                let purpose = format!(
                    "scratch of the largest step; `metal_scratch_pool` allows {limit}: raise it, or use a smaller \
                     `max_num_batched_tokens` or `max_num_seqs`"
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

fn aligned(lens: Lens) -> Lens {
    lens.map(|len| len.next_multiple_of(ALIGNMENT))
}

fn total(lens: &Lens) -> usize {
    lens.iter().sum()
}

impl<G: Gpu> Recorder<G> {
    /// Grows the arena for a step: the one place where it grows, before anything of the step is recorded.
    pub fn prepare_arena(&mut self, needs: Lens) -> Result<()> {
        self.arena.check(needs, self.gpu.facts().backend)?;
        self.fit_arena(aligned(needs))
    }

    /// The first `bytes` of a slot.
    ///
    /// # Errors
    /// Only outside of prepared steps, where it may have to grow: what is recorded runs first then.
    pub fn scratch(&mut self, slot: Slot, bytes: usize) -> Result<Region<G>> {
        let mut needs = self.arena.lens;
        needs[slot.0] = needs[slot.0].max(bytes.next_multiple_of(ALIGNMENT));
        self.fit_arena(needs)?;
        let offset = self.arena.lens[..slot.0].iter().sum();
        let region = self.arena.region.as_ref().expect("it has just been made to fit");
        Ok(region.slice(offset, bytes))
    }

    fn fit_arena(&mut self, needs: Lens) -> Result<()> {
        let Some(lens) = self.arena.growth(&needs) else { return Ok(()) };
        self.flush()?;
        // Before the new one is allocated: both may not fit.
        (self.arena.region, self.arena.lens) = (None, Lens::default());
        let region = self.region(total(&lens), "scratch of the ops; use a smaller `max_num_batched_tokens`")?;
        (self.arena.region, self.arena.lens) = (Some(region), lens);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::fake::FakeGpu;

    fn recorder(limit: Option<usize>) -> Recorder<FakeGpu> {
        Recorder::new(FakeGpu::recording(), limit)
    }

    #[test]
    fn what_was_prepared_for_does_not_grow() {
        let mut recorder = recorder(None);
        recorder.prepare_arena([5000, 3000]).unwrap();
        let id = recorder.arena.region.as_ref().unwrap().id;
        assert_eq!(total(&recorder.arena.lens), recorder.arena.check([5000, 3000], "fake").unwrap());
        for needs in [[1, 1], [5000, 3000], [700, 2999]] {
            recorder.prepare_arena(needs).unwrap();
            for (slot, bytes) in needs.into_iter().enumerate() {
                assert_eq!(recorder.scratch(Slot(slot), bytes).unwrap().id, id);
            }
        }
    }

    #[test]
    fn slots_lie_side_by_side() {
        let mut recorder = recorder(None);
        recorder.prepare_arena([5000, 3000]).unwrap();
        let slices = [0, 1].map(|slot| recorder.scratch(Slot(slot), recorder.arena.lens[slot]).unwrap());
        for pair in slices.windows(2) {
            assert_eq!(pair[0].offset + pair[0].len, pair[1].offset);
            assert!(pair[1].offset.is_multiple_of(ALIGNMENT));
        }
    }

    #[test]
    fn all_slots_grow_together_by_half() {
        let mut recorder = recorder(None);
        recorder.fit_arena([2048, 1024]).unwrap();
        recorder.fit_arena([2304, 256]).unwrap();
        assert_eq!(recorder.arena.lens, [3072, 1536]);
        recorder.fit_arena([256, 9984]).unwrap();
        assert_eq!(recorder.arena.lens, [4608, 9984]);
    }

    #[test]
    fn the_limit_is_kept_and_named() {
        let mut recorder = recorder(Some(4096));
        recorder.fit_arena([2048, 1024]).unwrap();
        // By half would be too much.
        recorder.fit_arena([3072, 256]).unwrap();
        assert_eq!(recorder.arena.lens, [3072, 1024]);
        // As would be both at their largest.
        recorder.fit_arena([256, 2048]).unwrap();
        assert_eq!(recorder.arena.lens, [256, 2048]);
        let error = recorder.prepare_arena([4000, 1]).unwrap_err().to_string();
        assert!(error.contains("`metal_scratch_pool`") && error.contains("4352"), "{error}");
    }
}

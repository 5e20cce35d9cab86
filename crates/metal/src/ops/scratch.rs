//! Which ops need scratch, and how much: the slots of the recorder's arena.

use vllm_apple_ops::StepSize;

use super::{grouped_matmul, paged_attention};
use crate::recorder::arena::{NUM_SLOTS, Slot};

/// What the parts of a sequence contribute to attention, before they are combined.
pub(crate) const ATTENTION_PARTIALS: Slot = Slot(0);

/// Pairs of a token and an expert, sorted by expert.
pub(crate) const EXPERT_GROUPS: Slot = Slot(1);

/// Bytes of each slot that a step of this size needs at most. They grow with each of the sizes.
pub(crate) fn needs(step: &StepSize) -> [usize; NUM_SLOTS] {
    [paged_attention::scratch_bytes(step), grouped_matmul::scratch_bytes(step)]
}

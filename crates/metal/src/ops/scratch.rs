//! What each slot of the recorder's arena is for. It knows no sizes.

use crate::recorder::arena::Slot;

/// What the parts of a sequence contribute to attention, before they are combined.
pub(crate) const ATTENTION_PARTIALS: Slot = Slot(0);

/// Pairs of a token and an expert, sorted by expert.
pub(crate) const EXPERT_GROUPS: Slot = Slot(1);

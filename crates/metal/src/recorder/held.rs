//! What a slot of the scratch holds: ops that need the same of the same input, as the products of an expert layer need its pairs sorted, share
//! it. It knows no op.

use super::Recorder;
use super::arena::Slot;
use super::hazards::Use;
use super::region::Region;
use crate::gpu::Gpu;

/// A function of the content of a region, and of some sizes, in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    slot: Slot,
    input: Use,
    sizes: [u32; 4],
}

impl Held {
    pub fn new<G: Gpu>(slot: Slot, input: &Region<G>, sizes: [u32; 4]) -> Self {
        let (start, end) = (input.offset, input.offset + input.len);
        Self { slot, input: Use { buffer: input.id, start, end, writes: false }, sizes }
    }
}

impl<G: Gpu> Recorder<G> {
    /// Whether commands that are recorded, and have not run, leave this in its slot.
    pub fn holds(&self, what: &Held) -> bool {
        self.held == Some(*what)
    }

    /// The last command leaves this in its slot, until its input is written, or the commands have run.
    pub fn hold(&mut self, what: Held) {
        // What is noted is not recorded.
        self.held = self.noted.is_none().then_some(what);
    }

    /// A command that uses these is recorded.
    pub(super) fn forget_written(&mut self, mut uses: impl Iterator<Item = Use>) {
        if self.held.is_some_and(|held| uses.any(|new| new.conflicts(&held.input))) {
            self.held = None;
        }
    }
}

//! Which commands must wait for which: the byte ranges that were read and written since the last barrier. It knows no device.

/// Byte ranges in use since the last barrier.
#[derive(Debug, Default)]
pub(crate) struct Hazards {
    ranges: Vec<Use>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    pub buffer: u64,
    pub start: usize,
    pub end: usize,
    pub writes: bool,
}

impl Use {
    /// Two commands that use these may not run at the same time.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.buffer == other.buffer && (self.writes || other.writes) && self.start < other.end && other.start < self.end
    }
}

impl Hazards {
    /// Takes in a command's ranges. True: a barrier must come before it.
    pub fn add(&mut self, uses: impl Iterator<Item = Use> + Clone) -> bool {
        let conflict = uses.clone().any(|new| self.ranges.iter().any(|old| old.conflicts(&new)));
        if conflict {
            self.ranges.clear();
        }
        self.ranges.extend(uses);
        conflict
    }

    /// All commands have run.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(buffer: u64, start: usize, end: usize) -> Use {
        Use { buffer, start, end, writes: false }
    }

    fn write(buffer: u64, start: usize, end: usize) -> Use {
        Use { writes: true, ..read(buffer, start, end) }
    }

    #[test]
    fn a_barrier_comes_exactly_where_a_write_meets_another_use() {
        let mut hazards = Hazards::default();
        let mut add = |uses: &[Use]| hazards.add(uses.iter().copied());
        assert!(!add(&[read(1, 0, 10), write(2, 0, 10)]));
        assert!(!add(&[read(1, 0, 10), write(3, 0, 10)]), "two reads do not conflict");
        assert!(!add(&[write(2, 10, 20)]), "neighbours do not overlap");
        assert!(add(&[read(2, 9, 11), write(4, 0, 1)]), "read after write");
        assert!(!add(&[read(3, 0, 10)]), "the barrier was for all earlier commands");
        assert!(add(&[write(3, 5, 6)]), "write after read");
        assert!(add(&[write(3, 0, 10)]), "write after write");
    }
}

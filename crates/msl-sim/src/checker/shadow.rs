//! Shadow memory: who last wrote and who last read each byte. It knows offsets, and not what lies there.
//!
//! There is one [`Cell`] for every four bytes. Where single bytes of the four are accessed, the cell is split into one for each byte.

use std::io;

use super::clock::{Access, Clock, RaceKind, Record, Space};
use crate::runtime::memory::Mapping;

/// Bytes of a cell.
const GRANULE: usize = 4;
/// In place of an instance: the cell is split, and `pc` says into which.
const SPLIT: u32 = u32::MAX;
/// The last instance that can be told apart.
pub const LAST_INSTANCE: u32 = SPLIT - 1;

/// What four bytes have seen, or one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cell {
    write: Record,
    read: Record,
}

/// What an access collided with.
#[derive(Debug, Clone, Copy)]
pub enum Collision {
    /// An access that is not ordered before it.
    Race { kind: RaceKind, other: Record, other_access: Access },
    /// Nothing was written there.
    Uninitialised,
}

impl Cell {
    /// Notes an access, and says what it collides with.
    #[inline]
    fn visit(&mut self, clock: &Clock, now: Record, access: Access, space: Space) -> Option<Collision> {
        let mut collision = None;
        let race = |other: Record, other_access| {
            let kind = clock.unordered(&other, &now, space)?;
            Some(Collision::Race { kind, other, other_access })
        };
        let write_access = if self.write.atomic() { Access::Atomic } else { Access::Write };
        if !(access == Access::Atomic && self.write.atomic()) {
            collision = race(self.write, write_access);
        }
        if access == Access::Read {
            if space == Space::Threadgroup && clock.stale(&self.write, space) {
                collision = Some(Collision::Uninitialised);
            }
            self.read = clock.merged(&self.read, now, space);
        } else {
            collision = collision.or_else(|| race(self.read, Access::Read));
            let several = access == Access::Atomic && self.write.atomic();
            self.write = if several { clock.merged(&self.write, now, space) } else { now };
        }
        collision
    }

    fn stale(&self, clock: &Clock, space: Space) -> bool {
        clock.stale(&self.write, space) && clock.stale(&self.read, space)
    }
}

/// The cells of one piece of memory.
#[derive(Debug)]
pub struct Shadow {
    cells: Mapping,
    count: usize,
    /// The cells of split ones, and those of them that are free.
    splits: Vec<[Cell; GRANULE]>,
    free: Vec<u32>,
}

impl Shadow {
    /// Cells for `len` bytes. Those that are never touched cost no memory.
    pub fn new(len: usize) -> io::Result<Self> {
        let count = len.div_ceil(GRANULE);
        Ok(Self { cells: Mapping::new(count * size_of::<Cell>())?, count, splits: Vec::new(), free: Vec::new() })
    }

    /// Notes an access of `size` bytes at `offset`, and calls `collide` with the offset of each collision.
    #[inline]
    pub fn visit(
        &mut self,
        (offset, size): (usize, usize),
        (clock, now, access, space): (&Clock, Record, Access, Space),
        mut collide: impl FnMut(usize, Collision),
    ) {
        let end = offset + size;
        let mut at = offset;
        while at < end {
            let granule = at / GRANULE;
            let next = (granule * GRANULE + GRANULE).min(end);
            let whole = next - at == GRANULE;
            assert!(granule < self.count);
            // SAFETY: checked above; zeroed memory is a valid cell, and nobody else has a reference to it.
            let cell = unsafe { &mut *self.cells.as_ptr().cast::<Cell>().add(granule) };
            if cell.write.instance == SPLIT || !whole {
                self.visit_bytes(granule, at..next, (clock, now, access, space), &mut collide);
            } else if let Some(collision) = cell.visit(clock, now, access, space) {
                collide(at, collision);
            }
            at = next;
        }
    }

    fn visit_bytes(
        &mut self,
        granule: usize,
        bytes: std::ops::Range<usize>,
        (clock, now, access, space): (&Clock, Record, Access, Space),
        collide: &mut impl FnMut(usize, Collision),
    ) {
        // SAFETY: `visit` checked the granule.
        let cell = unsafe { &mut *self.cells.as_ptr().cast::<Cell>().add(granule) };
        if cell.write.instance == SPLIT {
            let index = cell.write.pc as usize;
            if bytes.len() == GRANULE && self.splits[index].iter().all(|cell| cell.stale(clock, space)) {
                self.free.push(index as u32);
                *cell = Cell::default();
                if let Some(collision) = cell.visit(clock, now, access, space) {
                    collide(bytes.start, collision);
                }
                return;
            }
        } else {
            let index = self.free.pop().unwrap_or_else(|| {
                self.splits.push(Default::default());
                (self.splits.len() - 1) as u32
            });
            self.splits[index as usize] = [*cell; GRANULE];
            cell.write = Record::marker(SPLIT, index);
        }
        let cells = &mut self.splits[cell.write.pc as usize];
        for byte in bytes {
            if let Some(collision) = cells[byte % GRANULE].visit(clock, now, access, space) {
                collide(byte, collision);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{MEM_DEVICE, MEM_THREADGROUP};

    /// Collisions of accesses by (thread, offset, size, access), with barriers in between where there is `None`.
    fn collisions(space: Space, steps: &[Option<(usize, usize, usize, Access)>]) -> Vec<(usize, RaceKind)> {
        let mut clock = Clock::new();
        clock.instance = 1;
        let mut shadow = Shadow::new(64).unwrap();
        let mut found = Vec::new();
        for step in steps {
            let Some((thread, offset, size, access)) = *step else {
                clock.threadgroup_barrier(MEM_DEVICE | MEM_THREADGROUP);
                continue;
            };
            let now = clock.record(thread, 7, access, space);
            shadow.visit((offset, size), (&clock, now, access, space), |at, collision| {
                if let Collision::Race { kind, .. } = collision {
                    found.push((at, kind));
                }
            });
        }
        found
    }

    #[test]
    fn bytes_of_one_granule_are_told_apart() {
        use Access::{Read, Write};
        let halves = [Some((0, 0, 2, Write)), Some((1, 2, 2, Write)), None, Some((40, 0, 4, Read))];
        assert_eq!(collisions(Space::Device, &halves), []);
        let overlap = [Some((0, 0, 2, Write)), Some((1, 1, 2, Write))];
        assert_eq!(collisions(Space::Device, &overlap), [(1, RaceKind::Simdgroup)]);
        let whole = [Some((0, 3, 1, Write)), Some((33, 0, 4, Read))];
        assert_eq!(collisions(Space::Device, &whole), [(3, RaceKind::NoBarrier)]);
    }

    #[test]
    fn a_write_races_with_the_first_of_several_readers() {
        use Access::{Read, Write};
        let steps = [Some((0, 0, 4, Read)), Some((33, 0, 4, Read)), Some((33, 0, 4, Write))];
        assert_eq!(collisions(Space::Device, &steps), [(0, RaceKind::NoBarrier)]);
        let steps = [Some((0, 0, 4, Read)), None, Some((33, 0, 4, Read)), Some((33, 0, 4, Write))];
        assert_eq!(collisions(Space::Device, &steps), []);
    }

    #[test]
    fn atomics_race_with_plain_accesses_only() {
        use Access::{Atomic, Read};
        let steps = [Some((0, 0, 4, Atomic)), Some((33, 0, 4, Atomic)), Some((33, 0, 4, Read))];
        assert_eq!(collisions(Space::Device, &steps), [(0, RaceKind::NoBarrier)]);
    }
}

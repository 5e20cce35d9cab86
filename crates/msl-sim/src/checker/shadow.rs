//! Shadow memory: who last wrote and who last read each byte. It knows which accesses a barrier orders, and not what lies at an
//! address.
//!
//! There is one [`Cell`] for every four bytes. Where single bytes of the four are accessed, the cell is split into one for each byte.

use std::io;

use crate::abi::{MEM_DEVICE, MEM_THREADGROUP};
use crate::runtime::memory::Mapping;
use crate::runtime::{MAX_SIMDGROUPS, SIMDGROUP_SIZE};

/// Bytes of a cell.
const GRANULE: usize = 4;
/// In place of an instance: the cell is split, and `pc` says into which.
const SPLIT: u32 = u32::MAX;
/// The last instance that can be told apart.
pub const LAST_INSTANCE: u32 = SPLIT - 1;

/// Which threads a record stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
enum Level {
    #[default]
    Thread,
    /// Several lanes of a simdgroup.
    Simdgroup,
    /// Several simdgroups of a threadgroup.
    Threadgroup,
    /// Several threadgroups of a dispatch.
    Dispatch,
    /// Several dispatches of a group.
    Group,
}

/// An access that was made: by whom, from where, and after which barriers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Record {
    /// Threadgroup of a dispatch, numbered through all dispatches; 0 for nobody.
    pub instance: u32,
    /// Offset in the library's image.
    pub pc: u32,
    /// Barriers of any kind before it. All counts of barriers wrap: only their being equal counts.
    execution: u16,
    /// Threadgroup barriers before it that order this memory.
    memory: u16,
    /// Simdgroup barriers before it that order this memory.
    simdgroup: u16,
    /// `thread_index_in_threadgroup` in the lower 10 bits, a level, and whether it was atomic.
    who: u16,
}

const THREAD_BITS: u16 = 10;
const ATOMIC: u16 = 1 << 15;

impl Record {
    /// `thread_index_in_threadgroup`, of the last of several threads.
    pub fn thread(&self) -> u32 {
        u32::from(self.who & ((1 << THREAD_BITS) - 1))
    }

    fn level(&self) -> Level {
        match self.who >> THREAD_BITS & 7 {
            0 => Level::Thread,
            1 => Level::Simdgroup,
            2 => Level::Threadgroup,
            3 => Level::Dispatch,
            _ => Level::Group,
        }
    }

    fn with_level(self, level: Level) -> Self {
        Self { who: self.who & !(7 << THREAD_BITS) | (level as u16) << THREAD_BITS, ..self }
    }

    /// Whether it was atomic.
    pub fn atomic(&self) -> bool {
        self.who & ATOMIC != 0
    }

    fn simdgroup_index(&self) -> u32 {
        self.thread() / SIMDGROUP_SIZE as u32
    }
}

/// What four bytes have seen, or one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cell {
    write: Record,
    read: Record,
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An atomic operation.
    Atomic,
}

/// Which memory it is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    Device,
    Threadgroup,
}

/// Why two accesses are not ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RaceKind {
    /// Different simdgroups of a threadgroup, and no barrier in between.
    NoBarrier,
    /// There was a barrier, but its `mem_flags` do not name this memory.
    WrongFlags,
    /// Lanes of one simdgroup, and no barrier in between.
    Simdgroup,
    /// Different threadgroups: no barrier can order them.
    Threadgroups,
    /// Different dispatches that nothing orders.
    Dispatches,
}

/// The running threadgroup's barriers so far.
#[derive(Debug, Clone)]
pub struct Clock {
    /// The running threadgroup.
    pub instance: u32,
    /// The first threadgroup of the running dispatch.
    pub dispatch: u32,
    /// The first threadgroup of the dispatches that nothing orders.
    pub group: u32,
    execution: u16,
    device: u16,
    threadgroup: u16,
    simdgroups: [(u16, u16); MAX_SIMDGROUPS],
}

impl Clock {
    pub fn new() -> Self {
        Self {
            instance: 0,
            dispatch: 1,
            group: 1,
            execution: 0,
            device: 0,
            threadgroup: 0,
            simdgroups: Default::default(),
        }
    }

    /// A threadgroup barrier was passed.
    pub fn threadgroup_barrier(&mut self, flags: u32) {
        self.execution = self.execution.wrapping_add(1);
        if flags & MEM_DEVICE != 0 {
            self.device = self.device.wrapping_add(1);
        }
        if flags & MEM_THREADGROUP != 0 {
            self.threadgroup = self.threadgroup.wrapping_add(1);
        }
    }

    /// A simdgroup barrier was passed.
    pub fn simdgroup_barrier(&mut self, simdgroup: usize, flags: u32) {
        let (device, threadgroup) = &mut self.simdgroups[simdgroup];
        if flags & MEM_DEVICE != 0 {
            *device = device.wrapping_add(1);
        }
        if flags & MEM_THREADGROUP != 0 {
            *threadgroup = threadgroup.wrapping_add(1);
        }
    }

    /// The record of an access that `thread` makes now.
    #[inline]
    pub fn record(&self, thread: usize, pc: u32, access: Access, space: Space) -> Record {
        let (device, threadgroup) = self.simdgroups[thread / SIMDGROUP_SIZE];
        let (memory, simdgroup) = match space {
            Space::Device => (self.device, device),
            Space::Threadgroup => (self.threadgroup, threadgroup),
        };
        let who = thread as u16 | if access == Access::Atomic { ATOMIC } else { 0 };
        Record { instance: self.instance, pc, execution: self.execution, memory, simdgroup, who }
    }

    /// Whether `earlier` is from before all that can still race with what runs.
    #[inline]
    fn stale(&self, earlier: &Record, space: Space) -> bool {
        match space {
            Space::Device => earlier.instance < self.group,
            Space::Threadgroup => earlier.instance != self.instance,
        }
    }

    /// Why `earlier` is not ordered before `now`; `None` if it is, or if both are of one thread.
    #[inline]
    fn unordered(&self, earlier: &Record, now: &Record, space: Space) -> Option<RaceKind> {
        if self.stale(earlier, space) {
            return None;
        }
        let level = earlier.level();
        if earlier.instance != now.instance || level >= Level::Dispatch {
            let dispatches = earlier.instance < self.dispatch || level == Level::Group;
            return Some(if dispatches { RaceKind::Dispatches } else { RaceKind::Threadgroups });
        }
        if earlier.memory != now.memory || level == Level::Thread && earlier.thread() == now.thread() {
            return None;
        }
        let same_simdgroup = level <= Level::Simdgroup && earlier.simdgroup_index() == now.simdgroup_index();
        if same_simdgroup && earlier.simdgroup != now.simdgroup {
            return None;
        }
        Some(match earlier.execution == now.execution {
            false => RaceKind::WrongFlags,
            true if same_simdgroup => RaceKind::Simdgroup,
            true => RaceKind::NoBarrier,
        })
    }

    /// One record for `earlier` and `now`, both of which later accesses must be ordered after.
    #[inline]
    fn merged(&self, earlier: &Record, now: Record, space: Space) -> Record {
        if self.unordered(earlier, &now, space).is_none() {
            return now;
        }
        let level = match earlier.instance == now.instance {
            true if earlier.simdgroup_index() == now.simdgroup_index() => Level::Simdgroup,
            true => Level::Threadgroup,
            false if earlier.instance < self.dispatch => Level::Group,
            false => Level::Dispatch,
        };
        now.with_level(level.max(earlier.level()))
    }
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
            cell.write = Record { instance: SPLIT, pc: index, ..Record::default() };
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

//! Which accesses a barrier orders: records of accesses, and the barriers that were passed. It knows Metal's memory model, and nothing
//! of addresses.

use crate::abi::{MEM_DEVICE, MEM_THREADGROUP};
use crate::runtime::{MAX_SIMDGROUPS, SIMDGROUP_SIZE};

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

    /// Not a record: what has this `instance`, and `pc` for a number of its own.
    pub fn marker(instance: u32, pc: u32) -> Self {
        Self { instance, pc, ..Self::default() }
    }

    /// Whether it was atomic.
    pub fn atomic(&self) -> bool {
        self.who & ATOMIC != 0
    }

    fn simdgroup_index(&self) -> u32 {
        self.thread() / SIMDGROUP_SIZE as u32
    }
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
    pub fn stale(&self, earlier: &Record, space: Space) -> bool {
        match space {
            Space::Device => earlier.instance < self.group,
            Space::Threadgroup => earlier.instance != self.instance,
        }
    }

    /// Why `earlier` is not ordered before `now`; `None` if it is, or if both are of one thread.
    #[inline]
    pub fn unordered(&self, earlier: &Record, now: &Record, space: Space) -> Option<RaceKind> {
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
    pub fn merged(&self, earlier: &Record, now: Record, space: Space) -> Record {
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

//! What a dispatch is found to do wrong. It knows how to say it, and not how it was found.

use std::collections::HashSet;
use std::fmt;

pub use crate::checker::clock::{Access, RaceKind};

use crate::abi::MslThread;

/// A place in Metal source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// The file, as the compiler was told its name.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1; 0 if unknown.
    pub column: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.column {
            0 => write!(f, "{}:{}", self.file, self.line),
            column => write!(f, "{}:{}:{column}", self.file, self.line),
        }
    }
}

/// A thread of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadId {
    /// `threadgroup_position_in_grid`
    pub threadgroup: [u32; 3],
    /// `thread_position_in_threadgroup`
    pub position: [u32; 3],
    /// `thread_index_in_threadgroup`
    pub index: u32,
}

impl ThreadId {
    pub(crate) fn of(thread: &MslThread) -> Self {
        Self {
            threadgroup: thread.threadgroup_position_in_grid,
            position: thread.position_in_threadgroup,
            index: thread.index_in_threadgroup,
        }
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.threadgroup;
        write!(f, "thread {} of threadgroup ({x}, {y}, {z})", self.index)
    }
}

/// A place in memory, as the kernel sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// In or near a buffer argument.
    Buffer {
        /// The n of `[[buffer(n)]]`.
        index: usize,
        /// The parameter's name.
        name: String,
        /// Bytes from the argument's beginning.
        offset: i64,
        /// The argument's length in bytes.
        len: usize,
    },
    /// In or near a threadgroup variable or argument.
    Threadgroup {
        /// Its name.
        name: String,
        /// Bytes from its beginning.
        offset: i64,
        /// Its length in bytes.
        len: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer { index, name, offset, len } => {
                write!(f, "buffer({index}) `{name}` at {offset} of {len} bytes")
            }
            Self::Threadgroup { name, offset, len } => {
                write!(f, "threadgroup memory `{name}` at {offset} of {len} bytes")
            }
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Atomic => "atomic operation",
        })
    }
}

impl fmt::Display for RaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoBarrier => "race, no threadgroup_barrier in between",
            Self::WrongFlags => "race, the barrier in between does not name this memory in its mem_flags",
            Self::Simdgroup => "race in a simdgroup, no simdgroup_barrier in between",
            Self::Threadgroups => "race between threadgroups",
            Self::Dispatches => "race between dispatches, no barrier in between",
        })
    }
}

/// The other side of a race.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Other {
    /// Its kernel: another one only if dispatches race.
    pub kernel: String,
    /// The thread; of several, the last.
    pub thread: ThreadId,
    /// Where in the source.
    pub location: Option<Location>,
    /// What it did.
    pub access: Access,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// A simdgroup operation that not all lanes of its simdgroup execute together.
    PartialSimdgroup {
        /// The lanes that execute it.
        mask: u32,
        /// The lanes that the simdgroup has.
        launched: u32,
        /// The lanes that had returned.
        returned: u32,
        /// The simdgroup's index in its threadgroup.
        simdgroup: u32,
    },
    /// Threads of one threadgroup wait at different barriers.
    DivergentBarrier {
        /// A thread that waits elsewhere.
        other: ThreadId,
        /// Where it waits.
        at: Location,
    },
    /// A threadgroup barrier that some threads did not reach, because they had returned.
    BarrierAfterReturn {
        /// Threads that wait at it.
        waiting: u32,
        /// Threads that had returned.
        returned: u32,
    },
    /// More threadgroup memory than there is.
    ThreadgroupMemory {
        /// Bytes that the kernel and its arguments use.
        used: usize,
        /// Bytes that there are.
        limit: usize,
    },
    /// Two threads access the same bytes, at least one of them writes, and nothing orders them.
    Race {
        /// Why they are not ordered.
        kind: RaceKind,
        /// What the thread of this finding does.
        access: Access,
        /// Who did something there before.
        other: Other,
        /// Where.
        place: Option<Place>,
    },
    /// An access to memory that no argument holds.
    OutOfBounds {
        /// What is done.
        access: Access,
        /// Bytes accessed.
        size: usize,
        /// The argument or variable that is nearest.
        place: Option<Place>,
    },
    /// A read of threadgroup memory that nobody has written.
    Uninitialised {
        /// Bytes read.
        size: usize,
        /// Where.
        place: Option<Place>,
    },
    /// A write to memory that may only be read.
    ReadOnly {
        /// Bytes written.
        size: usize,
        /// Where.
        place: Option<Place>,
    },
    /// An access at an address that its type is not aligned to.
    Misaligned {
        /// What is done.
        access: Access,
        /// Bytes accessed, which the address should be a multiple of.
        size: usize,
        /// Where.
        place: Option<Place>,
    },
    /// An integer divided by zero, whose quotient and remainder Metal leaves undefined. Here it is divided by one.
    DivisionByZero,
    /// An index beyond the elements of a thread's own array or vector, or of a table of program scope. The dispatch is given up.
    IndexOutOfRange {
        /// The index.
        index: i64,
        /// The type of the array or vector.
        array: String,
    },
}

/// One thing that a dispatch did wrong.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Finding {
    /// The kernel function.
    pub kernel: String,
    /// What is wrong.
    pub kind: FindingKind,
    /// The thread that did it.
    pub thread: Option<ThreadId>,
    /// Where in the source.
    pub location: Option<Location>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        match &self.kind {
            FindingKind::PartialSimdgroup { mask, launched, returned, simdgroup } => {
                write!(
                    f,
                    "simdgroup operation executed with mask {mask:#010x} of {launched:#010x} in simdgroup {simdgroup}"
                )?;
                if *returned != 0 {
                    write!(f, " (lanes {returned:#010x} had returned)")?;
                }
            }
            FindingKind::DivergentBarrier { other, at } => {
                write!(f, "threads of one threadgroup wait at different barriers: {other} waits at {at}")?;
            }
            FindingKind::BarrierAfterReturn { waiting, returned } => {
                write!(f, "threadgroup_barrier reached by {waiting} threads after {returned} others had returned")?;
            }
            FindingKind::ThreadgroupMemory { used, limit } => {
                write!(f, "{used} bytes of threadgroup memory, where there are {limit}")?;
            }
            FindingKind::Race { kind, access, other, place } => {
                write!(f, "{kind}: {access} of {}", Somewhere(place))?;
                write!(
                    f,
                    ", which conflicts with the {} at {} by {}",
                    other.access,
                    Somewhere(&other.location),
                    other.thread
                )?;
                if other.kernel != self.kernel {
                    write!(f, " of kernel {}", other.kernel)?;
                }
            }
            FindingKind::OutOfBounds { access, size, place } => {
                write!(f, "out of bounds: {access} of {size} bytes, nearest is {}", Somewhere(place))?;
            }
            FindingKind::Uninitialised { size, place } => {
                write!(f, "read of {size} bytes that nobody has written: {}", Somewhere(place))?;
            }
            FindingKind::ReadOnly { size, place } => {
                write!(f, "write of {size} bytes to read-only memory: {}", Somewhere(place))?;
            }
            FindingKind::Misaligned { access, size, place } => {
                write!(f, "misaligned {access} of {size} bytes: {}", Somewhere(place))?;
            }
            FindingKind::DivisionByZero => f.write_str("integer division by zero")?,
            FindingKind::IndexOutOfRange { index, array } => write!(f, "index {index} is out of range for {array}")?,
        }
        if let Some(thread) = &self.thread {
            write!(f, ", by {thread}")?;
        }
        write!(f, ", in kernel {}", self.kernel)
    }
}

/// Something that may be unknown.
struct Somewhere<'a, T>(&'a Option<T>);

impl<T: fmt::Display> fmt::Display for Somewhere<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(known) => known.fmt(f),
            None => f.write_str("an unknown place"),
        }
    }
}

/// What makes two findings the same: the kind of thing, where, by what access, and where its other side is.
type Key =
    (std::mem::Discriminant<FindingKind>, Option<Location>, Option<Access>, Option<(RaceKind, Option<Location>)>);

/// Findings, each place reported once.
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    seen: HashSet<Key>,
}

impl Findings {
    /// Adds a finding, unless this kind of thing was already found at this place.
    pub fn add(&mut self, finding: Finding) {
        // One line may copy from beyond a buffer to beyond another.
        let (access, other) = match &finding.kind {
            FindingKind::Race { kind, other, .. } => (None, Some((*kind, other.location.clone()))),
            FindingKind::OutOfBounds { access, .. } => (Some(*access), None),
            _ => (None, None),
        };
        if self.seen.insert((std::mem::discriminant(&finding.kind), finding.location.clone(), access, other)) {
            self.list.push(finding);
        }
    }

    /// Adds those of another part of the dispatch.
    pub fn extend(&mut self, other: Self) {
        other.list.into_iter().for_each(|finding| self.add(finding));
    }

    /// The list, in the order of finding.
    pub fn into_list(self) -> Vec<Finding> {
        self.list
    }
}

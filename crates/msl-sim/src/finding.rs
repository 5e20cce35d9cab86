//! What a dispatch is found to do wrong. It knows how to say it, and not how it was found.

use std::collections::HashSet;
use std::fmt;

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

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.threadgroup;
        write!(f, "thread {} of threadgroup ({x}, {y}, {z})", self.index)
    }
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
        }
        if let Some(thread) = &self.thread {
            write!(f, ", by {thread}")?;
        }
        write!(f, ", in kernel {}", self.kernel)
    }
}

/// Findings, each place reported once.
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    seen: HashSet<(std::mem::Discriminant<FindingKind>, Option<Location>)>,
}

impl Findings {
    /// Adds a finding, unless this kind of thing was already found at this place.
    pub fn add(&mut self, finding: Finding) {
        if self.seen.insert((std::mem::discriminant(&finding.kind), finding.location.clone())) {
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

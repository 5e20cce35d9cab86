//! A simdgroup: which of its lanes can run, and where the others wait. It knows when a simdgroup operation can be resolved, and
//! nothing of memory.

use std::cell::Cell;
use std::ffi::{CStr, c_void};

use super::SIMDGROUP_SIZE;
use crate::abi::{MslResolver, MslSite};

const NOWHERE: MslSite = MslSite { file: std::ptr::null(), line: 0, column: 0 };

/// A lane that waits at a simdgroup operation or a simdgroup barrier.
#[derive(Clone, Copy)]
struct Waiting {
    site: MslSite,
    /// `None` at a barrier.
    resolver: Option<MslResolver>,
}

/// The state of a simdgroup's lanes, one bit each.
pub struct Simdgroup {
    /// The lanes that it began with.
    pub launched: Cell<u32>,
    /// The lanes that have not returned.
    pub live: Cell<u32>,
    /// The lanes that can run.
    pub runnable: Cell<u32>,
    /// The lanes that wait at a threadgroup barrier.
    pub at_barrier: Cell<u32>,
    records: [Cell<*mut c_void>; SIMDGROUP_SIZE],
    waiting: [Cell<Waiting>; SIMDGROUP_SIZE],
}

/// Lanes that meet at one operation.
pub struct Meeting {
    /// The lanes.
    pub mask: u32,
    /// The operation.
    pub site: MslSite,
    resolver: Option<MslResolver>,
    /// The `mem_flags` of a simdgroup barrier; `None` for an operation.
    pub barrier: Option<u32>,
}

impl Simdgroup {
    pub fn new() -> Self {
        Self {
            launched: Cell::new(0),
            live: Cell::new(0),
            runnable: Cell::new(0),
            at_barrier: Cell::new(0),
            records: [const { Cell::new(std::ptr::null_mut()) }; SIMDGROUP_SIZE],
            waiting: [const { Cell::new(Waiting { site: NOWHERE, resolver: None }) }; SIMDGROUP_SIZE],
        }
    }

    /// Starts anew with `lanes` lanes, which may be none: nothing of what lanes waited for before is left.
    pub fn launch(&self, lanes: usize) {
        let mask = u32::MAX.checked_shr((SIMDGROUP_SIZE - lanes) as u32).unwrap_or(0);
        self.launched.set(mask);
        self.live.set(mask);
        self.runnable.set(mask);
        self.at_barrier.set(0);
    }

    /// Lets a lane wait at a simdgroup operation or barrier.
    #[inline]
    pub fn wait(&self, lane: usize, site: MslSite, record: *mut c_void, resolver: Option<MslResolver>) {
        self.records[lane].set(record);
        self.waiting[lane].set(Waiting { site, resolver });
        self.runnable.set(self.runnable.get() & !(1 << lane));
    }

    /// Lets a lane wait at a threadgroup barrier.
    #[inline]
    pub fn wait_for_threadgroup(&self, lane: usize, site: MslSite) {
        self.waiting[lane].set(Waiting { site, resolver: None });
        self.runnable.set(self.runnable.get() & !(1 << lane));
        self.at_barrier.set(self.at_barrier.get() | 1 << lane);
    }

    /// A lane's kernel returned.
    pub fn retire(&self, lane: usize) {
        self.live.set(self.live.get() & !(1 << lane));
        self.runnable.set(self.runnable.get() & !(1 << lane));
    }

    /// Lets the lanes at the threadgroup barrier go on.
    pub fn release(&self) {
        self.runnable.set(self.at_barrier.get());
        self.at_barrier.set(0);
    }

    /// Where a waiting lane waits.
    pub fn site(&self, lane: usize) -> MslSite {
        self.waiting[lane].get().site
    }

    /// Once no lane can run: the lanes that meet next, if any wait for their simdgroup. Of lanes that wait at different places,
    /// those come first whose place does, because code that comes first is what lanes that diverged have yet to run.
    pub fn meeting(&self) -> Option<Meeting> {
        let waiting = self.live.get() & !self.at_barrier.get();
        let first = lanes(waiting).min_by_key(|&lane| {
            let site = self.waiting[lane].get().site;
            (site.line, site.column)
        })?;
        let Waiting { site, resolver } = self.waiting[first].get();
        let mask = lanes(waiting).filter(|&lane| {
            let other = self.waiting[lane].get();
            other.resolver.map(|f| f as usize) == resolver.map(|f| f as usize) && same_site(&other.site, &site)
        });
        let mask = mask.fold(0, |mask, lane| mask | 1 << lane);
        let barrier = resolver.is_none().then(|| self.records[first].get() as usize as u32);
        Some(Meeting { mask, site, resolver, barrier })
    }

    /// Computes the operation and lets its lanes go on.
    ///
    /// # Safety
    /// The meeting is this simdgroup's, and its lanes still wait.
    pub unsafe fn resolve(&self, meeting: &Meeting) {
        if let Some(resolver) = meeting.resolver {
            // SAFETY: the lanes in the mask passed these records to this resolver, and wait while it works on them.
            unsafe { resolver(self.records.as_ptr().cast(), meeting.mask) };
        }
        self.runnable.set(meeting.mask);
    }
}

/// The bits of a mask, ascending.
pub fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = (rest != 0).then(|| rest.trailing_zeros() as usize);
        rest &= rest.wrapping_sub(1);
        lane
    })
}

/// Whether two sites are the same place, which may have been written down twice.
pub fn same_site(a: &MslSite, b: &MslSite) -> bool {
    // SAFETY: sites name their file with a string that lives as long as the library.
    let same_file = || unsafe { CStr::from_ptr(a.file) == CStr::from_ptr(b.file) };
    (a.line, a.column) == (b.line, b.column) && (a.file == b.file || same_file())
}

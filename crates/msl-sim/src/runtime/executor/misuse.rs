//! Misuse of barriers, simdgroup operations and threadgroup memory, as findings. It knows the rules, and not how threads are run.

use super::Executor;
use crate::abi::MslSite;
use crate::finding::{Finding, FindingKind, Location, ThreadId};
use crate::runtime::SIMDGROUP_SIZE;
use crate::runtime::arena;
use crate::runtime::simdgroup::Meeting;

impl Executor {
    pub(super) fn check_meeting(&self, index: usize, meeting: &Meeting) {
        let simdgroup = &self.simdgroups[index];
        let launched = simdgroup.launched.get();
        if meeting.mask == launched {
            return;
        }
        let live = simdgroup.live.get();
        let kind = FindingKind::PartialSimdgroup {
            mask: meeting.mask,
            launched,
            returned: launched & !live,
            simdgroup: index as u32,
        };
        let thread = index * SIMDGROUP_SIZE + meeting.mask.trailing_zeros() as usize;
        self.report(kind, Some(thread), Some(&meeting.site));
    }

    pub(super) fn site(&self, thread: usize) -> MslSite {
        self.simdgroups[thread / SIMDGROUP_SIZE].site(thread % SIMDGROUP_SIZE)
    }

    pub(super) fn thread_id(&self, thread: usize) -> ThreadId {
        // SAFETY: threads are written only between threadgroups.
        ThreadId::of(unsafe { &(&*self.threads.get())[thread] })
    }

    pub(super) fn report(&self, kind: FindingKind, thread: Option<usize>, site: Option<&MslSite>) {
        self.findings.borrow_mut().add(Finding {
            kernel: self.kernel.borrow().clone(),
            kind,
            thread: thread.map(|thread| self.thread_id(thread)),
            location: site.map(location),
        });
    }

    pub(super) fn check_threadgroup_memory(&self, site: Option<&MslSite>) {
        if self.arena.used() > arena::LIMIT {
            self.too_much_threadgroup_memory(site, 0);
        }
    }

    pub(super) fn too_much_threadgroup_memory(&self, site: Option<&MslSite>, more: usize) {
        let used = self.arena.used() + more;
        self.report(FindingKind::ThreadgroupMemory { used, limit: arena::LIMIT }, None, site);
    }
}

pub(super) fn location(site: &MslSite) -> Location {
    // SAFETY: sites name their file with a string that lives as long as the library.
    let file = unsafe { std::ffi::CStr::from_ptr(site.file) }.to_string_lossy().into_owned();
    Location { file, line: site.line, column: site.column }
}

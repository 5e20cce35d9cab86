//! What a running kernel calls, through [`host::HOST`](crate::runtime::host::HOST). It knows what a thread waits for, and not what
//! runs next.

use std::ffi::{CStr, c_char, c_void};

use super::Executor;
use crate::abi::{MslResolver, MslSite, MslThread};
use crate::pipeline::Constants;
use crate::runtime::SIMDGROUP_SIZE;

impl Executor {
    pub(in crate::runtime) fn running_thread(&self) -> *const MslThread {
        // SAFETY: threads are written only between threadgroups, and there is one for each fiber.
        unsafe { (*self.threads.get()).as_ptr().add(self.current.get()) }
    }

    /// Pauses the fiber that runs, and goes on with another lane of its simdgroup that can run, or else with the host.
    ///
    /// # Safety
    /// Called by a fiber.
    #[inline(always)]
    pub(super) unsafe fn give_way(&self) {
        let thread = self.current.get();
        let runnable = self.simdgroups[thread / SIMDGROUP_SIZE].runnable.get();
        // SAFETY: the fiber that runs is `current`; lanes that can run are paused, this one is none of them unless the dispatch is
        // abandoned or lanes take turns at random.
        unsafe {
            if runnable == 0 || self.abandoned.get() || self.order.get().interleaves() {
                return self.fibers.leave(thread);
            }
            let next = thread / SIMDGROUP_SIZE * SIMDGROUP_SIZE + self.order.get().next(runnable);
            self.current.set(next);
            self.fibers.change(thread, next);
        }
    }

    #[inline(always)]
    pub(in crate::runtime) unsafe fn simd_operation(
        &self,
        site: MslSite,
        record: *mut c_void,
        resolver: Option<MslResolver>,
    ) {
        let thread = self.current.get();
        self.simdgroups[thread / SIMDGROUP_SIZE].wait(thread % SIMDGROUP_SIZE, site, record, resolver);
        // SAFETY: the caller's promise.
        unsafe { self.give_way() };
    }

    pub(in crate::runtime) fn matrix_product(&self) {
        self.count(|counts| counts.matrix_products += 1);
    }

    #[inline(always)]
    pub(in crate::runtime) unsafe fn threadgroup_barrier(&self, site: MslSite, flags: u32) {
        let thread = self.current.get();
        self.flags.set(flags);
        self.simdgroups[thread / SIMDGROUP_SIZE].wait_for_threadgroup(thread % SIMDGROUP_SIZE, site);
        // SAFETY: the caller's promise.
        unsafe { self.give_way() };
    }

    pub(in crate::runtime) unsafe fn threadgroup_variable(
        &self,
        site: &MslSite,
        key: usize,
        size: usize,
        align: usize,
        name: *const c_char,
    ) -> *mut u8 {
        let before = self.arena.used();
        // SAFETY: the library names its variables with strings.
        if let Some(address) = unsafe { self.arena.variable(key, size, align, name) } {
            if self.arena.used() != before {
                self.check_threadgroup_memory(Some(site));
            }
            return address;
        }
        self.too_much_threadgroup_memory(Some(site), size);
        // SAFETY: the caller's promise.
        unsafe { self.abandon() }
    }

    /// # Safety
    /// Called by kernel code.
    #[inline(always)]
    pub(in crate::runtime) unsafe fn access(&self, address: usize, size: usize, kind: u32, pc: usize) {
        if self.resolving.get() || self.fibers.contains(address) {
            return;
        }
        let thread = self.current.get();
        let harmless = self.tell(|checker| checker.access(thread, address, size, kind, pc, &self.arena));
        if harmless == Some(false) {
            // SAFETY: the caller's promise.
            unsafe { self.abandon() };
        }
    }

    #[cold]
    pub(in crate::runtime) fn division_by_zero(&self, pc: usize) {
        self.tell(|checker| checker.division_by_zero(self.current.get(), pc));
    }

    /// What lies behind the thread's own array may be the host's, so that a dispatch that is checked ends here.
    ///
    /// # Safety
    /// Called by kernel code.
    #[cold]
    pub(in crate::runtime) unsafe fn index_out_of_range(&self, array: &CStr, index: i64, pc: usize) {
        let thread = self.current.get();
        if self.tell(|checker| checker.index_out_of_range(thread, &array.to_string_lossy(), index, pc)).is_some() {
            // SAFETY: the caller's promise.
            unsafe { self.abandon() };
        }
    }

    /// Gives up the dispatch from inside a kernel: what the thread is about to do would harm the host.
    ///
    /// # Safety
    /// Called by kernel code.
    #[cold]
    unsafe fn abandon(&self) -> ! {
        self.abandoned.set(true);
        loop {
            // SAFETY: the caller's promise. An abandoned fiber is not resumed.
            unsafe { self.give_way() };
        }
    }

    pub(in crate::runtime) fn constants(&self) -> Option<&Constants> {
        // SAFETY: set only while the dispatch that borrows them runs.
        unsafe { self.constants.get().as_ref() }
    }
}

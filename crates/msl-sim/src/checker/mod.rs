//! The checker: is told of each access and each barrier, and says what is wrong. It knows Metal's memory model, and not how threads
//! are run or in what order: its verdict is the same in every order.

pub mod cache;
pub mod clock;
mod events;
pub mod regions;
pub mod shadow;
pub mod symbols;

use std::collections::HashSet;
use std::io;

use crate::abi::{ACCESS_ATOMIC, ACCESS_PACKED, ACCESS_WRITE};
use crate::buffer::Buffer;
use crate::finding::{Findings, Place};
use crate::runtime::arena::Arena;
use crate::runtime::grid::Grid;
use crate::runtime::host;
use cache::{Cache, Traffic};
use clock::{Access, Clock, Record, Space};
use events::{DispatchRecord, Event, What};
use regions::{Region, Regions, Shadows};
use shadow::{Collision, LAST_INSTANCE, Shadow};
use symbols::Symbols;

/// What a device does with each access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// Nothing.
    #[default]
    Off,
    /// Counts the bytes that move.
    Traffic,
    /// Counts, and checks bounds, races and initialisation.
    Full,
}

/// More findings than anyone reads.
const MOST_EVENTS: usize = 200;

/// The checker of a device.
pub struct Checker {
    mode: Check,
    cache: Cache,
    shadows: Shadows,
    arena_shadow: Shadow,
    clock: Clock,
    /// The first threadgroup of the next dispatch.
    next: u32,
    grouped: bool,
    dispatches: Vec<DispatchRecord>,
    regions: Regions,
    arena: std::ops::Range<usize>,
    /// The part of the arena that the last access to it was in.
    variable: std::ops::Range<usize>,
    image: std::ops::Range<usize>,
    events: Vec<Event>,
    seen: HashSet<(What, Access, u32, u32)>,
}

/// What the checker is told of a dispatch.
pub struct Checked<'a> {
    pub kernel: &'a str,
    pub grid: Grid,
    pub symbols: &'a Symbols,
    pub regions: Vec<Region>,
    /// The buffers that are bound, and whether the kernel may write to them.
    pub buffers: Vec<(&'a Buffer, bool)>,
}

impl Checker {
    pub fn new(mode: Check, cache_bytes: usize, arena_capacity: usize) -> io::Result<Self> {
        Ok(Self {
            mode,
            cache: Cache::new(cache_bytes),
            shadows: Shadows::default(),
            arena_shadow: Shadow::new(arena_capacity)?,
            clock: Clock::new(),
            next: 1,
            grouped: false,
            dispatches: Vec::new(),
            regions: Regions::default(),
            arena: 0..0,
            variable: 0..0,
            image: 0..0,
            events: Vec::new(),
            seen: HashSet::new(),
        })
    }

    /// From here on, nothing orders dispatches.
    pub fn begin_group(&mut self) {
        self.end_group();
        self.grouped = true;
    }

    /// From here on, each dispatch is ordered after all before it.
    pub fn end_group(&mut self) {
        self.grouped = false;
        self.new_group();
    }

    /// Orders what was dispatched before what will be.
    pub fn barrier(&mut self) {
        self.new_group();
    }

    fn new_group(&mut self) {
        self.clock.group = self.next;
        self.dispatches.clear();
    }

    /// A dispatch begins.
    pub fn begin_dispatch(&mut self, checked: Checked<'_>) -> io::Result<()> {
        let count = u32::try_from(checked.grid.count()).unwrap_or(LAST_INSTANCE);
        if self.next.checked_add(count).is_none_or(|next| next > LAST_INSTANCE) {
            self.shadows.clear();
            self.next = 1;
            self.new_group();
        }
        if !self.grouped {
            self.new_group();
        }
        self.clock.dispatch = self.next;
        self.image = checked.symbols.image();
        self.shadows.prune();
        self.regions = Regions::new(checked.regions);
        for &(buffer, written) in &checked.buffers {
            // What nobody writes to, nobody races on.
            if self.mode == Check::Full && buffer.writable() && (written || self.grouped) {
                let index = self.shadows.index(buffer)?;
                let base = buffer.as_ptr() as usize;
                let of_buffer = self.regions.iter_mut().filter_map(|region| region.buffer.as_mut());
                of_buffer.filter(|region| region.base == base).for_each(|region| region.shadow = Some(index));
            }
        }
        self.dispatches.push(DispatchRecord {
            first: self.next,
            kernel: checked.kernel.to_owned(),
            grid: checked.grid,
            symbols: checked.symbols.clone(),
        });
        self.next += count;
        Ok(())
    }

    /// Threadgroup `number` of the dispatch begins, with this threadgroup memory.
    pub fn begin_threadgroup(&mut self, number: u64, arena: &Arena) {
        self.clock.instance = self.clock.dispatch.saturating_add(number as u32).min(LAST_INSTANCE);
        let (start, len) = arena.range();
        self.arena = start..start + len;
        self.variable = 0..0;
    }

    /// A threadgroup barrier was passed.
    pub fn threadgroup_barrier(&mut self, flags: u32) {
        self.clock.threadgroup_barrier(flags);
    }

    /// A simdgroup barrier was passed.
    pub fn simdgroup_barrier(&mut self, simdgroup: usize, flags: u32) {
        self.clock.simdgroup_barrier(simdgroup, flags);
    }

    /// An access, before it is made, that is not to a thread's own stack. False if it would harm the host.
    #[inline]
    pub fn access(&mut self, thread: usize, address: usize, size: usize, kind: u32, pc: usize, arena: &Arena) -> bool {
        let access = match kind & !ACCESS_PACKED {
            ACCESS_WRITE => Access::Write,
            ACCESS_ATOMIC => Access::Atomic,
            _ => Access::Read,
        };
        // A constant of the library itself, or the host's table.
        if self.image.contains(&address) || host::owns(address) {
            return true;
        }
        let call = Call { thread, address, size, access, pc: pc.wrapping_sub(self.image.start) as u32 };
        let in_arena = self.arena.contains(&address);
        if in_arena {
            self.count_threadgroup(&call);
        }
        if self.mode == Check::Traffic {
            if !in_arena {
                self.count(&call);
            }
            return true;
        }
        if kind & ACCESS_PACKED == 0 && !address.is_multiple_of(size) {
            let place = self.place(address, arena);
            self.event(What::Misaligned, &call, None, || place);
            // The host's own instructions may fault on it.
            return false;
        }
        if in_arena { self.arena_access(&call, arena) } else { self.device_access(&call) }
    }

    /// A division by an integer zero.
    pub fn division_by_zero(&mut self, thread: usize, pc: usize) {
        if self.mode == Check::Full {
            let pc = pc.wrapping_sub(self.image.start) as u32;
            let call = Call { thread, address: 0, size: 0, access: Access::Read, pc };
            self.event(What::DivisionByZero, &call, None, || None);
        }
    }

    /// An index that an array of a type, as clang spells it, has not.
    pub fn index_out_of_range(&mut self, thread: usize, array: &str, index: i64, pc: usize) {
        let pc = pc.wrapping_sub(self.image.start) as u32;
        let call = Call { thread, address: 0, size: 0, access: Access::Read, pc };
        let before = self.events.len();
        self.event(What::Index, &call, None, || None);
        self.events[before..].iter_mut().for_each(|event| event.element = Some((index, array.to_owned())));
    }

    fn count_threadgroup(&mut self, call: &Call) {
        if call.access != Access::Write {
            self.cache.threadgroup_access(call.size, false);
        }
        if call.access != Access::Read {
            self.cache.threadgroup_access(call.size, true);
        }
    }

    fn count(&mut self, call: &Call) -> bool {
        let writes = call.access != Access::Read;
        match self.regions.find(call.address, call.size, writes) {
            Some(Region { buffer: Some(_), .. }) => {}
            // Copied bytes come with the command.
            Some(_) => return true,
            None => return false,
        }
        if call.access != Access::Write {
            self.cache.access(call.address, call.size, false);
        }
        if writes {
            self.cache.access(call.address, call.size, true);
        }
        true
    }

    fn device_access(&mut self, call: &Call) -> bool {
        if !self.count(call) {
            return self.outside(call);
        }
        let writes = call.access != Access::Read;
        let region = self.regions.find(call.address, call.size, writes).expect("it was counted");
        let (start, harmless) = (region.start, region.memory_writable || !writes);
        if writes && !region.writable {
            let place = region.place(call.address);
            self.event(What::ReadOnly, call, None, || Some(place));
            return harmless;
        }
        if let Some(buffer) = &region.buffer
            && let Some(shadow) = buffer.shadow
        {
            let offset = call.address - buffer.base;
            let from_base = start - buffer.base;
            let now = self.clock.record(call.thread, call.pc, call.access, Space::Device);
            let mut first = None;
            let what = (&self.clock, now, call.access, Space::Device);
            self.shadows.get(shadow).visit((offset, call.size), what, |at, collision| {
                first.get_or_insert((at - from_base, collision));
            });
            if let Some((at, collision)) = first {
                let place = self.regions.find(call.address, call.size, writes).map(|r| r.place(r.start + at));
                self.collided(call, collision, || place);
            }
        }
        true
    }

    /// An access to no argument at all.
    fn outside(&mut self, call: &Call) -> bool {
        let place = self.regions.nearest(call.address).map(|region| region.place(call.address));
        self.event(What::OutOfBounds, call, None, || place);
        self.regions.harmless(call.address, call.size, call.access != Access::Read)
    }

    fn arena_access(&mut self, call: &Call, arena: &Arena) -> bool {
        let end = call.address + call.size;
        if !(self.variable.start <= call.address && end <= self.variable.end) {
            let Some(bounds) = arena.bounds(call.address - self.arena.start) else {
                return self.outside_variables(call, arena);
            };
            self.variable = self.arena.start + bounds.start..self.arena.start + bounds.end;
            if end > self.variable.end {
                return self.outside_variables(call, arena);
            }
        }
        let offset = call.address - self.arena.start;
        let now = self.clock.record(call.thread, call.pc, call.access, Space::Threadgroup);
        let mut first = None;
        let what = (&self.clock, now, call.access, Space::Threadgroup);
        self.arena_shadow.visit((offset, call.size), what, |at, collision| {
            first.get_or_insert((at, collision));
        });
        if let Some((at, collision)) = first {
            self.collided(call, collision, || arena_place(arena, at));
        }
        true
    }

    fn outside_variables(&mut self, call: &Call, arena: &Arena) -> bool {
        let offset = call.address - self.arena.start;
        self.event(What::OutOfBounds, call, None, || arena_place(arena, offset));
        call.address + call.size <= self.arena.end
    }

    fn place(&mut self, address: usize, arena: &Arena) -> Option<Place> {
        match self.arena.contains(&address) {
            true => arena_place(arena, address - self.arena.start),
            false => self.regions.nearest(address).map(|region| region.place(address)),
        }
    }

    fn collided(&mut self, call: &Call, collision: Collision, place: impl FnOnce() -> Option<Place>) {
        match collision {
            Collision::Race { kind, other, other_access } => {
                self.event(What::Race(kind), call, Some((other, other_access)), place);
            }
            Collision::Uninitialised => self.event(What::Uninitialised, call, None, place),
        }
    }

    fn event(
        &mut self,
        what: What,
        call: &Call,
        other: Option<(Record, Access)>,
        place: impl FnOnce() -> Option<Place>,
    ) {
        let &Call { thread, size, access, pc, .. } = call;
        let other_pc = other.map_or(0, |(record, _)| record.pc);
        if self.events.len() < MOST_EVENTS && self.seen.insert((what, access, pc, other_pc)) {
            let (instance, place) = (self.clock.instance, place());
            self.events.push(Event { what, access, size, pc, thread, instance, place, other, element: None });
        }
    }

    /// The dispatch ended: what was found, and what was counted.
    pub fn end_dispatch(&mut self) -> (Findings, Traffic) {
        self.seen.clear();
        let findings = events::findings(&self.dispatches, std::mem::take(&mut self.events));
        (findings, self.cache.finish())
    }
}

/// An access.
struct Call {
    thread: usize,
    address: usize,
    size: usize,
    access: Access,
    pc: u32,
}

fn arena_place(arena: &Arena, offset: usize) -> Option<Place> {
    let variable = arena.nearest(offset)?;
    Some(Place::Threadgroup { name: variable.name, offset: offset as i64 - variable.start as i64, len: variable.size })
}

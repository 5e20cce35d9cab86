//! Who packs a call's activations: all threads together, or of few rows each thread all of them for itself.

use std::ops::Range;

use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::{DType, Result};

use super::LINE_BYTES;
use super::activations::{self, PackInt8, Source};
use super::format::Unit;
use super::plan::Plan;
use super::tile::Needs;
use crate::memory::Memory;
use crate::pack::SendPtr;
use crate::rows::GRAIN;
use crate::simd::Dispatch;

/// Bytes of packed activations up to which each thread packs them for itself: they stay in its second-level cache. What another thread has
/// packed has to come from there, and threads have to wait for each other before.
const OWN_BYTES: usize = 128 * 1024;

/// Elements up to which it costs a thread less to round them itself than to wait for another that does.
const OWN_ROUNDED: usize = 2 * GRAIN;

/// Memory of packed activations, of one call after the other.
#[derive(Debug, Default)]
pub(super) struct PackedMemory {
    units: Memory,
    /// Of each thread.
    packed_for: Vec<PackedFor>,
    /// How many there have been.
    calls: u64,
}

/// Activations, and how they are packed.
pub(super) struct Packing<'a> {
    pub dispatch: Dispatch,
    pub plan: &'a Plan,
    pub needs: Needs,
    /// `[_, k]` of `dtype`.
    pub x: &'a [u8],
    pub dtype: DType,
    pub k: usize,
    /// Of a packed row.
    pub units: usize,
}

/// Which call a thread has packed activations for: in cache lines of its own, of 128 bytes on Apple's CPUs.
#[derive(Clone, Debug, Default)]
#[repr(align(128))]
struct PackedFor(u64);

/// Packed activations.
pub(super) enum Packed<'a> {
    /// For all threads.
    Together(&'a [u8]),
    /// By each thread that needs them.
    Apart(Apart<'a>),
}

/// Where threads pack for themselves.
pub(super) struct Apart<'a> {
    packing: Packing<'a>,
    /// Of all threads, [`distance`] from each other.
    to: SendPtr<u32>,
    /// Of each thread.
    packed_for: SendPtr<PackedFor>,
    /// Number of the call.
    call: u64,
}

/// Units from one thread's memory for `units` to the next one's.
fn distance(units: usize) -> usize {
    units.next_multiple_of(align_of::<PackedFor>() / size_of::<u32>())
}

impl PackedMemory {
    /// Makes room for calls of at most `most` units.
    pub(super) fn reserve(&mut self, most: usize, threads: usize) -> Result<()> {
        self.packed_for.resize(threads, PackedFor::default());
        self.reserve_units(Self::most_units(most, threads))
    }

    /// Bytes that [`PackedMemory::reserve`] grows to.
    pub(super) fn bytes(most: usize, threads: usize) -> usize {
        let units = Self::most_units(most, threads) * size_of::<u32>();
        threads * size_of::<PackedFor>() + units.next_multiple_of(LINE_BYTES)
    }

    /// Those of the largest call, or of one that each thread packs for itself.
    fn most_units(most: usize, threads: usize) -> usize {
        most.max(threads * distance(most).min(OWN_BYTES / size_of::<u32>()))
    }

    fn reserve_units(&mut self, units: usize) -> Result<()> {
        let bytes = units * size_of::<u32>();
        if self.units.bytes().len() < bytes {
            // Nothing of the old content is needed.
            self.units = Memory::default();
            self.units = Memory::zeroed(bytes, "activations of matmuls; use a smaller `max_num_batched_tokens`")?;
        }
        Ok(())
    }

    /// Packs a call's activations, or has each thread pack them for itself.
    pub(super) fn pack<'a>(&'a mut self, pool: &Pool, packing: Packing<'a>) -> Packed<'a> {
        let (units, threads) = (packing.all_units(), pool.threads());
        let apart = packing.is_apart(threads);
        if let Err(error) = self.reserve_units(if apart { threads * distance(units) } else { units }) {
            panic!("a matmul that was not announced: {error}");
        }
        self.calls += 1;
        if apart {
            self.packed_for.resize(threads, PackedFor::default());
            let to = bytemuck::cast_slice_mut::<u8, u32>(self.units.bytes_mut()).as_mut_ptr();
            let (to, packed_for) = (SendPtr(to), SendPtr(self.packed_for.as_mut_ptr()));
            Packed::Apart(Apart { packing, to, packed_for, call: self.calls })
        } else {
            packing.together(pool, bytemuck::cast_slice_mut(self.units.bytes_mut()));
            Packed::Together(self.units.bytes())
        }
    }
}

impl Packing<'_> {
    /// Units of all rows.
    fn all_units(&self) -> usize {
        self.plan.rows() * self.units
    }

    /// Whether each thread should pack for itself: few rows, and fewer the more work their units are.
    fn is_apart(&self, threads: usize) -> bool {
        let is_little = match self.needs.unit {
            Unit::Bf16Pair | Unit::F32 | Unit::Groups { sums: false, .. } => {
                self.all_units() * size_of::<u32>() <= OWN_BYTES
            }
            Unit::Int8Groups { .. } => self.plan.rows() * self.k <= OWN_ROUNDED,
            _ => false,
        };
        threads > 1 && self.plan.is_in_order() && is_little
    }

    /// All threads together.
    fn together(&self, pool: &Pool, to: &mut [u32]) {
        let threads = (self.plan.rows() * self.k / GRAIN).clamp(1, pool.threads());
        let pieces = self.units.div_ceil(self.needs.unit.piece().units);
        // Few tiles are cut along K.
        let parts = threads.div_ceil(self.plan.tiles().max(1)).min(pieces);
        let to = SendPtr(to[..self.all_units()].as_mut_ptr());
        let pack = |item: usize, _: usize| {
            let (tile, part) = (item / parts, item % parts);
            // SAFETY: there is room for all rows; tiles are disjoint ranges of them, and their parts disjoint ranges of units.
            unsafe { self.pieces(tile, pieces * part / parts..pieces * (part + 1) / parts, to.get()) };
        };
        let items = self.plan.tiles() * parts;
        if threads == 1 {
            (0..items).for_each(|item| pack(item, 0));
        } else {
            pool.run(items, &pack);
        }
    }

    /// Some of a tile's pieces.
    ///
    /// # Safety
    /// `to` must have room for all rows, and no other thread may use these pieces of this tile meanwhile.
    unsafe fn pieces(&self, tile: usize, pieces: Range<usize>, to: *mut u32) {
        let rows = self.plan.tile_rows(tile);
        let piece = self.needs.unit.piece();
        let [from, end] = [pieces.start, pieces.end].map(|index| self.units.min(index * piece.units));
        // SAFETY: the caller vouches for it.
        let to = unsafe {
            let at = to.add(rows.start * self.units + from * rows.len());
            std::slice::from_raw_parts_mut(at, (end - from) * rows.len())
        };
        let elements = self.k.min(pieces.start * piece.elements)..self.k.min(pieces.end * piece.elements);
        let source = Source { dtype: self.dtype, x: self.x, k: self.k, rows: &self.plan.x_rows()[rows], elements };
        match self.needs.unit {
            Unit::Int8Groups { in_rows, size, padded, above, factor, sums, swapped } => {
                self.dispatch.run(PackInt8 { to, in_rows, size, padded, above, factor, sums, swapped, source });
            }
            unit => activations::pack(to, unit, &source),
        }
    }
}

impl Packed<'_> {
    /// For `thread`, which packs them first if it has not in this call.
    pub(super) fn of_thread(&self, thread: usize) -> &[u8] {
        let apart = match self {
            Self::Together(bytes) => return bytes,
            Self::Apart(apart) => apart,
        };
        let packing = &apart.packing;
        // SAFETY: each thread has a number and memory of its own, which holds all units, and no two calls of the same thread overlap.
        unsafe {
            let to = apart.to.get().add(thread * distance(packing.all_units()));
            let packed_for = &mut *apart.packed_for.get().add(thread);
            if packed_for.0 != apart.call {
                let pieces = packing.units.div_ceil(packing.needs.unit.piece().units);
                (0..packing.plan.tiles()).for_each(|tile| packing.pieces(tile, 0..pieces, to));
                packed_for.0 = apart.call;
            }
            bytemuck::cast_slice(std::slice::from_raw_parts(to, packing.all_units()))
        }
    }
}

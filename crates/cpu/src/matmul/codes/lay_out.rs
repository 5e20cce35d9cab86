//! Codes written as the pairs of bf16 that they stand for, once for several tiles. It multiplies nothing.

use std::marker::PhantomData;
use std::ops::Range;

use super::{BLOCK_CHUNKS, Codes, CodesKernel};
use crate::matmul::LINE_BYTES;
use crate::matmul::format::VECTORS;
use crate::matmul::tile::Prefetch;
use crate::simd::{Cache, Kernel, LANES, Simd};

/// A chunk's pairs of K by outputs, pairs of bf16 in the bits of an f32: two rows of what matrices take.
pub(in crate::matmul) type Chunk = [[[f32; LANES]; VECTORS]; 2];

/// Chunks that have been laid out, in place of codes.
pub(super) struct LaidOut;

impl Codes for LaidOut {
    const LAID_OUT: bool = true;
    const CHUNK_BYTES: usize = size_of::<Chunk>();

    #[inline(always)]
    unsafe fn pairs<S: Simd, const SECOND: bool>(s: S, _: S::Table, chunk: *const u8, vector: usize) -> S::V {
        // SAFETY: the caller vouches for the chunk.
        s.load(unsafe { &(&*chunk.cast::<Chunk>())[usize::from(SECOND)][vector] })
    }
}

/// Writes a part of a panel's codes.
pub(super) struct LayOut<'a, C> {
    kernel: &'a CodesKernel,
    /// Where the part's steps begin, and how many there are.
    codes: *const u8,
    steps: usize,
    /// As many times [`CodesKernel::laid_out_chunks`].
    to: *mut u8,
    code: PhantomData<C>,
}

impl<'a, C> LayOut<'a, C> {
    /// # Safety
    /// The pointers must be as the fields say while it runs.
    pub(super) unsafe fn new(kernel: &'a CodesKernel, codes: *const u8, steps: usize, to: *mut u8) -> Self {
        Self { kernel, codes, steps, to, code: PhantomData }
    }
}

impl<C: Codes> Kernel for LayOut<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (layout, chunks) = (&self.kernel.layout, self.kernel.laid_out_chunks());
        for step in 0..self.steps {
            let codes = self.codes.wrapping_add(layout.codes_at(step));
            let to = self.to.cast::<Chunk>().wrapping_add(step * chunks);
            // Scales are asked for as well: where codes are is not where their share of the bytes is.
            let prefetch = Prefetch::ahead(self.codes.wrapping_add(step * layout.step_bytes()), layout.step_bytes());
            // SAFETY: who made this vouches for the pointers.
            unsafe { lay_out::<S, C>(s, self.kernel, codes, prefetch, 0..chunks, to) };
        }
    }
}

/// Writes chunks of a group, zeros where it has no more elements.
///
/// # Safety
/// A step's codes begin at `codes`, and there is room for as many chunks.
#[inline(always)]
pub(in crate::matmul) unsafe fn lay_out<S: Simd, C: Codes>(
    s: S,
    kernel: &CodesKernel,
    codes: *const u8,
    prefetch: Prefetch,
    wanted: Range<usize>,
    to: *mut Chunk,
) {
    let CodesKernel { layout, table, .. } = kernel;
    let table = s.table(table, C::BITS);
    let chunks = layout.chunks();
    let ahead = prefetch.bytes_per_step.div_ceil(chunks);
    let here = wanted.start..chunks.min(wanted.end);
    let mut line = here.start * ahead;
    let all = prefetch.bytes_per_step >= layout.step_bytes();
    macro_rules! chunk {
        ($i:expr) => {{
            // Each line once, as many as a chunk has, by an instruction of its own: see [`crate::amx`].
            if all {
                for _ in 0..const { C::CHUNK_BYTES / LINE_BYTES } {
                    s.prefetch(Cache::Second, prefetch.from.wrapping_add(line));
                    line += LINE_BYTES;
                }
            }
            let from = codes.wrapping_add((here.start + $i) * C::CHUNK_BYTES);
            for v in 0..VECTORS {
                // SAFETY: a group has so many chunks of codes; the caller vouches for the room.
                unsafe {
                    let to = &mut *to.add($i);
                    s.store(C::pairs::<S, false>(s, table, from, v), &mut to[0][v]);
                    s.store(C::pairs::<S, true>(s, table, from, v), &mut to[1][v]);
                }
            }
        }};
    }
    if here.len() == BLOCK_CHUNKS {
        for_block!(i => chunk!(i));
    } else {
        for i in 0..here.len() {
            chunk!(i);
        }
    }
    // Scales, and what chunks have beside whole lines.
    while line < here.end * ahead {
        s.prefetch(Cache::Second, prefetch.from.wrapping_add(line));
        line += LINE_BYTES;
    }
    for i in here.len()..wanted.len() {
        // SAFETY: as above.
        unsafe { to.add(i).write_bytes(0, 1) };
    }
}

//! Products in registers alone, of which a machine does the most: its peak. It knows no weights and no activations.

use std::marker::PhantomData;

use super::format::{Format, Unit, unit};
use super::matrices::Matrices;
use super::tile::{MAX_VECTOR_ROWS, max_rows, takes_two_rows};
use crate::isa::Isa;
use crate::simd::{CHUNK, Dispatch, Kernel, LANES, Simd};

/// Multiplications and additions in as many registers as a tile's sums take, without memory; counts them.
pub(super) struct Spin<F> {
    pub(super) rounds: usize,
    pub(super) format: PhantomData<F>,
}

impl<F: Format> Kernel for Spin<F> {
    type Output = usize;
    const DOT: bool = F::ELEMENTS == 2;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let zero = s.splat(std::hint::black_box(0.0));
        let mut sums = [[zero]; MAX_VECTOR_ROWS];
        let rows = &mut sums[..max_rows::<S>()];
        let mut elements = if unit::<S, F>() == Unit::Bf16Pair { 2 } else { 1 };
        if const { F::ELEMENTS == 2 && takes_two_rows::<S>(max_rows::<S>()) } {
            elements *= 2;
            for _ in 0..self.rounds {
                for rows in rows.as_chunks_mut().0 {
                    s.dot_bf16_rows(rows, |_, _| zero, [&[0; 2]; 2]);
                }
            }
        } else {
            for _ in 0..self.rounds {
                for [sum] in &mut *rows {
                    *sum = F::accumulate(s, *sum, zero, zero);
                }
            }
        }
        for [sum] in sums {
            std::hint::black_box(s.to_array(sum));
        }
        self.rounds * max_rows::<S>() * LANES * elements * 2
    }
}

/// As [`TileKernel::spin`](crate::matmul::tile::TileKernel::spin), of bytes.
pub(crate) fn spin_bytes(dispatch: Dispatch, rounds: usize) -> usize {
    if dispatch.isa() == Isa::AmxBf16 {
        // SAFETY: `Dispatch` has checked that the machine has the instruction set.
        return unsafe { Matrices::begin() }.spin_bytes(rounds);
    }
    dispatch.run(SpinBytes { rounds })
}

/// Products of codes of 4 bits in as many registers as a tile's sums take, without memory; counts them.
struct SpinBytes {
    rounds: usize,
}

impl Kernel for SpinBytes {
    type Output = usize;
    const BYTES: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let bytes = s.read_bytes(&std::hint::black_box([0; CHUNK * LANES]));
        let mut x = [0; MAX_VECTOR_ROWS];
        let mut sums = [[s.no_sums()]; MAX_VECTOR_ROWS];
        let rows = &mut sums[..max_rows::<S>()];
        let together = if const { S::BYTE_ROWS } { 2 } else { 1 };
        for _ in 0..self.rounds {
            // Of what is the same for all rows, or in each round, the compiler makes one product.
            std::hint::black_box(&mut x);
            if const { S::BYTE_ROWS } {
                for (rows, x) in rows.as_chunks_mut().0.iter_mut().zip(x.as_chunks::<2>().0) {
                    s.dot_bytes_rows(rows, |_, _| bytes, [x; 2]);
                }
            } else {
                for ([sum], x) in rows.iter_mut().zip(x) {
                    *sum = s.dot_bytes(4, *sum, bytes, x);
                }
            }
        }
        std::hint::black_box(sums);
        self.rounds * max_rows::<S>() * LANES * CHUNK * together * 2
    }
}

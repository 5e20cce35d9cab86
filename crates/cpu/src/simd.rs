//! Sixteen f32 at a time on every instruction set, so that each op is written once and reduces in one order everywhere. It
//! knows no op.
//!
//! A kernel is a [`Kernel`] whose `run` and everything it calls is `#[inline(always)]`: [`Dispatch`] compiles it once per
//! instruction set and picks at run time. The value of type [`Simd`] that it gets proves that the machine has the set, so the
//! kernel's arithmetic needs no `unsafe`. Nor may it map arrays by closures where a loop does: compilers stop inlining `map` once there is much of it,
//! and what is called has its vectors in memory and is compiled for any machine. `tools/kernel-calls.sh` looks for that.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod codes;
mod element;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

pub(crate) use codes::{CHUNK, Planes, Table, code_at, put_code};
pub(crate) use element::{Element, load_again, load_one, load_padded, store_part, with_float};
pub(crate) use portable::widen_f16;

use crate::isa::Isa;
use half::{bf16, f16};

/// Lanes of a vector, on every instruction set.
pub(crate) const LANES: usize = 16;

/// Calls of [`Simd::dot_bytes`] whose sums are exact.
pub(crate) const PARTIAL_DOTS: usize = 8;

/// Vectors of 16 f32. `mul_add` rounds once where the machine can, twice elsewhere: the same way in all kernels of a machine.
pub(crate) trait Simd: Copy {
    /// Sixteen f32.
    type V: Copy;
    /// What codes mean, in registers.
    type Table: Copy;
    /// Whole numbers of a byte: for each lane four, of as many elements of K.
    type Bytes: Copy;
    /// Sums of their products in each lane, of a few.
    type Sums: Copy;
    /// The same of many: whole numbers of 32 bits.
    type Totals: Copy;
    /// How many vectors the machine's registers hold: how large a register tile may be.
    const REGISTERS: usize;
    /// Whether there is an instruction for [`Simd::dot_bf16`].
    const BF16_DOT: bool = false;
    /// Whether there is one for [`Simd::dot_bf16_rows`].
    const BF16_ROWS: bool = false;
    /// Whether there is one for [`Simd::dot_bytes_rows`].
    const BYTE_ROWS: bool = false;
    /// Whether [`Simd::Bytes`] stand for 0 to 255 when they are multiplied, or else for -128 to 127.
    const UNSIGNED_BYTES: bool = false;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `b` where the two cannot be compared.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn load_f16(self, from: &[f16; LANES]) -> Self::V;
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::V;
    /// The first of each pair.
    fn load_bf16_even(self, from: &[[bf16; 2]; LANES]) -> Self::V;
    /// The second of each pair.
    fn load_bf16_odd(self, from: &[[bf16; 2]; LANES]) -> Self::V;
    fn store_f16(self, v: Self::V, to: &mut [f16; LANES]);

    /// Takes a table of codes of `bits` bits into registers. The values of more than 4 bits must be whole numbers, each larger by 1 than the one before.
    fn table(self, table: &Table, bits: u8) -> Self::Table;

    /// What the codes of a vector of outputs mean for the first or the `SECOND` two elements of K. A lane's bits are a pair of bf16.
    fn look_up<const BITS: u8, const SECOND: bool>(
        self,
        table: Self::Table,
        planes: Planes<BITS>,
        vector: usize,
    ) -> Self::V;

    /// The same in f32.
    #[inline(always)]
    fn look_up_values<const BITS: u8, const SECOND: bool>(
        self,
        table: Self::Table,
        planes: Planes<BITS>,
        vector: usize,
    ) -> [Self::V; 2] {
        self.split_pairs(self.look_up::<BITS, SECOND>(table, planes, vector))
    }

    /// The first and the second bf16 of each lane's bits.
    #[inline(always)]
    fn split_pairs(self, pairs: Self::V) -> [Self::V; 2] {
        let bits = self.to_array(pairs).map(f32::to_bits);
        [bits.map(|bits| bits << 16), bits.map(|bits| bits & 0xffff_0000)]
            .map(|bits| self.load(&bits.map(f32::from_bits)))
    }

    /// The other way round; bf16 must hold the values.
    #[inline(always)]
    fn join_pairs(self, values: [Self::V; 2]) -> Self::V {
        let [first, second] = values.map(|v| self.to_array(v).map(f32::to_bits));
        self.load(&std::array::from_fn(|i| f32::from_bits(first[i] >> 16 | second[i])))
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Self::V {
        self.load(&from.map(f32::from))
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::V {
        self.load(&from.map(f32::from))
    }

    /// The codes of a vector of outputs for the four elements of K of a chunk. Those of 4 bits stay in the order in which they lie: elements 0, 2, 1 and 3.
    fn load_codes<const BITS: u8>(self, planes: Planes<BITS>, vector: usize) -> Self::Bytes;

    /// Bytes for an element of K after the other, each with the bits of `flip` flipped.
    fn load_bytes(self, from: &[[u8; LANES]; CHUNK], flip: u8) -> Self::Bytes;

    /// What codes of 4 bits stand for in `table`: 16 bytes four times, as they are read.
    fn look_up_bytes(self, table: Self::Bytes, codes: Self::Bytes) -> Self::Bytes;

    /// Bytes as [`Simd::write_bytes`] wrote them.
    fn read_bytes(self, from: &[u8; CHUNK * LANES]) -> Self::Bytes;

    fn write_bytes(self, bytes: Self::Bytes, to: &mut [u8; CHUNK * LANES]);

    fn no_sums(self) -> Self::Sums;

    /// `sums`, and in each lane the products of its four codes of at most `bits` bits, a constant, with those of `x`, which are signed bytes from -127 to
    /// 127: exact for [`PARTIAL_DOTS`] of them.
    fn dot_bytes(self, bits: u8, sums: Self::Sums, codes: Self::Bytes, x: u32) -> Self::Sums;

    /// [`Simd::dot_bytes`] of the first and of the second `codes` with those of `x`, for all rows: an instruction takes two rows, whose sums are as
    /// [`Simd::pair_sums`] makes them. `codes` is asked for the first or the second ones of a vector.
    ///
    /// # Panics
    /// Where [`Simd::BYTE_ROWS`] says that there is no instruction for it.
    #[inline(always)]
    fn dot_bytes_rows<const VECTORS: usize, const ROWS: usize>(
        self,
        sums: &mut [[Self::Sums; VECTORS]; ROWS],
        codes: impl Fn(usize, usize) -> Self::Bytes,
        x: [&[u32; ROWS]; 2],
    ) {
        let _ = (sums, codes, x);
        unreachable!("there is no dot product of two rows of bytes in this instruction set")
    }

    /// Sums of rows as [`Simd::dot_bytes_rows`] takes them, and as they were by a second call.
    #[inline(always)]
    fn pair_sums<const VECTORS: usize, const ROWS: usize>(self, sums: &mut [[Self::Sums; VECTORS]; ROWS]) {
        let _ = sums;
    }

    fn splat_totals(self, x: i32) -> Self::Totals;

    /// What matrices have added up.
    #[cfg(target_arch = "x86_64")]
    fn load_totals(self, from: &[i32; LANES]) -> Self::Totals;

    /// `totals + sums`, whose codes have at most `bits` bits.
    fn add_sums(self, bits: u8, totals: Self::Totals, sums: Self::Sums) -> Self::Totals;

    fn add_totals(self, a: Self::Totals, b: Self::Totals) -> Self::Totals;

    /// The nearest f32 of each.
    fn totals_to_f32(self, totals: Self::Totals) -> Self::V;

    /// Floats of 8 bits, of which four are the exponent's: see [`vllm_apple_ops::Codebook::E4m3`].
    #[inline(always)]
    fn load_e4m3(self, from: &[u8; LANES]) -> Self::V {
        // Sign, exponent and fraction where a float16 has them, whose exponents begin 2^-8 lower.
        let half = |code: u8| f16::from_bits(u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7);
        self.mul(self.load_f16(&from.map(half)), self.splat(256.0))
    }

    /// The lower halves of bytes, or the upper ones.
    #[inline(always)]
    fn load_nibbles(self, from: &[u8; LANES], upper: bool) -> Self::V {
        let mut nibbles = [0; LANES];
        for i in 0..LANES {
            nibbles[i] = if upper { from[i] >> 4 } else { from[i] & 15 };
        }
        self.load_u8(&nibbles)
    }

    /// 2^-127 to 2^127, by their exponents: see [`vllm_apple_ops::power_of_two`].
    #[inline(always)]
    fn load_powers_of_two(self, from: &[u8; LANES]) -> Self::V {
        let mut powers = [0.0; LANES];
        for i in 0..LANES {
            powers[i] = f32::from_bits((u32::from(from[i]) << 23).max(1 << 22));
        }
        self.load(&powers)
    }

    /// `sum`, and in each lane the products of the pairs of bf16 that lie in the lane's bits of `a` and `b`: in f32, without
    /// subnormal numbers, in an order and with a rounding that are the instruction's.
    ///
    /// # Panics
    /// Where [`Simd::BF16_DOT`] says that there is no instruction for it.
    #[inline(always)]
    fn dot_bf16(self, sum: Self::V, a: Self::V, b: Self::V) -> Self::V {
        let _ = (sum, a, b);
        unreachable!("there is no bf16 dot product in this instruction set")
    }

    /// [`Simd::dot_bf16`] of the first and then of the second `weights` with those of `x`, with the same bits, for all rows: an instruction takes two
    /// rows, whose sums are as [`Simd::pair_rows`] makes them. `weights` is asked for the first or the second ones of a vector, and again where that is
    /// better than to keep them.
    ///
    /// # Panics
    /// Where [`Simd::BF16_ROWS`] says that there is no instruction for it.
    #[inline(always)]
    fn dot_bf16_rows<const VECTORS: usize, const ROWS: usize>(
        self,
        sums: &mut [[Self::V; VECTORS]; ROWS],
        weights: impl Fn(usize, usize) -> Self::V,
        x: [&[u32; ROWS]; 2],
    ) {
        let _ = (sums, weights, x);
        unreachable!("there is no bf16 dot product of two rows in this instruction set")
    }

    /// Sums of rows as [`Simd::dot_bf16_rows`] takes them, and as they were by a second call.
    #[inline(always)]
    fn pair_rows<const VECTORS: usize, const ROWS: usize>(self, sums: &mut [[Self::V; VECTORS]; ROWS]) {
        let _ = sums;
    }

    /// Asks for the cache line at `at`, which need not be valid.
    #[inline(always)]
    fn prefetch<T>(self, to: Cache, at: *const T) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has the instruction, and it ignores addresses that are not mapped.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            match to {
                Cache::First => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
                Cache::Second => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (to, at);
    }

    /// Rounds to nearest even.
    #[inline(always)]
    fn store_bf16(self, v: Self::V, to: &mut [bf16; LANES]) {
        let lanes = self.to_array(v);
        for i in 0..LANES {
            let bits = lanes[i].to_bits();
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            let quiet_nan = (bits >> 16) | 0x40;
            to[i] = bf16::from_bits(if lanes[i].is_nan() { quiet_nan } else { rounded } as u16);
        }
    }

    /// Each lane of two vectors as the sum of two bf16, of which the second is what rounding to the first left, rounded: 16 bits of mantissa.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn store_bf16_terms(self, v: [Self::V; 2], large: &mut [bf16; 2 * LANES], small: &mut [bf16; 2 * LANES]) {
        let (large, small) = (large.as_chunks_mut().0, small.as_chunks_mut().0);
        for ((v, large), small) in v.into_iter().zip(large).zip(small) {
            self.store_bf16(v, large);
            let rest = self.sub(v, self.load_bf16(large));
            self.store_bf16(rest, small);
        }
    }

    /// `e^x` of each lane.
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        let mut lanes = self.to_array(x);
        for lane in &mut lanes {
            *lane = vllm_apple_ops::exp(*lane);
        }
        self.load(&lanes)
    }

    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        lanes
    }

    /// The sum of the lanes: halves added until one is left.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let mut lanes = self.to_array(v);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
            width /= 2;
        }
        lanes[0]
    }

    /// The largest lane: of halves the larger ones until one is left.
    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        let mut lanes = self.to_array(v);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] = lanes[i].max(lanes[i + width]);
            }
            width /= 2;
        }
        lanes[0]
    }

    /// The last byte of each lane's bits.
    #[inline(always)]
    fn low_bytes(self, v: Self::V) -> [u8; LANES] {
        let (lanes, mut bytes) = (self.to_array(v), [0; LANES]);
        for i in 0..LANES {
            bytes[i] = lanes[i].to_bits() as u8;
        }
        bytes
    }
}

/// A level of the processor's caches.
#[derive(Clone, Copy)]
pub(crate) enum Cache {
    First,
    Second,
}

/// Something compiled once per instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Whether it asks for dot products of bf16. Others are the same in sets with instructions for these and without, and compiled once for both.
    const DOT: bool = false;
    /// The same of [`Simd::Bytes`]. AVX-512 multiplies them by its dot product only; without one it is AVX2's to do.
    const BYTES: bool = false;

    /// Must be `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Runs kernels in one instruction set that the machine has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatch {
    isa: Isa,
}

impl Dispatch {
    /// # Panics
    /// If the machine does not have `isa`.
    pub(crate) fn new(isa: Isa) -> Self {
        assert!(isa.is_available(), "this machine does not have {isa}");
        Self { isa }
    }

    /// The set.
    pub(crate) fn isa(self) -> Isa {
        self.isa
    }

    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` has checked that the machine has the set.
            Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512Vnni if K::BYTES => unsafe { avx512::run_vnni(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::AmxBf16 | Isa::Avx512Bf16 if K::DOT => unsafe { avx512::run_bf16(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; who has AVX-512 has AVX2.
            Isa::Avx512 if K::BYTES => unsafe { avx2::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512Vnni | Isa::Avx512 => unsafe { avx512::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2Vnni if K::BYTES => unsafe { avx2::run_vnni(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2Vnni | Isa::Avx2 => unsafe { avx2::run(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonBf16 if K::BYTES => unsafe { neon::run_i8mm(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonBf16 if K::DOT => unsafe { neon::run_bf16(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonDotprod if K::BYTES => unsafe { neon::run_dotprod(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonBf16 | Isa::NeonDotprod | Isa::Neon => unsafe { neon::run(kernel) },
            _ => kernel.run(portable::Portable),
        }
    }
}

#[cfg(test)]
mod tests;

//! What is made of bytes and of codes of a few bits.

use vllm_apple_ops::Codebook;

use super::*;

/// Sums of rows from bytes for each output and each row: one row after the other, and where there are such instructions all together.
struct DotBytes<'a, const ROWS: usize> {
    bits: u8,
    codes: &'a [[u8; CHUNK * LANES]; PARTIAL_DOTS],
    x: &'a [[u32; ROWS]; PARTIAL_DOTS],
}

impl<const ROWS: usize> Kernel for DotBytes<'_, ROWS> {
    type Output = (bool, [Option<[[f32; LANES]; ROWS]>; 2]);
    const BYTES: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let Self { bits, codes, x } = self;
        let values = |sums: [[S::Sums; 1]; ROWS]| {
            sums.map(|[sum]| s.to_array(s.totals_to_f32(s.add_sums(bits, s.splat_totals(0), sum))))
        };
        let mut alone = [[s.no_sums()]; ROWS];
        for (codes, x) in codes.iter().zip(x) {
            for ([sum], &x) in alone.iter_mut().zip(x) {
                *sum = s.dot_bytes(bits, *sum, s.read_bytes(codes), x);
            }
        }
        let together = S::BYTE_ROWS.then(|| {
            let mut sums = [[s.no_sums()]; ROWS];
            for (codes, x) in codes.as_chunks::<2>().0.iter().zip(x.as_chunks::<2>().0) {
                s.dot_bytes_rows(&mut sums, |i, _| s.read_bytes(&codes[i]), x.each_ref());
            }
            s.pair_sums(&mut sums);
            values(sums)
        });
        (S::UNSIGNED_BYTES, [Some(values(alone)), together])
    }
}

fn check_dots_of_bytes<const ROWS: usize>() {
    let mut seed = 0x9e37_79b9_u32;
    let mut byte = move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    // The largest sums as well: all bytes as far from zero as they may be.
    for (bits, furthest) in
        [(4, None), (6, None), (8, None), (4, Some(15)), (6, Some(63)), (8, Some(0xff)), (8, Some(0x80))]
    {
        let mut codes = [[0; CHUNK * LANES]; PARTIAL_DOTS];
        codes.as_flattened_mut().iter_mut().for_each(|code| *code = furthest.unwrap_or_else(|| byte() >> (8 - bits)));
        let mut activation = || match (furthest, byte()) {
            (Some(_), _) => 127,
            // It has no counterpart above zero, and none is made.
            (None, 0x80) => 0,
            (None, byte) => byte,
        };
        let x = [0; PARTIAL_DOTS].map(|_| [0; ROWS].map(|_| u32::from_le_bytes([0; 4].map(|_| activation()))));
        for isa in Isa::available() {
            let (unsigned, sums) = Dispatch::new(isa).run(DotBytes { bits, codes: &codes, x: &x });
            let value = |code: u8| if unsigned { i32::from(code) } else { i32::from(code.cast_signed()) };
            assert_eq!(sums[1].is_some(), isa == Isa::NeonBf16, "{isa}");
            for (sums, row) in sums.into_iter().flatten().flat_map(|rows| rows.into_iter().zip(0..ROWS)) {
                let expected = std::array::from_fn(|lane| {
                    let of_chunk = |chunk: usize| {
                        let x = x[chunk][row].to_le_bytes().map(|x| i32::from(x.cast_signed()));
                        (0..CHUNK).map(|i| x[i] * value(codes[chunk][CHUNK * lane + i])).sum::<i32>()
                    };
                    (0..PARTIAL_DOTS).map(of_chunk).sum::<i32>() as f32
                });
                assert_eq!(sums, expected, "{isa}: {bits} bits, row {row} of {ROWS}");
            }
        }
    }
}

#[test]
fn sums_of_bytes_are_exact() {
    check_dots_of_bytes::<1>();
    check_dots_of_bytes::<2>();
    check_dots_of_bytes::<5>();
    check_dots_of_bytes::<6>();
}

/// What bytes mean.
struct LoadBytes<'a>(&'a [u8; LANES]);

impl Kernel for LoadBytes<'_> {
    type Output = [[f32; LANES]; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        [s.load_u8(self.0), s.load_i8(bytemuck::cast_ref(self.0))].map(|v| s.to_array(v))
    }
}

#[test]
fn bytes_are_whole_numbers_in_every_lane() {
    for seed in 0..16 {
        let bytes: [u8; LANES] = std::array::from_fn(|i| (i as u8).wrapping_mul(37) ^ (seed * 17));
        let expected = [bytes.map(f32::from), bytes.map(|byte| f32::from(byte.cast_signed()))];
        for isa in Isa::available() {
            assert_eq!(Dispatch::new(isa).run(LoadBytes(&bytes)), expected, "{isa}");
        }
    }
}

/// What codes in planes mean: for each vector, the values of each element of K.
struct LookUp<'a, const BITS: u8>(&'a Table, &'a [u8]);

impl<const BITS: u8> Kernel for LookUp<'_, BITS> {
    type Output = [[[f32; LANES]; CHUNK]; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let Self(table, bytes) = self;
        let table = s.table(table, BITS);
        assert_eq!(bytes.len(), 16 * usize::from(BITS));
        // SAFETY: they are as many.
        let planes = unsafe { Planes::<BITS>::new(bytes.as_ptr()) };
        [0, 1].map(|vector| {
            let pairs =
                [s.look_up::<BITS, false>(table, planes, vector), s.look_up::<BITS, true>(table, planes, vector)];
            let first = s.look_up_values::<BITS, false>(table, planes, vector);
            let second = s.look_up_values::<BITS, true>(table, planes, vector);
            let arrays =
                |[first, second]: [[S::V; 2]; 2]| [first[0], first[1], second[0], second[1]].map(|v| s.to_array(v));
            // There and back, so that both directions are seen.
            let from_pairs = arrays(pairs.map(|pairs| s.split_pairs(s.join_pairs(s.split_pairs(pairs)))));
            assert_eq!(arrays([first, second]), from_pairs);
            from_pairs
        })
    }
}

/// All codes in all places, on every instruction set.
fn check_look_up<const BITS: u8>(value: impl Fn(u8) -> f32) {
    let table = Table::new(BITS, &value);
    for seed in 0..256 {
        let code = |vector: usize, i: usize, lane: usize| {
            // Mixed, so that no two lanes always have the same code.
            let mixed = (((seed * 2 + vector) * CHUNK + i) * LANES + lane + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed >> 40) % (1 << BITS)) as u8
        };
        let mut bytes = vec![0; 16 * usize::from(BITS)];
        for (vector, i, lane) in places() {
            put_code(BITS, (i, vector, lane), code(vector, i, lane), &mut bytes);
        }
        for (vector, i, lane) in places() {
            assert_eq!(code_at(BITS, (i, vector, lane), &bytes), code(vector, i, lane));
        }
        for isa in Isa::available() {
            let got = Dispatch::new(isa).run(LookUp::<BITS>(&table, &bytes));
            for (vector, i, lane) in places() {
                let expected = value(code(vector, i, lane));
                assert_eq!(
                    got[vector][i][lane], expected,
                    "{isa}: {BITS} bits, vector {vector}, element {i}, lane {lane}"
                );
            }
        }
    }
}

fn places() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..2 * CHUNK * LANES).map(|at| (at / LANES / CHUNK, at / LANES % CHUNK, at % LANES))
}

#[test]
fn codes_mean_what_the_table_says_in_every_lane() {
    // Values whose upper and lower bytes all differ; whole numbers where there are more than bytes are looked up by.
    let value = |code: u8| bf16::from_bits(u16::from(code) * 0x0913 + 0x3f81).to_f32();
    check_look_up::<2>(value);
    check_look_up::<3>(value);
    check_look_up::<4>(value);
    for zero in [0.0, 16.0, 32.0, 190.0] {
        check_look_up::<5>(|code| f32::from(code) - zero);
        check_look_up::<6>(|code| f32::from(code) - zero);
    }
}

struct LoadE4m3<'a>(&'a [u8; LANES]);

impl Kernel for LoadE4m3<'_> {
    type Output = [f32; LANES];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        s.to_array(s.load_e4m3(self.0))
    }
}

#[test]
fn every_float_of_8_bits_is_exact() {
    let codes: [u8; 256] = std::array::from_fn(|code| code as u8);
    for isa in Isa::available() {
        for codes in codes.as_chunks::<LANES>().0 {
            let got = Dispatch::new(isa).run(LoadE4m3(codes));
            assert_eq!(got.map(f32::to_bits), codes.map(|code| Codebook::E4m3.value(code).to_bits()), "{isa}");
        }
    }
}

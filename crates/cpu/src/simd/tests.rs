//! Every instruction set against plain arithmetic.

use super::*;
use vllm_apple_ops::Codebook;

struct Exp<'a>(&'a [f32; LANES], &'a mut [f32; LANES]);

impl Kernel for Exp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let x = s.load(self.0);
        s.store(s.exp(x), self.1);
    }
}

fn exp_of(isa: Isa, x: [f32; LANES]) -> [f32; LANES] {
    let mut out = [f32::NAN; LANES];
    Dispatch::new(isa).run(Exp(&x, &mut out));
    out
}

#[test]
fn exp_is_that_of_the_ops_to_the_last_bit() {
    for isa in Isa::available() {
        for bits in (0..=u32::MAX).step_by(16 * 9973) {
            let x: [f32; LANES] = std::array::from_fn(|i| f32::from_bits(bits.wrapping_add(9973 * i as u32)));
            assert_eq!(exp_of(isa, x), x.map(vllm_apple_ops::exp), "{isa}: {x:?}");
        }
    }
}

struct RoundTrip<'a, T>(&'a [f32; LANES], &'a mut [T; LANES], &'a mut [f32; LANES]);

impl<T: Element> Kernel for RoundTrip<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        T::store(s, s.load(self.0), self.1);
        s.store(T::load(s, self.1), self.2);
    }
}

#[test]
fn conversions_round_to_nearest_even() {
    let interesting = [
        0.0,
        -0.0,
        1.0,
        1.003_906_2,
        1.011_718_8,
        65504.0,
        65519.9,
        65520.0,
        3.39e38,
        1e-7,
        6e-8,
        1e-40,
        -2.5,
        0.1,
        f32::INFINITY,
        f32::NAN,
    ];
    for isa in Isa::available() {
        let (mut h, mut b) = ([f16::ZERO; LANES], [bf16::ZERO; LANES]);
        let mut back = [0.0; LANES];
        Dispatch::new(isa).run(RoundTrip(&interesting, &mut h, &mut back));
        for (i, &x) in interesting.iter().enumerate() {
            assert!(h[i] == f16::from_f32(x) || x.is_nan() && h[i].is_nan(), "{isa}: f16 of {x} is {}", h[i]);
            assert!(back[i] == h[i].to_f32() || x.is_nan() && back[i].is_nan(), "{isa}: {x}");
        }
        Dispatch::new(isa).run(RoundTrip(&interesting, &mut b, &mut back));
        for (i, &x) in interesting.iter().enumerate() {
            assert!(b[i] == bf16::from_f32(x) || x.is_nan() && b[i].is_nan(), "{isa}: bf16 of {x} is {}", b[i]);
            assert!(back[i] == b[i].to_f32() || x.is_nan() && back[i].is_nan(), "{isa}: {x}");
        }
    }
}

#[test]
fn every_f16_is_exact_and_every_f32_is_rounded_to_the_nearest() {
    for isa in Isa::available() {
        let (mut halves, mut back) = ([f16::ZERO; LANES], [0.0; LANES]);
        for first in (0..=u16::MAX).step_by(LANES) {
            let expected: [f16; LANES] = std::array::from_fn(|i| f16::from_bits(first + i as u16));
            let values = expected.map(f16::to_f32);
            Dispatch::new(isa).run(RoundTrip(&values, &mut halves, &mut back));
            for i in 0..LANES {
                let is_nan = expected[i].is_nan() && halves[i].is_nan() && back[i].is_nan();
                assert!(
                    is_nan || (halves[i], back[i].to_bits()) == (expected[i], values[i].to_bits()),
                    "{isa}: {first} {i}"
                );
            }
        }
        for bits in (0..=u32::MAX).step_by(16 * 9973) {
            let x: [f32; LANES] = std::array::from_fn(|i| f32::from_bits(bits.wrapping_add(9973 * i as u32)));
            Dispatch::new(isa).run(RoundTrip(&x, &mut halves, &mut back));
            for i in 0..LANES {
                let expected = f16::from_f32(x[i]);
                assert!(
                    halves[i].to_bits() == expected.to_bits() || expected.is_nan() && halves[i].is_nan(),
                    "{isa}: {}",
                    x[i]
                );
            }
        }
    }
}

/// Some operations on two vectors of f32 and on pairs of bf16.
struct Operations<'a>(&'a [f32; LANES], &'a [f32; LANES], &'a [[bf16; 2]; LANES], &'a [[bf16; 2]; LANES]);

struct Results {
    max: [f32; LANES],
    mul_add: [f32; LANES],
    sum: f32,
    even: [f32; LANES],
    odd: [f32; LANES],
    dot: Option<[f32; LANES]>,
}

impl Kernel for Operations<'_> {
    type Output = Results;
    const DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Results {
        let (a, b) = (s.load(self.0), s.load(self.1));
        let pairs = |pairs: &[[bf16; 2]; LANES]| s.load(bytemuck::cast_ref(pairs));
        Results {
            max: s.to_array(s.max(a, b)),
            mul_add: s.to_array(s.mul_add(a, b, a)),
            sum: s.sum(b),
            even: s.to_array(s.load_bf16_even(self.2)),
            odd: s.to_array(s.load_bf16_odd(self.2)),
            dot: S::BF16_DOT.then(|| s.to_array(s.dot_bf16(b, pairs(self.2), pairs(self.3)))),
        }
    }
}

#[test]
fn operations_are_those_of_plain_arithmetic() {
    let mut a: [f32; LANES] = std::array::from_fn(|i| (i as f32 - 7.3) * 1.7);
    let b: [f32; LANES] = std::array::from_fn(|i| (i as f32 * 1.37).sin() * 8.0);
    let pair = |i: usize, seed: f32| [0.37, 1.91].map(|f| bf16::from_f32((i as f32 + seed) * f - 5.0));
    let x: [[bf16; 2]; LANES] = std::array::from_fn(|i| pair(i, 0.2));
    let y: [[bf16; 2]; LANES] = std::array::from_fn(|i| pair(i, 3.1));
    a[3] = f32::NAN;
    for isa in Isa::available() {
        let Results { max, mul_add, sum, even, odd, dot } = Dispatch::new(isa).run(Operations(&a, &b, &x, &y));
        assert_eq!(max, std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] }), "{isa}");
        let [once, twice] = [a[0].mul_add(b[0], a[0]), a[0] * b[0] + a[0]];
        assert_eq!(mul_add[0], if isa == Isa::Portable { twice } else { once }, "{isa}");
        assert!((sum - b.iter().sum::<f32>()).abs() < 1e-5, "{isa}: {sum}");
        assert_eq!((even, odd), (x.map(|x| x[0].to_f32()), x.map(|x| x[1].to_f32())), "{isa}");
        let Some(dot) = dot else { continue };
        for i in 0..LANES {
            // Products of two bf16 are exact in f32. The processor's manual adds the odd pair's first, or both before the sum.
            let [even, odd] = [0, 1].map(|at| x[i][at].to_f32() * y[i][at].to_f32());
            let both = || to_odd(f64::from(b[i]) + f64::from(to_odd(f64::from(even) + f64::from(odd))));
            assert_eq!(dot[i], if isa == Isa::NeonBf16 { both() } else { b[i] + odd + even }, "{isa}");
        }
    }
}

/// Sums of rows, two vectors each, from two pairs of bf16 for each output and each row: one row after the other, and all by [`Simd::dot_bf16_rows`].
struct DotRows<'a, const ROWS: usize> {
    sums: &'a [[[f32; LANES]; 2]; ROWS],
    weights: &'a [[[u32; LANES]; 2]; 2],
    x: &'a [[u32; ROWS]; 2],
}

impl<const ROWS: usize> Kernel for DotRows<'_, ROWS> {
    type Output = Option<[[[[u32; LANES]; 2]; ROWS]; 2]>;
    const DOT: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        if !S::BF16_ROWS {
            return None;
        }
        let mut alone = self.sums.map(|row| row.map(|sums| s.load(&sums)));
        let weights = self.weights.map(|step| step.map(|weights| s.load(&weights.map(f32::from_bits))));
        let mut together = alone;
        for (weights, x) in weights.iter().zip(self.x) {
            for (sums, &x) in alone.iter_mut().zip(x) {
                let x = s.splat(f32::from_bits(x));
                for (sum, &weights) in sums.iter_mut().zip(weights) {
                    *sum = s.dot_bf16(*sum, weights, x);
                }
            }
        }
        s.pair_rows(&mut together);
        s.dot_bf16_rows(&mut together, |i, v| weights[i][v], self.x.each_ref());
        s.pair_rows(&mut together);
        // A number that is none has no bits that instructions agree on.
        let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
        Some([alone, together].map(|rows| rows.map(|row| row.map(|v| s.to_array(v).map(bits)))))
    }
}

fn check_rows_together<const ROWS: usize>() {
    for isa in Isa::available() {
        let mut seed = 0x9e37_79b9_u32;
        let mut bits = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed ^ seed >> 16
        };
        for _ in 0..2000 {
            let sums = std::array::from_fn(|_| [0; 2].map(|_| [0; LANES].map(|_| f32::from_bits(bits()))));
            let weights = [0; 2].map(|_| [0; 2].map(|_| [0; LANES].map(|_| bits())));
            let x = [0; 2].map(|_| [0; ROWS].map(|_| bits()));
            let rows = Dispatch::new(isa).run(DotRows { sums: &sums, weights: &weights, x: &x });
            assert_eq!(rows.is_some(), isa == Isa::NeonBf16, "{isa}");
            let Some([alone, together]) = rows else { break };
            assert_eq!(alone, together, "{isa}");
        }
    }
}

#[test]
fn rows_together_have_the_bits_that_they_have_alone() {
    check_rows_together::<1>();
    check_rows_together::<2>();
    check_rows_together::<5>();
    check_rows_together::<6>();
}

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
            let arrays = |[first, second]: [[S::V; 2]; 2]| {
                [first[0], first[1], second[0], second[1]].map(|v| s.to_array(s.in_order(v)))
            };
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

/// Arm's rounding of dot products of bf16: toward zero, and what is cut off sets the last bit.
fn to_odd(exact: f64) -> f32 {
    let near = exact as f32;
    let is_above = f64::from(near).abs() > exact.abs();
    let cut = near.to_bits() - u32::from(is_above);
    f32::from_bits(cut | u32::from(f64::from(near) != exact))
}

struct Lanes<'a>(&'a [f32; LANES]);

impl Kernel for Lanes<'_> {
    type Output = ([f32; 2], [u8; LANES]);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let x = s.load(self.0);
        ([s.sum(x), s.max_lane(x)], s.low_bytes(x))
    }
}

#[test]
fn lanes_are_added_by_halves_the_largest_is_found_and_bytes_are_in_order() {
    // Sums that depend on the order: 24 bits do not hold large and small ones.
    for seed in 0..1000_u32 {
        let lane = |i: usize| {
            (seed.wrapping_mul(2_654_435_761).wrapping_add((i as u32).wrapping_mul(0x9e37_79b9)) >> 8) as f32
        };
        let x: [f32; LANES] = std::array::from_fn(|i| (lane(i) - 8e6) * if i % 3 == 0 { 1e-3 } else { 1.0 });
        let mut halves = x.to_vec();
        while halves.len() > 1 {
            let (a, b) = halves.split_at(halves.len() / 2);
            halves = a.iter().zip(b).map(|(a, b)| a + b).collect();
        }
        let largest = x.into_iter().max_by(f32::total_cmp).unwrap();
        for isa in Isa::available() {
            let (got, bytes) = Dispatch::new(isa).run(Lanes(&x));
            assert_eq!(bytes, x.map(|x| x.to_bits() as u8), "{isa}: {x:?}");
            assert_eq!(got.map(f32::to_bits), [halves[0], largest].map(f32::to_bits), "{isa}: {x:?}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod matrices {
    use super::*;

    struct Terms<'a>(&'a [f32; 2 * LANES], [&'a mut [bf16; 2 * LANES]; 2]);

    impl Kernel for Terms<'_> {
        type Output = ();
        const DOT: bool = true;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let [large, small] = self.1;
            let [first, second] = self.0.as_chunks().0 else { unreachable!("two vectors") };
            s.store_bf16_terms([s.load(first), s.load(second)], large, small);
        }
    }

    #[test]
    fn two_terms_are_a_number_to_sixteen_bits() {
        for bits in (0x2000_0000..0x6000_0000_u32).step_by(2 * LANES * 9973) {
            let sign = |i: u32| (i % 2) << 31;
            let x: [f32; 2 * LANES] =
                std::array::from_fn(|i| f32::from_bits(sign(i as u32) | (bits + 9973 * i as u32)));
            for isa in Isa::available() {
                let mut terms = [[bf16::ZERO; 2 * LANES]; 2];
                let [large, small] = &mut terms;
                Dispatch::new(isa).run(Terms(&x, [large, small]));
                for (i, &x) in x.iter().enumerate() {
                    let first = bf16::from_f32(x);
                    let want = [first, bf16::from_f32(x - first.to_f32())];
                    assert_eq!([terms[0][i], terms[1][i]], want, "{isa}: {x:e}");
                    let error = f64::from(x) - want.map(f64::from).iter().sum::<f64>();
                    assert!(error.abs() <= f64::from(x.abs()) / f64::from(1 << 17), "{x:e}");
                }
            }
        }
    }
}

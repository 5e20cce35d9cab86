//! Every instruction set against plain arithmetic.

mod codes;

use super::*;

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

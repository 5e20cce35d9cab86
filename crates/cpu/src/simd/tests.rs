//! Every instruction set against plain arithmetic.

use super::*;

struct Exp<'a>(&'a [f32; LANES], &'a mut [f32; LANES]);

impl Kernel for Exp<'_> {
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

//! What codes, scales and codebooks mean, and that they come back from what is held of them.

use super::*;
use crate::WeightFormat;

#[test]
fn floats_of_8_bits_are_found_from_their_products() {
    for factor in [1.0, 1.0 / 3.0, 1.0 / 2688.0, 7e-9, 3.3e7, -0.7, f32::MIN_POSITIVE * 600.0] {
        for code in 0..=255u8 {
            let scale = Codebook::E4m3.value(code) * factor;
            let found = Scale { scale, bias: 0.0 }.float8(Scale { scale: factor, bias: 0.0 });
            assert_eq!(Codebook::E4m3.value(found).to_bits(), Codebook::E4m3.value(code).to_bits(), "{factor}");
        }
    }
    assert_eq!(Scale { scale: 0.0, bias: 0.0 }.float8(Scale { scale: 0.0, bias: 0.0 }), 0);
}

#[test]
fn bytes_count_scales_and_groups_that_are_not_full() {
    let format = Quantised {
        input: DType::BF16,
        codebook: Codebook::INT4,
        group_size: 32,
        scales: Scales::Float(DType::F16),
        biases: false,
        activations: Activations::Exact,
    };
    assert_eq!(WeightFormat::Quantised(format).bytes(3, 64), 3 * (32 + 2 * 2));
    assert_eq!(format.bytes(3, 65), 3 * (33 + 3 * 2));
    assert_eq!(Quantised { biases: true, ..format }.bytes(3, 65), 3 * (33 + 3 * 4));
    assert_eq!(format.to_string(), "int4 (group_size 32, float16 scales) for bfloat16");
    let format = Quantised { scales: Scales::SuperBlocks, ..format };
    assert_eq!(format.bytes(3, 512), 3 * (256 + 16 + 2 * 2));
    assert_eq!(Quantised { biases: true, ..format }.bytes(3, 264), 3 * (132 + 2 * (9 + 2 * 2)));
    assert_eq!(format.to_string(), "int4 (group_size 32, int8 times float16 scales) for bfloat16");
    let nibbles = Quantised { scales: Scales::SuperBlocksOfNibbles, biases: true, ..format };
    assert_eq!(nibbles.bytes(3, 264), 3 * (132 + 9 + 2 * 2 * 2));
    let format = Quantised { scales: Scales::ZeroPoints(DType::F16), biases: true, ..format };
    assert_eq!(format.bytes(3, 65), 3 * (33 + 3 * 3));
    assert_eq!(format.to_string(), "int4 (group_size 32, float16 scales and zero points) for bfloat16");
}

#[test]
fn exponents_come_back() {
    for exponent in 0..=254 {
        let scale = power_of_two(exponent);
        assert_eq!(scale, 2f64.powi(i32::from(exponent) - 127) as f32);
        assert_eq!(Scale { scale, bias: 0.0 }.exponent(), exponent);
    }
    let format = Quantised {
        input: DType::BF16,
        codebook: Codebook::E2m1,
        group_size: 32,
        scales: Scales::PowersOfTwo,
        biases: false,
        activations: Activations::Exact,
    };
    assert_eq!(format.bytes(3, 65), 3 * (33 + 3));
    assert!(format.scales_fit() && !Quantised { biases: true, ..format }.scales_fit());
}

#[test]
fn zero_points_come_back() {
    for scale in [1.0, -6.1e-5, 6e-8, 65504.0, 1.0 / 3.0].map(|scale| DType::F16.round(scale)) {
        for zero_point in 0..=u8::MAX {
            assert_eq!(Scale { scale, bias: -scale * f32::from(zero_point) }.zero_point(), zero_point);
        }
    }
    assert_eq!(Scale { scale: 0.0, bias: 0.0 }.zero_point(), 0);
}

#[test]
fn whole_numbers_of_scales_come_back() {
    for factor in [1.0, -6.1e-5, 6e-8, 65504.0, 1.0 / 3.0].map(|factor| DType::F16.round(factor)) {
        for multiple in i8::MIN..=i8::MAX {
            let scale = Scale { scale: factor * f32::from(multiple), bias: 0.0 };
            assert_eq!(scale.multiples(Scale { scale: factor, bias: 0.0 }), [multiple, 0]);
        }
    }
}

#[test]
fn every_value_is_exact_in_bf16() {
    for zero_point in [0, 8, 32, 128, 255] {
        let codebook = Codebook::Integer { bits: 8, zero_point };
        let exact = |code| DType::BF16.round(codebook.value(code)) == codebook.value(code);
        assert!((0..=255).all(exact), "{codebook}");
    }
    for codebook in [Codebook::TABLES.as_slice(), &[Codebook::E4m3]].concat() {
        let exact = |code| DType::BF16.round(codebook.value(code)) == codebook.value(code);
        assert!((0..=u8::MAX >> (8 - codebook.bits())).all(exact), "{codebook}");
    }
}

#[test]
fn small_floats_are_those_of_their_formats() {
    let e2m1: Vec<f32> = (0..16).map(|code| Codebook::E2m1.value(code)).collect();
    let positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    assert_eq!(e2m1, [positive, positive.map(|v| -v)].concat());
    for (code, value) in
        [(0, 0.0), (1, 1.0 / 512.0), (7, 7.0 / 512.0), (8, 1.0 / 64.0), (0x38, 1.0), (0x7e, 448.0), (0xbc, -1.5)]
    {
        assert_eq!(Codebook::E4m3.value(code), value, "{code}");
    }
}

#[test]
fn whole_numbers_are_as_few_bits_as_they_say() {
    let integers = [(2, 0), (4, 8), (6, 32), (8, 128)].map(|(bits, zero_point)| Codebook::Integer { bits, zero_point });
    for codebook in integers.into_iter().chain(Codebook::TABLES) {
        let WholeNumbers { factor, least, bits } = codebook.whole_numbers().unwrap();
        let number = |code| codebook.value(code) * factor - least;
        for code in 0..=u8::MAX >> (8 - codebook.bits()) {
            assert!(number(code).fract() == 0.0 && (0.0..2f32.powi(bits.into())).contains(&number(code)), "{codebook}");
        }
    }
    assert_eq!(Codebook::E4m3.whole_numbers(), None);
}

//! Codes, scales and biases in panels: see [`crate::matmul::codes::Layout`].

use half::{bf16, f16};
use vllm_apple_ops::{Codebook, DType, QuantisedTensor, SUPER_BLOCK, Scale, Scales, power_of_two};

use super::{Overflow, part_of};
use crate::matmul::codes::Layout;
use crate::matmul::format::PANEL;

/// Packs the panels of a weight.
pub(super) struct Packer<'a> {
    pub layout: Layout,
    pub n: usize,
    pub k: usize,
    pub parts_per_group: usize,
    pub parts: &'a [QuantisedTensor<'a>],
    pub overflow: &'a Overflow,
}

impl Packer<'_> {
    /// Fills `to`, which holds zeros, with panel `panel` counted over all groups.
    pub(super) fn pack_panel(&self, panel: usize, to: &mut [u8]) {
        let Self { layout, n, k, parts_per_group, parts, .. } = *self;
        let panels = n.div_ceil(PANEL);
        let (group, first_row) = (panel / panels, panel % panels * PANEL);
        let parts = &parts[group * parts_per_group..][..parts_per_group];
        let mut codes = vec![0; layout.group_size.min(k)];
        for step in 0..k.div_ceil(layout.group_size) {
            let codes = &mut codes[..layout.group_size.min(k - step * layout.group_size)];
            for lane in 0..PANEL.min(n - first_row) {
                let (part, of_part) = part_of(parts, |part| part.rows, first_row + lane);
                let scale = part.groups.read(of_part, step, codes);
                for (k, &code) in codes.iter().enumerate() {
                    layout.put(k, lane, code, &mut to[layout.codes_at(step)..]);
                }
                let row = group * n + first_row + lane;
                match layout.scales {
                    Scales::Float(dtype) => self.put_floats(dtype, row, scale, |bias| layout.scales_at(step, bias), to),
                    Scales::ZeroPoints(dtype) => {
                        self.put_float(dtype, row, scale.scale, layout.scales_at(step, false), to);
                        to[layout.scales_at(step, true) + lane] = scale.zero_point();
                    }
                    Scales::PowersOfTwo => {
                        if !scale.scale.is_finite() {
                            self.overflow.report(row, scale.scale);
                        }
                        to[layout.scales_at(step, false) + lane] = scale.exponent();
                    }
                    Scales::SuperBlocks | Scales::SuperBlocksOfNibbles | Scales::SuperBlocksOfFloats => {
                        let factors = part.groups.factors(of_part, step * layout.group_size / SUPER_BLOCK);
                        let [by, bias] = scale.multiples(factors).map(i8::cast_unsigned);
                        to[layout.scales_at(step, false) + lane] = match layout.scales {
                            Scales::SuperBlocks => by,
                            Scales::SuperBlocksOfFloats => scale.float8(factors),
                            _ => scale.nibbles(factors),
                        };
                        if layout.biases && layout.scales.bias_size() > 0 {
                            to[layout.scales_at(step, true) + lane] = bias;
                        }
                        // A float that is no number has no code.
                        if layout.scales == Scales::SuperBlocksOfFloats && !scale.scale.is_finite() {
                            self.overflow.report(row, scale.scale);
                        }
                        let place = |bias| layout.factors_at(step, bias);
                        self.put_floats(layout.scales.dtype(), row, factors, place, to);
                    }
                }
            }
        }
    }

    /// Rounds the scale and the bias of row `row` and writes them to the row's place among those of a panel.
    fn put_floats(&self, dtype: DType, row: usize, scale: Scale, place: impl Fn(bool) -> usize, to: &mut [u8]) {
        for (bias, value) in [(false, scale.scale), (true, scale.bias)] {
            if self.layout.biases || !bias {
                self.put_float(dtype, row, value, place(bias), to);
            }
        }
    }

    /// The same for one number, whose panel has them at `place`.
    fn put_float(&self, dtype: DType, row: usize, value: f32, place: usize, to: &mut [u8]) {
        if !dtype.round(value).is_finite() {
            self.overflow.report(row, value);
        }
        let start = place + row % self.n % PANEL * dtype.size();
        to[start..][..dtype.size()].copy_from_slice(&dtype.encode(&[value]));
    }
}

/// Row `lane` of a panel in f32: see [`vllm_apple_ops::Quantised::value`].
pub(super) fn row(layout: Layout, panel: &[u8], lane: usize, out: &mut [f32]) {
    for (step, out) in out.chunks_mut(layout.group_size).enumerate() {
        let codes = &panel[layout.codes_at(step)..];
        let number = |bias| {
            let scales = &panel[layout.scales_at(step, bias)..];
            match layout.scales {
                Scales::ZeroPoints(dtype) if bias => {
                    -f32::from(scales[lane]) * decode(dtype, &panel[layout.scales_at(step, false)..], lane)
                }
                Scales::Float(dtype) | Scales::ZeroPoints(dtype) => decode(dtype, scales, lane),
                Scales::PowersOfTwo => power_of_two(scales[lane]),
                Scales::SuperBlocks | Scales::SuperBlocksOfNibbles | Scales::SuperBlocksOfFloats => {
                    let factor = decode(layout.scales.dtype(), &panel[layout.factors_at(step, bias)..], lane);
                    factor
                        * match layout.scales {
                            Scales::SuperBlocks => f32::from(scales[lane].cast_signed()),
                            Scales::SuperBlocksOfFloats => Codebook::E4m3.value(scales[lane]),
                            _ if bias => f32::from(scales[lane] >> 4),
                            _ => f32::from(scales[lane] & 15),
                        }
                }
            }
        };
        let (scale, bias) = (number(false), if layout.biases { Some(number(true)) } else { None });
        for (k, out) in out.iter_mut().enumerate() {
            let value = layout.value(k, lane, codes);
            *out = bias.map_or(value * scale, |bias| value.mul_add(scale, bias));
        }
    }
}

/// Number `at` of some values of type `dtype`. Steps call it: it takes no memory.
fn decode(dtype: DType, bytes: &[u8], at: usize) -> f32 {
    let half = || [bytes[2 * at], bytes[2 * at + 1]];
    match dtype {
        DType::F16 => f16::from_le_bytes(half()).to_f32(),
        DType::BF16 => bf16::from_le_bytes(half()).to_f32(),
        _ => f32::from_bits(bytes[4 * at..][..4].iter().rev().fold(0, |bits, &byte| bits << 8 | u32::from(byte))),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use vllm_apple_ops::pool::Pool;
    use vllm_apple_ops::{Activations, Codebook, Error, Quantised, ReadGroups, WeightFormat, WeightSource};

    use super::*;
    use crate::pack::PackedMatrix;
    use crate::weight_memory::WeightMemory;

    /// Ones, but for the scales and biases of some groups.
    struct Ones<'a>(&'a [(usize, usize, Scale)]);

    impl ReadGroups for Ones<'_> {
        fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
            codes.fill(1);
            let found = self.0.iter().find(|(r, g, _)| (*r, *g) == (row, group));
            found.map_or(Scale { scale: 1.0, bias: 0.0 }, |(.., scale)| *scale)
        }

        fn factors(&self, _: usize, _: usize) -> Scale {
            Scale { scale: 1.0, bias: 1.0 }
        }
    }

    fn pack(
        codebook: Codebook,
        biases: bool,
        scales: &[(usize, usize, Scale)],
    ) -> vllm_apple_ops::Result<PackedMatrix> {
        pack_as(
            Quantised {
                input: DType::BF16,
                codebook,
                group_size: 32,
                scales: Scales::Float(DType::F16),
                biases,
                activations: Activations::Exact,
            },
            scales,
        )
    }

    fn pack_as(quantised: Quantised, scales: &[(usize, usize, Scale)]) -> vllm_apple_ops::Result<PackedMatrix> {
        let parts = [QuantisedTensor { rows: 40, cols: 70, groups: &Ones(scales) }];
        let source = WeightSource::quantised("blk.w", 1, &parts);
        let (pool, memory) = (Pool::new(NonZeroUsize::MIN), WeightMemory::default());
        PackedMatrix::pack(&pool, &memory, source, WeightFormat::Quantised(quantised))
    }

    #[test]
    fn a_scale_or_bias_that_is_no_number_is_refused_by_name() {
        let one = |scale, bias| [(35, 2, Scale { scale, bias }), (39, 0, Scale { scale: f32::NAN, bias: 0.0 })];
        let refused = |scales: &[_]| pack(Codebook::INT4, true, scales).map(drop).unwrap_err();
        let error = |value| Error::ScaleOutOfRange { name: "blk.w".into(), value, dtype: DType::F16 };
        assert_eq!(refused(&one(7e4, 0.0)), error(7e4));
        assert_eq!(refused(&one(1.0, -7e4)), error(-7e4));
        assert_eq!(refused(&one(f32::INFINITY, 0.0)), error(f32::INFINITY));
        let none = [(39, 0, Scale { scale: f32::NAN, bias: 0.0 })];
        assert!(refused(&none).to_string().contains("is NaN"));
        let floats = Quantised {
            input: DType::BF16,
            codebook: Codebook::E2m1,
            group_size: 16,
            scales: Scales::SuperBlocksOfFloats,
            biases: false,
            activations: Activations::Exact,
        };
        assert!(pack_as(floats, &none).map(drop).unwrap_err().to_string().contains("is NaN"));
    }

    #[test]
    fn codes_take_the_bytes_that_they_need() {
        let bytes = |codebook| pack(codebook, false, &[]).unwrap().bytes();
        // Two panels of three groups.
        assert_eq!(bytes(Codebook::INT4), 2 * 3 * 32 * (16 + 2));
        assert_eq!(bytes(Codebook::INT8), 2 * 3 * 32 * (32 + 2));
        for (bits, taken) in [(1, 2), (2, 2), (3, 3), (5, 5), (6, 6), (7, 8)] {
            assert_eq!(bytes(Codebook::Integer { bits, zero_point: 0 }), 2 * 3 * 32 * (4 * taken + 2), "{bits} bits");
        }
    }

    #[test]
    fn memory_is_planned_for_what_codes_take() {
        for codebook in [Codebook::INT4, Codebook::Integer { bits: 6, zero_point: 32 }, Codebook::E4m3] {
            for (group_size, scales, with_biases) in [
                (32, Scales::Float(DType::F16), &[false, true][..]),
                (16, Scales::SuperBlocks, &[false, true]),
                (16, Scales::SuperBlocksOfFloats, &[false]),
                (64, Scales::SuperBlocksOfFloats, &[false]),
                (256, Scales::SuperBlocksOfFloats, &[false]),
            ] {
                for &biases in with_biases {
                    let quantised = Quantised {
                        input: DType::BF16,
                        codebook,
                        group_size,
                        scales,
                        biases,
                        activations: Activations::Exact,
                    };
                    let format = WeightFormat::Quantised(quantised);
                    let packed = pack_as(quantised, &[]).unwrap();
                    assert_eq!(packed.bytes() as u128, crate::pack::bytes(format, 1, 40, 70), "{format}");
                }
            }
        }
    }

    #[test]
    fn groups_that_do_not_divide_a_super_block_are_refused() {
        for group_size in [0, 4, 48, 512] {
            let scales = Scales::SuperBlocks;
            let quantised = Quantised {
                input: DType::BF16,
                codebook: Codebook::INT4,
                group_size,
                scales,
                biases: true,
                activations: Activations::Exact,
            };
            let error = pack_as(quantised, &[]).map(drop).unwrap_err();
            assert!(error.to_string().contains("divide super-blocks of 256"), "{group_size}: {error}");
            crate::pack::check_format(WeightFormat::Quantised(quantised)).unwrap_err();
        }
    }

    #[test]
    fn codes_that_no_byte_holds_are_refused_before_anything_is_read() {
        let error = pack(Codebook::Integer { bits: 8, zero_point: 7 }, false, &[]).map(drop).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("uint8 minus 7"), "{error}");
    }
}

//! Quantises weights of floats while they are loaded. It knows no file and no layout.

use std::fmt;
use std::str::FromStr;

use half::f16;
use vllm_apple_ops::{Activations, Codebook, DType, HostTensor, Quantised, ReadGroups, Scale, Scales, WeightFormat};

/// Elements of K that share a scale.
pub(crate) const GROUP_SIZE: usize = 32;

/// How weights of floats are quantised: symmetrically, in groups of 32 along K with a float16 scale each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// 8 bits: the value of the largest magnitude of a group is 127 or -127.
    Int8,
    /// 4 bits: the first such value is -8, whatever its sign, as in GGUF's Q4_0.
    Int4,
}

impl Quantization {
    /// All by their names.
    pub const NAMES: [(&'static str, Self); 2] = [("int8", Self::Int8), ("int4", Self::Int4)];

    /// Bits of a code.
    pub(crate) const fn bits(self) -> usize {
        match self {
            Self::Int8 => 8,
            Self::Int4 => 4,
        }
    }

    /// What makes weights of a format.
    pub(crate) fn making(format: WeightFormat) -> Option<Self> {
        let formats = Self::NAMES.map(|(_, quantization)| quantization);
        formats.into_iter().find(|quantization| WeightFormat::Quantised(quantization.format(format.input())) == format)
    }

    /// The format of weights that activations of type `input` are multiplied by.
    pub(crate) const fn format(self, input: DType) -> Quantised {
        let codebook = match self {
            Self::Int8 => Codebook::INT8,
            Self::Int4 => Codebook::INT4,
        };
        Quantised {
            input,
            codebook,
            group_size: GROUP_SIZE,
            scales: Scales::Float(DType::F16),
            biases: false,
            activations: Activations::Exact,
        }
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, quantization)| quantization == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Quantization {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, quantization)| quantization).ok_or_else(|| {
            format!("unknown quantization {text:?}: expected {}", Self::NAMES.map(|(name, _)| name).join(" or "))
        })
    }
}

/// A tensor of floats, read as codes.
#[derive(Clone, Copy)]
pub(crate) struct Quantizer<'a> {
    pub(crate) tensor: HostTensor<'a>,
    pub(crate) quantization: Quantization,
}

impl ReadGroups for Quantizer<'_> {
    /// Scales are rounded before codes are chosen. Of a group with a value that is no number, the scale is none, and refused.
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let HostTensor { dtype, cols, bytes, .. } = self.tensor;
        let mut values = [0.0; GROUP_SIZE];
        let values = &mut values[..codes.len()];
        let bytes = &bytes[(row * cols + group * GROUP_SIZE) * dtype.size()..][..codes.len() * dtype.size()];
        decode(dtype, bytes, values);
        let (divisor, zero_point, most): (f32, f32, f32) = match self.quantization {
            Quantization::Int8 => (127.0, 128.0, 255.0),
            Quantization::Int4 => (-8.0, 8.0, 15.0),
        };
        let largest = values.iter().fold(0.0f32, |largest, &v| if v.abs() > largest.abs() { v } else { largest });
        let scale = if values.iter().all(|v| v.is_finite()) { largest / divisor } else { f32::NAN };
        let scale = match self.quantization {
            Quantization::Int8 => scale.abs(),
            Quantization::Int4 => scale,
        };
        let mut rounded = f16::from_f32(scale);
        // What is rounded far down, of numbers below 6e-5, would not reach the largest value.
        if largest.abs() > (divisor.abs() + 0.5) * rounded.to_f32().abs() {
            rounded = f16::from_bits(rounded.to_bits() + 1);
        }
        let scale = rounded.to_f32();
        for (code, value) in codes.iter_mut().zip(values) {
            let multiple = if scale == 0.0 { 0.0 } else { (*value / scale).round_ties_even() };
            *code = (multiple + zero_point).clamp(0.0, most) as u8;
        }
        Scale { scale, bias: 0.0 }
    }
}

/// As [`DType::decode`], to memory that is there.
fn decode(dtype: DType, bytes: &[u8], values: &mut [f32]) {
    match dtype {
        DType::F16 => {
            let halves = bytes.as_chunks::<2>().0;
            values.iter_mut().zip(halves).for_each(|(v, &b)| *v = f16::from_le_bytes(b).to_f32());
        }
        DType::BF16 => {
            let halves = bytes.as_chunks::<2>().0;
            values.iter_mut().zip(halves).for_each(|(v, &b)| *v = half::bf16::from_le_bytes(b).to_f32());
        }
        _ => values.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(v, &b)| *v = f32::from_le_bytes(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a row that codes stand for.
    fn quantised(quantization: Quantization, dtype: DType, row: &[f32]) -> Vec<f32> {
        let bytes = dtype.encode(row);
        let tensor = HostTensor { dtype, rows: 1, cols: row.len(), bytes: &bytes, file: None };
        let (quantizer, format) = (Quantizer { tensor, quantization }, quantization.format(DType::F32));
        let mut values = Vec::new();
        for (group, row) in row.chunks(GROUP_SIZE).enumerate() {
            let mut codes = vec![0; row.len()];
            let Scale { scale, bias } = quantizer.read(0, group, &mut codes);
            values.extend(codes.iter().map(|&code| format.value(code, DType::F16.round(scale), bias)));
        }
        values
    }

    #[test]
    fn values_are_at_most_half_a_step_away() {
        let row: Vec<f32> = (0..75).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
        for dtype in DType::FLOATS {
            let row: Vec<f32> = row.iter().map(|&v| dtype.round(v)).collect();
            // A step of a group is its largest magnitude by 127 or 8. Of 4 bits, 8 times the scale of the other sign has no code.
            for (quantization, steps, most) in [(Quantization::Int8, 127.0, 0.51), (Quantization::Int4, 8.0, 1.01)] {
                let got = quantised(quantization, dtype, &row);
                for (row, got) in row.chunks(GROUP_SIZE).zip(got.chunks(GROUP_SIZE)) {
                    let largest = row.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                    for (v, got) in row.iter().zip(got) {
                        assert!((v - got).abs() <= most * largest / steps, "{quantization} {dtype}: {v} became {got}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_float16_hardly_holds_is_as_near_as_its_smallest_step() {
        let row: Vec<f32> = (0..64).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.02).collect();
        for factor in (10..30).map(|power| 0.5f32.powi(power)) {
            let row: Vec<f32> = row.iter().map(|v| v * factor).collect();
            for (quantization, steps, most) in [(Quantization::Int8, 127.0, 0.51), (Quantization::Int4, 8.0, 1.01)] {
                let smallest = f16::from_bits(1).to_f32();
                for (v, got) in row.iter().zip(quantised(quantization, DType::F32, &row)) {
                    let step = (factor / steps).max(smallest);
                    assert!(
                        (v - got).abs() <= most * (step + smallest),
                        "{quantization}, {factor:e}: {v:e} became {got:e}"
                    );
                }
            }
        }
    }

    #[test]
    fn zeros_stay_zeros_and_what_is_no_number_has_no_scale() {
        for (_, quantization) in Quantization::NAMES {
            assert_eq!(quantised(quantization, DType::BF16, &[0.0; 40]), [0.0; 40]);
            for bad in [f32::NAN, f32::INFINITY, 3e38] {
                let bytes = DType::F32.encode(&[1.0, bad, 2.0]);
                let tensor = HostTensor { dtype: DType::F32, rows: 1, cols: 3, bytes: &bytes, file: None };
                let Scale { scale, .. } = Quantizer { tensor, quantization }.read(0, 0, &mut [0; 3]);
                assert!(!DType::F16.round(scale).is_finite(), "{bad}");
            }
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, quantization) in Quantization::NAMES {
            assert_eq!((quantization.to_string().as_str(), name.parse()), (name, Ok(quantization)));
        }
        assert!("awq".parse::<Quantization>().unwrap_err().contains("int8 or int4"));
    }
}

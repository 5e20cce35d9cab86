//! Groups of floats of 4 or 8 bits that share a float of 8 bits, as several makers of checkpoints have them: OCP's MXFP4 and MXFP8, whose scales
//! are powers of two, and NVIDIA's NVFP4.

use safetensors::tensor::Dtype;
use vllm_apple_ops::{Codebook, ReadGroups, Scale, Scales, power_of_two};

use super::{Wanted, code_at, codes};
use crate::load::checkpoint::{Checkpoint, View};
use crate::load::error::LoadError;
use crate::load::matrix::{Codes, Spelling};

/// What scales may be, for errors.
pub(super) const SCALES: &str = "F8_E4M3 for 16 columns each (NVFP4), or U8 for 32 (MXFP4, MXFP8)";

/// Which of them a matrix has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

impl Form {
    /// By the types of codes and scales, where these are of 8 bits.
    pub(super) const fn of(codes: Dtype, scales: Dtype) -> Option<Self> {
        match (codes, scales) {
            (Dtype::U8, Dtype::F8_E4M3) => Some(Self::Nvfp4),
            (Dtype::U8, Dtype::U8 | Dtype::F8_E8M0) => Some(Self::Mxfp4),
            (Dtype::F8_E4M3, Dtype::U8 | Dtype::F8_E8M0) => Some(Self::Mxfp8),
            _ => None,
        }
    }

    pub(super) const fn bits(self) -> usize {
        if matches!(self, Self::Mxfp8) { 8 } else { 4 }
    }

    pub(super) const fn group_size(self) -> usize {
        if matches!(self, Self::Nvfp4) { 16 } else { 32 }
    }

    /// How such a matrix is held.
    pub(super) const fn spelling(self) -> Spelling {
        let codebook = if matches!(self, Self::Mxfp8) { Codebook::E4m3 } else { Codebook::E2m1 };
        let scales = match self {
            Self::Mxfp4 | Self::Mxfp8 => Scales::PowersOfTwo,
            Self::Nvfp4 => Scales::SuperBlocksOfFloats,
        };
        Spelling { codebook, group_size: self.group_size(), scales, biases: false }
    }
}

/// A matrix of them.
pub(super) struct SmallFloats<'a> {
    pub(super) form: Form,
    /// Of each row a stream of so many bytes, the first code in a byte's lower bits.
    pub(super) codes: &'a [u8],
    pub(super) row_bytes: usize,
    /// Of each row so many.
    pub(super) scales: &'a [u8],
    pub(super) groups: usize,
    /// Of all scales that are not powers of two.
    pub(super) factor: f32,
}

impl ReadGroups for SmallFloats<'_> {
    /// Where a scale or a code stands for no number, the scale is none, and refused.
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let (of_row, first) = (&self.codes[row * self.row_bytes..], group * self.form.group_size());
        for (k, code) in codes.iter_mut().enumerate() {
            *code = code_at(of_row, first + k, self.form.bits());
        }
        let no_number = |code: u8| code & 0x7f == 0x7f;
        let scale = match self.scales[row * self.groups + group] {
            scale if self.form == Form::Nvfp4 && no_number(scale) => f32::NAN,
            scale if self.form == Form::Nvfp4 => Codebook::E4m3.value(scale),
            scale => power_of_two(scale),
        };
        let is_none = self.form == Form::Mxfp8 && codes.iter().any(|&code| no_number(code));
        Scale { scale: if is_none { f32::NAN } else { scale * self.factor }, bias: 0.0 }
    }

    fn factors(&self, _: usize, _: usize) -> Scale {
        Scale { scale: self.factor, bias: 0.0 }
    }
}

impl Checkpoint {
    /// A matrix whose codes are `packed`, and whose scales are multiplied by `factor`.
    pub(super) fn small_floats<'a>(
        &'a self,
        wanted: Wanted<'_>,
        form: Form,
        packed: &str,
        scales: &View<'a>,
        factor: f32,
    ) -> Result<Codes<'a>, LoadError> {
        let Wanted { rows, cols, .. } = wanted;
        let (size, row_bytes) = (form.group_size(), cols * form.bits() / 8);
        if !(cols.is_multiple_of(size) && scales.shape == [rows, cols / size]) {
            return Err(self.unpackable(scales, SCALES));
        }
        let dtype = if form == Form::Mxfp8 { Dtype::F8_E4M3 } else { Dtype::U8 };
        let bytes = self.typed(wanted, packed, dtype, &[rows, row_bytes])?;
        let floats = SmallFloats { form, codes: bytes, row_bytes, scales: scales.bytes, groups: cols / size, factor };
        Ok(codes(wanted, form.spelling(), floats))
    }

    /// The only float32 of a tensor of a matrix.
    pub(crate) fn number(&self, wanted: Wanted<'_>, suffix: &str) -> Result<f32, LoadError> {
        let shape: &[usize] = if self.part(wanted, suffix).is_some_and(|it| it.shape.is_empty()) { &[] } else { &[1] };
        let bytes = self.typed(wanted, suffix, Dtype::F32, shape)?;
        // Four bytes, by type and shape.
        Ok(bytes.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_powers_of_two() {
        for exponent in 0..=254u8 {
            assert_eq!(f64::from(power_of_two(exponent)), 2f64.powi(i32::from(exponent) - 127));
        }
        assert!(power_of_two(255).is_nan());
    }

    #[test]
    fn what_stands_for_no_number_is_no_scale() {
        let scale = |form, codes: &[u8], scale: u8| {
            let (row_bytes, scales, groups) = (codes.len(), &[scale][..], 1);
            SmallFloats { form, codes, row_bytes, scales, groups, factor: 1.0 }.read(0, 0, &mut [0; 2]).scale
        };
        assert_eq!(scale(Form::Nvfp4, &[0xff], 0x40), 2.0);
        assert!(scale(Form::Nvfp4, &[0], 0xff).is_nan());
        assert_eq!(scale(Form::Mxfp8, &[0x7e, 0xfe], 128), 2.0);
        assert!(scale(Form::Mxfp8, &[0, 0x7f], 128).is_nan());
        assert!(scale(Form::Mxfp8, &[0, 0], 255).is_nan());
        assert_eq!(scale(Form::Mxfp4, &[0xff], 126), 0.5);
    }
}

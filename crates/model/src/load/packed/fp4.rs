//! compressed-tensors' matrices of floats of 4 bits: `weight_packed` of two in a byte, the first in the lower half. In `nvfp4-pack-quantized`
//! 16 columns share a float of 8 bits, which `weight_global_scale` divides; in `mxfp4-pack-quantized` 32 share a power of two.

use safetensors::tensor::Dtype;
use vllm_apple_ops::{Codebook, DType, ReadGroups, Scale, Scales};

use super::mlx::{MX_GROUP, Mxfp4};
use super::{Wanted, code_at, codes};
use crate::load::checkpoint::{Checkpoint, View};
use crate::load::error::LoadError;
use crate::load::matrix::{Codes, Spelling};

/// Columns that share a float of 8 bits.
const NV_GROUP: usize = 16;

struct Nvfp4<'a> {
    codes: &'a [u8],
    cols: usize,
    scales: &'a [u8],
    divisor: f32,
}

impl ReadGroups for Nvfp4<'_> {
    /// A scale that stands for no number is none, and refused.
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let first = row * self.cols + group * NV_GROUP;
        codes.iter_mut().enumerate().for_each(|(k, code)| *code = code_at(self.codes, first + k, 4));
        let scale = match self.scales[row * (self.cols / NV_GROUP) + group] {
            0x7f | 0xff => f32::NAN,
            scale => Codebook::E4m3.value(scale),
        };
        Scale { scale: scale / self.divisor, bias: 0.0 }
    }
}

impl Checkpoint {
    pub(super) fn fp4<'a>(&'a self, wanted: Wanted<'_>, scales: &View<'a>) -> Result<Codes<'a>, LoadError> {
        let Wanted { name, rows, cols, .. } = wanted;
        self.allow(&format!("{name}.input_global_scale"));
        let of_group = if scales.dtype == Dtype::F8_E4M3 { NV_GROUP } else { MX_GROUP };
        if !cols.is_multiple_of(of_group) || scales.shape != [rows, cols / of_group] {
            return Err(self.unpackable(scales, "F8_E4M3 for 16 columns each (NVFP4), or U8 for 32 (MXFP4)"));
        }
        let bytes = self.typed(wanted, "weight_packed", Dtype::U8, &[rows, cols / 2])?;
        let spelling = |scales| Spelling { codebook: Codebook::E2m1, group_size: of_group, scales, biases: false };
        if matches!(scales.dtype, Dtype::U8 | Dtype::F8_E8M0) {
            let groups = Mxfp4 { codes: bytes, row_bytes: cols / 2, scales: scales.bytes, groups: cols / MX_GROUP };
            return Ok(codes(wanted, spelling(Scales::PowersOfTwo), groups));
        }
        let scale_bytes = self.typed(wanted, "weight_scale", Dtype::F8_E4M3, scales.shape)?;
        let divisor = self.typed(wanted, "weight_global_scale", Dtype::F32, &[1])?;
        // Four bytes, by type and shape.
        let divisor = divisor.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
        // A quotient of a float of 8 bits has more digits than 16 bits hold.
        Ok(codes(
            wanted,
            spelling(Scales::Float(DType::F32)),
            Nvfp4 { codes: bytes, cols, scales: scale_bytes, divisor },
        ))
    }
}

//! compressed-tensors' matrices of floats of 4 bits: `weight_packed` of two in a byte, the first in the lower half. In `nvfp4-pack-quantized`
//! 16 columns share a float of 8 bits, which `weight_global_scale` divides; in `mxfp4-pack-quantized` 32 share a power of two.

use safetensors::tensor::Dtype;

use super::small_floats::{Form, SmallFloats};
use super::{Wanted, codes};
use crate::load::checkpoint::{Checkpoint, View};
use crate::load::error::LoadError;
use crate::load::matrix::Codes;

impl Checkpoint {
    pub(super) fn fp4<'a>(&'a self, wanted: Wanted<'_>, scales: &View<'a>) -> Result<Codes<'a>, LoadError> {
        let Wanted { name, rows, cols, .. } = wanted;
        self.allow(&format!("{name}.input_global_scale"));
        let form = if scales.dtype == Dtype::F8_E4M3 { Form::Nvfp4 } else { Form::Mxfp4 };
        let is_type = matches!(scales.dtype, Dtype::F8_E4M3 | Dtype::U8 | Dtype::F8_E8M0);
        if !(is_type && cols.is_multiple_of(form.group_size()) && scales.shape == [rows, cols / form.group_size()]) {
            return Err(self.unpackable(scales, "F8_E4M3 for 16 columns each (NVFP4), or U8 for 32 (MXFP4)"));
        }
        let bytes = self.typed(wanted, "weight_packed", Dtype::U8, &[rows, cols / 2])?;
        let factor = if form == Form::Nvfp4 {
            let divisor = self.typed(wanted, "weight_global_scale", Dtype::F32, &[1])?;
            // Four bytes, by type and shape.
            divisor.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes).recip())
        } else {
            1.0
        };
        let (row_bytes, groups) = (cols / 2, cols / form.group_size());
        let floats = SmallFloats { form, codes: bytes, row_bytes, scales: scales.bytes, groups, factor };
        Ok(codes(wanted, form.spelling(), floats))
    }
}

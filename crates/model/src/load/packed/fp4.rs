//! Matrices of small floats as compressed-tensors and ModelOpt spell them: of 4 bits two in a byte, the first in the lower half. In NVFP4 16 columns
//! share a float of 8 bits; in MXFP4 and MXFP8 32 share a power of two.

use safetensors::tensor::Dtype;

use super::small_floats::{Form, SmallFloats};
use super::{Wanted, codes};
use crate::load::checkpoint::{Checkpoint, View};
use crate::load::error::LoadError;
use crate::load::matrix::Codes;

/// What scales may be, for errors.
const SCALES: &str = "F8_E4M3 for 16 columns each (NVFP4), or U8 for 32 (MXFP4, MXFP8)";

impl Checkpoint {
    /// compressed-tensors' `nvfp4-pack-quantized`, whose scales `weight_global_scale` divides, or `mxfp4-pack-quantized`.
    pub(super) fn fp4<'a>(&'a self, wanted: Wanted<'_>, scales: &View<'a>) -> Result<Codes<'a>, LoadError> {
        self.allow(&format!("{}.input_global_scale", wanted.name));
        let Some(form) = Form::of(Dtype::U8, scales.dtype) else { return Err(self.unpackable(scales, SCALES)) };
        let factor = if form == Form::Nvfp4 { self.number(wanted, "weight_global_scale")?.recip() } else { 1.0 };
        self.small_floats(wanted, form, "weight_packed", scales, factor)
    }

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
    pub(super) fn number(&self, wanted: Wanted<'_>, suffix: &str) -> Result<f32, LoadError> {
        let shape: &[usize] = if self.part(wanted, suffix).is_some_and(|it| it.shape.is_empty()) { &[] } else { &[1] };
        let bytes = self.typed(wanted, suffix, Dtype::F32, shape)?;
        // Four bytes, by type and shape.
        Ok(bytes.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes)))
    }
}

//! MLX's quantised matrices, which transformers saves on Macs, too (`metal`): `weight` of codes in words of 32 bits, a stream along K, and `scales`. In the mode `affine` there are `biases`
//! too; in `mxfp4`, `mxfp8` and `nvfp4` codes and scales are small floats. Layers may differ from what config.json says of the others, so shapes
//! decide.

use safetensors::tensor::Dtype;
use vllm_apple_ops::{Codebook, ReadGroups, Scale, Scales};

use super::small_floats::{Form, SmallFloats};
use super::{GROUPS, Grid, Wanted, code_at, codes, group_size};
use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::matrix::{Codes, Spelling};

struct Affine<'a> {
    codes: &'a [u8],
    row_bytes: usize,
    bits: usize,
    group_size: usize,
    scales: Grid<'a>,
    biases: Grid<'a>,
}

impl ReadGroups for Affine<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let (of_row, first) = (&self.codes[row * self.row_bytes..], group * self.group_size);
        for (k, code) in codes.iter_mut().enumerate() {
            *code = code_at(of_row, first + k, self.bits);
        }
        Scale { scale: self.scales.at(row, group), bias: self.biases.at(row, group) }
    }
}

impl Checkpoint {
    pub(super) fn mlx(&self, wanted: Wanted<'_>) -> Result<Option<Codes<'_>>, LoadError> {
        let Wanted { rows, cols, .. } = wanted;
        let (Some(scales), Some(weight)) = (self.part(wanted, "scales"), self.part(wanted, "weight")) else {
            return Ok(None);
        };
        let groups = match scales.shape {
            [of_rows, groups] if *of_rows == rows && group_size(cols, *groups).is_some() => *groups,
            _ => return Err(self.unpackable(&scales, GROUPS)),
        };
        let group_size = cols / groups;
        let words = if let [_, words] = weight.shape { *words } else { 0 };
        let bits = words * 32 / cols;
        if !([1, 2, 3, 4, 5, 6, 8].contains(&bits) && bits * cols == words * 32) {
            return Err(self.unpackable(&weight, "U32 with 1, 2, 3, 4, 5, 6 or 8 bits for each column"));
        }
        let (bytes, row_bytes) = (self.typed(wanted, "weight", Dtype::U32, &[rows, words])?, words * 4);
        if scales.dtype == Dtype::U8 {
            let is_form = |form: &Form| (form.bits(), form.group_size()) == (bits, group_size);
            let Some(form) = [Form::Mxfp4, Form::Mxfp8, Form::Nvfp4].into_iter().find(is_form) else {
                return Err(self.unpackable(&scales, "those of the modes affine, mxfp4, mxfp8 or nvfp4"));
            };
            let floats = SmallFloats { form, codes: bytes, row_bytes, scales: scales.bytes, groups, factor: 1.0 };
            return Ok(Some(codes(wanted, form.spelling(), floats)));
        }
        let dtype = self.scale_type(&scales)?;
        let grid = |bytes| Grid { dtype, exponents: false, bytes, shared: [1, 1], strides: [groups, 1] };
        // The second is what transformers calls them.
        let biases =
            ["biases", "qbiases"].into_iter().find(|name| self.part(wanted, name).is_some()).unwrap_or("biases");
        let biases = grid(self.typed(wanted, biases, scales.dtype, &[rows, groups])?);
        let codebook = Codebook::Integer { bits: bits as u8, zero_point: 0 };
        let spelling = Spelling { codebook, group_size, scales: Scales::Float(dtype), biases: true };
        let affine = Affine { codes: bytes, row_bytes, bits, group_size, scales: grid(scales.bytes), biases };
        Ok(Some(codes(wanted, spelling, affine)))
    }
}

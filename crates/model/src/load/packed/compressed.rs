//! compressed-tensors' quantised matrices, of which activations are not quantised here whatever config.json says: what it was quantised
//! for is computed more exactly.

use safetensors::tensor::Dtype;
use vllm_apple_ops::{Codebook, ReadGroups, Scale, Scales};

use super::fp8::{Bytes, Floats};
use super::small_floats::{Form, SCALES};
use super::{GROUPS, Grid, Wanted, act_order, code_at, codes, group_size, with_zero_points};
use crate::load::checkpoint::{Checkpoint, View};
use crate::load::error::LoadError;
use crate::load::matrix::{Codes, Order, Spelling, stored};

/// Rows and columns that share a scale where blocks do.
const BLOCK: usize = 128;

/// `pack-quantized`: a stream of codes along K, in words of 32 bits.
struct Packed<'a> {
    codes: &'a [u8],
    row_bytes: usize,
    bits: usize,
    group_size: usize,
    scales: Grid<'a>,
    /// Zero points, packed in the same way along the rows.
    zeros: Option<(&'a [u8], usize)>,
    order: Option<Order>,
}

impl ReadGroups for Packed<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let of_row = &self.codes[row * self.row_bytes..];
        for (k, code) in (group * self.group_size..).zip(codes) {
            *code = code_at(of_row, stored(self.order.as_ref(), k), self.bits);
        }
        let scale = self.scales.at(row, group);
        let bias = self.zeros.map_or(0.0, |(zeros, groups)| {
            let per_word = 32 / self.bits;
            let word = &zeros[(row / per_word * groups + group) * 4..];
            -scale * f32::from(code_at(word, row % per_word, self.bits))
        });
        Scale { scale, bias }
    }
}

/// `int-quantized`: signed bytes.
struct Integers<'a>(Bytes<'a>);

impl ReadGroups for Integers<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let scale = self.0.read(row, group, codes);
        codes.iter_mut().for_each(|code| *code ^= 0x80);
        Scale { scale, bias: 0.0 }
    }
}

impl Checkpoint {
    pub(super) fn compressed(&self, wanted: Wanted<'_>) -> Result<Option<Codes<'_>>, LoadError> {
        let Some(scales) = self.part(wanted, "weight_scale") else { return Ok(None) };
        ["input_scale", "input_zero_point"].iter().for_each(|of| self.allow(&format!("{}.{of}", wanted.name)));
        match (self.part(wanted, "weight_packed"), self.part(wanted, "weight")) {
            (Some(packed), _) if packed.dtype == Dtype::U8 => self.fp4(wanted, &scales).map(Some),
            (Some(packed), _) => self.packed(wanted, &packed, &scales).map(Some),
            (None, Some(weight)) => match Form::of(weight.dtype, scales.dtype) {
                Some(form @ Form::Mxfp8) => self.small_floats(wanted, form, "weight", &scales, 1.0).map(Some),
                _ => self.of_bytes(wanted, &weight, &scales).map(Some),
            },
            (None, None) => Ok(None),
        }
    }

    /// `nvfp4-pack-quantized`, whose scales `weight_global_scale` divides, or `mxfp4-pack-quantized`.
    fn fp4<'a>(&'a self, wanted: Wanted<'_>, scales: &View<'a>) -> Result<Codes<'a>, LoadError> {
        self.allow(&format!("{}.input_global_scale", wanted.name));
        let Some(form) = Form::of(Dtype::U8, scales.dtype) else { return Err(self.unpackable(scales, SCALES)) };
        let factor = if form == Form::Nvfp4 { self.number(wanted, "weight_global_scale")?.recip() } else { 1.0 };
        self.small_floats(wanted, form, "weight_packed", scales, factor)
    }

    /// The scales of a matrix: of its groups, rows or blocks, or one.
    pub(super) fn scales<'a>(&self, wanted: Wanted<'_>, scales: &View<'a>) -> Result<(Grid<'a>, usize), LoadError> {
        let (Wanted { rows, cols, .. }, dtype) = (wanted, self.scale_type(scales)?);
        let grid = |shared, strides| Grid { dtype, bytes: scales.bytes, shared, strides };
        let found = match *scales.shape {
            [] | [1] | [1, 1] => Some((grid([rows, 1], [0, 0]), cols)),
            [of_rows] if of_rows == rows => Some((grid([1, 1], [1, 0]), cols)),
            [of_rows, groups] if of_rows == rows => {
                group_size(cols, groups).map(|size| (grid([1, 1], [groups, 1]), size))
            }
            // Blocks: the last of a row or column may be cut.
            [of_rows, groups] | [of_rows, 1, groups, 1] if groups > 0 && of_rows > 0 => {
                let fit = rows.div_ceil(BLOCK) == of_rows && cols.div_ceil(BLOCK) == groups;
                fit.then(|| (grid([BLOCK, 1], [groups, 1]), BLOCK))
            }
            _ => None,
        };
        found.ok_or_else(|| self.unpackable(scales, GROUPS))
    }

    fn packed<'a>(&'a self, wanted: Wanted<'_>, packed: &View<'a>, scales: &View<'a>) -> Result<Codes<'a>, LoadError> {
        let Wanted { rows, cols, .. } = wanted;
        let words = if let [of_rows, words] = packed.shape
            && *of_rows == rows
        {
            *words
        } else {
            0
        };
        let Some(bits) = [4usize, 8].into_iter().find(|bits| (cols * bits).div_ceil(32) == words) else {
            return Err(self.unpackable(packed, "I32 with 4 or 8 bits for each column"));
        };
        let bytes = self.typed(wanted, "weight_packed", Dtype::I32, &[rows, words])?;
        let shape = self.typed(wanted, "weight_shape", Dtype::I64, &[2])?;
        let shape: Vec<usize> =
            shape.as_chunks().0.iter().map(|&size| u64::from_le_bytes(size).try_into().unwrap_or(usize::MAX)).collect();
        if shape != [rows, cols] {
            let tensor = format!("{}.weight_packed", wanted.name);
            return Err(LoadError::Shape { path: self.weights_path(), tensor, expected: vec![rows, cols], got: shape });
        }
        let (grid, group_size) = self.scales(wanted, scales)?;
        let order = self.order(wanted, act_order::COMPRESSED, group_size)?;
        let zeros = match self.part(wanted, "weight_zero_point") {
            Some(_) => {
                let groups = cols.div_ceil(group_size);
                let shape = [rows.div_ceil(32 / bits), groups];
                Some((self.typed(wanted, "weight_zero_point", Dtype::I32, &shape)?, groups))
            }
            None => None,
        };
        let spelling = Spelling {
            codebook: Codebook::Integer {
                bits: bits as u8,
                zero_point: if zeros.is_some() { 0 } else { 1 << (bits - 1) },
            },
            group_size,
            scales: match zeros {
                Some(_) => with_zero_points(grid.dtype, group_size),
                None => Scales::Float(grid.dtype),
            },
            biases: zeros.is_some(),
        };
        let row_bytes = words * 4;
        let reader = Packed { codes: bytes, row_bytes, bits, group_size, scales: grid, zeros, order: order.clone() };
        Ok(Codes { order, ..codes(wanted, spelling, reader) })
    }

    /// A matrix of one byte for each element.
    pub(super) fn of_bytes<'a>(
        &'a self,
        wanted: Wanted<'_>,
        weight: &View<'a>,
        scales: &View<'a>,
    ) -> Result<Codes<'a>, LoadError> {
        let Wanted { rows, cols, .. } = wanted;
        let codebook = match weight.dtype {
            Dtype::F8_E4M3 => Codebook::E4m3,
            Dtype::I8 => Codebook::INT8,
            _ => return Err(self.unpackable(weight, "F8_E4M3 or I8")),
        };
        let bytes = self.typed(wanted, "weight", weight.dtype, &[rows, cols])?;
        let (grid, group_size) = self.scales(wanted, scales)?;
        if let Some(zeros) = self.part(wanted, "weight_zero_point") {
            return Err(self.unpackable(&zeros, "no such tensor: weights of bytes are symmetric"));
        }
        let order = self.order(wanted, act_order::COMPRESSED, group_size)?;
        let spelling = Spelling { codebook, group_size, scales: Scales::Float(grid.dtype), biases: false };
        let reader = Bytes { codes: bytes, cols, group_size, scales: grid, order: order.clone() };
        let found = match codebook {
            Codebook::E4m3 => codes(wanted, spelling, Floats(reader)),
            _ => codes(wanted, spelling, Integers(reader)),
        };
        Ok(Codes { order, ..found })
    }
}

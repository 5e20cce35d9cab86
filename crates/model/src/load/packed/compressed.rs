//! compressed-tensors' quantised matrices, of which activations are not quantised here whatever config.json says: what it was quantised
//! for is computed more exactly.

use safetensors::tensor::Dtype;
use vllm_apple_ops::{Codebook, DType, ReadGroups, Scale, Scales};

use super::fp8::{Bytes, Floats};
use super::small_floats::{Form, SCALES};
use super::{
    BLOCK, Bits, Block, GROUPS, Grid, Wanted, act_order, code_at, code_of_words, codes, group_size, with_zero_points,
    word_at,
};
use crate::load::checkpoint::{Checkpoint, View};
use crate::load::error::LoadError;
use crate::load::matrix::{Codes, Order, Spelling, stored};

/// `pack-quantized`: a stream of codes along K, in words of 32 bits.
struct Packed<'a> {
    codes: &'a [u8],
    row_bytes: usize,
    bits: usize,
    group_size: usize,
    scales: Grid<'a>,
    zeros: Option<Zeros<'a>>,
    order: Option<Order>,
}

/// Zero points.
#[derive(Clone, Copy)]
enum Zeros<'a> {
    /// Packed as codes are, along the rows, in words of so many groups each.
    Packed { words: &'a [u8], groups: usize },
    /// A signed byte for each scale.
    Bytes(&'a [u8]),
}

impl Zeros<'_> {
    /// As codes of so many bits, whose middle is zero.
    fn at(self, scales: &Grid<'_>, [row, group]: [usize; 2], bits: usize) -> f32 {
        match self {
            Self::Packed { words, groups } => {
                f32::from(code_of_words(|word| word_at(words, word * groups + group), row, bits))
            }
            Self::Bytes(bytes) => f32::from(bytes[scales.index(row, group)].cast_signed()) + (1 << (bits - 1)) as f32,
        }
    }
}

impl ReadGroups for Packed<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let of_row = &self.codes[row * self.row_bytes..];
        for (k, code) in (group * self.group_size..).zip(codes) {
            *code = code_at(of_row, stored(self.order.as_ref(), k), self.bits);
        }
        let scale = self.scales.at(row, group);
        let bias = self.zeros.map_or(0.0, |zeros| -scale * zeros.at(&self.scales, [row, group], self.bits));
        Scale { scale, bias }
    }
}

/// `int-quantized`: signed bytes.
struct Integers<'a> {
    bytes: Bytes<'a>,
    zeros: Option<Zeros<'a>>,
}

impl ReadGroups for Integers<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let scale = self.bytes.read(row, group, codes);
        codes.iter_mut().for_each(|code| *code ^= 0x80);
        let bias = self.zeros.map_or(0.0, |zeros| -scale * zeros.at(&self.bytes.scales, [row, group], 8));
        Scale { scale, bias }
    }
}

impl Checkpoint {
    pub(super) fn compressed(
        &self,
        wanted: Wanted<'_>,
        block: Option<Block>,
        bits: Bits,
        asymmetric: bool,
    ) -> Result<Option<Codes<'_>>, LoadError> {
        let Some(scales) = self.part(wanted, "weight_scale") else { return Ok(None) };
        ["input_scale", "input_zero_point"].iter().for_each(|of| self.allow(&format!("{}.{of}", wanted.name)));
        match (self.part(wanted, "weight_packed"), self.part(wanted, "weight")) {
            (Some(packed), _) if packed.dtype == Dtype::U8 => self.fp4(wanted, &scales).map(Some),
            (Some(packed), _) => self.packed(wanted, &packed, &scales, block, (bits, asymmetric)).map(Some),
            (None, Some(weight)) => match Form::of(weight.dtype, scales.dtype) {
                Some(form @ Form::Mxfp8) => self.small_floats(wanted, form, "weight", &scales, 1.0).map(Some),
                _ => self.of_bytes(wanted, &weight, &scales, block, asymmetric).map(Some),
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

    /// The scales of a matrix: of its groups, rows or blocks, or one. Blocks of a row each are told from groups by what the configuration says.
    pub(super) fn scales<'a>(
        &self,
        wanted: Wanted<'_>,
        scales: &View<'a>,
        block: Option<Block>,
    ) -> Result<(Grid<'a>, usize), LoadError> {
        let Wanted { rows, cols, .. } = wanted;
        // A bfloat16 holds each power of two that a byte is the exponent of.
        let exponents = scales.dtype == Dtype::F8_E8M0;
        let dtype = if exponents { DType::BF16 } else { self.scale_type(scales)? };
        let grid = |shared, strides| Grid { dtype, exponents, bytes: scales.bytes, shared, strides };
        // The last of a row or column may be cut.
        let blocks = |of_rows: usize, groups: usize, [block_rows, block_cols]: Block| {
            let fit = rows.div_ceil(block_rows) == of_rows && cols.div_ceil(block_cols) == groups && groups > 0;
            fit.then(|| (grid([block_rows, 1], [groups, 1]), block_cols.min(cols)))
        };
        let found = match *scales.shape {
            [] | [1] | [1, 1] => Some((grid([rows, 1], [0, 0]), cols)),
            [of_rows] if of_rows == rows => Some((grid([1, 1], [1, 0]), cols)),
            [of_rows, groups] | [of_rows, 1, groups, 1] => {
                let of_groups = || {
                    let size = group_size(cols, groups).filter(|_| of_rows == rows)?;
                    Some((grid([1, 1], [groups, 1]), size))
                };
                match block {
                    Some(block) => blocks(of_rows, groups, block).or_else(of_groups),
                    None => of_groups().or_else(|| blocks(of_rows, groups, BLOCK)),
                }
            }
            _ => None,
        };
        found.ok_or_else(|| self.unpackable(scales, GROUPS))
    }

    fn packed<'a>(
        &'a self,
        wanted: Wanted<'_>,
        packed: &View<'a>,
        scales: &View<'a>,
        block: Option<Block>,
        (said, asymmetric): (Bits, bool),
    ) -> Result<Codes<'a>, LoadError> {
        let Wanted { rows, cols, .. } = wanted;
        let words = if let [of_rows, words] = packed.shape
            && *of_rows == rows
        {
            *words
        } else {
            0
        };
        // Of a few columns several would fit: first what most have.
        let fits = |bits: &usize| said.have(*bits) && (cols * bits).div_ceil(32) == words;
        let Some(bits) = [4usize, 8, 2, 3, 5, 6, 7, 1].into_iter().find(fits) else {
            let expected = "I32 with as many bits for each column as config.json says, 1 to 8, without gaps";
            return Err(self.unpackable(packed, expected));
        };
        let bytes = self.typed(wanted, "weight_packed", Dtype::I32, &[rows, words])?;
        let shape = self.typed(wanted, "weight_shape", Dtype::I64, &[2])?;
        let shape: Vec<usize> =
            shape.as_chunks().0.iter().map(|&size| u64::from_le_bytes(size).try_into().unwrap_or(usize::MAX)).collect();
        if shape != [rows, cols] {
            let tensor = format!("{}.weight_packed", wanted.name);
            return Err(LoadError::Shape { path: self.weights_path(), tensor, expected: vec![rows, cols], got: shape });
        }
        let (grid, group_size) = self.scales(wanted, scales, block)?;
        let order = self.order(wanted, act_order::COMPRESSED, group_size)?;
        let zeros = match self.part(wanted, "weight_zero_point") {
            // Of a whole matrix it is not packed.
            Some(zeros) if zeros.dtype == Dtype::I8 => Some(self.zeros_of_bytes(wanted, scales, bits)?),
            Some(_) => {
                let groups = cols.div_ceil(group_size);
                let shape = [(rows * bits).div_ceil(32), groups];
                let words = self.typed(wanted, "weight_zero_point", Dtype::I32, &shape)?;
                Some(Zeros::Packed { words, groups })
            }
            None if asymmetric => return Err(self.missing(wanted, "weight_zero_point")),
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
        block: Option<Block>,
        asymmetric: bool,
    ) -> Result<Codes<'a>, LoadError> {
        let Wanted { rows, cols, .. } = wanted;
        let codebook = match weight.dtype {
            Dtype::F8_E4M3 => Codebook::E4m3,
            Dtype::I8 => Codebook::INT8,
            _ => return Err(self.unpackable(weight, "F8_E4M3 or I8")),
        };
        if weight.shape != [rows, cols] {
            return Err(self.unpackable(weight, &format!("{:?} of shape {:?}", weight.dtype, [rows, cols])));
        }
        let (grid, group_size) = self.scales(wanted, scales, block)?;
        let zeros = match self.part(wanted, "weight_zero_point") {
            Some(zeros) if codebook == Codebook::E4m3 => {
                return Err(self.unpackable(&zeros, "no such tensor: weights of floats are symmetric"));
            }
            Some(_) => Some(self.zeros_of_bytes(wanted, scales, 8)?),
            None if asymmetric && codebook != Codebook::E4m3 => {
                return Err(self.missing(wanted, "weight_zero_point"));
            }
            None => None,
        };
        let order = self.order(wanted, act_order::COMPRESSED, group_size)?;
        let spelling = match zeros {
            None => Spelling { codebook, group_size, scales: Scales::Float(grid.dtype), biases: false },
            Some(_) => {
                let codebook = Codebook::Integer { bits: 8, zero_point: 0 };
                Spelling { codebook, group_size, scales: with_zero_points(grid.dtype, group_size), biases: true }
            }
        };
        let reader = Bytes { codes: weight.bytes, cols, group_size, scales: grid, order: order.clone() };
        let found = match codebook {
            Codebook::E4m3 => codes(wanted, spelling, Floats(reader)),
            _ => codes(wanted, spelling, Integers { bytes: reader, zeros }),
        };
        Ok(Codes { order, ..found })
    }

    /// A signed byte for each scale, within so many bits.
    fn zeros_of_bytes<'a>(
        &'a self,
        wanted: Wanted<'_>,
        scales: &View<'a>,
        bits: usize,
    ) -> Result<Zeros<'a>, LoadError> {
        let bytes = self.typed(wanted, "weight_zero_point", Dtype::I8, scales.shape)?;
        let most = 1 << (bits - 1);
        match bytes.iter().find(|byte| !(-most..most).contains(&i32::from(byte.cast_signed()))) {
            None => Ok(Zeros::Bytes(bytes)),
            Some(byte) => Err(LoadError::Packing {
                path: self.weights_path(),
                tensor: format!("{}.weight_zero_point", wanted.name),
                got: format!("not all of {bits} bits, but {}", byte.cast_signed()),
                expected: format!("numbers from {} to {}", -most, most - 1),
            }),
        }
    }
}

//! MLX's quantised matrices: `weight` of codes in words of 32 bits, a stream along K, and `scales`. In the mode `affine` there are `biases`
//! too; in `mxfp4` scales are powers of two. Layers may differ from what config.json says of the others, so shapes decide.

use safetensors::tensor::Dtype;
use vllm_apple_ops::{Codebook, ReadGroups, Scale, Scales, power_of_two};

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
        read_stream(&self.codes[row * self.row_bytes..], group * self.group_size, self.bits, codes);
        Scale { scale: self.scales.at(row, group), bias: self.biases.at(row, group) }
    }
}

/// Codes from number `first` on.
fn read_stream(row: &[u8], first: usize, bits: usize, codes: &mut [u8]) {
    for (k, code) in codes.iter_mut().enumerate() {
        *code = code_at(row, first + k, bits);
    }
}

pub(super) struct Mxfp4<'a> {
    pub(super) codes: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) scales: &'a [u8],
    pub(super) groups: usize,
}

/// Elements that share a power of two.
pub(super) const MX_GROUP: usize = 32;

impl ReadGroups for Mxfp4<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        read_stream(&self.codes[row * self.row_bytes..], group * MX_GROUP, 4, codes);
        Scale { scale: power_of_two(self.scales[row * self.groups + group]), bias: 0.0 }
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
        if !([2, 3, 4, 5, 6, 8].contains(&bits) && bits * cols == words * 32) {
            return Err(self.unpackable(&weight, "U32 with 2, 3, 4, 5, 6 or 8 bits for each column"));
        }
        let (bytes, row_bytes) = (self.typed(wanted, "weight", Dtype::U32, &[rows, words])?, words * 4);
        if scales.dtype == Dtype::U8 {
            if (bits, group_size) != (4, MX_GROUP) {
                return Err(self.unpackable(&scales, "those of the modes affine or mxfp4"));
            }
            let spelling =
                Spelling { codebook: Codebook::E2m1, group_size, scales: Scales::PowersOfTwo, biases: false };
            return Ok(Some(codes(wanted, spelling, Mxfp4 { codes: bytes, row_bytes, scales: scales.bytes, groups })));
        }
        let dtype = self.scale_type(&scales)?;
        let grid = |bytes| Grid { dtype, bytes, shared: [1, 1], strides: [groups, 1] };
        let biases = grid(self.typed(wanted, "biases", scales.dtype, &[rows, groups])?);
        let codebook = Codebook::Integer { bits: bits as u8, zero_point: 0 };
        let spelling = Spelling { codebook, group_size, scales: Scales::Float(dtype), biases: true };
        let affine = Affine { codes: bytes, row_bytes, bits, group_size, scales: grid(scales.bytes), biases };
        Ok(Some(codes(wanted, spelling, affine)))
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
}

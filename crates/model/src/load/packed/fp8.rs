//! Matrices of floats of 8 bits, as DeepSeek, Qwen and others save them: `weight`, and `weight_scale` or, for blocks of 128 x 128 or another size,
//! `weight_scale_inv`, which is a factor in spite of its name, but of GPTQModel's.

use safetensors::tensor::Dtype;
use vllm_apple_ops::{ReadGroups, Scale};

use super::{Block, Grid, Wanted};
use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::matrix::{Codes, Order, stored};

/// A matrix of one byte for each element.
pub(super) struct Bytes<'a> {
    pub(super) codes: &'a [u8],
    pub(super) cols: usize,
    pub(super) group_size: usize,
    pub(super) scales: Grid<'a>,
    pub(super) order: Option<Order>,
}

impl Bytes<'_> {
    /// A group's bytes, and its scale.
    pub(super) fn read(&self, row: usize, group: usize, bytes: &mut [u8]) -> f32 {
        let (of_row, first) = (&self.codes[row * self.cols..], group * self.group_size);
        match &self.order {
            None => bytes.copy_from_slice(&of_row[first..][..bytes.len()]),
            order => bytes.iter_mut().zip(first..).for_each(|(byte, k)| *byte = of_row[stored(order.as_ref(), k)]),
        }
        self.scales.at(row, group)
    }
}

/// Floats of a matrix.
pub(super) struct Floats<'a>(pub(super) Bytes<'a>);

impl ReadGroups for Floats<'_> {
    /// Of a group with a code that stands for no number, the scale is none, and refused.
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let scale = self.0.read(row, group, codes);
        let no_number = codes.iter().any(|code| code & 0x7f == 0x7f);
        Scale { scale: if no_number { f32::NAN } else { scale }, bias: 0.0 }
    }
}

/// A matrix whose scales are what it is divided by.
struct Divided<'a>(Box<dyn ReadGroups + 'a>);

impl ReadGroups for Divided<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let Scale { scale, bias } = self.0.read(row, group, codes);
        Scale { scale: 1.0 / scale, bias }
    }
}

impl Checkpoint {
    /// With `inverse`, weights are divided by their scales.
    pub(super) fn fp8(&self, wanted: Wanted<'_>, block: Block, inverse: bool) -> Result<Option<Codes<'_>>, LoadError> {
        let scales = self.part(wanted, "weight_scale_inv").or_else(|| self.part(wanted, "weight_scale"));
        let (Some(scales), Some(weight)) = (scales, self.part(wanted, "weight")) else { return Ok(None) };
        // Activations are not quantised here.
        ["input_scale", "activation_scale"].iter().for_each(|of| self.allow(&format!("{}.{of}", wanted.name)));
        if inverse && scales.dtype != Dtype::F32 {
            return Err(self.unpackable(&scales, "F32, as weights are divided by it"));
        }
        let codes = self.of_bytes(wanted, &weight, &scales, Some(block), false)?;
        Ok(Some(match inverse {
            true => Codes { groups: Box::new(Divided(codes.groups)), ..codes },
            false => codes,
        }))
    }
}

//! gpt-oss' experts, of which all are one tensor: `…_blocks` of two codes in a byte, the first in the lower half, 16 bytes to a group of 32
//! columns, and `…_scales`, a power of two of each group.

use safetensors::tensor::Dtype;

use super::small_floats::{Form, SmallFloats};
use super::{Wanted, codes};
use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::matrix::Codes;

const FORM: Form = Form::Mxfp4;
const GROUP_SIZE: usize = FORM.group_size();

/// Bytes of a group's codes.
const GROUP_BYTES: usize = GROUP_SIZE / 2;

impl Checkpoint {
    /// Whether a matrix of all experts is of codes.
    pub(crate) fn has_blocks(&self, name: &str) -> bool {
        self.has(&format!("{name}_blocks"))
    }

    pub(super) fn mxfp4(&self, wanted: Wanted<'_>) -> Result<Option<Codes<'_>>, LoadError> {
        if !self.has_blocks(wanted.name) {
            return Ok(None);
        }
        let (rows, groups) = (wanted.rows, wanted.cols.div_ceil(GROUP_SIZE));
        let bytes = self.of_experts(wanted, "blocks", &[rows, groups, GROUP_BYTES])?;
        let scales = self.of_experts(wanted, "scales", &[rows, groups])?;
        let row_bytes = groups * GROUP_BYTES;
        let floats = SmallFloats { form: FORM, codes: bytes, row_bytes, scales, groups, factor: 1.0 };
        Ok(Some(codes(wanted, FORM.spelling(), floats)))
    }

    /// The expert's bytes of a tensor of all, in which each has this shape.
    fn of_experts(&self, wanted: Wanted<'_>, end: &str, shape: &[usize]) -> Result<&[u8], LoadError> {
        let name = format!("{}_{end}", wanted.name);
        match self.view(&name, wanted.expert) {
            Some(view) if view.dtype == Dtype::U8 && view.shape == shape && wanted.cols.is_multiple_of(GROUP_SIZE) => {
                Ok(view.bytes)
            }
            _ => match self.view(&name, None) {
                Some(view) => {
                    let experts = wanted.expert.map(|expert| expert.of);
                    let shape: Vec<usize> = experts.into_iter().chain(shape.iter().copied()).collect();
                    Err(self.unpackable(&view, &format!("U8 of shape {shape:?}, of groups of {GROUP_SIZE} columns")))
                }
                None => Err(LoadError::MissingTensor { path: self.weights_path(), tensor: name }),
            },
        }
    }
}

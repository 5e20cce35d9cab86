//! gpt-oss' experts, of which all are one tensor: `…_blocks` of two codes in a byte, the first in the lower half, 16 bytes to a group of 32
//! columns, and `…_scales`, a power of two of each group.

use safetensors::tensor::Dtype;
use vllm_apple_ops::{Codebook, Scales};

use super::mlx::{MX_GROUP, Mxfp4};
use super::{Wanted, codes};
use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::matrix::{Codes, Spelling};

/// Bytes of a group's codes.
const GROUP_BYTES: usize = MX_GROUP / 2;

impl Checkpoint {
    /// Whether a matrix of all experts is of codes.
    pub(crate) fn has_blocks(&self, name: &str) -> bool {
        self.has(&format!("{name}_blocks"))
    }

    pub(super) fn mxfp4(&self, wanted: Wanted<'_>) -> Result<Option<Codes<'_>>, LoadError> {
        if !self.has_blocks(wanted.name) {
            return Ok(None);
        }
        let (rows, groups) = (wanted.rows, wanted.cols.div_ceil(MX_GROUP));
        let bytes = self.of_experts(wanted, "blocks", &[rows, groups, GROUP_BYTES])?;
        let scales = self.of_experts(wanted, "scales", &[rows, groups])?;
        let spelling =
            Spelling { codebook: Codebook::E2m1, group_size: MX_GROUP, scales: Scales::PowersOfTwo, biases: false };
        let reader = Mxfp4 { codes: bytes, row_bytes: groups * GROUP_BYTES, scales, groups };
        Ok(Some(codes(wanted, spelling, reader)))
    }

    /// The expert's bytes of a tensor of all, in which each has this shape.
    fn of_experts(&self, wanted: Wanted<'_>, end: &str, shape: &[usize]) -> Result<&[u8], LoadError> {
        let name = format!("{}_{end}", wanted.name);
        match self.view(&name, wanted.expert) {
            Some(view) if view.dtype == Dtype::U8 && view.shape == shape && wanted.cols.is_multiple_of(MX_GROUP) => {
                Ok(view.bytes)
            }
            _ => match self.view(&name, None) {
                Some(view) => {
                    let experts = wanted.expert.map(|expert| expert.of);
                    let shape: Vec<usize> = experts.into_iter().chain(shape.iter().copied()).collect();
                    Err(self.unpackable(&view, &format!("U8 of shape {shape:?}, of groups of {MX_GROUP} columns")))
                }
                None => Err(LoadError::MissingTensor { path: self.weights_path(), tensor: name }),
            },
        }
    }
}

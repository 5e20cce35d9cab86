//! NVIDIA ModelOpt's matrices: `weight`, whose tensors say which they are, and `weight_scale`. In NVFP4 `weight_scale_2` multiplies the scales; in
//! MXFP4 and MXFP8 they are powers of two. Activations are not quantised here.

use safetensors::tensor::Dtype;

use super::small_floats::Form;
use super::{BLOCK, Wanted};
use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use crate::load::matrix::Codes;

/// Where older ones than version 0.31 say how a checkpoint is quantised, of which config.json says nothing.
pub(super) const CONFIG: &str = "hf_quant_config.json";

/// What whole checkpoints and layers of mixtures are quantised by.
pub(super) const ALGORITHMS: [&str; 10] = [
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PB_WO",
    "NVFP4",
    "W4A16_NVFP4",
    "W4A8_NVFP4_FP8",
    "MXFP4",
    "W4A8_MXFP4_FP8",
    "MXFP8",
    "MIXED_PRECISION",
];

/// What a configuration says of its weights, in capital letters.
pub(super) fn algorithm(config: &Fields) -> Result<Option<String>, LoadError> {
    let within = config.object("quantization")?;
    Ok(within.as_ref().unwrap_or(config).string("quant_algo")?.map(str::to_uppercase))
}

impl Checkpoint {
    pub(super) fn modelopt(&self, wanted: Wanted<'_>) -> Result<Option<Codes<'_>>, LoadError> {
        let (Some(scales), Some(weight)) = (self.part(wanted, "weight_scale"), self.part(wanted, "weight")) else {
            return Ok(None);
        };
        self.allow(&format!("{}.input_scale", wanted.name));
        match Form::of(weight.dtype, scales.dtype) {
            Some(form) => {
                let factor = if form == Form::Nvfp4 { self.number(wanted, "weight_scale_2")? } else { 1.0 };
                self.small_floats(wanted, form, "weight", &scales, factor)
            }
            None if weight.dtype == Dtype::F8_E4M3 => self.of_bytes(wanted, &weight, &scales, Some(BLOCK), false),
            None => Err(self.unpackable(&weight, "F8_E4M3 (FP8, MXFP8) or, with scales of 8 bits, U8 (NVFP4, MXFP4)")),
        }
        .map(Some)
    }
}

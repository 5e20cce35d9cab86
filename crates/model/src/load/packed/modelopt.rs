//! NVIDIA ModelOpt's matrices: `weight`, whose tensors say which they are, and `weight_scale`. In NVFP4 `weight_scale_2` multiplies the scales; in
//! MXFP8 they are powers of two. Activations are not quantised here.

use safetensors::tensor::Dtype;

use super::Wanted;
use super::small_floats::Form;
use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use crate::load::matrix::Codes;

/// Where older ones than version 0.31 say how a checkpoint is quantised, of which config.json says nothing.
pub(crate) const CONFIG: &str = "hf_quant_config.json";

/// What of it is not read here, if something is not.
pub(super) fn unread(config: &Fields) -> Result<Option<String>, LoadError> {
    let within = config.object("quantization")?;
    let algorithm = within.as_ref().unwrap_or(config).string("quant_algo")?;
    Ok(match algorithm.map(str::to_uppercase).as_deref() {
        // Absent where caches alone are quantised.
        None
        | Some(
            "FP8" | "FP8_PER_CHANNEL_PER_TOKEN" | "FP8_PB_WO" | "NVFP4" | "W4A16_NVFP4" | "MXFP8" | "MIXED_PRECISION",
        ) => None,
        Some(other) => Some(format!("modelopt's quant_algo {other}")),
    })
}

impl Checkpoint {
    pub(super) fn modelopt(&self, wanted: Wanted<'_>) -> Result<Option<Codes<'_>>, LoadError> {
        let (Some(scales), Some(weight)) = (self.part(wanted, "weight_scale"), self.part(wanted, "weight")) else {
            return Ok(None);
        };
        self.allow(&format!("{}.input_scale", wanted.name));
        match (weight.dtype, scales.dtype) {
            (Dtype::U8, _) => {
                let factor = self.number(wanted, "weight_scale_2")?;
                self.small_floats(wanted, Form::Nvfp4, "weight", Dtype::U8, factor)
            }
            (_, Dtype::U8 | Dtype::F8_E8M0) => self.small_floats(wanted, Form::Mxfp8, "weight", Dtype::F8_E4M3, 1.0),
            _ => self.of_bytes(wanted, &weight, &scales),
        }
        .map(Some)
    }
}

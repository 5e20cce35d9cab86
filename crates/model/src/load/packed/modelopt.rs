//! NVIDIA ModelOpt's matrices: `weight`, whose tensors say which they are, and `weight_scale`. In NVFP4 `weight_scale_2` multiplies the scales; in
//! MXFP4 and MXFP8 they are powers of two. Activations are not quantised here.

use safetensors::tensor::Dtype;

use super::Wanted;
use super::small_floats::Form;
use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use crate::load::matrix::Codes;

/// Where older ones than version 0.31 say how a checkpoint is quantised, of which config.json says nothing.
pub(crate) const CONFIG: &str = "hf_quant_config.json";

/// What whole checkpoints and layers of mixtures are quantised by.
pub(super) const ALGORITHMS: [&str; 7] =
    ["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MXFP8", "MIXED_PRECISION"];

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
        let is_power = matches!(scales.dtype, Dtype::U8 | Dtype::F8_E8M0);
        match weight.dtype {
            Dtype::U8 if is_power => self.small_floats(wanted, Form::Mxfp4, "weight", Dtype::U8, 1.0),
            Dtype::U8 if scales.dtype == Dtype::F8_E4M3 => {
                let factor = self.number(wanted, "weight_scale_2")?;
                self.small_floats(wanted, Form::Nvfp4, "weight", Dtype::U8, factor)
            }
            Dtype::U8 => Err(self.unpackable(&scales, "F8_E4M3 (NVFP4) or U8 (MXFP4)")),
            Dtype::F8_E4M3 if is_power => self.small_floats(wanted, Form::Mxfp8, "weight", Dtype::F8_E4M3, 1.0),
            Dtype::F8_E4M3 => self.of_bytes(wanted, &weight, &scales),
            _ => Err(self.unpackable(&weight, "F8_E4M3 (FP8, MXFP8) or U8 (NVFP4, MXFP4)")),
        }
        .map(Some)
    }
}

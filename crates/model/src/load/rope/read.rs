//! Reads RoPE from `config.json`, in the spelling of old transformers (`rope_theta`, `rope_scaling`) or of new (`rope_parameters`). It
//! computes no frequencies.

use super::{RopeConfig, RopeScaling};
use crate::load::error::LoadError;
use crate::load::fields::Fields;

/// The kinds of layers that may have a RoPE each, as `rope_parameters` names them.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

impl RopeConfig {
    /// The model's only RoPE or, where there is a second default base, those of full and of sliding layers.
    pub(crate) fn read(
        f: &Fields,
        head_dim: usize,
        max_position_embeddings: usize,
        (theta, local_theta): (f64, Option<f64>),
    ) -> Result<Vec<Self>, LoadError> {
        refuse_partial(f)?;
        let reader = Reader { f, head_dim, max_position_embeddings };
        let theta = f.positive("rope_theta")?.unwrap_or(theta);
        match local_theta {
            None => Ok(vec![reader.only(theta)?]),
            Some(local) => reader.by_layer_type(theta, f.positive("rope_local_base_freq")?.unwrap_or(local)),
        }
    }
}

/// The fields, and what scalings depend on.
struct Reader<'a> {
    f: &'a Fields,
    head_dim: usize,
    max_position_embeddings: usize,
}

impl Reader<'_> {
    fn only(&self, theta: f64) -> Result<RopeConfig, LoadError> {
        let parameters = match self.f.object("rope_scaling")? {
            Some(scaling) => Some(scaling),
            None => self.f.object("rope_parameters")?,
        };
        for layer_type in LAYER_TYPES {
            if let Some(p) = parameters.as_ref().filter(|p| p.get(layer_type).is_some()) {
                return Err(p.error(layer_type, "absent: in this family all layers have the same RoPE"));
            }
        }
        self.rope(parameters.as_ref(), theta)
    }

    /// Full layers, then sliding ones. In the old spelling the scaling is of full layers alone.
    fn by_layer_type(&self, theta: f64, local_theta: f64) -> Result<Vec<RopeConfig>, LoadError> {
        let (parameters, scaling) = (self.f.object("rope_parameters")?, self.f.object("rope_scaling")?);
        let Some(parameters) = parameters else {
            return Ok(vec![self.rope(scaling.as_ref(), theta)?, self.rope(None, local_theta)?]);
        };
        if scaling.is_some() {
            return Err(self.f.error("rope_scaling", "absent beside rope_parameters"));
        }
        if let Some(stray) = parameters.names().find(|name| !LAYER_TYPES.contains(name)) {
            let expected = format!("absent: {} have parameters of their own", LAYER_TYPES.join(" and "));
            return Err(parameters.error(stray, &expected));
        }
        let ropes = LAYER_TYPES.iter().zip([theta, local_theta]);
        ropes.map(|(name, theta)| self.rope(parameters.object(name)?.as_ref(), theta)).collect()
    }

    /// One RoPE from its parameters, which may name another base than `theta`.
    fn rope(&self, parameters: Option<&Fields>, theta: f64) -> Result<RopeConfig, LoadError> {
        let Some(p) = parameters else {
            return Ok(RopeConfig { theta, scaling: RopeScaling::Default });
        };
        refuse_partial(p)?;
        let original = match self.f.size("original_max_position_embeddings")? {
            Some(original) => original,
            None => p.size("original_max_position_embeddings")?.unwrap_or(self.max_position_embeddings),
        };
        let scaling = read_scaling(p, original, self.max_position_embeddings, self.head_dim)?;
        Ok(RopeConfig { theta: p.positive("rope_theta")?.unwrap_or(theta), scaling })
    }
}

fn refuse_partial(f: &Fields) -> Result<(), LoadError> {
    match f.number("partial_rotary_factor")? {
        Some(factor) if factor != 1.0 => Err(f.error("partial_rotary_factor", "1")),
        _ => Ok(()),
    }
}

fn read_scaling(p: &Fields, original: usize, max_positions: usize, head_dim: usize) -> Result<RopeScaling, LoadError> {
    let kind = p.first_of(&["rope_type", "type"]);
    let required = |name: &str| p.positive(name)?.ok_or_else(|| p.error(name, "a number above 0"));
    match p.string(kind)?.unwrap_or("default") {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: required("factor")? }),
        "dynamic" if head_dim > 2 => Ok(RopeScaling::Dynamic { factor: required("factor")? }),
        "llama3" => {
            let (low, high) = (required("low_freq_factor")?, required("high_freq_factor")?);
            if high <= low {
                return Err(p.error("high_freq_factor", &format!("above low_freq_factor ({low})")));
            }
            Ok(RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            })
        }
        "yarn" => read_yarn(p, original, max_positions),
        _ => Err(p.error(kind, "default, linear, dynamic, llama3 or yarn")),
    }
}

fn read_yarn(p: &Fields, original: usize, max_positions: usize) -> Result<RopeScaling, LoadError> {
    let factor = p.positive("factor")?.unwrap_or(max_positions as f64 / original as f64);
    let mscale = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    // The reference takes 0 for absent in all of these but attention_factor.
    let nonzero = |name: &str| Ok::<_, LoadError>(p.number(name)?.filter(|&n| n != 0.0));
    let inferred = match (nonzero("mscale")?, nonzero("mscale_all_dim")?) {
        (Some(one), Some(all)) => mscale(one) / mscale(all),
        _ => mscale(1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        attention_factor: p.number("attention_factor")?.unwrap_or(inferred),
        beta_fast: nonzero("beta_fast")?.unwrap_or(32.0),
        beta_slow: nonzero("beta_slow")?.unwrap_or(1.0),
        original_max_position_embeddings: original,
        truncate: p.boolean("truncate")?.unwrap_or(true),
    })
}

//! Reads RoPE from `config.json`, in the spelling of old transformers (`rope_theta`, `rope_scaling`) or of new (`rope_parameters`). It
//! computes no frequencies.

use super::{RopeConfig, RopeScaling};
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use serde_json::Value;
use std::ops::RangeInclusive;

/// The kinds of layers that may have a RoPE each, as `rope_parameters` names them.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// What transformers calls the default bases of those two.
const DEFAULTS: [&str; 2] = ["global", "local"];

/// Bases of the frequencies: models have 1e4 to 1e11. With 1 all elements turn alike, and YaRN's bounds are a division by zero.
const THETA: RangeInclusive<f64> = 1.01..=1e16;
/// By how much a context is stretched: models have 1 to 128.
const FACTOR: RangeInclusive<f64> = 1.0..=1e6;
/// Factors of cosines and sines, and what YaRN makes them of: models have 0.7 to 2.
const AMPLITUDE: RangeInclusive<f64> = 1e-3..=1e3;
/// Turns over the pretrained length, between which scalings change: models have 1 to 32.
const TURNS: RangeInclusive<f64> = 1e-6..=1e6;

/// Fields that only scalings have.
const SCALINGS: [&str; 8] = [
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "short_factor",
    "long_factor",
];

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
        let theta = f.number_in("rope_theta", &THETA)?.unwrap_or(theta);
        match local_theta {
            None => Ok(vec![reader.only(theta)?]),
            Some(local) => reader.by_layer_type(theta, f.number_in("rope_local_base_freq", &THETA)?.unwrap_or(local)),
        }
    }
}

/// `rope_scaling`, which transformers takes for absent where it is empty.
pub(crate) fn scaling(f: &Fields) -> Result<Option<Fields>, LoadError> {
    Ok(f.object("rope_scaling")?.filter(|scaling| scaling.names().next().is_some()))
}

/// The fields, and what scalings depend on.
struct Reader<'a> {
    f: &'a Fields,
    head_dim: usize,
    max_position_embeddings: usize,
}

impl Reader<'_> {
    fn only(&self, theta: f64) -> Result<RopeConfig, LoadError> {
        let parameters = match scaling(self.f)? {
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
        let (parameters, scaling) = (self.f.object("rope_parameters")?, scaling(self.f)?);
        let Some(parameters) = parameters else {
            return Ok(vec![self.rope(scaling.as_ref(), theta)?, self.rope(None, local_theta)?]);
        };
        if scaling.is_some() {
            return Err(self.f.error("rope_scaling", "absent beside rope_parameters"));
        }
        // Transformers 5 may save defaults for both beside them, which add nothing: of bases only what these say themselves.
        let number = |value: Option<&Value>| value.and_then(Value::as_f64);
        let base_of = |layer_type: &str| number(parameters.get(layer_type).and_then(|own| own.get("rope_theta")));
        let says_nothing = |name: &str| match (name, parameters.get(name)) {
            ("rope_theta", Some(Value::Object(bases))) => {
                DEFAULTS.map(|name| number(bases.get(name))) == LAYER_TYPES.map(base_of)
            }
            ("rope_type", Some(kind)) => kind == "default",
            _ => false,
        };
        if let Some(stray) = parameters.names().find(|name| !LAYER_TYPES.contains(name) && !says_nothing(name)) {
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
        Ok(RopeConfig { theta: p.number_in("rope_theta", &THETA)?.unwrap_or(theta), scaling })
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
    let factor = || p.required_number_in("factor", &FACTOR);
    let given = p.string(kind)?;
    if given.is_none() && SCALINGS.iter().any(|name| p.get(name).is_some()) {
        return Err(p.error(kind, "default, linear, dynamic, llama3 or yarn beside fields of a scaling"));
    }
    match given.unwrap_or("default") {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "dynamic" if head_dim > 2 => Ok(RopeScaling::Dynamic { factor: factor()? }),
        "llama3" => {
            let turns = |name: &str| p.required_number_in(name, &TURNS);
            let (low, high) = (turns("low_freq_factor")?, turns("high_freq_factor")?);
            if high <= low {
                return Err(p.error("high_freq_factor", &format!("above low_freq_factor ({low})")));
            }
            Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            })
        }
        "yarn" => read_yarn(p, original, max_positions),
        "factors" => {
            let factors = p.numbers_in("factors", &FACTOR)?.unwrap_or_default();
            match factors.len() == head_dim / 2 {
                true => Ok(RopeScaling::Factors(factors)),
                false => Err(p.error("factors", &format!("a list of {} numbers", head_dim / 2))),
            }
        }
        _ => Err(p.error(kind, "default, linear, dynamic, llama3 or yarn")),
    }
}

fn read_yarn(p: &Fields, original: usize, max_positions: usize) -> Result<RopeScaling, LoadError> {
    let factor = p.number_in("factor", &FACTOR)?.unwrap_or(max_positions as f64 / original as f64);
    let mscale = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    // The reference takes 0 for absent in all of these but attention_factor.
    let nonzero = |name: &str, range| match p.number(name)? {
        Some(0.0) => Ok(None),
        _ => p.number_in(name, range),
    };
    let inferred = match (nonzero("mscale", &AMPLITUDE)?, nonzero("mscale_all_dim", &AMPLITUDE)?) {
        (Some(one), Some(all)) => mscale(one) / mscale(all),
        _ => mscale(1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        attention_factor: p.number_in("attention_factor", &AMPLITUDE)?.unwrap_or(inferred),
        beta_fast: nonzero("beta_fast", &TURNS)?.unwrap_or(32.0),
        beta_slow: nonzero("beta_slow", &TURNS)?.unwrap_or(1.0),
        original_max_position_embeddings: original,
        truncate: p.boolean("truncate")?.unwrap_or(true),
    })
}

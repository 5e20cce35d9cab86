//! Rotary position embedding: the frequencies of each kind, and the table of cosines and sines. It rotates nothing.
//!
//! The formulas are those of `transformers.modeling_rope_utils`, in f64 where that uses f32.

mod read;

pub(crate) use read::scaling;

use std::f64::consts::PI;

/// RoPE of a model, or of some of its layers.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// How the frequencies are stretched beyond the pretrained length.
    pub scaling: RopeScaling,
}

/// `rope_type`.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// A larger base for longer sequences (NTK-aware). There is one table, for the longest sequence that is served: a
    /// base that followed the current length would invalidate the cached keys.
    Dynamic {
        /// How much the context may grow.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, smoothly between (Llama 3.1).
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Frequencies below this many turns over the original length are low.
        low_freq_factor: f64,
        /// Frequencies above this many turns over the original length are high.
        high_freq_factor: f64,
        /// Pretrained length.
        original_max_position_embeddings: usize,
    },
    /// YaRN (Peng et al. 2023, arXiv:2309.00071).
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// Factor of cosines and sines.
        attention_factor: f64,
        /// Turns over the original length above which a frequency is kept.
        beta_fast: f64,
        /// Turns over the original length below which a frequency is divided by `factor`.
        beta_slow: f64,
        /// Pretrained length.
        original_max_position_embeddings: usize,
        /// Whether the bounds between kept and divided are rounded to whole dimensions.
        truncate: bool,
    },
    /// Each frequency divided by a factor of its own: `rope_freqs.weight` of GGUF files, which say so what Llama 3.1 does.
    Factors(Vec<f64>),
}

/// Cosines and sines, `[positions, head_dim / 2]` each.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeValues {
    /// Cosines.
    pub cos: Vec<f32>,
    /// Sines.
    pub sin: Vec<f32>,
}

impl RopeConfig {
    /// The longest sequence that the scaling is made for, or the checkpoint says it supports: of YaRN's models some have
    /// `max_position_embeddings` stretched already (gpt-oss, DeepSeek), others as it was before (Qwen's, whose README adds the scaling).
    /// vLLM took YaRN's stretched length up to 0.27, and takes `max_position_embeddings` since 0.32: neither may ask for more than this.
    /// All else is vLLM's rule (`_get_and_verify_max_len`).
    pub(crate) fn derived_max_len(&self, max_position_embeddings: usize) -> usize {
        let stretched = |len: usize, factor: f64| (len as f64 * factor) as usize;
        match self.scaling {
            RopeScaling::Default | RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => max_position_embeddings,
            RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor } => {
                stretched(max_position_embeddings, factor)
            }
            RopeScaling::Yarn { factor, original_max_position_embeddings: original, .. } => {
                stretched(original, factor).max(max_position_embeddings)
            }
        }
    }

    /// The table for positions below `max_model_len`.
    pub fn values(&self, head_dim: usize, max_position_embeddings: usize, max_model_len: usize) -> RopeValues {
        let frequencies = self.frequencies(head_dim, max_position_embeddings, max_model_len);
        let amplitude = match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        let len = max_model_len * frequencies.len();
        let mut values = RopeValues { cos: Vec::with_capacity(len), sin: Vec::with_capacity(len) };
        for position in 0..max_model_len {
            for frequency in &frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                values.cos.push((cos * amplitude) as f32);
                values.sin.push((sin * amplitude) as f32);
            }
        }
        values
    }

    /// Radians per position of each pair of elements.
    fn frequencies(&self, head_dim: usize, max_position_embeddings: usize, max_model_len: usize) -> Vec<f64> {
        let dim = head_dim as f64;
        let with_base =
            |base: f64| -> Vec<f64> { (0..head_dim / 2).map(|i| 1.0 / base.powf(2.0 * i as f64 / dim)).collect() };
        let mut frequencies = with_base(self.theta);
        match self.scaling {
            RopeScaling::Default => {}
            RopeScaling::Factors(ref factors) => {
                frequencies.iter_mut().zip(factors).for_each(|(f, factor)| *f /= factor)
            }
            RopeScaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= factor),
            RopeScaling::Dynamic { factor } => {
                let max = max_position_embeddings as f64;
                let longest = (max_model_len as f64).max(max);
                let growth = factor * longest / max - (factor - 1.0);
                return with_base(self.theta * growth.powf(dim / (dim - 2.0)));
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                for f in &mut frequencies {
                    let turns = original_max_position_embeddings as f64 * *f / (2.0 * PI);
                    let smooth = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                    *f = (1.0 - smooth) * *f / factor + smooth * *f;
                }
            }
            RopeScaling::Yarn { factor, .. } => {
                let (low, high) = self.yarn_bounds(head_dim);
                for (i, f) in frequencies.iter_mut().enumerate() {
                    let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    *f = *f / factor * divided + *f * (1.0 - divided);
                }
            }
        }
        frequencies
    }

    /// The pairs between which YaRN passes from kept to divided frequencies.
    fn yarn_bounds(&self, head_dim: usize) -> (f64, f64) {
        let RopeScaling::Yarn { beta_fast, beta_slow, original_max_position_embeddings, truncate, .. } = self.scaling
        else {
            return (0.0, 1.0);
        };
        let dim = head_dim as f64;
        let pair_with_turns = |turns: f64| {
            dim * (original_max_position_embeddings as f64 / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
        };
        let (mut low, mut high) = (pair_with_turns(beta_fast), pair_with_turns(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dim - 1.0));
        // The reference's guard against a division by zero.
        if low == high { (low, high + 0.001) } else { (low, high) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::fields::Fields;
    use std::path::Path;

    /// Reads `json` as config.json and compares with what transformers 5.23's `ROPE_INIT_FUNCTIONS` gives for a head of 16.
    fn check(json: &str, max_positions: usize, max_model_len: usize, expected: [f64; 8], attention_factor: f64) {
        let fields = Fields::parse(Path::new("config.json"), json.as_bytes()).unwrap();
        let rope = RopeConfig::read(&fields, 16, max_positions, (10_000.0, None)).unwrap().remove(0);
        let got = rope.frequencies(16, max_positions, max_model_len);
        for (got, expected) in got.iter().zip(expected) {
            // The reference computes in f32.
            assert!((got / expected - 1.0).abs() < 1e-6, "{json}: {got} instead of {expected}");
        }
        let values = rope.values(16, max_positions, max_model_len);
        assert_eq!(values.cos[0], attention_factor as f32, "{json}");
        assert_eq!(values.cos.len(), 8 * max_model_len);
    }

    #[test]
    fn frequencies_equal_those_of_transformers() {
        let linear = [0.25, 0.079056941, 0.025, 0.00790569466, 0.0025, 0.000790569466, 0.00025, 7.90569466e-05];
        check(r#"{"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 10000.0}"#, 256, 256, linear, 1.0);
        let short = [1.0, 0.316227764, 0.1, 0.0316227786, 0.01, 0.00316227786, 0.001, 0.000316227786];
        let dynamic = r#"{"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}"#;
        check(dynamic, 128, 100, short, 1.0);
        let long =
            [1.0, 0.303157836, 0.09190467, 0.0278616212, 0.00844646804, 0.00256061298, 0.000776269881, 0.000235332293];
        check(dynamic, 128, 150, long, 1.0);
        let llama3 =
            [1.0, 0.459863275, 0.0976166278, 0.0121561559, 0.00559017016, 0.0025707141, 0.00118217699, 0.000543639821];
        check(
            r#"{"rope_theta": 500, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}"#,
            256,
            256,
            llama3,
            1.0,
        );
    }

    #[test]
    fn the_longest_sequence_is_the_stretched_one_whichever_way_a_checkpoint_spells_it() {
        let yarn = r#""rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}"#;
        for (scaling, max_positions, expected) in [
            // As Qwen's READMEs have it for Qwen 2.5 and 3, and DeepSeek-R1-0528-Qwen3-8B.
            (yarn, 32_768, 131_072),
            (yarn, 40_960, 131_072),
            (yarn, 131_072, 131_072),
            // More than the factor makes of it: what vLLM 0.33 takes.
            (yarn, 262_144, 262_144),
            (r#""rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 4096}"#, 163_840, 163_840),
            (r#""rope_scaling": {"type": "linear", "factor": 4.0}"#, 4096, 16_384),
            (r#""rope_theta": 5e5"#, 4096, 4096),
        ] {
            let fields = Fields::parse(Path::new("config.json"), format!("{{{scaling}}}").as_bytes()).unwrap();
            let rope = RopeConfig::read(&fields, 16, max_positions, (10_000.0, None)).unwrap().remove(0);
            assert_eq!(rope.derived_max_len(max_positions), expected, "{scaling} beside {max_positions}");
        }
    }

    #[test]
    fn yarn_equals_that_of_transformers() {
        let rounded =
            [1.0, 0.344897449, 0.10573712, 0.0243123118, 0.0111803403, 0.00514142821, 0.00236435398, 0.00108727964];
        let exact =
            [1.0, 0.371084481, 0.11139711, 0.0243123118, 0.0111803403, 0.00514142821, 0.00236435398, 0.00108727964];
        let mscale = [1.0, 0.213453725, 0.0349999964, 0.000790569466, 0.00025, 7.90569466e-05, 2.5e-05, 7.90569447e-06];
        let given = [1.0, 0.237170815, 0.05, 0.00790569466, 0.0025, 0.000790569466, 0.00025, 7.90569466e-05];
        for (theta, rest, expected, attention_factor) in [
            (500, r#""factor": 4.0, "beta_fast": 8.0, "beta_slow": 1.0"#, rounded, 1.138629436111989),
            (500, r#""factor": 4.0, "beta_fast": 8.0, "truncate": false"#, exact, 1.138629436111989),
            (10_000, r#""factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707"#, mscale, 1.0857263992561355),
            (10_000, r#""factor": 4.0, "attention_factor": 0.8"#, given, 0.8),
            // Without a factor it is the ratio of the lengths.
            (10_000, r#""attention_factor": 0.8"#, given, 0.8),
        ] {
            let json = format!(
                r#"{{"rope_theta": {theta}, "rope_scaling":
                    {{"rope_type": "yarn", "original_max_position_embeddings": 64, {rest}}}}}"#
            );
            check(&json, 256, 256, expected, attention_factor);
        }
    }
}

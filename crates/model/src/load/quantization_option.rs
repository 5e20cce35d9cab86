//! What a user asks for by `quantization`: codes made of floats at load, or, by vLLM's names, what a checkpoint is said to be. It reads no
//! weight.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use crate::load::packed::Method;
use crate::load::quantize::Quantization;

/// What `quantization` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizationOption {
    /// Weights of floats become codes while they are loaded.
    AtLoad(Quantization),
    /// The checkpoint must be quantised so, by a name of [`STORED`]. Nothing else follows from it.
    Stored(&'static str),
}

/// vLLM's names, and MLX's, with what a checkpoint is then. Those of kernels (`awq_marlin`) say no more than what kernels are for; there is
/// one for all here.
const STORED: [(&str, &str); 18] = [
    ("awq", "awq"),
    ("gptq", "gptq"),
    ("compressed-tensors", "compressed-tensors"),
    ("fp8", "fp8"),
    ("gguf", "gguf"),
    ("mlx", "mlx"),
    ("mxfp4", "mxfp4"),
    ("gpt_oss_mxfp4", "mxfp4"),
    ("modelopt", "modelopt"),
    ("modelopt_fp4", "modelopt"),
    ("modelopt_mxfp8", "modelopt"),
    ("modelopt_mixed", "modelopt"),
    ("awq_marlin", "awq"),
    ("auto_awq", "awq"),
    ("gptq_marlin", "gptq"),
    ("auto_gptq", "gptq"),
    ("auto-round", "auto-round"),
    ("inc", "auto-round"),
];

impl QuantizationOption {
    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Quantization::NAMES.into_iter().map(|(name, _)| name).chain(STORED.into_iter().map(|(name, _)| name))
    }

    /// What is done at load.
    pub const fn at_load(self) -> Option<Quantization> {
        match self {
            Self::AtLoad(quantization) => Some(quantization),
            Self::Stored(_) => None,
        }
    }
}

impl From<Quantization> for QuantizationOption {
    fn from(quantization: Quantization) -> Self {
        Self::AtLoad(quantization)
    }
}

impl fmt::Display for QuantizationOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLoad(quantization) => quantization.fmt(f),
            Self::Stored(name) => f.write_str(name),
        }
    }
}

impl FromStr for QuantizationOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(quantization) = text.parse() {
            return Ok(Self::AtLoad(quantization));
        }
        let found = STORED.into_iter().find(|(name, _)| *name == text);
        found.map(|(name, _)| Self::Stored(name)).ok_or_else(|| {
            let names: Vec<_> = Self::names().collect();
            format!("unknown quantization {text:?}: expected one of {}", names.join(", "))
        })
    }
}

/// Checks what a `config.json` says of its weights without having them: that it is read here, and what it is asked to be.
///
/// # Errors
/// It is not read here, or something else than what is asked for.
pub fn check_quantization(config: &[u8], asked: Option<QuantizationOption>) -> Result<(), LoadError> {
    let found = Method::read(&Fields::parse(Path::new("config.json"), config)?)?;
    match asked {
        Some(asked) => check(found.map(|found| found.name), asked),
        None => Ok(()),
    }
}

impl Checkpoint {
    /// Whether it is quantised as it is asked to be.
    pub(crate) fn check_quantization(&self, asked: Option<QuantizationOption>) -> Result<(), LoadError> {
        let Some(asked) = asked else { return Ok(()) };
        // A GGUF file may be of floats.
        let floats = self.method == Some(Method::Gguf) && !self.has_codes();
        check(self.method_name.filter(|_| !floats || asked == QuantizationOption::Stored("gguf")), asked)
    }
}

fn check(is: Option<&str>, asked: QuantizationOption) -> Result<(), LoadError> {
    let expected = match (is, asked) {
        (None, QuantizationOption::AtLoad(_)) => return Ok(()),
        (Some(is), QuantizationOption::Stored(name)) if STORED.contains(&(name, is)) => return Ok(()),
        (None, QuantizationOption::Stored(_)) => {
            format!(
                "absent or {}, as the checkpoint is of floats",
                Quantization::NAMES.map(|(name, _)| name).join(" or ")
            )
        }
        (Some(is), _) => format!("absent or {is}, as the checkpoint is quantised so"),
    };
    Err(LoadError::Option { option: "`quantization`", expected, got: asked.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(config: &str, asked: &str) -> Option<String> {
        check_quantization(config.as_bytes(), Some(asked.parse().unwrap())).err().map(|error| error.to_string())
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in QuantizationOption::names() {
            assert_eq!(name.parse::<QuantizationOption>().unwrap().to_string(), name);
        }
        assert!("exl2".parse::<QuantizationOption>().unwrap_err().contains("int8, int4, awq, gptq,"));
    }

    #[test]
    fn a_checkpoint_is_what_it_is_asked_to_be_or_both_are_named() {
        let of = |method: &str| format!(r#"{{"quantization_config": {{"quant_method": "{method}"}}}}"#);
        let auto_round = |packing: &str| {
            format!(
                r#"{{"quantization_config": {{"quant_method": "auto-round", "packing_format": "auto_round:auto_{packing}"}}}}"#
            )
        };
        let compressed =
            r#"{"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}"#;
        let modelopt = r#"{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}"#;
        let mlx = r#"{"quantization": {"group_size": 32, "bits": 4}}"#;
        for (config, names) in [
            (of("awq").as_str(), &["awq", "awq_marlin", "auto_awq"][..]),
            (of("gptq").as_str(), &["gptq", "gptq_marlin", "auto_gptq"]),
            (auto_round("gptq").as_str(), &["auto-round", "inc"]),
            (auto_round("awq").as_str(), &["auto-round", "inc"]),
            (of("fp8").as_str(), &["fp8"]),
            (of("mxfp4").as_str(), &["mxfp4", "gpt_oss_mxfp4"]),
            (of("gguf").as_str(), &["gguf"]),
            (compressed, &["compressed-tensors"]),
            (mlx, &["mlx"]),
            (modelopt, &["modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"]),
            ("{}", &["int4", "int8"]),
        ] {
            for name in QuantizationOption::names() {
                let refusal = refusal(config, name);
                assert_eq!(refusal.is_none(), names.contains(&name), "{name} for {config}: {refusal:?}");
                if let Some(refusal) = refusal {
                    assert!(refusal.contains(names[0]) && refusal.ends_with(&format!("got {name}")), "{refusal}");
                }
            }
            assert!(check_quantization(config.as_bytes(), None).is_ok());
        }
    }

    #[test]
    fn what_nobody_reads_is_named_without_being_asked_for() {
        let error = check_quantization(br#"{"quantization_config": {"quant_method": "bitsandbytes"}}"#, None);
        assert!(error.unwrap_err().to_string().contains("(bitsandbytes)"));
    }
}

//! Flags that all commands with a model share, by vLLM's names. Knows what may be asked, not how it is done.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use vllm_apple_device::{DeviceKind, DeviceOptions, Isa};
use vllm_apple_engine::Speculation;
use vllm_apple_model::{Checkpoint, LoadError, LoadOptions, Quantization, QuantizationOption};
use vllm_apple_ops::{Activations, DType};

use super::speculative_config;
use super::variables::{self, OptionError};

/// Which model, and how to run it.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// A checkpoint directory, a GGUF file, or the id of a model on the Hugging Face Hub, with :Q4_K_M or another tag for one of its GGUF files
    /// [default: the bundled model]
    pub model: Option<String>,
    /// Branch, tag or commit of a model on the hub [default: main]
    #[arg(long, value_name = "REV")]
    pub revision: Option<String>,
    /// A chat template: a file, or the template itself [default: the checkpoint's]
    #[arg(long, value_name = "TEMPLATE")]
    pub chat_template: Option<String>,
    /// A directory with the tokenizer's files [default: the checkpoint's]
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Whose sampling defaults: `auto`: the checkpoint's generation_config.json, `vllm`: none
    #[arg(long, value_enum, default_value_t, value_name = "WHOSE")]
    pub generation_config: GenerationConfigSource,
    /// Compute drafts of tokens, which are what came next when the text last went as it goes now, beside each token: output that repeats what was said
    /// takes fewer steps, and no output changes. JSON, such as {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    #[arg(long, value_name = "JSON", value_parser = speculative_config::parse, help_heading = "Engine")]
    pub speculative_config: Option<Speculation>,
    /// Compute every prompt anew instead of reusing equal beginnings
    #[arg(long, alias = "disable-prefix-caching", overrides_with = "enable_prefix_caching", help_heading = "Engine")]
    pub no_enable_prefix_caching: bool,
    /// The default; for command lines written for vLLM.
    #[arg(long, hide = true)]
    pub enable_prefix_caching: bool,
    /// Seed of requests that bring none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = "Engine")]
    pub seed: u64,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// How to run a model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Where to compute
    #[arg(long, default_value = "auto", env = if_set("VLLM_APPLE_DEVICE"), value_parser = devices())]
    pub device: DeviceKind,
    /// Type of weights and activations; `auto`: the checkpoint's
    #[arg(long, default_value = "auto", value_parser = dtypes())]
    pub dtype: DtypeArg,
    /// int8, int4: quantise the weights while they are loaded, in groups of 32 with a float16 scale each; another: refuse a checkpoint that is
    /// not quantised so [default: take it as it is]
    #[arg(long, short, value_name = "METHOD", value_parser = quantization_options())]
    pub quantization: Option<QuantizationOption>,
    /// What quantised weights multiply the activations as; `auto`: what they are; int8: rounded to 8 bits, a scale for each group of the weights, as
    /// llama.cpp does: faster, with AMX in decode only, and less exact; on CPUs only, so that `--device auto` is the CPU then
    #[arg(long, default_value = "auto", env = if_set("VLLM_APPLE_ACTIVATION_DTYPE"), value_parser = activation_dtypes())]
    pub activation_dtype: Activations,
    /// Type of keys and values in the cache; `auto`: that of the activations
    #[arg(long, default_value = "auto", value_parser = dtypes())]
    pub kv_cache_dtype: DtypeArg,
    /// Longest sequence, prompt and output together, in tokens, such as 32768 or 32K; `auto`: the checkpoint's, or as much of it as memory has room for
    #[arg(long, value_name = "N", default_value = "auto", value_parser = length, allow_negative_numbers = true)]
    pub max_model_len: Length,
    /// Most requests in one step [default: 64]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub max_num_seqs: Option<usize>,
    /// Most tokens in one step [default: 2048, fewer where so many take more than half a second]
    #[arg(long, value_name = "N", value_parser = tokens, allow_negative_numbers = true)]
    pub max_num_batched_tokens: Option<usize>,
    /// Tokens in a block of the KV cache
    #[arg(long, value_name = "N", default_value_t = LoadOptions::default().block_size, value_parser = positive, allow_negative_numbers = true)]
    pub block_size: usize,
    /// Memory for the KV cache, such as 4GiB or 512MiB; without a unit, bytes [default: by the machine's memory]
    #[arg(long, alias = "kv-cache-memory-bytes", value_name = "SIZE", value_parser = parse_bytes)]
    pub kv_cache_memory: Option<u64>,
    /// Threads that compute [default: one per physical core, but for efficiency cores of Apple's]
    #[arg(long, short_alias = 't', value_name = "N", env = if_set("VLLM_APPLE_THREADS"), value_parser = thread_count, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Instructions of the CPU backend: amx-bf16, avx512-bf16, avx512-vnni, avx512, avx2-vnni, avx2, neon-bf16, neon-dotprod, neon or portable; `--device auto` is the CPU then [default: the fastest]
    #[arg(long, value_name = "SET")]
    pub isa: Option<Isa>,
}

impl EngineArgs {
    /// What is given, or the default.
    pub fn max_num_seqs(&self) -> usize {
        self.max_num_seqs.unwrap_or(LoadOptions::default().max_num_seqs)
    }

    /// What the loader needs of them.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions {
            dtype: self.dtype.0,
            quantization: self.quantization,
            activation_dtype: self.activation_dtype,
            kv_cache_dtype: self.kv_cache_dtype.0,
            max_model_len: self.max_model_len,
            longest_of_use: None,
            max_num_seqs: self.max_num_seqs(),
            max_num_batched_tokens: self.max_num_batched_tokens,
            block_size: self.block_size,
            kv_cache_memory: self.kv_cache_memory,
            available_memory: None,
        }
    }

    /// What opening a device needs of them and of the environment.
    pub fn device_options(&self) -> Result<DeviceOptions, OptionError> {
        let options = variables::device_options(self.device, self.threads, variable)?;
        Ok(DeviceOptions { isa: self.isa, ..options })
    }
}

/// The name of a variable, unless it is empty, which counts as unset.
fn if_set(name: &'static str) -> Option<&'static str> {
    variable(name).is_none_or(|value| !value.is_empty()).then_some(name)
}

/// A variable of this process's environment.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// `--load-format`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LoadFormat {
    /// The checkpoint's weights.
    #[default]
    Auto,
    /// Random values.
    Dummy,
}

impl LoadFormat {
    /// The checkpoint in this directory.
    pub fn open(self, directory: &Path) -> Result<Checkpoint, LoadError> {
        match self {
            Self::Auto => Checkpoint::open(directory),
            Self::Dummy => Checkpoint::open_dummy(directory),
        }
    }
}

/// `--generation-config`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum GenerationConfigSource {
    #[default]
    Auto,
    Vllm,
}

/// The kinds of devices by their names.
fn devices() -> impl TypedValueParser<Value = DeviceKind> {
    let values = DeviceKind::NAMES.map(|(name, kind)| match kind {
        DeviceKind::Auto => PossibleValue::new(name).help("Metal where there is one, else the CPU"),
        DeviceKind::Cpu => PossibleValue::new(name),
        DeviceKind::Metal => PossibleValue::new(name).help("Apple's GPU"),
        DeviceKind::SoftwareMetal => {
            PossibleValue::new(name).help("The Metal kernels, run on the CPU: slow, for checking them")
        }
    });
    // What is none of these is refused before it is parsed.
    PossibleValuesParser::new(values).map(|name| name.parse().unwrap_or_default())
}

/// `--dtype` and `--kv-cache-dtype`; `None` is `auto`.
#[derive(Debug, Clone, Copy)]
pub struct DtypeArg(pub Option<DType>);

/// The float types by their names, and `auto`.
fn dtypes() -> impl TypedValueParser<Value = DtypeArg> {
    let names = DType::FLOATS.map(|dtype| PossibleValue::new(dtype.name()));
    let aliased = names.map(|name| match name.get_name() {
        "float16" => name.alias("half"),
        "float32" => name.alias("float"),
        _ => name,
    });
    let values = std::iter::once(PossibleValue::new("auto")).chain(aliased);
    // What is none of these is refused before it is parsed.
    PossibleValuesParser::new(values).map(|name| DtypeArg(name.parse().ok()))
}

/// What activations may be rounded to, by names.
fn activation_dtypes() -> impl TypedValueParser<Value = Activations> {
    PossibleValuesParser::new(Activations::NAMES.map(|(name, _)| name)).try_map(|name| name.parse::<Activations>())
}

/// The ways to quantise by their names.
pub fn quantizations() -> impl TypedValueParser<Value = Quantization> {
    PossibleValuesParser::new(Quantization::NAMES.map(|(name, _)| name)).try_map(|name| name.parse::<Quantization>())
}

/// The same, and what a checkpoint may be: of the names by which vLLM calls that, those of formats are shown.
fn quantization_options() -> impl TypedValueParser<Value = QuantizationOption> {
    let is_of_kernels = |name: &str| name.contains("marlin") || name.starts_with("auto_");
    let values = QuantizationOption::names().map(|name| PossibleValue::new(name).hide(is_of_kernels(name)));
    PossibleValuesParser::new(values.collect::<Vec<_>>()).try_map(|name| name.parse::<QuantizationOption>())
}

/// A whole number that the type holds, one of a list with spaces perhaps.
pub fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let most = u64::MAX >> (u64::BITS as usize - 8 * size_of::<T>());
    let number = text.trim().parse::<u64>().ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| format!("expected a whole number from 0 to {most}"))
}

/// A whole number above 0.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(0) | Err(_) => Err("expected a whole number, at least 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// The same with a unit, as vLLM reads it: 32k are 32,000 and 25.6k are 25,600; 32K are 32,768, and there is no part of a K.
fn tokens(text: &str) -> Result<usize, String> {
    let expected = || "expected a whole number, at least 1, such as 32768, 32K or 32k (32000)".to_owned();
    let text = text.trim();
    let units = [
        ('k', 1000),
        ('m', 1000_usize.pow(2)),
        ('g', 1000_usize.pow(3)),
        ('K', 1 << 10),
        ('M', 1 << 20),
        ('G', 1 << 30),
    ];
    let unit = units.into_iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, unit, scale)));
    let Some((number, unit, scale)) = unit else { return positive(text).map_err(|_| expected()) };
    let tokens = match number.split_once('.') {
        Some((whole, part)) if unit.is_ascii_lowercase() && [whole, part].iter().all(|digits| is_digits(digits)) => {
            number.parse::<f64>().ok().map(|number| (number * scale as f64) as usize)
        }
        Some(_) => None,
        None => number.parse().ok().filter(|_| is_digits(number)).and_then(|number: usize| number.checked_mul(scale)),
    };
    tokens.filter(|&tokens| tokens > 0).ok_or_else(expected)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `--max-model-len`; `None` is `auto`. Named so that clap takes it as one value.
type Length = Option<usize>;

/// A number of tokens, or one of vLLM's words for as many as there is room for.
fn length(text: &str) -> Result<Length, String> {
    if ["auto", "-1"].contains(&text.trim().to_ascii_lowercase().as_str()) {
        return Ok(None);
    }
    tokens(text).map(Some).map_err(|expected| format!("{expected}, or `auto`"))
}

/// Threads, of which each takes memory.
fn thread_count(text: &str) -> Result<usize, String> {
    const MOST: usize = 1024;
    positive(text)
        .ok()
        .filter(|&threads| threads <= MOST)
        .ok_or_else(|| format!("expected a whole number from 1 to {MOST}"))
}

/// A number of bytes with an optional unit: powers of 1024 for K, KiB, M, …, powers of 1000 for KB, MB, ….
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("unknown unit {unit:?}: use KiB, MiB, GiB, KB, MB or GB")),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 => Ok((number * scale as f64) as u64),
        _ => Err("expected a size above 0, such as 4GiB".to_owned()),
    }
}

/// The same, or 0.
pub fn parse_bytes_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_bytes(text) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        engine: EngineArgs,
    }

    #[test]
    fn the_longest_sequence_is_a_number_or_left_to_memory() {
        let length = |arguments: &[&str]| {
            let line = Line::try_parse_from([&["x"], arguments].concat()).map_err(|error| error.to_string())?;
            Ok::<_, String>(line.engine.load_options().max_model_len)
        };
        for auto in [&[][..], &["--max-model-len", "auto"], &["--max-model-len", "-1"], &["--max-model-len=-1"]] {
            assert_eq!(length(auto), Ok(None), "{auto:?}");
        }
        assert_eq!(length(&["--max-model-len", "32K"]), Ok(Some(32768)));
        for bad in ["0", "-2", "most"] {
            let error = length(&["--max-model-len", bad]).unwrap_err();
            assert!(error.contains("32768") && error.contains("`auto`"), "{error}");
        }
    }

    #[test]
    fn thousands_of_tokens_are_read_as_vllm_reads_them() {
        for (text, expected) in [
            ("1", 1),
            ("32768", 32768),
            ("32K", 32768),
            ("32k", 32000),
            ("25.6k", 25600),
            ("1m", 1_000_000),
            ("1.5m", 1_500_000),
            ("1M", 1 << 20),
            ("2g", 2_000_000_000),
            ("1G", 1 << 30),
            (" 4k ", 4000),
        ] {
            assert_eq!(tokens(text), Ok(expected));
        }
        for bad in [
            "",
            "0",
            "0k",
            "k",
            "-1",
            "1.5",
            "25.6K",
            "1.k",
            ".5k",
            "+1k",
            "1e3k",
            "0.0001k",
            "32kk",
            "18446744073709551615k",
        ] {
            assert!(tokens(bad).unwrap_err().contains("32768"), "{bad}");
        }
    }

    #[test]
    fn whole_numbers_are_what_their_type_holds() {
        assert_eq!((whole::<u16>("65535"), whole::<u32>(" 2")), (Ok(65535), Ok(2)));
        for (error, most) in [(whole::<u16>("65536").unwrap_err(), "65535"), (whole::<u16>("-1").unwrap_err(), "65535")]
        {
            assert_eq!(error, format!("expected a whole number from 0 to {most}"));
        }
        assert!(whole::<u64>("-1").unwrap_err().ends_with(" 18446744073709551615"));
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("4GiB"), Ok(4 << 30));
        assert_eq!(parse_bytes("1.5g"), Ok(3 << 29));
        assert_eq!(parse_bytes("512 MB"), Ok(512_000_000));
        assert_eq!(parse_bytes("1048576"), Ok(1 << 20));
        for bad in ["", "x", "4 apples", "0", "-1", "1.2.3"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}

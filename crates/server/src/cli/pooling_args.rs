//! Whether a model generates text or makes embeddings, and how, by vLLM's names. Knows flags and what a checkpoint says of itself.

use clap::{Args, ValueEnum};
use serde::Deserialize;
use vllm_apple_executor::Pooling;
use vllm_apple_model::{Checkpoint, Pooler};

use super::CliError;

/// What the model does.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Pooling")]
pub struct PoolingArgs {
    /// What the model does; `auto`: makes embeddings if the checkpoint is meant for them
    #[arg(long, value_enum, default_value_t, value_name = "RUNNER")]
    runner: Runner,
    /// What is made of a model that generates text; `embed` is `--runner pooling`
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    convert: Convert,
    /// How embeddings are made, such as {"pooling_type": "MEAN", "use_activation": false} [default: the checkpoint's]
    #[arg(long, value_name = "JSON", value_parser = pooler_config)]
    pooler_config: Option<PoolerConfig>,
}

/// `--runner`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Runner {
    #[default]
    Auto,
    /// Generates text
    Generate,
    /// Makes embeddings
    Pooling,
}

/// `--convert`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Convert {
    #[default]
    Auto,
    /// Nothing
    None,
    /// Embeddings
    Embed,
}

/// vLLM's `PoolerConfig`, as far as it is known here.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolerConfig {
    #[serde(alias = "seq_pooling_type")]
    pooling_type: Option<PoolingType>,
    use_activation: Option<bool>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum PoolingType {
    Last,
    Mean,
    Cls,
}

fn pooler_config(text: &str) -> Result<PoolerConfig, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

impl PoolingArgs {
    /// How the checkpoint makes embeddings; `None` if it generates text.
    pub fn pooler(&self, checkpoint: &Checkpoint) -> Result<Option<Pooler>, CliError> {
        let pools = match (self.runner, self.convert) {
            (Runner::Generate, Convert::Embed) => {
                return Err(CliError::Load(
                    "--convert embed makes no generating model: take --runner pooling".to_owned(),
                ));
            }
            (Runner::Generate, _) => false,
            (Runner::Pooling, _) | (Runner::Auto, Convert::Embed) => true,
            (Runner::Auto, _) => checkpoint.is_embedder()?,
        };
        if !pools {
            return match self.pooler_config {
                None => Ok(None),
                Some(_) => Err(CliError::Load("--pooler-config needs --runner pooling".to_owned())),
            };
        }
        let mut pooler = checkpoint.pooler()?;
        if let Some(PoolerConfig { pooling_type, use_activation }) = self.pooler_config {
            pooler.pooling = pooling_type.map_or(pooler.pooling, |kind| match kind {
                PoolingType::Last => Pooling::Last,
                PoolingType::Mean => Pooling::Mean,
                PoolingType::Cls => Pooling::First,
            });
            pooler.normalize = use_activation.unwrap_or(pooler.normalize);
        }
        tracing::info!(pooling = ?pooler.pooling, normalize = pooler.normalize, "the model makes embeddings");
        if pooler.pooling == Pooling::First {
            tracing::warn!(
                "the first token sees no other: texts that begin with the same token have the same embedding"
            );
        }
        Ok(Some(pooler))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        pooling: PoolingArgs,
    }

    /// What these flags make of a golden checkpoint.
    fn pooler(checkpoint: &str, flags: &[&str]) -> Result<Option<Pooler>, CliError> {
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
        let checkpoint = Checkpoint::open(&golden.join(checkpoint)).unwrap();
        let flags = Flags::try_parse_from(["serve"].iter().chain(flags)).unwrap();
        flags.pooling.pooler(&checkpoint)
    }

    #[test]
    fn the_checkpoint_decides_unless_the_flags_do() {
        let (embedder, generator) = ("embedders/models/llama-mean", "models/llama");
        let what = |checkpoint, flags: &[&str]| {
            pooler(checkpoint, flags).unwrap().map(|pooler| (pooler.pooling, pooler.normalize))
        };
        assert_eq!(what(embedder, &[]), Some((Pooling::Mean, false)));
        assert_eq!(what(embedder, &["--runner", "generate"]), None);
        assert_eq!(what(generator, &[]), None);
        for flags in [["--runner", "pooling"], ["--convert", "embed"]] {
            assert_eq!(what(generator, &flags), Some((Pooling::Last, true)));
        }
        let config = r#"{"seq_pooling_type": "CLS", "use_activation": true}"#;
        assert_eq!(what(embedder, &["--pooler-config", config]), Some((Pooling::First, true)));
        let part = ["--runner", "pooling", "--pooler-config", r#"{"pooling_type": "MEAN"}"#];
        assert_eq!(what(generator, &part), Some((Pooling::Mean, true)));
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        let refused = |flags: &[&str]| pooler("models/llama", flags).unwrap_err().to_string();
        assert!(refused(&["--runner", "generate", "--convert", "embed"]).contains("--runner pooling"));
        assert!(refused(&["--pooler-config", "{}"]).contains("needs --runner pooling"));
        for config in [r#"{"pooling_type": "MAX"}"#, r#"{"dimensions": 3}"#, "MEAN"] {
            assert!(Flags::try_parse_from(["serve", "--pooler-config", config]).is_err(), "{config}");
        }
    }
}

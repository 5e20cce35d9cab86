//! The flags of sampling, for commands that generate. Knows what may be asked, not what it means.

use clap::Args;

use super::args::whole;
use crate::generation::SamplingOptions;

/// Sampling flags by vLLM's names.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness: 0 always takes the most likely token [default: the model's, else 1]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Sample among the K most likely tokens; 0 or -1: all [default: the model's, else all]
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<i64>,
    /// Sample among the most likely tokens that together reach this probability [default: the model's, else 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Sample among tokens at least this many times as likely as the likeliest [default: the model's, else 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divide the logits of tokens already seen; 1 is neutral [default: the model's, else 1]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Subtract from a token's logit per occurrence in the output, from -2 to 2 [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Subtract from the logit of tokens in the output, from -2 to 2 [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// End the text before this string; repeatable
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// End at one of these token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = whole::<u32>, allow_negative_numbers = true)]
    stop_token_ids: Vec<u32>,
    /// Keep the stop string or stop token in the text
    #[arg(long)]
    include_stop_str_in_output: bool,
    /// Go on after the model's end token
    #[arg(long)]
    ignore_eos: bool,
    /// Do not end before this many tokens [default: 0]
    #[arg(long, value_name = "N", value_parser = whole::<u32>, allow_negative_numbers = true)]
    min_tokens: Option<u32>,
    /// End after this many tokens [default: generate 128, chat what the model's length leaves]
    #[arg(long, value_name = "N", value_parser = whole::<u32>, allow_negative_numbers = true)]
    max_tokens: Option<u32>,
    /// Show special tokens in the text
    #[arg(long)]
    keep_special_tokens: bool,
}

impl SamplingArgs {
    /// What they ask; `max_tokens` is what they do not say.
    pub fn options(self, max_tokens: Option<u32>) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            stop: self.stop.into(),
            stop_token_ids: self.stop_token_ids.into(),
            include_stop_str_in_output: self.include_stop_str_in_output,
            ignore_eos: self.ignore_eos,
            min_tokens: self.min_tokens,
            max_tokens: self.max_tokens.or(max_tokens),
            keep_special_tokens: self.keep_special_tokens,
            ..SamplingOptions::default()
        }
    }
}

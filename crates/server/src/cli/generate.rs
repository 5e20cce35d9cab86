//! `vllm-apple generate`: one prompt as it comes, or a batch in order. Knows input and output lines, no protocol.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::args::{ModelArgs, whole};
use super::load;
use super::sampling_args::SamplingArgs;
use super::{CliError, tell};
use crate::generation::{Delta, Finish, Generation, GenerationRequest, SamplingOptions};
use crate::served::{OutputFormats, ServedModel};
use crate::settings::word;

/// Output tokens where no --max-tokens is given: a model that never ends would fill its whole length.
const DEFAULT_MAX_TOKENS: u32 = 128;

#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Print each result as a line of JSON
    #[arg(long)]
    json: bool,
    /// Add the log-probability of each token and of K alternatives, at most 20
    #[arg(long, value_name = "K", requires = "json", value_parser = whole::<u32>, allow_negative_numbers = true)]
    logprobs: Option<u32>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Input {
    /// Continue this text
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Continue these token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = whole::<u32>, allow_negative_numbers = true)]
    prompt_token_ids: Option<Vec<u32>>,
    /// Continue each line of a JSONL file, `-` for stdin: {"prompt": …} or {"prompt_token_ids": …}
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

/// A line of the input file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    prompt_token_ids: Option<Vec<u32>>,
}

pub async fn run(args: GenerateArgs) -> Result<(), CliError> {
    let input = args.input;
    let opened = load::open_generator(&args.model)?;
    let lines = input.input.as_deref().map(read_lines).transpose()?;
    // The whole input may wait: there is no one else to serve.
    let load = move || opened.load(Vec::new(), usize::MAX, usize::MAX, OutputFormats::default());
    let model = tokio::task::spawn_blocking(load).await;
    let model = model.map_err(|panic| CliError::Load(format!("loading the model failed: {panic}")))??;
    let options = SamplingOptions { logprobs: args.logprobs, ..args.sampling.options(Some(DEFAULT_MAX_TOKENS)) };
    if let Some(lines) = lines {
        return batch(&model, &options, lines, args.json).await;
    }
    let line = Line { prompt: input.prompt, prompt_token_ids: input.prompt_token_ids };
    let mut generation = start(&model, &options, line)?;
    let mut stdout = io::stdout();
    if args.json {
        let result = result_json(&generation.collect().await?, options.logprobs.is_some());
        return writeln!(stdout, "{result}").map_err(CliError::Stdout);
    }
    while let Some(delta) = generation.next().await {
        let text = delta?.text;
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::Stdout)?;
    }
    writeln!(stdout).map_err(CliError::Stdout)
}

/// The lines that are not blank, with their numbers.
fn read_lines(path: &Path) -> Result<Vec<(usize, Vec<u8>)>, CliError> {
    let read = || -> io::Result<Vec<(usize, Vec<u8>)>> {
        let reader: Box<dyn BufRead> = match path.to_str() {
            Some("-") => Box::new(io::stdin().lock()),
            _ => Box::new(io::BufReader::new(std::fs::File::open(path)?)),
        };
        let lines: Vec<_> = reader.split(b'\n').collect::<Result<_, _>>()?;
        Ok((1..).zip(lines).filter(|(_, line)| !line.trim_ascii().is_empty()).collect())
    };
    read().map_err(|source| CliError::Input { path: path.display().to_string(), source })
}

/// Runs all lines together and prints their results in order. A bad line fails alone.
async fn batch(
    model: &Arc<ServedModel>,
    options: &SamplingOptions,
    lines: Vec<(usize, Vec<u8>)>,
    json: bool,
) -> Result<(), CliError> {
    let total = lines.len();
    // Enough to keep every step full while results wait for those before them.
    let at_once = model.engine.info().max_num_seqs.saturating_mul(4);
    let results = stream::iter(lines).map(|(number, text)| async move {
        let line = serde_json::from_slice(&text).map_err(|error| format!("line {number}: not a request: {error}"))?;
        let name = |error: CliError| format!("line {number}: {}", word(&error.to_string()));
        let mut generation = start(model, options, line).map_err(name)?;
        generation.collect().await.map_err(|error| name(error.into()))
    });
    let mut results = pin!(results.buffered(at_once));
    let mut failed = 0;
    let mut stdout = io::stdout();
    while let Some(result) = results.next().await {
        let written = match result {
            Ok(whole) if json => writeln!(stdout, "{}", result_json(&whole, options.logprobs.is_some())),
            Ok(whole) => writeln!(stdout, "{}", whole.text),
            Err(error) => {
                failed += 1;
                tell(format_args!("error: {error}"));
                // Keeps results and input lines side by side.
                if json { writeln!(stdout, "{}", json!({"error": error})) } else { Ok(()) }
            }
        };
        written.map_err(CliError::Stdout)?;
    }
    if failed == 0 { Ok(()) } else { Err(CliError::Lines { failed, total }) }
}

fn start(model: &Arc<ServedModel>, options: &SamplingOptions, line: Line) -> Result<Generation, CliError> {
    let ids = match line {
        Line { prompt_token_ids: Some(ids), prompt: None } => ids,
        Line { prompt: Some(text), prompt_token_ids: None } => model.tokenizer.encode(&text, true)?,
        _ => return Err(CliError::OnePrompt),
    };
    let request = GenerationRequest::new(model, ids.into(), options);
    Ok(Generation::start(Arc::clone(model), request, Instant::now())?)
}

fn result_json(whole: &Delta, with_logprobs: bool) -> Value {
    let ids: Vec<_> = whole.tokens.iter().map(|sample| sample.token_id).collect();
    let mut result = json!({
        "token_ids": ids,
        "text": whole.text,
        "finish_reason": whole.finish.as_ref().map(Finish::reason),
    });
    if with_logprobs {
        let logprobs = whole.tokens.iter().filter_map(|sample| {
            let logprobs = sample.logprobs.as_ref()?;
            Some(json!({"token_id": sample.token_id, "logprob": logprobs.logprob, "top": logprobs.top}))
        });
        result["logprobs"] = logprobs.collect();
    }
    result
}

//! `vllm-apple bench`: prefill and decode speed of a model, and how much of this machine's limits they reach. It drives the
//! engine step by step, without HTTP and without text.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use vllm_apple_device::{Device, Limits, Measurable, with_backend};
use vllm_apple_engine::{Engine, EngineConfig};
use vllm_apple_model::{Checkpoint, LoadedModel, ModelConfig, ModelExecutor, ModelTypes};
use vllm_apple_ops::Backend;
use vllm_apple_verify::speed::{Timed, decode_cost, median, prefill_cost, timed};

use super::CliError;
use super::args::{EngineArgs, LoadFormat, positive};
use super::{demo_model, load};

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// A checkpoint directory, a GGUF file, or the id of a model on the Hugging Face Hub, with :Q4_K_M or another tag for one of its GGUF files
    /// [default: the bundled model]
    model: Option<String>,
    /// Branch, tag or commit of a model on the hub [default: main]
    #[arg(long, value_name = "REV")]
    revision: Option<String>,
    /// Requests that run together; several counts separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,8,16", value_parser = positive)]
    batch: Vec<usize>,
    /// Tokens in each prompt
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = positive)]
    input_len: usize,
    /// Tokens that each request generates
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..))]
    output_len: u32,
    /// Runs per batch size, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = positive)]
    repeat: usize,
    /// `dummy`: random weights; MODEL needs only a config.json
    #[arg(long, value_enum, default_value_t)]
    load_format: LoadFormat,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Why a share of the bandwidth may be above 100%.
const BEYOND_MEMORY: &str = "above 100% of bandwidth: that is the memory's, and a model as small as this one is read from the processor's caches";

/// Whether more was read than memory gives.
fn is_beyond_memory(result: &Value) -> bool {
    result["decode_fraction_of_bandwidth"].as_f64().is_some_and(|share| share > 1.0)
}

/// One batch size's result.
struct Measurement {
    batch: usize,
    /// Medians of those measured before each run: many machines' speed changes from second to second.
    limits: Limits,
    prefill: Duration,
    /// Median over all decode steps.
    decode_step: Duration,
}

impl BenchArgs {
    /// A short measurement of the bundled model.
    pub fn short(engine: &EngineArgs) -> Self {
        Self {
            model: None,
            revision: None,
            batch: vec![1, 8],
            input_len: 256,
            output_len: 32,
            repeat: 3,
            load_format: LoadFormat::Auto,
            json: true,
            engine: engine.clone(),
        }
    }
}

pub fn run(args: BenchArgs) -> Result<(), CliError> {
    let json = args.json;
    let results = results(args)?;
    if json {
        writeln!(io::stdout(), "{results}").map_err(CliError::Stdout)?;
    }
    Ok(())
}

/// What was measured; a table of it is printed on the way, unless one JSON object is wanted.
pub fn results(mut args: BenchArgs) -> Result<Value, CliError> {
    let directory = match args.load_format {
        LoadFormat::Auto => load::resolve(args.model.as_deref(), args.revision.as_deref()),
        LoadFormat::Dummy => load::resolve_without_weights(args.model.as_deref(), args.revision.as_deref()),
    }?;
    let checkpoint = args.load_format.open(&directory)?;
    let largest = args.batch.iter().copied().max().unwrap_or(1);
    let longest = args.input_len.saturating_add(args.output_len as usize);
    for (option, most) in
        [("--max-num-seqs", args.engine.max_num_seqs), ("--max-num-batched-tokens", args.engine.max_num_batched_tokens)]
    {
        if let Some(most) = most.filter(|most| *most < largest) {
            return Err(CliError::Load(format!("--batch {largest} needs {option} of at least as many, got {most}")));
        }
    }
    let of_model = checkpoint.config().derived_max_model_len();
    for (limit, most) in
        [("--max-model-len", args.engine.max_model_len.unwrap_or(longest)), ("the model's longest sequence", of_model)]
    {
        if most < longest {
            let (input, output) = (args.input_len, args.output_len);
            let message =
                format!("--input-len {input} and --output-len {output} are {longest} tokens, {limit} is {most}");
            return Err(CliError::Load(message));
        }
    }
    args.engine.max_num_seqs = Some(largest);
    args.engine.max_model_len.get_or_insert(longest);
    let options = args.engine.device_options()?;
    let device = Device::open(&options, &checkpoint.kinds(&args.engine.load_options())?)?;
    device.start(
        &options,
        CliError::is_refusal,
        |device| with_backend!(device, backend => run_on(backend, &args, &directory, &checkpoint)),
    )
}

fn run_on<B: Measurable>(
    backend: B,
    args: &BenchArgs,
    directory: &Path,
    checkpoint: &Checkpoint,
) -> Result<Value, CliError> {
    let mut bars = load::WarmUpBars::default();
    let show = &mut |progress| bars.show(progress);
    let loaded = LoadedModel::load_with_progress(backend, checkpoint, &args.engine.load_options(), show)?;
    drop(bars);
    let num_blocks = loaded.num_blocks()?;
    let mut executor = loaded.allocate(num_blocks)?;
    executor.warm_up(&mut |_| {})?;
    let (device, types) = (executor.backend().device(), executor.types());
    let start = jiff::Timestamp::now();
    let config = EngineConfig { enable_prefix_caching: false, max_waiting: 0, seed: 0, speculation: None };
    let mut engine = Engine::new(executor, config).map_err(|error| CliError::Load(error.to_string()))?;
    let report = Report { args, directory, config: checkpoint.config(), types };
    if !args.json {
        report.print_head(&device.description).map_err(CliError::Stdout)?;
    }
    let mut results = Vec::new();
    for &batch in &args.batch {
        let result = report.result(&measure(&mut engine, batch, args)?);
        if !args.json {
            report.print_row(&result).map_err(CliError::Stdout)?;
        }
        results.push(result);
    }
    if !args.json && results.iter().any(is_beyond_memory) {
        writeln!(io::stdout(), "\n{BEYOND_MEMORY}").map_err(CliError::Stdout)?;
    }
    let facts: Value = device.facts.iter().map(|(name, fact)| (name.clone(), Value::from(fact.clone()))).collect();
    Ok(report.whole(&device.description, facts, start, results))
}

fn measure<B: Measurable>(
    engine: &mut Engine<ModelExecutor<B>>,
    batch: usize,
    args: &BenchArgs,
) -> Result<Measurement, CliError> {
    // The first run touches all memory; it does not count.
    run_once(engine, batch, args)?;
    let (mut read, mut peak, mut prefill, mut decode) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.repeat {
        let executor = engine.executor_mut();
        let weights = executor.types().weights;
        let limits = executor.backend_mut().limits(weights);
        let limits =
            limits.map_err(|error| CliError::Load(format!("the device's limits cannot be measured: {error}")))?;
        read.push(limits.read_bandwidth);
        peak.push(limits.peak_flops);
        let run = run_once(engine, batch, args)?;
        prefill.push(run.prefill);
        decode.extend(run.decode_steps);
    }
    if decode.is_empty() {
        return Err(CliError::Load(format!(
            "in no step did all {batch} requests get a token: when the last had its first, others were done or waited for memory; take a longer --output-len, or \
             a smaller --batch, or let --max-num-batched-tokens and --kv-cache-memory be larger"
        )));
    }
    let limits = Limits { read_bandwidth: median(read), peak_flops: median(peak) };
    Ok(Measurement { batch, limits, prefill: median(prefill), decode_step: median(decode) })
}

fn run_once<B: Backend>(
    engine: &mut Engine<ModelExecutor<B>>,
    batch: usize,
    args: &BenchArgs,
) -> Result<Timed, CliError> {
    let vocab = engine.info().vocab_size;
    // Any ids do: the speed does not depend on them.
    let prompt = |request| (0..args.input_len).map(move |i| ((i * 7919 + request * 104_729) % vocab) as u32).collect();
    Ok(timed(engine, (0..batch).map(prompt), args.output_len)?)
}

struct Report<'a> {
    args: &'a BenchArgs,
    directory: &'a Path,
    config: &'a ModelConfig,
    types: ModelTypes,
}

impl Report<'_> {
    fn result(&self, m: &Measurement) -> Value {
        let (batch, input, output) = (m.batch, self.args.input_len, self.args.output_len as usize);
        let (prefill, decode) = (m.prefill.as_secs_f64(), m.decode_step.as_secs_f64());
        let prefill_cost = prefill_cost(self.config, self.types, batch, input);
        let decode_cost = decode_cost(self.config, self.types, batch, input + output / 2);
        json!({
            "batch": batch,
            "read_bandwidth_gb_per_s": m.limits.read_bandwidth / 1e9,
            "peak_gflop_per_s": m.limits.peak_flops / 1e9,
            "prefill_tokens_per_s": (batch * input) as f64 / prefill,
            "prefill_ms": prefill * 1e3,
            "prefill_fraction_of_peak": prefill_cost.flops / prefill / m.limits.peak_flops,
            "decode_tokens_per_s": batch as f64 / decode,
            "decode_ms_per_step": decode * 1e3,
            "decode_fraction_of_bandwidth": decode_cost.bytes() / decode / m.limits.read_bandwidth,
            "decode_fraction_of_peak": decode_cost.flops / decode / m.limits.peak_flops,
        })
    }

    /// The bundled model has a name, which says more than the place where it was unpacked.
    fn model(&self) -> String {
        match self.args.model {
            Some(_) => self.directory.display().to_string(),
            None => demo_model::NAME.to_owned(),
        }
    }

    /// With what a chart must say beside the numbers: which program, on what machine, when.
    fn whole(&self, device: &str, facts: Value, start: jiff::Timestamp, results: Vec<Value>) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "start": start.to_string(),
            "facts": facts,
            "model": self.model(),
            "dtype": self.types.activations.to_string(),
            "weights": self.types.weights.to_string(),
            "kv_cache_dtype": self.types.kv_cache.to_string(),
            "device": device,
            "input_len": self.args.input_len,
            "output_len": self.args.output_len,
            "results": results,
        })
    }

    fn print_head(&self, device: &str) -> io::Result<()> {
        let mut out = io::stdout();
        writeln!(out, "{}, {}, {device}", self.model(), self.types.activations)?;
        writeln!(
            out,
            "{} tokens in, {} out, median of {} runs\n",
            self.args.input_len, self.args.output_len, self.args.repeat
        )?;
        writeln!(out, "       machine's limits    prefill           decode")?;
        writeln!(out, "batch  GB/s   GFLOP/s      tok/s  of peak    tok/s  ms/step  of bandwidth  of peak")
    }

    fn print_row(&self, result: &Value) -> io::Result<()> {
        let number = |name: &str, scale: f64, decimals: usize| {
            format!("{:.decimals$}", result[name].as_f64().unwrap_or_default() * scale)
        };
        writeln!(
            io::stdout(),
            "{:>5}  {:>5}  {:>6}  {:>9}  {:>6}%  {:>7}  {:>7}  {:>11}%  {:>6}%",
            number("batch", 1.0, 0),
            number("read_bandwidth_gb_per_s", 1.0, 1),
            number("peak_gflop_per_s", 1.0, 0),
            number("prefill_tokens_per_s", 1.0, 0),
            number("prefill_fraction_of_peak", 100.0, 0),
            number("decode_tokens_per_s", 1.0, 1),
            number("decode_ms_per_step", 1.0, 2),
            number("decode_fraction_of_bandwidth", 100.0, 0),
            number("decode_fraction_of_peak", 100.0, 0),
        )
    }
}

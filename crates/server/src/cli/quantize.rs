//! `vllm-apple quantize`: writes a checkpoint of floats again with quantised matrices. Knows no format.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use vllm_apple_model::{Checkpoint, Quantization};

use super::CliError;
use super::args::quantizations;
use super::load::{download_style, resolve};

#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// A checkpoint directory of bfloat16, float16 or float32, or the id of a model on the Hugging Face Hub
    model: String,
    /// The directory to write, which is not there yet
    output: PathBuf,
    /// Bits of the weights, in groups of 32 with a float16 scale each
    #[arg(long, short, value_name = "METHOD", value_parser = quantizations())]
    quantization: Quantization,
    /// Branch, tag or commit of a model on the hub [default: main]
    #[arg(long, value_name = "REV")]
    revision: Option<String>,
}

pub fn run(args: QuantizeArgs) -> Result<(), CliError> {
    let checkpoint = Checkpoint::open(&resolve(Some(&args.model), args.revision.as_deref())?)?;
    let bar = ProgressBar::new(0).with_style(download_style()).with_message("writing weights");
    checkpoint.write_quantized(&args.output, args.quantization, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    writeln!(io::stdout(), "{} is {}, quantised to {}", args.output.display(), args.model, args.quantization)?;
    Ok(())
}

//! `vllm-apple quantize`: writes a checkpoint of floats again with quantised matrices. Knows no format.

use std::fs;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use vllm_apple_model::{Checkpoint, Quantization};

use super::CliError;
use super::args::quantizations;
use super::load::resolve;
use super::progress::{LongWork, Unit};

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

pub async fn run(args: QuantizeArgs) -> Result<(), CliError> {
    let signal = |kind| signal(kind).map_err(CliError::Signals);
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hangup = signal(SignalKind::hangup())?;
    let (output, is_new) = (args.output.clone(), !args.output.exists());
    let begun = Arc::new(AtomicBool::new(false));
    let write = tokio::task::spawn_blocking({
        let begun = Arc::clone(&begun);
        move || write(args, &begun)
    });
    let stopped_by = tokio::select! {
        written = write => return written.unwrap_or_else(|panic| resume_unwind(panic.into_panic())),
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
        _ = hangup.recv() => SignalKind::hangup(),
    };
    // Before that nothing is written, and what is in the directory is the user's.
    if begun.load(Ordering::SeqCst) {
        let path = output.display().to_string();
        discard(&output, is_new).map_err(|source| CliError::Remains { path, source })?;
    }
    // As shells report a process that a signal ended.
    std::process::exit(128 + stopped_by.as_raw_value());
}

/// Sets `begun` before anything is in the output, which is empty then.
fn write(args: QuantizeArgs, begun: &AtomicBool) -> Result<(), CliError> {
    let mut checkpoint = Checkpoint::open(&resolve(Some(&args.model), args.revision.as_deref())?)?;
    if checkpoint.is_embedder()? {
        // It may have none.
        checkpoint = checkpoint.without_head();
    }
    let mut work = LongWork::new("writing weights", Unit::Bytes, Duration::ZERO);
    checkpoint.write_quantized(&args.output, args.quantization, &mut |done, total| {
        begun.store(true, Ordering::SeqCst);
        work.show(done, total);
    })?;
    drop(work);
    begun.store(false, Ordering::SeqCst);
    writeln!(io::stdout(), "{} is {}, quantised to {}", args.output.display(), args.model, args.quantization)
        .map_err(CliError::Stdout)
}

/// Removes all that is in a directory, and itself if it is new.
fn discard(directory: &Path, is_new: bool) -> io::Result<()> {
    if is_new {
        return fs::remove_dir_all(directory);
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) }?;
    }
    Ok(())
}

//! `msl-sim`: checks Metal sources and runs their kernels, without a Mac. It knows the command line and how results are printed.

mod check;
mod description;
mod element;
mod report;
mod run;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A software Metal device: type-checks `.metal` files, runs their kernels on the CPU, and checks every access to memory.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Type-check Metal sources as Apple's compiler would, and warn of likely mistakes. Exit code 1 if there is an error.
    Check {
        /// The `.metal` files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        options: SourceOptions,
        /// Generate code too, with its accesses checked, as `run` does.
        #[arg(long)]
        build: bool,
        /// Print a JSON list.
        #[arg(long)]
        json: bool,
    },
    /// Run a dispatch that a JSON file describes, and check it. Exit code 1 if something is found.
    Run {
        /// The description; the README of msl-sim says what it holds. Paths in it are relative to it.
        dispatch: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Do not check accesses: faster.
        #[arg(long)]
        unchecked: bool,
    },
}

#[derive(clap::Args)]
struct SourceOptions {
    /// Where `#include` looks.
    #[arg(short = 'I', value_name = "DIR")]
    include: Vec<PathBuf>,
    /// A macro, and its value (1 if none is given).
    #[arg(short = 'D', value_name = "NAME[=VALUE]")]
    define: Vec<String>,
}

/// What goes wrong before anything could be checked.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Check { files, options, build, json } => check::check(&files, &options, build, json),
        Command::Run { dispatch, json, unchecked } => run::run(&dispatch, json, !unchecked),
    };
    match result.and_then(print) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("msl-sim: {failure}");
            ExitCode::from(2)
        }
    }
}

/// Prints the text, as far as somebody reads it; passes the verdict on.
fn print((text, verdict): (String, bool)) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(verdict),
    }
}

/// Reads a file; the error names it.
fn read(path: &std::path::Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

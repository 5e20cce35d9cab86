//! The binary: runs the command line and turns its end into an exit code. Knows no command.

use std::process::ExitCode;

fn main() -> ExitCode {
    vllm_apple::cli::main()
}

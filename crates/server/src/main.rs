//! The binary: runs the command line and turns its end into an exit code. Knows no command.

use std::process::ExitCode;

use vllm_apple::memory::{self, BoundedAllocator};

#[global_allocator]
static ALLOCATOR: BoundedAllocator = BoundedAllocator;

fn main() -> ExitCode {
    memory::give_back_early();
    vllm_apple::cli::main()
}

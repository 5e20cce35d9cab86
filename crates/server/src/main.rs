//! The binary: runs the command line and turns its end into an exit code. Knows no command.

use std::process::ExitCode;

use vllm_apple::memory::BoundedAllocator;

#[global_allocator]
static ALLOCATOR: BoundedAllocator = BoundedAllocator;

fn main() -> ExitCode {
    vllm_apple::cli::main()
}

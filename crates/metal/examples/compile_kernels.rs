//! Compiles every kernel, for every type and size that conformance has, with the compiler of the device at hand, and runs none: on
//! macOS Apple's, also on a virtual machine, elsewhere that of the software device.
//!
//! `cargo run --release -p vllm-apple-metal --features fake --example compile_kernels`

use std::collections::BTreeSet;
use std::time::Instant;

use vllm_apple_metal::gpu::Gpu;
use vllm_apple_metal::gpu::compile_only::CompileOnly;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::conformance;

#[cfg(target_os = "macos")]
fn compiler() -> Result<impl Gpu, vllm_apple_metal::gpu::GpuError> {
    use vllm_apple_metal::gpu::apple::{AppleGpu, PATIENCE};
    AppleGpu::open(PATIENCE, &MetalOptions { allow_vm: true, ..MetalOptions::default() })
}

#[cfg(not(target_os = "macos"))]
fn compiler() -> Result<impl Gpu, vllm_apple_metal::gpu::GpuError> {
    vllm_apple_metal::gpu::software::SoftwareGpu::fast()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let gpu = CompileOnly::new(compiler()?);
    let name = gpu.facts().name.clone();
    let mut backend = MetalBackend::new(gpu, MetalOptions { strict: true, ..MetalOptions::default() })?;
    // What the ops compute is nothing: only what could not be compiled counts.
    let mut failures: BTreeSet<String> =
        conformance::run(&mut backend).into_iter().filter_map(|verdict| verdict.failure).collect();
    failures.extend(backend.replaced().map(|(_, reason)| reason.to_owned()));
    for failure in &failures {
        eprintln!("{failure}");
    }
    let (pipelines, functions) = backend.num_pipelines();
    println!("{name}: {pipelines} pipelines of {functions} functions in {:.1} s", start.elapsed().as_secs_f64());
    if failures.is_empty() { Ok(()) } else { Err(format!("{} failures", failures.len()).into()) }
}

//! The bytes that matmuls of decode steps move on the software Metal device, against the fewest possible: behind a cache of 1 MiB,
//! and as the kernels' loads ask for them. Shapes of Qwen2-0.5B and Qwen2-7B; takes minutes.
//!
//! `cargo run --example matmul_traffic [float16|bfloat16|float32] [part of a name]`

use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{DType, traffic};

/// Name, N, K.
const SHAPES: [(&str, usize, usize); 9] = [
    ("Qwen2-0.5B qkv", 1152, 896),
    ("Qwen2-0.5B o", 896, 896),
    ("Qwen2-0.5B gate_up", 9728, 896),
    ("Qwen2-0.5B down", 896, 4864),
    ("Qwen2-0.5B lm_head", 151936, 896),
    ("Qwen2-7B qkv", 4608, 3584),
    ("Qwen2-7B o", 3584, 3584),
    ("Qwen2-7B gate_up", 37888, 3584),
    ("Qwen2-7B down", 3584, 18944),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dtype = args.next().unwrap_or_else(|| "bfloat16".to_owned());
    let dtype = DType::FLOATS.into_iter().find(|known| known.to_string() == dtype).ok_or("no such float type")?;
    let only = args.next().unwrap_or_default();
    let mut backend =
        MetalBackend::new(SoftwareGpu::counting()?, MetalOptions { strict: true, ..MetalOptions::default() })?;
    for (name, n, k) in SHAPES.into_iter().filter(|shape| shape.0.contains(&only)) {
        for probe in traffic::matmul(&mut backend, dtype, name, n, k)? {
            println!(
                "{probe}; loads and stores: {:.3}",
                (probe.traffic.loaded + probe.traffic.stored) as f64 / probe.minimum as f64
            );
        }
    }
    Ok(())
}

//! Prints how fast paged attention is: prefill as a fraction of the f32 multiply-add peak, decode as a fraction of the read
//! bandwidth. Run with `cargo run --release -p vllm-apple-cpu --example attention_speed`.

use std::time::Instant;

use vllm_apple_cpu::{CpuBackend, roofline};
use vllm_apple_ops::*;

/// Query heads, key heads, head size: Qwen2-0.5B and Llama-3-8B.
const MODELS: [[usize; 3]; 2] = [[14, 2, 64], [32, 8, 128]];
/// Requests, tokens in the cache, new tokens of each.
const STEPS: [[usize; 3]; 6] = [[1, 0, 512], [1, 3584, 512], [1, 512, 1], [1, 4096, 1], [8, 4096, 1], [16, 1024, 1]];
const BLOCK_SIZE: usize = 16;
/// Caches that are used in turn, so that decodes read memory as they do in a model of many layers.
const LAYERS: usize = 8;

fn main() -> Result<()> {
    let mut backend = CpuBackend::new(None);
    let peak = roofline::peak_flops_of(backend.pool(), backend.isa(), DType::F32);
    let bandwidth = roofline::read_bandwidth(backend.pool()).expect("memory for a measurement");
    println!("{}: {:.0} GFLOP/s, {:.1} GB/s", backend.device().description, peak / 1e9, bandwidth / 1e9);
    for [heads, kv_heads, head_dim] in MODELS {
        for [requests, cached, new] in STEPS {
            let seconds = measure(&mut backend, [heads, kv_heads, head_dim], [requests, cached, new])?;
            // Every query with the keys and values up to its own position.
            let pairs = requests * heads * (new * cached + new * (new + 1) / 2);
            let flops = (4 * pairs * head_dim) as f64 / seconds;
            let bytes = (requests * (cached + new) * 2 * kv_heads * head_dim * 2) as f64 / seconds;
            println!(
                "{heads}/{kv_heads} heads of {head_dim}, {requests} x ({cached} + {new}): {:.0} us, {:.0} GFLOP/s ({:.0}%), {:.1} GB/s ({:.0}%)",
                seconds * 1e6,
                flops / 1e9,
                100.0 * flops / peak,
                bytes / 1e9,
                100.0 * bytes / bandwidth
            );
        }
    }
    Ok(())
}

/// Seconds of one call with a bf16 cache, the best of several.
fn measure(backend: &mut CpuBackend, heads: [usize; 3], step: [usize; 3]) -> Result<f64> {
    let ([num_heads, num_kv_heads, head_dim], [num_requests, cached, new]) = (heads, step);
    let seq_len = cached + new;
    let stride = seq_len.div_ceil(BLOCK_SIZE);
    let spec = KvSpec {
        dtype: DType::BF16,
        num_blocks: num_requests * stride,
        block_size: BLOCK_SIZE,
        num_kv_heads,
        head_dim,
    };
    let mut caches = Vec::new();
    for _ in 0..LAYERS {
        let mut cache = backend.allocate_kv_cache(spec)?;
        // Touched, so that it is not all the same page of zeros.
        cache.keys.bytes_mut().fill(0x3c);
        cache.values.bytes_mut().fill(0x3c);
        caches.push(cache);
    }
    let upload = |values: Vec<u32>| -> Result<_> {
        let mut tensor = backend.allocate(DType::U32, 1, values.len())?;
        backend.write(&mut tensor, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
        Ok(tensor)
    };
    let num_tokens = num_requests * new;
    // Blocks of a request are spread over the pool.
    let table = |i: usize| (i * 7919 % (num_requests * stride)) as u32;
    let sequences = Sequences {
        num_requests,
        num_tokens,
        max_seq_len: seq_len,
        sum_seq_lens: num_requests * seq_len,
        max_query_len: new,
        query_start_loc: upload((0..=num_requests).map(|r| (r * new) as u32).collect())?,
        seq_lens: upload(vec![seq_len as u32; num_requests])?,
        block_table: upload((0..num_requests * stride).map(table).collect())?,
        block_table_stride: stride,
    };
    let qkv = backend.allocate(DType::F32, num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)?;
    let mut out = backend.allocate(DType::BF16, num_tokens, num_heads * head_dim)?;
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        let start = Instant::now();
        for cache in &caches {
            let (sequences, out) = (&sequences, &mut out);
            PagedAttention { sequences, qkv: &qkv, num_heads, scale: 0.1, window: None, cache, out }.run(backend)?;
        }
        best = best.min(start.elapsed().as_secs_f64() / LAYERS as f64);
    }
    Ok(best)
}

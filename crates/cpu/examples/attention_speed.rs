//! Prints how fast paged attention is: prefill as a fraction of the f32 multiply-add peak, decode as a fraction of the read
//! bandwidth, each limit the larger of what is measured before and after. Run with
//! `cargo run --release -p vllm-apple-cpu --example attention_speed -- [THREADS] [INSTRUCTIONS..]`. Several
//! instruction sets are measured in turn, round by round, so that what else the machine does meets them all.

use std::ops::Range;
use std::time::{Duration, Instant};

use vllm_apple_cpu::{CpuBackend, Isa, roofline};
use vllm_apple_ops::*;

/// Query heads, key heads, head size: Qwen2-0.5B, Llama-3.2-1B, Qwen2.5-3B, Llama-3-8B.
const MODELS: [[usize; 3]; 4] = [[14, 2, 64], [32, 8, 64], [16, 2, 128], [32, 8, 128]];
/// Requests, tokens in the cache, new tokens of each.
const STEPS: [[usize; 3]; 6] =
    [[1, 0, 512], [1, 3584, 512], [1, 15872, 512], [1, 4096, 1], [8, 4096, 1], [1, 32768, 1]];
const BLOCK_SIZE: usize = 32;
/// Caches that are used in turn, so that decodes read memory as they do in a model of many layers.
const LAYERS: usize = 16;

/// Rounds over all of them.
const ROUNDS: Range<usize> = 1..12;
const LONG_ENOUGH: Duration = Duration::from_millis(1500);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map(|threads| threads.parse().expect("a number of threads"));
    let mut sets: Vec<Isa> = arguments.map(|name| name.parse().expect("an instruction set")).collect();
    if sets.is_empty() {
        sets.push(Isa::best());
    }
    let mut backends: Vec<_> = sets.iter().map(|&isa| CpuBackend::with_isa(threads, isa)).collect();
    println!("{}", backends[0].device().description);
    for [heads, kv_heads, head_dim] in MODELS {
        for [requests, cached, new] in STEPS {
            // Every query with the keys and values up to its own position.
            let pairs = requests * heads * (new * cached + new * (new + 1) / 2);
            let flops = (4 * pairs * head_dim) as f64;
            let bytes = (requests * (cached + new) * 2 * kv_heads * head_dim * 2) as f64;
            let before = limits(&backends[0]);
            let all = measure(&mut backends, [heads, kv_heads, head_dim], [requests, cached, new])?;
            let after = limits(&backends[0]);
            let [peak, bandwidth] = [before[0].max(after[0]), before[1].max(after[1])];
            println!(
                "{heads}/{kv_heads} heads of {head_dim}, {requests} x ({cached} + {new}); {:.0} GFLOP/s, {:.1} GB/s",
                peak / 1e9,
                bandwidth / 1e9
            );
            for (isa, mut calls) in sets.iter().zip(all) {
                calls.sort_by(f64::total_cmp);
                let [best, tenth, median] = [0, calls.len() / 10, calls.len() / 2].map(|i| calls[i]);
                println!(
                    "  {isa}: best {:.0} us, a tenth below {:.0}, median {:.0}; {:.0} GFLOP/s ({:.0}%), {:.1} GB/s ({:.0}%)",
                    best * 1e6,
                    tenth * 1e6,
                    median * 1e6,
                    flops / best / 1e9,
                    100.0 * flops / best / peak,
                    bytes / best / 1e9,
                    100.0 * bytes / best / bandwidth
                );
            }
        }
    }
    Ok(())
}

/// The machine's, which change from one minute to the next where others use it, too.
fn limits(backend: &CpuBackend) -> [f64; 2] {
    let peak = roofline::peak_flops_of(backend.pool(), backend.isa(), DType::F32);
    [peak, roofline::read_bandwidth(backend.pool()).expect("memory for a measurement")]
}

/// Seconds of calls with a bf16 cache by each backend, one after the other.
fn measure(backends: &mut [CpuBackend], heads: [usize; 3], step: [usize; 3]) -> Result<Vec<Vec<f64>>> {
    let backend = &mut backends[0];
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
    let mut seconds = vec![Vec::new(); backends.len()];
    let begin = Instant::now();
    // The first round warms up.
    for round in 0..ROUNDS.end {
        for (backend, seconds) in backends.iter_mut().zip(&mut seconds) {
            for cache in &caches {
                let (sequences, out) = (&sequences, &mut out);
                let start = Instant::now();
                PagedAttention { sequences, qkv: &qkv, num_heads, scale: 0.1, window: None, sinks: None, cache, out }
                    .run(backend)?;
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        if round > ROUNDS.start && begin.elapsed() > LONG_ENOUGH {
            break;
        }
    }
    Ok(seconds)
}

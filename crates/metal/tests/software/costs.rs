//! What the kernels of matrices cost besides multiplying: bytes of threadgroup and device memory that are asked for, and barriers. Counted
//! by the software device, per 64x64x64 product, which is 512 products of 8x8 matrices, where a kernel is in its stride: what it costs to
//! begin and to end is left out. The table is in docs/PERFORMANCE.md, and printed by
//! `cargo test -p vllm-apple-metal --test software costs -- --nocapture`.

use msl_sim::{Counts, Traffic};
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{
    Backend, DType, HostTensor, KvSpec, Matmul, PagedAttention, Sequences, Weight, WeightFormat, WeightSource,
};

type Metal = MetalBackend<SoftwareGpu>;

/// Per 512 products of 8x8 matrices.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// KiB of threadgroup memory that are loaded, and stored.
    threadgroup: [f64; 2],
    /// KiB of device memory that loads ask for.
    device: f64,
    /// Simdgroups that wait at barriers of the threadgroup, each time that one does.
    waits: f64,
}

/// What is counted of a run.
struct Counted {
    counts: Counts,
    traffic: Traffic,
}

impl Cost {
    /// What a longer run costs beyond a shorter one of the same grid.
    fn between(short: &Counted, long: &Counted) -> Self {
        let products = (long.counts.matrix_products - short.counts.matrix_products) as f64 / 512.0;
        let of = |long: u64, short: u64| (long - short) as f64 / products;
        let kib = |long, short| of(long, short) / 1024.0;
        let simdgroups = long.counts.threads / 32 / long.counts.threadgroups;
        let (l, s) = (&long.traffic, &short.traffic);
        Self {
            threadgroup: [
                kib(l.threadgroup_loaded, s.threadgroup_loaded),
                kib(l.threadgroup_stored, s.threadgroup_stored),
            ],
            device: kib(l.loaded, s.loaded),
            waits: of(long.counts.barriers, short.counts.barriers) * simdgroups as f64,
        }
    }
}

fn backend() -> Metal {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    MetalBackend::new(SoftwareGpu::counting().unwrap(), options).unwrap()
}

/// What has been counted since the last call.
fn counted(backend: &mut Metal) -> Counted {
    let (counts, traffic) = backend.gpu_mut().take_counts();
    Counted { counts, traffic }
}

/// A product of zeros.
fn matmul(dtype: DType, rows: usize, k: usize) -> Counted {
    const OUTPUTS: usize = 128;
    let mut backend = backend();
    let bytes = vec![0; OUTPUTS * k * dtype.size()];
    let part = HostTensor { dtype, rows: OUTPUTS, cols: k, bytes: &bytes, file: None };
    let weight: Weight<_> =
        backend.load_weight(WeightSource::matrix("zeros", &[part]), WeightFormat::Float(dtype)).unwrap();
    let x = backend.allocate(dtype, rows, k).unwrap();
    let mut out = backend.allocate(DType::F32, rows, OUTPUTS).unwrap();
    counted(&mut backend);
    Matmul { rows, x: &x, weight: &weight, bias: None, out: &mut out, first: 0 }.run(&mut backend).unwrap();
    backend.synchronize().unwrap();
    counted(&mut backend)
}

/// Attention of a request's last `tokens` to all of its `len`, with four query heads a key head, in a cache of zeros.
fn attention(dtype: DType, head_dim: usize, tokens: usize, len: usize) -> Counted {
    const BLOCK: usize = 16;
    const KV_HEADS: usize = 2;
    const HEADS: usize = 4 * KV_HEADS;
    let mut backend = backend();
    let num_blocks = len.div_ceil(BLOCK);
    let spec = KvSpec { dtype, num_blocks, block_size: BLOCK, num_kv_heads: KV_HEADS, head_dim };
    let cache = backend.allocate_kv_cache(spec).unwrap();
    let integers = |values: &[u32]| {
        let mut tensor = backend.allocate(DType::U32, 1, values.len()).unwrap();
        backend.write(&mut tensor, bytemuck::cast_slice(values));
        tensor
    };
    let sequences = Sequences {
        num_requests: 1,
        num_tokens: tokens,
        max_seq_len: len,
        sum_seq_lens: len,
        max_query_len: tokens,
        query_start_loc: integers(&[0, tokens as u32]),
        seq_lens: integers(&[len as u32]),
        block_table: integers(&(0..num_blocks as u32).collect::<Vec<_>>()),
        block_table_stride: num_blocks,
    };
    let qkv = backend.allocate(DType::F32, tokens, HEADS * head_dim).unwrap();
    let mut out = backend.allocate(dtype, tokens, HEADS * head_dim).unwrap();
    counted(&mut backend);
    let (sequences, qkv, cache, out) = (&sequences, &qkv, &cache, &mut out);
    PagedAttention { sequences, qkv, num_heads: HEADS, scale: 1.0, window: None, sinks: None, cache, out }
        .run(&mut backend)
        .unwrap();
    backend.synchronize().unwrap();
    counted(&mut backend)
}

/// Prints a row of the table, and fails if it is more than `most`: KiB loaded and stored, KiB of device memory, simdgroups that wait.
fn check(kernel: &str, cost: Cost, most: [f64; 4]) {
    let Cost { threadgroup: [loaded, stored], device, waits } = cost;
    println!("| {kernel} | {loaded:.1} | {stored:.1} | {device:.1} | {waits:.1} |");
    let within = [loaded, stored, device, waits].iter().zip(most).all(|(cost, most)| *cost <= most);
    assert!(within, "{kernel}: {cost:?}, at most {most:?}");
}

#[test]
fn products_ask_for_little_memory_and_few_barriers() {
    for (dtype, size) in [(DType::BF16, 1.0), (DType::F32, 2.0)] {
        let most = [
            (8, [0.0, 0.0, 96.0, 0.0]),
            (16, [0.0, 0.0, 64.0, 0.0]),
            (32, [0.0, 0.0, 48.0, 0.0]),
            (64, [0.0, 0.0, 48.0, 0.0]),
            (128, [32.0, 16.0, 16.0, 8.0]),
        ];
        for (rows, most) in most {
            let cost = Cost::between(&matmul(dtype, rows, 1024), &matmul(dtype, rows, 2048));
            check(&format!("matmul, {rows} rows, {dtype}"), cost, most.map(|most| most * size));
        }
    }
}

#[test]
fn attention_asks_for_little_memory_and_few_barriers() {
    // Of a decode, and of a prompt so long that its tiles are wide.
    for (head_dim, decode, prompt) in [
        (64, [22.5, 7.2, 68.0, 6.0], [23.0, 5.2, 33.0, 4.0]),
        (128, [21.5, 7.1, 66.7, 5.0], [22.0, 6.1, 33.5, 5.0]),
        (256, [21.0, 7.1, 66.0, 6.3], [21.5, 6.1, 65.5, 5.0]),
    ] {
        for (what, tokens, most) in [("decode", 1, decode), ("prompt", 512, prompt)] {
            let counted = |len| attention(DType::BF16, head_dim, tokens, len);
            let cost = Cost::between(&counted(1024), &counted(1536));
            check(&format!("attention, heads of {head_dim}, {what}"), cost, most);
        }
    }
}

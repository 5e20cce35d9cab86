//! Attention of a decode step moves little more than it must: each key and value of the sequences once, queries and outputs.

use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::*;

/// A multiple of the fewest bytes.
const MOST: f64 = 1.10;
const BLOCK_SIZE: usize = 16;

type Metal = MetalBackend<SoftwareGpu>;

fn integers(backend: &Metal, values: Vec<u32>) -> Tensor<<Metal as Backend>::Memory> {
    let mut tensor = backend.allocate(DType::U32, 1, values.len()).unwrap();
    backend.write(&mut tensor, bytemuck::cast_slice(&values));
    tensor
}

/// What attention moves for one new token of each of `batch` requests, and the fewest bytes that it could.
fn decode([num_heads, num_kv_heads, head_dim]: [usize; 3], batch: usize, context: usize) -> (Traffic, f64) {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(SoftwareGpu::counting().unwrap(), options).unwrap();
    let dtype = DType::BF16;
    let stride = context.div_ceil(BLOCK_SIZE);
    let spec = KvSpec { dtype, num_blocks: batch * stride, block_size: BLOCK_SIZE, num_kv_heads, head_dim };
    let cache = backend.allocate_kv_cache(spec).unwrap();
    let sequences = Sequences {
        num_requests: batch,
        num_tokens: batch,
        max_seq_len: context,
        max_query_len: 1,
        query_start_loc: integers(&backend, (0..=batch as u32).collect()),
        seq_lens: integers(&backend, vec![context as u32; batch]),
        block_table: integers(&backend, (0..spec.num_blocks as u32).collect()),
        block_table_stride: stride,
    };
    let qkv = backend.allocate(DType::F32, batch, (num_heads + 2 * num_kv_heads) * head_dim).unwrap();
    let mut out = backend.allocate(dtype, batch, num_heads * head_dim).unwrap();
    backend.take_traffic();
    let op = PagedAttention {
        sequences: &sequences,
        qkv: &qkv,
        num_heads,
        scale: 0.1,
        window: None,
        cache: &cache,
        out: &mut out,
    };
    op.run(&mut backend).unwrap();
    backend.finish().unwrap();
    let minimum = spec.bytes() + batch * num_heads * head_dim * (size_of::<f32>() + dtype.size());
    (backend.take_traffic().expect("the device counts"), minimum as f64)
}

#[test]
fn decode_moves_little_more_than_the_cache() {
    // Qwen2-0.5B and Qwen2-7B.
    for shape in [[14, 2, 64], [28, 4, 128]] {
        for (batch, context) in [(1, 1024), (1, 4096), (8, 1024)] {
            let (traffic, minimum) = decode(shape, batch, context);
            for (what, bytes) in [("moved", traffic.moved()), ("asked for", traffic.loaded + traffic.stored)] {
                let ratio = bytes as f64 / minimum;
                let case = format!("{shape:?}, {batch} x {context} tokens: {ratio:.3} of the fewest bytes are {what}");
                assert!((1.0..=MOST).contains(&ratio), "{case}");
                println!("{case}");
            }
        }
    }
}

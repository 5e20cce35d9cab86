//! Attention gives a request the same bits however it is run: alone or in a batch, whole or in chunks, in any blocks, on any
//! number of threads.

use std::ops::Range;

use proptest::prelude::*;
use vllm_apple_cpu::{CpuBackend, Isa};
use vllm_apple_ops::*;

const BLOCK_SIZE: usize = 16;
const MAX_LEN: usize = 640;
const BLOCKS_PER_REQUEST: usize = MAX_LEN / BLOCK_SIZE;

/// What stays the same in all runs.
#[derive(Debug, Clone, Copy)]
struct Shape {
    isa: Isa,
    dtype: DType,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
}

/// A backend with a cache for some requests, each with blocks of its own.
struct World {
    shape: Shape,
    backend: CpuBackend,
    cache: KvCache<<CpuBackend as Backend>::Memory>,
    blocks: Vec<u32>,
}

impl World {
    fn new(shape: Shape, threads: usize, requests: usize, seed: u64) -> Self {
        let backend = CpuBackend::with_isa(Some(threads), shape.isa);
        let num_blocks = requests * BLOCKS_PER_REQUEST;
        let spec = KvSpec {
            dtype: shape.dtype,
            num_blocks,
            block_size: BLOCK_SIZE,
            num_kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        };
        let cache = backend.allocate_kv_cache(spec).unwrap();
        let mut blocks: Vec<u32> = (0..num_blocks as u32).collect();
        blocks.sort_by_key(|&b| if seed == 0 { u64::from(b) } else { random(seed, u64::from(b), 0) });
        Self { shape, backend, cache, blocks }
    }

    fn tensor(&self, dtype: DType, rows: usize, bytes: &[u8]) -> Tensor<<CpuBackend as Backend>::Memory> {
        let mut tensor = self.backend.allocate(dtype, rows, bytes.len() / rows / dtype.size()).unwrap();
        self.backend.write(&mut tensor, bytes);
        tensor
    }

    fn integers(&self, values: impl Iterator<Item = usize>) -> Tensor<<CpuBackend as Backend>::Memory> {
        self.tensor(DType::U32, 1, &values.flat_map(|v| (v as u32).to_le_bytes()).collect::<Vec<_>>())
    }

    /// Writes the new tokens of each `(request, positions)` and attends; the bytes of each one's outputs.
    fn step(&mut self, batch: &[(usize, Range<usize>)]) -> Vec<Vec<u8>> {
        let Shape { dtype, heads, kv_heads, head_dim, window, .. } = self.shape;
        let width = (heads + 2 * kv_heads) * head_dim;
        let tokens: Vec<(usize, usize)> = batch.iter().flat_map(|(r, p)| p.clone().map(|p| (*r, p))).collect();
        let floats: Vec<f32> = tokens.iter().flat_map(|&(r, p)| token(r, p, width)).collect();
        let mut qkv = self.tensor(DType::F32, tokens.len(), &DType::F32.encode(&floats));
        let slot = |&(r, p): &(usize, usize)| {
            self.blocks[r * BLOCKS_PER_REQUEST + p / BLOCK_SIZE] as usize * BLOCK_SIZE + p % BLOCK_SIZE
        };
        let (positions, slots) = (self.integers(tokens.iter().map(|_| 0)), self.integers(tokens.iter().map(slot)));
        let table = RopeTable {
            cos: self.tensor(DType::F32, 1, &DType::F32.encode(&vec![1.0; head_dim / 2])),
            sin: self.tensor(DType::F32, 1, &DType::F32.encode(&vec![0.0; head_dim / 2])),
        };
        let starts = (0..=batch.len()).map(|i| batch[..i].iter().map(|b| b.1.len()).sum());
        let block_table = batch.iter().flat_map(|(r, _)| &self.blocks[r * BLOCKS_PER_REQUEST..][..BLOCKS_PER_REQUEST]);
        let sequences = Sequences {
            num_requests: batch.len(),
            num_tokens: tokens.len(),
            max_seq_len: batch.iter().map(|b| b.1.end).max().unwrap(),
            max_query_len: batch.iter().map(|b| b.1.len()).max().unwrap(),
            query_start_loc: self.integers(starts),
            seq_lens: self.integers(batch.iter().map(|b| b.1.end)),
            block_table: self.integers(block_table.map(|&b| b as usize)),
            block_table_stride: BLOCKS_PER_REQUEST,
        };
        let write = RopeKvWrite {
            rows: tokens.len(),
            qkv: &mut qkv,
            num_heads: heads,
            positions: &positions,
            slot_mapping: &slots,
            table: &table,
            cache: &mut self.cache,
        };
        write.run(&mut self.backend).unwrap();
        let mut out = self.backend.allocate(dtype, tokens.len(), heads * head_dim).unwrap();
        let attention = PagedAttention {
            sequences: &sequences,
            qkv: &qkv,
            num_heads: heads,
            scale: 0.3,
            window,
            cache: &self.cache,
            out: &mut out,
        };
        attention.run(&mut self.backend).unwrap();
        let mut bytes = self.backend.read(&out).chunks_exact(heads * head_dim * dtype.size());
        batch.iter().map(|b| bytes.by_ref().take(b.1.len()).flatten().copied().collect()).collect()
    }
}

/// A hash of three numbers (the finaliser of SplitMix64).
fn random(a: u64, b: u64, c: u64) -> u64 {
    [a, b, c].into_iter().fold(0x9e37_79b9_7f4a_7c15, |h, x| {
        let z = (h ^ x).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Query, key and value of a token: a function of request and position alone.
fn token(request: usize, position: usize, width: usize) -> impl Iterator<Item = f32> {
    let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    (0..width as u64).map(move |i| 3.0 * unit(random(request as u64, position as u64, i)))
}

/// The shape, the requests' lengths, threads, and a seed for blocks, chunks and order.
fn workloads() -> impl Strategy<Value = (Shape, Vec<usize>, usize, u64)> {
    let shape = (
        prop::sample::select(Isa::available()),
        prop::sample::select(DType::FLOATS.to_vec()),
        prop::sample::select(vec![(14, 2, 64), (4, 4, 40), (3, 1, 128), (8, 2, 8)]),
        prop::sample::select(vec![None, Some(7), Some(200), Some(256)]),
    )
        .prop_map(|(isa, dtype, (heads, kv_heads, head_dim), window)| Shape {
            isa,
            dtype,
            heads,
            kv_heads,
            head_dim,
            window,
        });
    (shape, prop::collection::vec(1..=MAX_LEN, 1..4), 1..4usize, 1..u64::MAX)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_request_has_the_same_bits_in_any_batch_chunks_blocks_and_threads((shape, lens, threads, seed) in workloads()) {
        let mut world = World::new(shape, threads, lens.len(), seed);
        let mut done = vec![0; lens.len()];
        let mut got = vec![Vec::new(); lens.len()];
        let mut step = 0;
        while done != lens {
            step += 1;
            let mut batch = Vec::new();
            for (r, &len) in lens.iter().enumerate() {
                let draw = random(seed, step, r as u64);
                // Sometimes nothing, sometimes one token, sometimes a chunk.
                let most = [0, 1, 17, 300][draw as usize % 4];
                let chunk = (1 + (draw >> 8) as usize % 300).min(most).min(len - done[r]);
                if chunk > 0 {
                    batch.push((r, done[r]..done[r] + chunk));
                }
            }
            batch.sort_by_key(|b| random(seed, step, 1000 + b.0 as u64));
            if batch.is_empty() {
                continue;
            }
            for ((r, positions), out) in batch.iter().zip(world.step(&batch)) {
                done[*r] = positions.end;
                got[*r].extend(out);
            }
        }
        for (r, &len) in lens.iter().enumerate() {
            let alone = World::new(shape, 1, lens.len(), 0).step(&[(r, 0..len)]);
            prop_assert!(alone[0] == got[r], "request {r} of {len} tokens differs from its run alone");
        }
    }
}

#[test]
fn a_long_decode_has_the_same_bits_on_any_number_of_threads() {
    for isa in Isa::available() {
        let shape = Shape { isa, dtype: DType::BF16, heads: 7, kv_heads: 1, head_dim: 64, window: None };
        let mut outputs = (1..6).map(|threads| {
            let mut world = World::new(shape, threads, 1, 0);
            world.step(&[(0, 0..MAX_LEN - 1)]);
            world.step(&[(0, MAX_LEN - 1..MAX_LEN)])
        });
        let one = outputs.next().unwrap();
        assert!(outputs.all(|many| many == one), "{isa}");
    }
}

#[test]
fn a_block_size_that_does_not_fit_vectors_is_refused_with_advice() {
    let spec = KvSpec { dtype: DType::F32, num_blocks: 1, block_size: 8, num_kv_heads: 1, head_dim: 8 };
    let message = CpuBackend::new(Some(1)).allocate_kv_cache(spec).unwrap_err().to_string();
    assert!(message.contains("block size 8") && message.contains("--block-size 16"), "{message}");
}

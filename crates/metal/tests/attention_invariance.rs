//! Attention gives a request the same bits however it is run: alone or in a batch, whole or in chunks, in any blocks, with a
//! threadgroup for all splits of a sequence or one for each.

use std::ops::Range;

use proptest::prelude::*;
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::*;

type Metal = MetalBackend<SoftwareGpu>;
type Memory = <Metal as Backend>::Memory;

const BLOCK_SIZE: usize = 16;

/// What stays the same in all runs.
#[derive(Debug, Clone, Copy)]
struct Shape {
    dtype: DType,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    /// Positions that a request may have.
    max_len: usize,
}

/// A backend with a cache for some requests, each with blocks of its own.
struct World {
    shape: Shape,
    backend: Metal,
    cache: KvCache<Memory>,
    blocks: Vec<u32>,
}

impl World {
    /// Blocks lie in the order of `seed`, one after the other for 0.
    fn new(shape: Shape, requests: usize, seed: u64) -> Self {
        let options = MetalOptions { strict: true, ..MetalOptions::default() };
        let backend = MetalBackend::new(SoftwareGpu::fast().unwrap(), options).unwrap();
        let num_blocks = requests * shape.max_len.div_ceil(BLOCK_SIZE);
        let Shape { dtype, kv_heads: num_kv_heads, head_dim, .. } = shape;
        let spec = KvSpec { dtype, num_blocks, block_size: BLOCK_SIZE, num_kv_heads, head_dim };
        let cache = backend.allocate_kv_cache(spec).unwrap();
        let mut blocks: Vec<u32> = (0..num_blocks as u32).collect();
        blocks.sort_by_key(|&b| if seed == 0 { u64::from(b) } else { random(seed, u64::from(b), 0) });
        Self { shape, backend, cache, blocks }
    }

    fn tensor(&self, dtype: DType, rows: usize, bytes: &[u8]) -> Tensor<Memory> {
        let mut tensor = self.backend.allocate(dtype, rows, bytes.len() / rows / dtype.size()).unwrap();
        self.backend.write(&mut tensor, bytes);
        tensor
    }

    fn integers(&self, values: impl Iterator<Item = usize>) -> Tensor<Memory> {
        self.tensor(DType::U32, 1, &values.flat_map(|v| (v as u32).to_le_bytes()).collect::<Vec<_>>())
    }

    /// Blocks of a request.
    fn blocks_per_request(&self) -> usize {
        self.shape.max_len.div_ceil(BLOCK_SIZE)
    }

    fn slot(&self, request: usize, position: usize) -> usize {
        let block = self.blocks[request * self.blocks_per_request() + position / BLOCK_SIZE];
        block as usize * BLOCK_SIZE + position % BLOCK_SIZE
    }

    /// Writes rows to the cache, unrotated.
    fn write(&mut self, qkv: &mut Tensor<Memory>, slots: &[usize]) {
        let half = self.shape.head_dim / 2;
        let table = RopeTable {
            cos: self.tensor(DType::F32, 1, &DType::F32.encode(&vec![1.0; half])),
            sin: self.tensor(DType::F32, 1, &DType::F32.encode(&vec![0.0; half])),
        };
        let op = RopeKvWrite {
            rows: slots.len(),
            qkv,
            num_heads: self.shape.heads,
            positions: &self.integers(slots.iter().map(|_| 0)),
            slot_mapping: &self.integers(slots.iter().copied()),
            table: &table,
            cache: &mut self.cache,
        };
        op.run(&mut self.backend).unwrap();
        self.backend.finish().unwrap();
    }

    /// Queries, keys and values of tokens.
    fn rows(&self, tokens: &[(usize, usize)]) -> Tensor<Memory> {
        let Shape { heads, kv_heads, head_dim, .. } = self.shape;
        let width = (heads + 2 * kv_heads) * head_dim;
        let floats: Vec<f32> = tokens.iter().flat_map(|&(r, p)| token(r, p, width)).collect();
        self.tensor(DType::F32, tokens.len(), &DType::F32.encode(&floats))
    }

    /// Puts the tokens of a request into the cache.
    fn fill(&mut self, request: usize, positions: Range<usize>) {
        let tokens: Vec<_> = positions.map(|p| (request, p)).collect();
        let slots: Vec<_> = tokens.iter().map(|&(r, p)| self.slot(r, p)).collect();
        let mut rows = self.rows(&tokens);
        self.write(&mut rows, &slots);
    }

    /// Writes the new tokens of each `(request, positions)` and attends; the bytes of each one's outputs.
    fn step(&mut self, batch: &[(usize, Range<usize>)]) -> Vec<Vec<u8>> {
        let Shape { dtype, heads, head_dim, window, .. } = self.shape;
        let tokens: Vec<(usize, usize)> = batch.iter().flat_map(|(r, p)| p.clone().map(|p| (*r, p))).collect();
        let slots: Vec<_> = tokens.iter().map(|&(r, p)| self.slot(r, p)).collect();
        let mut qkv = self.rows(&tokens);
        self.write(&mut qkv, &slots);
        let starts = (0..=batch.len()).map(|i| batch[..i].iter().map(|b| b.1.len()).sum());
        let stride = self.blocks_per_request();
        let block_table = batch.iter().flat_map(|(r, _)| &self.blocks[r * stride..][..stride]);
        let sequences = Sequences {
            num_requests: batch.len(),
            num_tokens: tokens.len(),
            max_seq_len: batch.iter().map(|b| b.1.end).max().unwrap(),
            max_query_len: batch.iter().map(|b| b.1.len()).max().unwrap(),
            query_start_loc: self.integers(starts),
            seq_lens: self.integers(batch.iter().map(|b| b.1.end)),
            block_table: self.integers(block_table.map(|&b| b as usize)),
            block_table_stride: stride,
        };
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
        self.backend.finish().unwrap();
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

/// The shape, the requests' lengths, and a seed for blocks, chunks and order.
fn workloads() -> impl Strategy<Value = (Shape, Vec<usize>, u64)> {
    let shape = (
        prop::sample::select(DType::FLOATS.to_vec()),
        prop::sample::select(vec![(7, 1, 64), (2, 2, 40), (3, 1, 128), (8, 2, 8), (12, 1, 24), (2, 1, 256)]),
        prop::sample::select(vec![None, Some(7), Some(200), Some(256)]),
    )
        .prop_map(|(dtype, (heads, kv_heads, head_dim), window)| Shape {
            dtype,
            heads,
            kv_heads,
            head_dim,
            window,
            max_len: 544,
        });
    // Some requests have a second split.
    let len = prop_oneof![1..=200usize, 500..=544usize];
    (shape, prop::collection::vec(len, 1..4), 1..u64::MAX)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn a_request_has_the_same_bits_in_any_batch_chunks_and_blocks((shape, lens, seed) in workloads()) {
        let mut world = World::new(shape, lens.len(), seed);
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
            let alone = World::new(shape, lens.len(), 0).step(&[(r, 0..len)]);
            prop_assert!(alone[0] == got[r], "request {r} of {len} tokens differs from its run alone");
        }
    }
}

/// Few tiles get a threadgroup per split, many get one for all: see the unit tests of `Plan`, whose numbers these are.
#[test]
fn the_last_tokens_of_a_long_sequence_have_the_same_bits_by_decode_and_by_prefill() {
    for (dtype, head_dim, window) in
        [(DType::BF16, 64, None), (DType::F16, 64, Some(600)), (DType::F32, 128, None), (DType::BF16, 256, Some(1000))]
    {
        let shape = Shape { dtype, heads: 7, kv_heads: 1, head_dim, window, max_len: 1600 };
        let mut world = World::new(shape, 2, 5);
        let len = 1590;
        world.fill(0, 0..len - 200);
        world.fill(1, 0..2);
        let row = 7 * head_dim * dtype.size();
        let prefill = world.step(&[(0, len - 200..len)]).remove(0);
        for chunk in [1, 2, 9] {
            let small = world.step(&[(1, 2..3), (0, len - chunk..len)]).remove(1);
            assert!(small == prefill[prefill.len() - chunk * row..], "{chunk} tokens, {shape:?}");
        }
        for position in [len - 60, len - 1] {
            let decode = world.step(&[(0, position..position + 1)]).remove(0);
            let at = (position + 200 - len) * row;
            assert!(decode == prefill[at..][..row], "position {position}, {shape:?}");
        }
    }
}

#[test]
fn what_lies_in_slots_without_a_token_does_not_matter() {
    for dtype in DType::FLOATS {
        let shape = Shape { dtype, heads: 3, kv_heads: 1, head_dim: 40, window: None, max_len: 64 };
        let run = |rubbish: f32| {
            let mut world = World::new(shape, 1, 0);
            let slots: Vec<usize> = (0..64).collect();
            let mut rows = world.tensor(DType::F32, 64, &DType::F32.encode(&vec![rubbish; 64 * 5 * 40]));
            world.write(&mut rows, &slots);
            world.step(&[(0, 0..37)])
        };
        let clean = run(0.0);
        for rubbish in [f32::NAN, f32::INFINITY, -1e4] {
            assert!(run(rubbish) == clean, "{rubbish} in {dtype}");
        }
    }
}

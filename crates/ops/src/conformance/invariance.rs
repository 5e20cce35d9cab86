//! Batch invariance: a request must have the same bits however it is run, alone or in a batch, whole or in chunks, in any blocks. These
//! workloads are errors where a backend's bits differ; short forms of them are conformance cases. It knows no backend.

use std::ops::Range;

use super::inputs::Inputs;
use super::paged_attention::write_cache;
use super::*;

/// What verdicts call it.
pub const NAME: &str = "batch_invariance";

/// Sizes of blocks, on which bits do not depend.
const BLOCK_SIZES: [usize; 3] = [16, 32, 48];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    let equal = |result: Result<()>| result.map(|()| Outcome { error: 0.0, tolerance: 0.0 });
    for format in WeightFormat::CHECKED {
        let case = "matmul: rows alone and beside others";
        rig.case_with_weight(NAME, format, case, |backend| equal(matmul_rows(backend, format)));
    }
    let mut case = |dtype, case, body: fn(&mut B, DType) -> Result<()>| {
        rig.case(NAME, dtype, case, |backend| equal(body(backend, dtype)));
    };
    for dtype in DType::FLOATS {
        case(dtype, "add_rms_norm: rows alone, rows together, not fused", norm_rows);
        case(dtype, "attention: tokens of a long sequence, decoded and prefilled", |backend, dtype| {
            let shape = Shape {
                dtype,
                heads: ([28, 2], 64),
                window: None,
                sinks: false,
                max_len: 608,
                block_size: BLOCK_SIZES[0],
            };
            long_sequence(backend, shape, 600, 150).map(|_| ())
        });
        case(dtype, "attention with sinks: tokens of a long sequence, decoded and prefilled", |backend, dtype| {
            let shape =
                Shape { dtype, heads: ([28, 2], 64), window: Some(520), sinks: true, max_len: 608, block_size: 48 };
            long_sequence(backend, shape, 600, 150).map(|_| ())
        });
        case(dtype, "attention: slots without a token", unused_slots);
    }
}

/// The error of bits that differ.
fn same<B: Backend>(backend: &B, left: &[u8], right: &[u8], what: impl FnOnce() -> String) -> Result<()> {
    if left == right {
        return Ok(());
    }
    Err(Error::Commands { device: backend.device().backend.into(), reason: format!("other bits: {}", what()) })
}

/// N and K: rows that fit 16-byte loads, 8-byte loads, none; one slice, several, a last one that is shorter.
const MATMULS: [(usize, usize); 5] = [(40, 64), (65, 300), (17, 91), (33, 1100), (16, 4)];

/// Multiplies many rows together, and some of them apart.
fn matmul_rows<B: Backend>(backend: &mut B, format: WeightFormat) -> Result<()> {
    const ROWS: usize = 140;
    for (n, k) in MATMULS {
        let mut inputs = Inputs::new(6);
        let weight = KnownWeight::new(&mut inputs, format, [1, n, k]).upload(backend)?;
        let bias = upload(backend, DType::F32, n, &inputs.floats(n, 2.0))?;
        let x = inputs.floats(ROWS * k, 2.0);
        let run = |backend: &mut B, first: usize, rows: usize| -> Result<Vec<u8>> {
            let x = upload(backend, format.input(), k, &x[first * k..][..rows * k])?;
            let mut out = backend.allocate(DType::F32, rows, n)?;
            Matmul { rows, x: &x, weight: &weight, bias: Some(&bias), out: &mut out, first: 0 }.run(backend)?;
            backend.synchronize()?;
            Ok(backend.read(&out).to_vec())
        };
        let all = run(backend, 0, ROWS)?;
        // Tiles of every height, full and not, and every place within a matrix of 8 rows.
        for (first, rows) in
            [(0, 1), (77, 1), (3, 8), (100, 7), (5, 9), (60, 16), (11, 27), (90, 32), (20, 33), (66, 70)]
        {
            let some = run(backend, first, rows)?;
            same(backend, &some, &all[first * n * 4..][..rows * n * 4], || {
                format!("rows {first} to {} of a matmul with [{n}, {k}]", first + rows)
            })?;
        }
    }
    Ok(())
}

/// Normalises rows together, fused with the addition before and not, and each alone.
fn norm_rows<B: Backend>(backend: &mut B, dtype: DType) -> Result<()> {
    const ROWS: usize = 3;
    for hidden in [1, 90, 896, 1000, 4096] {
        let mut inputs = Inputs::new(7);
        let mut floats = |len| inputs.floats(len, 3.0);
        let (residual, delta) = (floats(ROWS * hidden), floats(ROWS * hidden));
        let sum: Vec<f32> = residual.iter().zip(&delta).map(|(r, d)| r + d).collect();
        let weight = upload(backend, DType::F32, hidden, &floats(hidden))?;
        let mut plain = |x: &[f32]| -> Result<Vec<u8>> {
            let rows = x.len() / hidden;
            let x = upload(backend, DType::F32, hidden, x)?;
            let mut out = backend.allocate(dtype, rows, hidden)?;
            RmsNorm { rows, x: &x, weight: &weight, eps: 1e-5, out: &mut out }.run(backend)?;
            backend.synchronize()?;
            Ok(backend.read(&out).to_vec())
        };
        let together = plain(&sum)?;
        let mut alone = Vec::with_capacity(together.len());
        for row in sum.chunks_exact(hidden) {
            alone.extend(plain(row)?);
        }
        same(backend, &alone, &together, || format!("norms of rows of {hidden} alone"))?;
        let mut residual = upload(backend, DType::F32, hidden, &residual)?;
        let delta = upload(backend, DType::F32, hidden, &delta)?;
        let mut out = backend.allocate(dtype, ROWS, hidden)?;
        AddRmsNorm { rows: ROWS, residual: &mut residual, delta: &delta, weight: &weight, eps: 1e-5, out: &mut out }
            .run(backend)?;
        backend.synchronize()?;
        same(backend, backend.read(&out), &together, || format!("fused norms of rows of {hidden}"))?;
    }
    Ok(())
}

/// Runs some random requests together, in random batches, chunks and blocks, and each one whole and alone, in blocks of any size.
///
/// # Errors
/// What the backends say, and outputs of a request that differ.
pub fn any_schedule<B: Backend>(together: &mut B, alone: &mut B, seed: u64) -> Result<()> {
    let mut inputs = Inputs::new(seed);
    let shape = Shape {
        dtype: inputs.one_of(&DType::FLOATS),
        heads: inputs.one_of(&[
            ([14, 2], 64),
            ([10, 2], 64),
            ([4, 1], 96),
            ([4, 4], 40),
            ([3, 1], 128),
            ([8, 2], 8),
            ([12, 1], 24),
            ([2, 1], 256),
        ]),
        window: inputs.one_of(&[None, Some(7), Some(200), Some(256)]),
        sinks: inputs.one_of(&[false, true]),
        max_len: 640,
        block_size: inputs.one_of(&BLOCK_SIZES),
    };
    let alone_shape = Shape { block_size: inputs.one_of(&BLOCK_SIZES), ..shape };
    let requests = 1 + inputs.one_below(3);
    // Many are short, and many so long that they are computed in several parts.
    let mut len = |_| {
        let (least, most) = inputs.one_of(&[(1, 200), (1, 640), (500, 640)]);
        least + inputs.one_below(most - least + 1)
    };
    let lens: Vec<usize> = (0..requests).map(&mut len).collect();
    let blocks = requests * shape.blocks();

    let mut world = World::new(together, shape, inputs.shuffled(blocks))?;
    let mut done = vec![0; requests];
    let mut got = vec![Vec::new(); requests];
    while done != lens {
        let mut batch = Vec::new();
        for r in inputs.shuffled(requests) {
            let r = r as usize;
            // Sometimes nothing, sometimes one token, sometimes a chunk.
            let most = inputs.one_of(&[0, 1, 17, 300]).min(lens[r] - done[r]);
            let chunk = most.min(1 + inputs.one_below(300));
            if chunk > 0 {
                batch.push((r, done[r]..done[r] + chunk));
            }
        }
        if batch.is_empty() {
            continue;
        }
        for ((r, positions), out) in batch.iter().zip(world.step(&batch)?) {
            done[*r] = positions.end;
            got[*r].extend(out);
        }
    }
    for (r, &len) in lens.iter().enumerate() {
        let blocks = (0..(requests * alone_shape.blocks()) as u32).collect();
        let whole = World::new(alone, alone_shape, blocks)?.step(&[(r, 0..len)])?;
        let what = || format!("request {r} of {len} tokens, {shape:?}, run alone with {alone_shape:?}");
        same(alone, &whole[0], &got[r], what)?;
    }
    Ok(())
}

/// Computes the last tokens of a long sequence in one chunk and in small ones, which devices may distribute otherwise. The outputs are
/// returned, to be compared with those of the same device set up in another way.
///
/// # Errors
/// What the backend says, and outputs of a token that differ.
pub fn decode_and_prefill<B: Backend>(backend: &mut B) -> Result<Vec<Vec<u8>>> {
    let mut outputs = Vec::new();
    for (dtype, num_heads, head_dim, window, sinks) in [
        (DType::BF16, 7, 64, None, false),
        (DType::F16, 14, 64, Some(600), true),
        (DType::F32, 7, 128, None, false),
        (DType::BF16, 14, 128, None, true),
        (DType::BF16, 7, 256, Some(1000), false),
    ] {
        let shape = Shape {
            dtype,
            heads: ([num_heads, 1], head_dim),
            window,
            sinks,
            max_len: 1600,
            block_size: BLOCK_SIZES[1],
        };
        outputs.push(long_sequence(backend, shape, 1590, 300)?);
    }
    Ok(outputs)
}

/// The outputs of the last tokens of a sequence of `len`.
fn long_sequence<B: Backend>(backend: &mut B, shape: Shape, len: usize, last: usize) -> Result<Vec<u8>> {
    let ([num_heads, _], head_dim) = shape.heads;
    let row = num_heads * head_dim * shape.dtype.size();
    let mut world = World::new(backend, shape, Inputs::new(5).shuffled(2 * shape.blocks()))?;
    world.write(&[(0, 0..len - last), (1, 0..2)])?;
    let prefill = world.step(&[(0, len - last..len)])?.remove(0);
    for chunk in [1, 2, 9] {
        let small = world.step(&[(1, 2..3), (0, len - chunk..len)])?.remove(1);
        same(world.backend, &small, &prefill[(last - chunk) * row..], || format!("{chunk} tokens, {shape:?}"))?;
    }
    for back in [60, 1] {
        let decode = world.step(&[(0, len - back..len - back + 1)])?.remove(0);
        let prefilled = &prefill[(last - back) * row..][..row];
        same(world.backend, &decode, prefilled, || format!("token {back} from the end, {shape:?}"))?;
    }
    Ok(prefill)
}

/// Computes a request in a cache whose other slots hold zeros, and then rubbish.
///
/// # Errors
/// What the backend says, and outputs that differ.
fn unused_slots<B: Backend>(backend: &mut B, dtype: DType) -> Result<()> {
    const SLOTS: usize = 64;
    // Four heads that share one are enough for devices to multiply matrices.
    for (num_heads, head_dim, block_size) in [(3, 40, 16), (4, 64, 16), (4, 64, 32)] {
        let heads = ([num_heads, 1], head_dim);
        let shape = Shape { dtype, heads, window: None, sinks: false, max_len: SLOTS, block_size };
        let run = |backend: &mut B, rubbish: f32| -> Result<Vec<u8>> {
            let mut world = World::new(backend, shape, (0..(SLOTS / block_size) as u32).collect())?;
            let slots: Vec<u32> = (0..SLOTS as u32).collect();
            write_cache(world.backend, &mut world.cache, &slots, &vec![rubbish; SLOTS * (num_heads + 2) * head_dim])?;
            Ok(world.step(&[(0, 0..37)])?.remove(0))
        };
        let clean = run(backend, 0.0)?;
        for rubbish in [f32::NAN, f32::INFINITY, -1e4] {
            let found = run(backend, rubbish)?;
            same(backend, &found, &clean, || {
                format!("{rubbish} in slots without a token, {num_heads} heads of {head_dim}, blocks of {block_size}")
            })?;
        }
    }
    Ok(())
}

/// What stays the same in all runs.
#[derive(Debug, Clone, Copy)]
struct Shape {
    dtype: DType,
    /// Query heads and key heads, and their size.
    heads: ([usize; 2], usize),
    window: Option<usize>,
    /// Whether each head has a score without a value.
    sinks: bool,
    /// Positions that a request may have.
    max_len: usize,
    block_size: usize,
}

impl Shape {
    /// Blocks of a request.
    fn blocks(&self) -> usize {
        self.max_len.div_ceil(self.block_size)
    }
}

/// Tokens of a request: which, and from where to where.
type Chunk = (usize, Range<usize>);

/// A backend with a cache for some requests.
struct World<'a, B: Backend> {
    backend: &'a mut B,
    shape: Shape,
    cache: KvCache<B::Memory>,
    /// Those of each request, one request's after the other's.
    blocks: Vec<u32>,
}

impl<'a, B: Backend> World<'a, B> {
    fn new(backend: &'a mut B, shape: Shape, blocks: Vec<u32>) -> Result<Self> {
        let ([_, num_kv_heads], head_dim) = shape.heads;
        let Shape { dtype, block_size, .. } = shape;
        let spec = KvSpec { dtype, num_blocks: blocks.len(), block_size, num_kv_heads, head_dim };
        let cache = backend.allocate_kv_cache(spec)?;
        Ok(Self { backend, shape, cache, blocks })
    }

    /// Writes tokens to the cache; their queries, keys and values, which are a function of request and position alone.
    fn write(&mut self, batch: &[Chunk]) -> Result<Tensor<B::Memory>> {
        let Shape { heads: ([q, kv], head_dim), block_size, .. } = self.shape;
        let (mut slots, mut rows) = (Vec::new(), Vec::new());
        for (r, positions) in batch {
            for p in positions.clone() {
                let block = self.blocks[r * self.shape.blocks() + p / block_size];
                slots.push(block * block_size as u32 + (p % block_size) as u32);
                rows.extend(Inputs::new((r << 32 | p) as u64).floats((q + 2 * kv) * head_dim, 3.0));
            }
        }
        write_cache(self.backend, &mut self.cache, &slots, &rows)
    }

    /// Writes tokens and attends from them; the bytes of each chunk's outputs.
    fn step(&mut self, batch: &[Chunk]) -> Result<Vec<Vec<u8>>> {
        let Shape { dtype, heads: ([num_heads, _], head_dim), window, sinks, .. } = self.shape;
        let qkv = self.write(batch)?;
        let requests: Vec<_> = batch.iter().map(|(_, positions)| (positions.start, positions.len())).collect();
        let stride = self.shape.blocks();
        let block_table: Vec<u32> =
            batch.iter().flat_map(|(r, _)| &self.blocks[r * stride..][..stride]).copied().collect();
        let sequences = sequences(self.backend, &requests, &block_table)?;
        let mut out = self.backend.allocate(dtype, qkv.rows(), num_heads * head_dim)?;
        let values = Inputs::new(4).floats(num_heads, 3.0);
        let sinks = sinks.then(|| upload(self.backend, DType::F32, num_heads, &values)).transpose()?;
        let (sequences, qkv, sinks, cache, out) = (&sequences, &qkv, sinks.as_ref(), &self.cache, &mut out);
        PagedAttention { sequences, qkv, num_heads, scale: 0.3, window, sinks, cache, out }.run(self.backend)?;
        self.backend.synchronize()?;
        let mut rows = self.backend.read(out).chunks_exact(num_heads * head_dim * dtype.size());
        Ok(requests.iter().map(|&(_, new)| rows.by_ref().take(new).flatten().copied().collect()).collect())
    }
}

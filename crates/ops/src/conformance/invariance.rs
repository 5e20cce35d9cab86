//! Attention must give a request the same bits however it is run: alone or in a batch, whole or in chunks, in any blocks. These are
//! workloads for tests, which fail where a backend's bits differ. It knows no backend.

use std::ops::Range;

use super::inputs::Inputs;
use super::paged_attention::write_cache;
use super::*;

const BLOCK_SIZE: usize = 16;

/// Runs some random requests together, in random batches, chunks and blocks, and each one whole and alone.
///
/// # Errors
/// What the backends say.
///
/// # Panics
/// If the outputs of a request differ.
pub fn any_schedule<B: Backend>(together: &mut B, alone: &mut B, seed: u64) -> Result<()> {
    let mut inputs = Inputs::new(seed);
    let shape = Shape {
        dtype: inputs.one_of(&DType::FLOATS),
        heads: inputs.one_of(&[([14, 2], 64), ([4, 4], 40), ([3, 1], 128), ([8, 2], 8), ([12, 1], 24), ([2, 1], 256)]),
        window: inputs.one_of(&[None, Some(7), Some(200), Some(256)]),
        max_len: 640,
    };
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
        let whole = World::new(alone, shape, (0..blocks as u32).collect())?.step(&[(r, 0..len)])?;
        assert!(whole[0] == got[r], "request {r} of {len} tokens differs from its run alone: {shape:?}");
    }
    Ok(())
}

/// Computes the last tokens of a long sequence in one chunk and in small ones, which devices may distribute otherwise. The outputs are
/// returned, to be compared with those of the same device set up in another way.
///
/// # Errors
/// What the backend says.
///
/// # Panics
/// If the outputs of a token differ.
pub fn decode_and_prefill<B: Backend>(backend: &mut B) -> Result<Vec<Vec<u8>>> {
    const LEN: usize = 1590;
    const LAST: usize = 200;
    let mut outputs = Vec::new();
    for (dtype, head_dim, window) in
        [(DType::BF16, 64, None), (DType::F16, 64, Some(600)), (DType::F32, 128, None), (DType::BF16, 256, Some(1000))]
    {
        let shape = Shape { dtype, heads: ([7, 1], head_dim), window, max_len: 1600 };
        let mut world = World::new(backend, shape, Inputs::new(5).shuffled(2 * shape.blocks()))?;
        world.write(&[(0, 0..LEN - LAST), (1, 0..2)])?;
        let row = 7 * head_dim * dtype.size();
        let prefill = world.step(&[(0, LEN - LAST..LEN)])?.remove(0);
        for chunk in [1, 2, 9] {
            let small = world.step(&[(1, 2..3), (0, LEN - chunk..LEN)])?.remove(1);
            assert!(small == prefill[(LAST - chunk) * row..], "{chunk} tokens, {shape:?}");
        }
        for back in [60, 1] {
            let decode = world.step(&[(0, LEN - back..LEN - back + 1)])?.remove(0);
            assert!(decode == prefill[(LAST - back) * row..][..row], "token {back} from the end, {shape:?}");
        }
        outputs.push(prefill);
    }
    Ok(outputs)
}

/// Computes a request in a cache whose other slots hold zeros, and then rubbish.
///
/// # Errors
/// What the backend says.
///
/// # Panics
/// If the outputs differ.
pub fn unused_slots<B: Backend>(backend: &mut B) -> Result<()> {
    for dtype in DType::FLOATS {
        let shape = Shape { dtype, heads: ([3, 1], 40), window: None, max_len: 64 };
        let mut run = |rubbish: f32| {
            let mut world = World::new(backend, shape, (0..4).collect())?;
            let slots: Vec<u32> = (0..64).collect();
            write_cache(world.backend, &mut world.cache, &slots, &vec![rubbish; 64 * 5 * 40])?;
            world.step(&[(0, 0..37)])
        };
        let clean = run(0.0)?;
        for rubbish in [f32::NAN, f32::INFINITY, -1e4] {
            assert!(run(rubbish)? == clean, "{rubbish} in {dtype}");
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
    /// Positions that a request may have.
    max_len: usize,
}

impl Shape {
    /// Blocks of a request.
    fn blocks(&self) -> usize {
        self.max_len.div_ceil(BLOCK_SIZE)
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
        let spec =
            KvSpec { dtype: shape.dtype, num_blocks: blocks.len(), block_size: BLOCK_SIZE, num_kv_heads, head_dim };
        let cache = backend.allocate_kv_cache(spec)?;
        Ok(Self { backend, shape, cache, blocks })
    }

    /// Writes tokens to the cache; their queries, keys and values, which are a function of request and position alone.
    fn write(&mut self, batch: &[Chunk]) -> Result<Tensor<B::Memory>> {
        let ([q, kv], head_dim) = self.shape.heads;
        let (mut slots, mut rows) = (Vec::new(), Vec::new());
        for (r, positions) in batch {
            for p in positions.clone() {
                let block = self.blocks[r * self.shape.blocks() + p / BLOCK_SIZE];
                slots.push(block * BLOCK_SIZE as u32 + (p % BLOCK_SIZE) as u32);
                rows.extend(Inputs::new((r << 32 | p) as u64).floats((q + 2 * kv) * head_dim, 3.0));
            }
        }
        write_cache(self.backend, &mut self.cache, &slots, &rows)
    }

    /// Writes tokens and attends from them; the bytes of each chunk's outputs.
    fn step(&mut self, batch: &[Chunk]) -> Result<Vec<Vec<u8>>> {
        let Shape { dtype, heads: ([num_heads, _], head_dim), window, .. } = self.shape;
        let qkv = self.write(batch)?;
        let requests: Vec<_> = batch.iter().map(|(_, positions)| (positions.start, positions.len())).collect();
        let stride = self.shape.blocks();
        let block_table: Vec<u32> =
            batch.iter().flat_map(|(r, _)| &self.blocks[r * stride..][..stride]).copied().collect();
        let sequences = sequences(self.backend, &requests, &block_table)?;
        let mut out = self.backend.allocate(dtype, qkv.rows(), num_heads * head_dim)?;
        let (cache, out) = (&self.cache, &mut out);
        PagedAttention { sequences: &sequences, qkv: &qkv, num_heads, scale: 0.3, window, cache, out }
            .run(self.backend)?;
        self.backend.finish()?;
        let mut rows = self.backend.read(out).chunks_exact(num_heads * head_dim * dtype.size());
        Ok(requests.iter().map(|&(_, new)| rows.by_ref().take(new).flatten().copied().collect()).collect())
    }
}

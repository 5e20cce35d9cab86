//! The ops that read and write the KV cache, on the host, and the rotation of queries.

use vllm_apple_ops::*;

use super::host::Host;
use crate::gpu::Gpu;
use crate::kv_layout::KvLayout;
use crate::recorder::region::Region;

pub(crate) fn rope_kv_write<G: Gpu>(host: &Host<'_, G>, op: RopeKvWrite<'_, Region<G>>) -> Result<()> {
    let KvSpec { dtype, num_kv_heads, head_dim, .. } = op.cache.spec;
    let layout = KvLayout::new(&op.cache.spec);
    let mut qkv = host.floats(op.qkv, op.rows);
    let slots = host.integers(op.slot_mapping, op.rows);
    rotate(host, &mut qkv, op.qkv.cols(), op.num_heads + num_kv_heads, op.positions, op.table);
    host.put(op.qkv, &qkv);
    let size = dtype.size();
    let write = |cache: &mut Region<G>, first: usize, index: &dyn Fn(usize, usize, usize) -> usize| {
        let cache = host.recorder.bytes_mut(cache);
        for (row, &slot) in qkv.chunks_exact(op.qkv.cols()).zip(&slots) {
            for (head, values) in row[first * head_dim..].chunks_exact(head_dim).take(num_kv_heads).enumerate() {
                for (d, value) in dtype.encode(values).chunks_exact(size).enumerate() {
                    cache[index(slot as usize, head, d) * size..][..size].copy_from_slice(value);
                }
            }
        }
    };
    write(&mut op.cache.keys, op.num_heads, &|slot, head, d| layout.key(slot, head, d));
    write(&mut op.cache.values, op.num_heads + num_kv_heads, &|slot, head, d| layout.value(slot, head, d));
    Ok(())
}

pub(crate) fn rope<G: Gpu>(host: &Host<'_, G>, op: Rope<'_, Region<G>>) -> Result<()> {
    let mut q = host.floats(op.q, op.rows);
    rotate(host, &mut q, op.q.cols(), op.num_heads, op.positions, op.table);
    host.put(op.q, &q);
    Ok(())
}

/// Rotates the first `heads` of each of the `rows`, which have `width` elements.
fn rotate<G: Gpu>(
    host: &Host<'_, G>,
    rows: &mut [f32],
    width: usize,
    heads: usize,
    positions: &Tensor<Region<G>>,
    table: &RopeTable<Region<G>>,
) {
    let half = table.cos.cols();
    let positions = host.integers(positions, rows.len() / width);
    let at = |table: &Tensor<Region<G>>, position: u32| {
        DType::F32.decode(&host.recorder.read(table)[position as usize * half * 4..][..half * 4])
    };
    for (row, &position) in rows.chunks_exact_mut(width).zip(&positions) {
        let (cos, sin) = (at(&table.cos, position), at(&table.sin, position));
        for head in row.chunks_exact_mut(2 * half).take(heads) {
            let rotated = rope::reference(head, &cos, &sin);
            head.copy_from_slice(&rotated);
        }
    }
}

pub(crate) fn paged_attention<G: Gpu>(host: &Host<'_, G>, op: PagedAttention<'_, Region<G>>) -> Result<()> {
    let KvSpec { num_kv_heads, head_dim, .. } = op.cache.spec;
    let cache = Cache {
        keys: host.recorder.bytes(&op.cache.keys),
        values: host.recorder.bytes(&op.cache.values),
        dtype: op.cache.spec.dtype,
        layout: KvLayout::new(&op.cache.spec),
    };
    let (num_heads, scale, window) = (op.num_heads, op.scale, op.window);
    let sinks = op.sinks.map(|sinks| host.floats(sinks, 1));
    let s = op.sequences;
    let stride = s.block_table_stride;
    let starts = host.integers(&s.query_start_loc, s.num_requests + 1);
    let seq_lens = host.integers(&s.seq_lens, s.num_requests);
    let table = host.integers(&s.block_table, s.num_requests * stride);
    let (qkv, width) = (host.floats(op.qkv, s.num_tokens), op.qkv.cols());
    let group = num_heads / num_kv_heads;
    // A request and a key head each: the outputs `[tokens][group][head_dim]`.
    let parts = host.parallel(s.num_requests * num_kv_heads, |i| {
        let (request, kv_head) = (i / num_kv_heads, i % num_kv_heads);
        let seq_len = seq_lens[request] as usize;
        let blocks = &table[request * stride..][..stride];
        let (keys, values) = cache.gather(blocks, seq_len, kv_head);
        let tokens = starts[request] as usize..starts[request + 1] as usize;
        let first = seq_len - tokens.len();
        let mut out = Vec::with_capacity(tokens.len() * group * head_dim);
        for (token, position) in tokens.zip(first..) {
            for head in kv_head * group..(kv_head + 1) * group {
                let q = &qkv[token * width + head * head_dim..][..head_dim];
                let sink = sinks.as_ref().map(|sinks| sinks[head]);
                out.extend(paged_attention::reference(q, &keys, &values, position, scale, window, sink));
            }
        }
        out
    });
    let mut out = vec![0.0; s.num_tokens * op.num_heads * head_dim];
    for (i, part) in parts.iter().enumerate() {
        let (request, kv_head) = (i / num_kv_heads, i % num_kv_heads);
        for (token, heads) in (starts[request] as usize..).zip(part.chunks_exact(group * head_dim)) {
            let at = (token * op.num_heads + kv_head * group) * head_dim;
            out[at..][..heads.len()].copy_from_slice(heads);
        }
    }
    host.put(op.out, &out);
    Ok(())
}

/// A layer's cache, as bytes.
struct Cache<'a> {
    keys: &'a [u8],
    values: &'a [u8],
    dtype: DType,
    layout: KvLayout,
}

impl Cache<'_> {
    /// Keys and values of a head at the first `len` positions of a sequence, `[len, head_dim]` each.
    fn gather(&self, blocks: &[u32], len: usize, head: usize) -> (Vec<f32>, Vec<f32>) {
        let (layout, size) = (&self.layout, self.dtype.size());
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for position in 0..len {
            let slot = blocks[position / layout.block_size] as usize * layout.block_size + position % layout.block_size;
            for d in 0..layout.head_dim {
                keys.extend_from_slice(&self.keys[layout.key(slot, head, d) * size..][..size]);
                values.extend_from_slice(&self.values[layout.value(slot, head, d) * size..][..size]);
            }
        }
        (self.dtype.decode(&keys), self.dtype.decode(&values))
    }
}

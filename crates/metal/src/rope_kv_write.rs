//! [`RopeKvWrite`] on a GPU: a thread per eight elements of a query, key or value head.

use vllm_apple_ops::{KvSpec, Result, RopeKvWrite};

use crate::backend::MetalBackend;
use crate::encode::{Arg, Grid};
use crate::gpu::{Gpu, Value};
use crate::memory::Region;
use crate::pipelines::kernels_by_dtype;

kernels_by_dtype!(kernel, "rope_kv_write.metal", "rope_kv_write");

pub(crate) fn run<G: Gpu>(backend: &mut MetalBackend<G>, op: &RopeKvWrite<'_, Region<G>>) -> Result<()> {
    let KvSpec { dtype, block_size, num_kv_heads, head_dim, .. } = op.cache.spec;
    if !head_dim.is_multiple_of(8) {
        return Err(backend.unsupported("rope_kv_write", format!("heads of {head_dim} elements; multiples of 8 work")));
    }
    let heads = op.num_heads + 2 * num_kv_heads;
    let (grid, threads) = Grid::of_rows(op.rows, heads * (head_dim / 8));
    let [head_dim, num_heads, num_kv_heads, block_size] =
        [head_dim, op.num_heads, num_kv_heads, block_size].map(|v| Value::U32(v as u32));
    backend.dispatch(
        "rope_kv_write",
        kernel(dtype),
        &[head_dim, num_heads, num_kv_heads, block_size, threads],
        [
            Arg::write(op.qkv),
            Arg::read(op.positions),
            Arg::read(op.slot_mapping),
            Arg::read(&op.table.cos),
            Arg::read(&op.table.sin),
            Arg::Write(&op.cache.keys),
            Arg::Write(&op.cache.values),
        ],
        grid,
    )
}

//! [`RopeKvWrite`] on a GPU: a thread per eight elements of a query, key or value head.

use vllm_apple_ops::{KvSpec, Result, RopeKvWrite};

use crate::gpu::{Gpu, Value};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::pipelines::kernels_by_dtype;
use crate::recorder::region::Region;

kernels_by_dtype!(kernel, "rope_kv_write.metal", "rope_kv_write");

pub(crate) fn run<G: Gpu>(recorder: &mut Recorder<G>, op: &RopeKvWrite<'_, Region<G>>) -> Result<()> {
    let KvSpec { dtype, block_size, num_kv_heads, head_dim, .. } = op.cache.spec;
    if !head_dim.is_multiple_of(8) {
        return Err(recorder.unsupported(
            vllm_apple_ops::rope_kv_write::NAME,
            format!("heads of {head_dim} elements; multiples of 8 work"),
        ));
    }
    let heads = op.num_heads + 2 * num_kv_heads;
    let (grid, threads) = Grid::of_rows(op.rows, heads * (head_dim / 8), 64);
    let [head_dim, num_heads, num_kv_heads, block_size] =
        [head_dim, op.num_heads, num_kv_heads, block_size].map(|v| Value::U32(v as u32));
    recorder.dispatch(
        vllm_apple_ops::rope_kv_write::NAME,
        kernel(dtype),
        &[head_dim, num_heads, num_kv_heads, block_size, threads],
        [
            Arg::write_rows(op.qkv),
            Arg::read_items(op.positions, 1),
            Arg::read_items(op.slot_mapping, 1),
            Arg::read(&op.table.cos),
            Arg::read(&op.table.sin),
            Arg::Write(&op.cache.keys),
            Arg::Write(&op.cache.values),
        ],
        grid,
    )
}

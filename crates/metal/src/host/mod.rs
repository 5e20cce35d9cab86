//! The ops on the host, from their own formulas: slow, and right by definition. For what the device cannot or must not compute.
//! It knows neither why, nor a kernel; nothing is recorded when these run.

mod attention;
mod linear;
mod sample;

pub(crate) use attention::{paged_attention, rope, rope_kv_write};
pub(crate) use linear::{embedding, grouped_matmul, matmul};
pub(crate) use sample::sample;

use std::sync::OnceLock;

use vllm_apple_ops::*;

use crate::backend::MetalBackend;
use crate::gpu::Gpu;
use crate::memory::Region;

pub(crate) fn rms_norm<G: Gpu>(backend: &mut MetalBackend<G>, op: RmsNorm<'_, Region<G>>) -> Result<()> {
    let (x, weight) = (floats(backend, op.x, op.rows), floats(backend, op.weight, 1));
    put(backend, op.out, &rms_norm::reference(&x, &weight, op.eps));
    Ok(())
}

pub(crate) fn add_rms_norm<G: Gpu>(backend: &mut MetalBackend<G>, op: AddRmsNorm<'_, Region<G>>) -> Result<()> {
    let (residual, delta) = (floats(backend, op.residual, op.rows), floats(backend, op.delta, op.rows));
    let weight = floats(backend, op.weight, 1);
    let (residual, out) = add_rms_norm::reference(&residual, &delta, &weight, op.eps);
    put(backend, op.residual, &residual);
    put(backend, op.out, &out);
    Ok(())
}

pub(crate) fn qk_norm<G: Gpu>(backend: &mut MetalBackend<G>, op: QkNorm<'_, Region<G>>) -> Result<()> {
    let qkv = floats(backend, op.qkv, op.rows);
    let (q, k) = (floats(backend, op.q_weight, 1), floats(backend, op.k_weight, 1));
    put(backend, op.qkv, &qk_norm::reference(&qkv, op.num_heads, op.num_kv_heads, &q, &k, op.eps));
    Ok(())
}

pub(crate) fn silu_mul<G: Gpu>(backend: &mut MetalBackend<G>, op: SiluMul<'_, Region<G>>) -> Result<()> {
    let gate_up = floats(backend, op.gate_up, op.rows);
    let out = silu_mul::reference(&gate_up, op.out.cols());
    put(backend, op.out, &out);
    Ok(())
}

pub(crate) fn topk_softmax<G: Gpu>(backend: &mut MetalBackend<G>, op: TopkSoftmax<'_, Region<G>>) -> Result<()> {
    let logits = floats(backend, op.logits, op.rows);
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for logits in logits.chunks_exact(op.logits.cols()) {
        let (row_ids, row_weights) = topk_softmax::reference(logits, op.ids.cols(), op.renormalize);
        ids.extend(row_ids);
        weights.extend(row_weights);
    }
    backend.write(op.ids, bytemuck::cast_slice(&ids));
    put(backend, op.weights, &weights);
    Ok(())
}

pub(crate) fn moe_combine<G: Gpu>(backend: &mut MetalBackend<G>, op: MoeCombine<'_, Region<G>>) -> Result<()> {
    let (top_k, hidden) = (op.weights.cols(), op.out.cols());
    let (x, weights) = (floats(backend, op.x, op.rows * top_k), floats(backend, op.weights, op.rows));
    put(backend, op.out, &moe_combine::reference(&x, &weights, top_k, hidden));
    Ok(())
}

pub(crate) fn add_shared_expert<G: Gpu>(
    backend: &mut MetalBackend<G>,
    op: AddSharedExpert<'_, Region<G>>,
) -> Result<()> {
    let (x, gate) = (floats(backend, op.x, op.rows), floats(backend, op.gate, op.rows));
    let out = floats(backend, op.out, op.rows);
    put(backend, op.out, &add_shared_expert::reference(&x, &gate, &out));
    Ok(())
}

pub(crate) fn gather_rows<G: Gpu>(backend: &mut MetalBackend<G>, op: GatherRows<'_, Region<G>>) -> Result<()> {
    let (x, indices) = (floats(backend, op.x, op.x.rows()), integers(backend, op.indices, op.rows));
    put(backend, op.out, &gather_rows::reference(&x, &indices, op.x.cols()));
    Ok(())
}

/// The first rows of a float tensor.
fn floats<G: Gpu>(backend: &MetalBackend<G>, tensor: &Tensor<Region<G>>, rows: usize) -> Vec<f32> {
    tensor.dtype().decode(&backend.read(tensor)[..rows * tensor.cols() * tensor.dtype().size()])
}

/// The first `len` integers of a tensor.
fn integers<G: Gpu>(backend: &MetalBackend<G>, tensor: &Tensor<Region<G>>, len: usize) -> Vec<u32> {
    bytemuck::allocation::pod_collect_to_vec(&backend.read(tensor)[..len * 4])
}

/// Makes `values`, rounded, the first of a float tensor.
fn put<G: Gpu>(backend: &MetalBackend<G>, tensor: &mut Tensor<Region<G>>, values: &[f32]) {
    let bytes = tensor.dtype().encode(values);
    backend.write(tensor, &bytes);
}

/// `f(0), f(1), …` of `n`, computed on all threads.
fn parallel<G: Gpu, T: Send + Sync>(backend: &MetalBackend<G>, n: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let results: Vec<OnceLock<T>> = (0..n).map(|_| OnceLock::new()).collect();
    backend.host_parallel(n, &|i| {
        // Every number comes once.
        let _ = results[i].set(f(i));
    });
    results.into_iter().map(|result| result.into_inner().expect("every number came")).collect()
}

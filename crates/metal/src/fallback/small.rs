//! The ops without weights and positions, on the host: norms, activations, routing of experts, gathering.

use vllm_apple_ops::*;

use super::host::Host;
use crate::gpu::Gpu;
use crate::recorder::region::Region;

pub(crate) fn rms_norm<G: Gpu>(host: &Host<'_, G>, op: RmsNorm<'_, Region<G>>) -> Result<()> {
    let (x, weight) = (host.floats(op.x, op.rows), host.floats(op.weight, 1));
    host.put(op.out, &rms_norm::reference(&x, &weight, op.eps));
    Ok(())
}

pub(crate) fn add_rms_norm<G: Gpu>(host: &Host<'_, G>, op: AddRmsNorm<'_, Region<G>>) -> Result<()> {
    let (residual, delta) = (host.floats(op.residual, op.rows), host.floats(op.delta, op.rows));
    let weight = host.floats(op.weight, 1);
    let (residual, out) = add_rms_norm::reference(&residual, &delta, &weight, op.eps);
    host.put(op.residual, &residual);
    host.put(op.out, &out);
    Ok(())
}

pub(crate) fn qk_norm<G: Gpu>(host: &Host<'_, G>, op: QkNorm<'_, Region<G>>) -> Result<()> {
    let qkv = host.floats(op.qkv, op.rows);
    let (q, k) = (host.floats(op.q_weight, 1), host.floats(op.k_weight, 1));
    host.put(op.qkv, &qk_norm::reference(&qkv, op.num_heads, op.num_kv_heads, &q, &k, op.eps));
    Ok(())
}

pub(crate) fn gated_activation<G: Gpu>(host: &Host<'_, G>, op: GatedActivation<'_, Region<G>>) -> Result<()> {
    let gate_up = host.floats(op.gate_up, op.rows);
    let out = gated_activation::reference(op.activation, &gate_up, op.out.cols());
    host.put(op.out, &out);
    Ok(())
}

pub(crate) fn topk_softmax<G: Gpu>(host: &Host<'_, G>, op: TopkSoftmax<'_, Region<G>>) -> Result<()> {
    let logits = host.floats(op.logits, op.rows);
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for logits in logits.chunks_exact(op.logits.cols()) {
        let (row_ids, row_weights) = topk_softmax::reference(logits, op.ids.cols(), op.renormalize);
        ids.extend(row_ids);
        weights.extend(row_weights);
    }
    host.recorder.write(op.ids, bytemuck::cast_slice(&ids));
    host.put(op.weights, &weights);
    Ok(())
}

pub(crate) fn moe_combine<G: Gpu>(host: &Host<'_, G>, op: MoeCombine<'_, Region<G>>) -> Result<()> {
    let (top_k, hidden) = (op.weights.cols(), op.out.cols());
    let (x, weights) = (host.floats(op.x, op.rows * top_k), host.floats(op.weights, op.rows));
    host.put(op.out, &moe_combine::reference(&x, &weights, top_k, hidden));
    Ok(())
}

pub(crate) fn add_shared_expert<G: Gpu>(host: &Host<'_, G>, op: AddSharedExpert<'_, Region<G>>) -> Result<()> {
    let (x, gate) = (host.floats(op.x, op.rows), host.floats(op.gate, op.rows));
    let out = host.floats(op.out, op.rows);
    host.put(op.out, &add_shared_expert::reference(&x, &gate, &out));
    Ok(())
}

pub(crate) fn gather_rows<G: Gpu>(host: &Host<'_, G>, op: GatherRows<'_, Region<G>>) -> Result<()> {
    let (x, indices) = (host.floats(op.x, op.x.rows()), host.integers(op.indices, op.rows));
    host.put(op.out, &gather_rows::reference(&x, &indices, op.x.cols()));
    Ok(())
}

pub(crate) fn permute_columns<G: Gpu>(host: &Host<'_, G>, op: PermuteColumns<'_, Region<G>>) -> Result<()> {
    let (x, cols) = (host.floats(op.x, op.rows), op.x.cols());
    let order = host.integers(op.order, op.order.rows() * cols);
    let ids = op.ids.map_or(vec![0; op.rows], |ids| host.integers(ids, op.rows * ids.cols()));
    host.put(op.out, &permute_columns::reference(&x, &order, cols, &ids));
    Ok(())
}

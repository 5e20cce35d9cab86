//! RMSNorm of query and key heads in place, with the row kernel of `rms_norm`.

use vllm_apple_ops::QkNorm;

use crate::CpuBackend;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::rms_norm::normalize_in_place;
use crate::rows::for_rows;
use crate::simd::{Kernel, Simd};

pub(crate) fn run(backend: &CpuBackend, op: QkNorm<'_, Memory>) {
    let (q_weight, k_weight) = (elements(op.q_weight, 1), elements(op.k_weight, 1));
    let heads = op.num_heads + 2 * op.num_kv_heads;
    let qkv: &mut [f32] = elements_mut(op.qkv, op.rows);
    for_rows::<_, ()>(&backend.pool, op.rows, qkv, &mut [], |_, qkv, _| {
        let kernel = Rows {
            qkv,
            heads,
            num_heads: op.num_heads,
            num_kv_heads: op.num_kv_heads,
            q_weight,
            k_weight,
            eps: op.eps,
        };
        backend.dispatch.run(kernel);
    });
}

struct Rows<'a> {
    qkv: &'a mut [f32],
    /// Query, key and value heads of a row.
    heads: usize,
    num_heads: usize,
    num_kv_heads: usize,
    q_weight: &'a [f32],
    k_weight: &'a [f32],
    eps: f32,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let head_dim = self.q_weight.len();
        for row in self.qkv.chunks_exact_mut(self.heads * head_dim) {
            let (q, rest) = row.split_at_mut(self.num_heads * head_dim);
            let k = &mut rest[..self.num_kv_heads * head_dim];
            for head in q.chunks_exact_mut(head_dim) {
                normalize_in_place(s, head, self.q_weight, self.eps);
            }
            for head in k.chunks_exact_mut(head_dim) {
                normalize_in_place(s, head, self.k_weight, self.eps);
            }
        }
    }
}

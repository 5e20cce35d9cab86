//! The norm of query and key heads is judged as RMSNorm; value heads must stay as they are.

use super::rms_norm::{EPS, roundoffs};
use super::{inputs::Inputs, *};

/// Rows, query heads, key heads, head size.
const CASES: &[[usize; 4]] =
    &[[3, 6, 2, 40], [33, 16, 8, 128], [1, 1, 1, 8], [9, 4, 4, 64], [2, 3, 1, 256], [4, 9, 2, 64]];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &[rows, num_heads, num_kv_heads, head_dim] in CASES {
        let name = format!("{rows} x ({num_heads} + 2 * {num_kv_heads}) x {head_dim}");
        rig.case(crate::qk_norm::NAME, DType::F32, name, |backend| {
            let mut inputs = Inputs::new(5);
            let width = (num_heads + 2 * num_kv_heads) * head_dim;
            let qkv = inputs.floats(rows * width, 3.0);
            let (q, k) = (inputs.floats(head_dim, 2.0), inputs.floats(head_dim, 2.0));
            let mut qkv_tensor = upload(backend, DType::F32, width, &qkv)?;
            let (q_tensor, k_tensor) =
                (upload(backend, DType::F32, head_dim, &q)?, upload(backend, DType::F32, head_dim, &k)?);
            let op = QkNorm {
                rows,
                qkv: &mut qkv_tensor,
                num_heads,
                num_kv_heads,
                q_weight: &q_tensor,
                k_weight: &k_tensor,
                eps: EPS,
            };
            op.run(backend)?;
            backend.synchronize()?;
            let want = crate::qk_norm::reference(&qkv, num_heads, num_kv_heads, &q, &k, EPS);
            let got = read_output(backend, &qkv_tensor, rows)?;
            let is_value = |i: usize| i % width >= (num_heads + num_kv_heads) * head_dim;
            let size = magnitude(&want, DType::F32);
            let error = worst(&got, &want, |i| if is_value(i) { 0.0 } else { size(i) });
            Ok(Outcome { error, tolerance: tolerance(roundoffs(head_dim), DType::F32) })
        });
    }
}

//! A sum of `top_k` products, relative to the sum of their magnitudes: a roundoff for each product and each addition.

use super::matmul::sizes;
use super::{inputs::Inputs, *};

/// Tokens, experts per token, hidden size.
const CASES: &[[usize; 3]] = &[[3, 2, 90], [20, 8, 1024], [1, 1, 8], [5, 4, 15]];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &[rows, top_k, hidden] in CASES {
        rig.case(crate::moe_combine::NAME, DType::F32, format!("{rows} x {top_k} x {hidden}"), |backend| {
            let mut inputs = Inputs::new(10);
            let (x, weights) = (inputs.floats(rows * top_k * hidden, 3.0), inputs.floats(rows * top_k, 1.0));
            let x_tensor = upload(backend, DType::F32, hidden, &x)?;
            let weights_tensor = upload(backend, DType::F32, top_k, &weights)?;
            let mut out = output(backend, DType::F32, rows, hidden)?;
            MoeCombine { rows, x: &x_tensor, weights: &weights_tensor, out: &mut out }.run(backend)?;
            backend.synchronize()?;
            let want = crate::moe_combine::reference(&x, &weights, top_k, hidden);
            let sizes = crate::moe_combine::reference(&sizes(&x), &sizes(&weights), top_k, hidden);
            let error = worst(&read_output(backend, &out, rows)?, &want, |i| f64::from(sizes[i]));
            Ok(Outcome { error, tolerance: tolerance(1.0 + 2.0 * top_k as f64, DType::F32) })
        });
    }
}

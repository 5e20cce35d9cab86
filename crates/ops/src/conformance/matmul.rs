//! A dot product of `K` terms, relative to the sum of the terms' magnitudes: `sqrt(K)` roundoffs and a few. Of quantised weights a term is
//! two where there is a bias, and the sums of groups are added to each other: that is no more roundings on a term's way.

use std::ops::Range;

use super::{inputs::Inputs, *};

/// Rows, N, K, whether there is a bias.
const CASES: &[(usize, usize, usize, bool)] = &[
    (5, 100, 90, false),
    (12, 64, 896, true),
    (27, 50, 160, true),
    (70, 65, 600, true),
    (1, 1, 1, false),
    (1, 32, 64, true),
    (2, 33, 7, true),
    (13, 70, 255, false),
    (64, 96, 128, true),
    (1, 40, 4864, false),
    (130, 31, 40, true),
    (530, 20, 16, false),
];

/// Roundoffs of a sum of `k` products.
pub fn roundoffs(k: usize) -> f64 {
    4.0 + (k as f64).sqrt()
}

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, n, k, with_bias) in CASES {
        for format in WeightFormat::CHECKED {
            let dtype = format.input();
            let name = format!("{rows} x {n} x {k}, bias {with_bias}");
            rig.case_with_weight(crate::matmul::NAME, format, name, |backend| {
                let mut inputs = Inputs::new(6);
                let mut x = rounded(&mut inputs, dtype, rows * k);
                if rows > 1 {
                    // Groups that have no scale of their own where activations are rounded.
                    x[k / 2..k].fill(0.0);
                }
                let weight = KnownWeight::new(&mut inputs, format, [1, n, k]);
                let bias = rounded(&mut inputs, dtype, if with_bias { n } else { 0 });
                let x_tensor = upload(backend, dtype, k, &x)?;
                let weight_tensor = weight.upload_parts(backend)?;
                let bias_tensor = if with_bias { Some(upload(backend, DType::F32, n, &bias)?) } else { None };
                // With a bias, among the columns of other products.
                let (first, cols) = if with_bias { (3, n + 5) } else { (0, n) };
                let mut out = output(backend, DType::F32, rows, cols)?;
                let (x_tensor, weight_tensor, bias_tensor) = (&x_tensor, &weight_tensor, bias_tensor.as_ref());
                Matmul { rows, x: x_tensor, weight: weight_tensor, bias: bias_tensor, out: &mut out, first }
                    .run(backend)?;
                backend.synchronize()?;
                let x = weight.rounded(x);
                let want = crate::matmul::reference(&x, &weight.values, &bias, k);
                let sizes = crate::matmul::reference(&sizes(&x), &weight.sizes, &sizes(&bias), k);
                let got = columns(backend, &read_output(backend, &out, rows)?, cols, first..first + n)?;
                let error = worst(&got, &want, |i| f64::from(sizes[i]));
                Ok(Outcome { error, tolerance: tolerance(roundoffs(k), DType::F32) })
            });
        }
    }
}

/// Some columns of a matrix that was of zeros; an error if others were written to.
pub(super) fn columns<B: Backend>(backend: &B, matrix: &[f32], cols: usize, wanted: Range<usize>) -> Result<Vec<f32>> {
    let mut got = Vec::new();
    for row in matrix.chunks_exact(cols) {
        let (before, from) = row.split_at(wanted.start);
        let (products, behind) = from.split_at(wanted.len());
        if before.iter().chain(behind).any(|&value| value != 0.0) {
            let reason = "wrote beside the columns of an op".into();
            return Err(Error::Commands { device: backend.device().backend.into(), reason });
        }
        got.extend_from_slice(products);
    }
    Ok(got)
}

/// How many times its tolerance the error of one output of a product is, the sum of `x[i] * weight[i]` and the bias, if there is one.
pub fn of_product(got: f32, x: &[f32], weight: &[f32], bias: &[f32]) -> f64 {
    let k = x.len();
    let want = crate::matmul::reference(x, weight, bias, k);
    let size = crate::matmul::reference(&sizes(x), &sizes(weight), &sizes(bias), k);
    if !want[0].is_finite() {
        // Of a weight that is no number nothing is expected.
        return 0.0;
    }
    worst(&[got], &want, |_| f64::from(size[0])) / tolerance(roundoffs(k), DType::F32)
}

/// Magnitudes, with which a reference gives the sum of its terms' magnitudes.
pub(super) fn sizes(values: &[f32]) -> Vec<f32> {
    values.iter().map(|v| v.abs()).collect()
}

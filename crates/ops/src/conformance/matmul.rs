//! A dot product of `K` terms, relative to the sum of the terms' magnitudes: `sqrt(K)` roundoffs and a few.

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

pub(super) fn roundoffs(k: usize) -> f64 {
    4.0 + (k as f64).sqrt()
}

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, n, k, with_bias) in CASES {
        for dtype in DType::FLOATS {
            rig.case(crate::matmul::NAME, dtype, format!("{rows} x {n} x {k}, bias {with_bias}"), |backend| {
                let mut inputs = Inputs::new(6);
                let mut floats =
                    |len| -> Vec<f32> { inputs.floats(len, 2.0).iter().map(|&v| dtype.round(v)).collect() };
                let (x, weight, bias) = (floats(rows * k), floats(n * k), floats(if with_bias { n } else { 0 }));
                let x_tensor = upload(backend, dtype, k, &x)?;
                let weight_tensor = upload_parts(backend, dtype, [n, k], &weight)?;
                let bias_tensor = if with_bias { Some(upload(backend, DType::F32, n, &bias)?) } else { None };
                let mut out = output(backend, DType::F32, rows, n)?;
                let bias_tensor = bias_tensor.as_ref();
                Matmul { rows, x: &x_tensor, weight: &weight_tensor, bias: bias_tensor, out: &mut out }.run(backend)?;
                backend.synchronize()?;
                let want = crate::matmul::reference(&x, &weight, &bias, k);
                let sizes = crate::matmul::reference(&sizes(&x), &sizes(&weight), &sizes(&bias), k);
                let error = worst(&read_output(backend, &out, rows)?, &want, |i| f64::from(sizes[i]));
                Ok(Outcome { error, tolerance: tolerance(roundoffs(k), DType::F32) })
            });
        }
    }
}

/// A weight of up to three parts, as of q, k and v.
fn upload_parts<B: Backend>(
    backend: &B,
    dtype: DType,
    [n, k]: [usize; 2],
    values: &[f32],
) -> Result<Weight<B::Packed>> {
    let bytes = dtype.encode(values);
    let ends = [n.div_ceil(2), n - n / 4, n];
    let starts = [0, ends[0], ends[1]];
    let part = |(start, end): (usize, usize)| {
        let bytes = &bytes[start * k * dtype.size()..end * k * dtype.size()];
        HostTensor { dtype, rows: end - start, cols: k, bytes, file: None }
    };
    let parts: Vec<_> = starts.into_iter().zip(ends).filter(|(start, end)| start < end).map(part).collect();
    backend.load_weight(WeightSource::matrix("conformance", &parts), WeightFormat::Float(dtype))
}

/// Magnitudes, with which a reference gives the sum of its terms' magnitudes.
pub(super) fn sizes(values: &[f32]) -> Vec<f32> {
    values.iter().map(|v| v.abs()).collect()
}

//! Judged as a matmul, with another matrix for each row.

use super::matmul::{columns, roundoffs, sizes};
use super::{inputs::Inputs, *};

/// Tokens, experts per token, experts, N, K.
const CASES: &[[usize; 5]] = &[
    [7, 2, 8, 33, 90],
    [40, 3, 7, 50, 272],
    [50, 4, 6, 32, 31],
    [1, 2, 4, 40, 64],
    [1, 1, 1, 8, 8],
    [3, 8, 60, 64, 128],
    // Many rows of each expert.
    [70, 2, 3, 32, 64],
];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    // Rows of a pair each, and rows for all pairs of a token.
    for shared in [false, true] {
        for (i, &[tokens, top_k, experts, n, k]) in CASES.iter().enumerate() {
            let pairs_per_row = if shared { top_k } else { 1 };
            // Each case once with a bias and once without.
            let with_bias = shared != i.is_multiple_of(2);
            for format in WeightFormat::CHECKED {
                let dtype = format.input();
                let name = format!(
                    "{tokens} x {top_k} of {experts} x {n} x {k}, {pairs_per_row} pairs a row, bias {with_bias}"
                );
                rig.case_with_weight(crate::grouped_matmul::NAME, format, name, |backend| {
                    let mut inputs = Inputs::new(7);
                    let ids: Vec<u32> = (0..tokens).flat_map(|_| inputs.shuffled(experts)[..top_k].to_vec()).collect();
                    let x = rounded(&mut inputs, dtype, ids.len() / pairs_per_row * k);
                    let weight = KnownWeight::new(&mut inputs, format, [experts, n, k]);
                    let bias = rounded(&mut inputs, dtype, if with_bias { experts * n } else { 0 });
                    let bias_tensor = if with_bias { Some(upload(backend, DType::F32, n, &bias)?) } else { None };
                    let x_tensor = upload(backend, dtype, k, &x)?;
                    let weight_tensor = weight.upload(backend)?;
                    let ids_tensor = upload_u32(backend, top_k, &ids)?;
                    // With a bias, among the columns of other products.
                    let (first, cols) = if with_bias { (3, n + 5) } else { (0, n) };
                    let mut out = output(backend, DType::F32, ids.len(), cols)?;
                    let op = GroupedMatmul {
                        tokens,
                        pairs_per_row,
                        x: &x_tensor,
                        ids: &ids_tensor,
                        weight: &weight_tensor,
                        bias: bias_tensor.as_ref(),
                        out: &mut out,
                        first,
                    };
                    op.run(backend)?;
                    backend.synchronize()?;
                    let x = weight.rounded(x);
                    let reference = |x: &[f32], weight: &[f32], bias: &[f32]| {
                        crate::grouped_matmul::reference(x, &ids, pairs_per_row, weight, bias, [n, k])
                    };
                    let want = reference(&x, &weight.values, &bias);
                    let sizes = reference(&sizes(&x), &weight.sizes, &sizes(&bias));
                    let got = columns(backend, &read_output(backend, &out, ids.len())?, cols, first..first + n)?;
                    let error = worst(&got, &want, |i| f64::from(sizes[i]));
                    Ok(Outcome { error, tolerance: tolerance(roundoffs(k), DType::F32) })
                });
            }
        }
    }
}

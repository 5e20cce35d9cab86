//! A permutation is a copy: no error at all.

use super::{inputs::Inputs, *};

/// Rows, columns: fewer than threads of a group, more than one group of them, and rows of many tokens.
const CASES: &[[usize; 2]] = &[[3, 40], [2, 1100], [1, 1], [70, 96]];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &[rows, cols] in CASES {
        for dtype in DType::FLOATS {
            rig.case(crate::permute_columns::NAME, dtype, format!("{rows} x {cols}"), |backend| {
                let mut inputs = Inputs::new(3);
                let x = rounded(&mut inputs, dtype, rows * cols);
                let order = inputs.shuffled(cols);
                let x_tensor = upload(backend, dtype, cols, &x)?;
                let order_tensor = upload_u32(backend, cols, &order)?;
                let mut out = output(backend, dtype, rows, cols)?;
                PermuteColumns { rows, x: &x_tensor, order: &order_tensor, out: &mut out }.run(backend)?;
                backend.synchronize()?;
                let want = crate::permute_columns::reference(&x, &order);
                let got = read_output(backend, &out, rows)?;
                Ok(Outcome { error: worst(&got, &want, |_| 0.0), tolerance: 0.0 })
            });
        }
    }
}

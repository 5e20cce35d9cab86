//! A permutation is a copy: no error at all.

use super::{inputs::Inputs, *};

/// Rows, columns: fewer than threads of a group, more than one group of them, and rows of many tokens. Then experts of a row, and of all; none of
/// them: one order for all rows.
const CASES: &[[usize; 4]] =
    &[[3, 40, 0, 0], [2, 1100, 0, 0], [1, 1, 0, 0], [70, 96, 0, 0], [5, 70, 2, 3], [1, 1100, 3, 8], [9, 24, 1, 2]];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &[rows, cols, top_k, experts] in CASES {
        for dtype in DType::FLOATS {
            let name = format!("{rows} x {cols}, {top_k} of {experts} experts");
            rig.case(crate::permute_columns::NAME, dtype, name, |backend| {
                let mut inputs = Inputs::new(3);
                let x = rounded(&mut inputs, dtype, rows * cols);
                let order: Vec<u32> = (0..experts.max(1)).flat_map(|_| inputs.shuffled(cols)).collect();
                let ids: Vec<u32> = (0..rows * top_k.max(1)).map(|i| (i * 5 % experts.max(1)) as u32).collect();
                let x_tensor = upload(backend, dtype, cols, &x)?;
                let order_tensor = upload_u32(backend, cols, &order)?;
                let ids_tensor = if top_k > 0 { Some(upload_u32(backend, top_k, &ids)?) } else { None };
                let mut out = output(backend, dtype, ids.len(), cols)?;
                let (order_tensor, ids_tensor) = (&order_tensor, ids_tensor.as_ref());
                PermuteColumns { rows, x: &x_tensor, order: order_tensor, ids: ids_tensor, out: &mut out }
                    .run(backend)?;
                backend.synchronize()?;
                let want = crate::permute_columns::reference(&x, &order, cols, &ids);
                let got = read_output(backend, &out, ids.len())?;
                Ok(Outcome { error: worst(&got, &want, |_| 0.0), tolerance: 0.0 })
            });
        }
    }
}

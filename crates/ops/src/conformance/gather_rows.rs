//! Gathering is a copy: no error at all.

use super::{inputs::Inputs, *};

/// Rows picked, rows to pick from, columns.
const CASES: &[[usize; 3]] = &[[5, 3, 33], [1, 9, 64], [1, 1, 1], [40, 64, 896]];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &[rows, from, cols] in CASES {
        for dtype in DType::FLOATS {
            rig.case(crate::gather_rows::NAME, dtype, format!("{rows} of {from} x {cols}"), |backend| {
                let mut inputs = Inputs::new(2);
                let x: Vec<f32> = inputs.floats(from * cols, 2.0).iter().map(|&v| dtype.round(v)).collect();
                let mut indices = inputs.below(rows, from);
                indices[0] = from as u32 - 1;
                let x_tensor = upload(backend, dtype, cols, &x)?;
                let indices_tensor = upload_u32(backend, rows, &indices)?;
                let mut out = output(backend, dtype, rows, cols)?;
                GatherRows { rows, x: &x_tensor, indices: &indices_tensor, out: &mut out }.run(backend)?;
                backend.synchronize()?;
                let want = crate::gather_rows::reference(&x, &indices, cols);
                let got = read_output(backend, &out, rows)?;
                Ok(Outcome { error: worst(&got, &want, |_| 0.0), tolerance: 0.0 })
            });
        }
    }
}

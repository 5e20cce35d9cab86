//! Relative to the magnitudes added: two units in the last place for the exponential, and a division, a product and two sums.

use super::{inputs::Inputs, *};

/// Rows, hidden size, largest gate.
const CASES: &[(usize, usize, f32)] = &[(3, 90, 5.0), (30, 2048, 30.0), (1, 8, 1.0), (2, 15, 200.0)];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, hidden, size) in CASES {
        rig.case(
            crate::add_shared_expert::NAME,
            DType::F32,
            format!("{rows} x {hidden}, gates up to {size}"),
            |backend| {
                let mut inputs = Inputs::new(11);
                let (x, out) = (inputs.floats(rows * hidden, 3.0), inputs.floats(rows * hidden, 3.0));
                let gate = inputs.floats(rows, size);
                let x_tensor = upload(backend, DType::F32, hidden, &x)?;
                let gate_tensor = upload(backend, DType::F32, 1, &gate)?;
                let mut out_tensor = upload(backend, DType::F32, hidden, &out)?;
                AddSharedExpert { rows, x: &x_tensor, gate: &gate_tensor, out: &mut out_tensor }.run(backend)?;
                backend.synchronize()?;
                let want = crate::add_shared_expert::reference(&x, &gate, &out);
                let got = read_output(backend, &out_tensor, rows)?;
                let error = worst(&got, &want, |i| f64::from(x[i].abs()) + f64::from(out[i].abs()));
                Ok(Outcome { error, tolerance: tolerance(8.0, DType::F32) })
            },
        );
    }
}

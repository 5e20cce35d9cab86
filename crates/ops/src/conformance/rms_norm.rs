//! RMSNorm, relative to each output. The mean of `n` squares is `sqrt(n)` roundoffs off, its root half as much; root, division
//! and two products are a few more.

use super::{inputs::Inputs, *};

/// Rows, hidden size, magnitude.
pub(super) const CASES: &[(usize, usize, f32)] = &[
    (5, 896, 1.0),
    (3, 15, 1.0),
    (1, 1, 1.0),
    (1, 8, 1.0),
    (2, 90, 1e-3),
    (40, 1000, 30.0),
    (2, 8192, 1e4),
    (1, 30_001, 1.0),
    (1, 64, 1e-6),
];

/// Added to the mean square: large enough to tell whether it is.
pub(super) const EPS: f32 = 1e-5;

/// Roundoffs of a norm of so many elements.
pub fn roundoffs(hidden: usize) -> f64 {
    8.0 + (hidden as f64).sqrt() / 2.0
}

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, hidden, size) in CASES {
        for dtype in DType::FLOATS {
            rig.case(crate::rms_norm::NAME, dtype, format!("{rows} x {hidden}, magnitude {size}"), |backend| {
                let mut inputs = Inputs::new(3);
                let (x, weight) = (inputs.floats(rows * hidden, size), inputs.floats(hidden, 2.0));
                let x_tensor = upload(backend, DType::F32, hidden, &x)?;
                let weight_tensor = upload(backend, DType::F32, hidden, &weight)?;
                let mut out = output(backend, dtype, rows, hidden)?;
                RmsNorm { rows, x: &x_tensor, weight: &weight_tensor, eps: EPS, out: &mut out }.run(backend)?;
                backend.synchronize()?;
                let want = crate::rms_norm::reference(&x, &weight, EPS);
                let error = worst(&read_output(backend, &out, rows)?, &want, magnitude(&want, dtype));
                Ok(Outcome { error, tolerance: tolerance(roundoffs(hidden), dtype) })
            });
        }
    }
}

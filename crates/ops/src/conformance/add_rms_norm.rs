//! The residual is exact, as the reference also adds in f32; the norm is judged as RMSNorm.

use super::rms_norm::{CASES, EPS, roundoffs};
use super::{inputs::Inputs, *};

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, hidden, size) in CASES {
        for dtype in DType::FLOATS {
            rig.case(crate::add_rms_norm::NAME, dtype, format!("{rows} x {hidden}, magnitude {size}"), |backend| {
                let mut inputs = Inputs::new(4);
                let (residual, delta) = (inputs.floats(rows * hidden, size), inputs.floats(rows * hidden, size));
                let weight = inputs.floats(hidden, 2.0);
                let mut residual_tensor = upload(backend, DType::F32, hidden, &residual)?;
                let delta_tensor = upload(backend, DType::F32, hidden, &delta)?;
                let weight_tensor = upload(backend, DType::F32, hidden, &weight)?;
                let mut out = output(backend, dtype, rows, hidden)?;
                let op = AddRmsNorm {
                    rows,
                    residual: &mut residual_tensor,
                    delta: &delta_tensor,
                    weight: &weight_tensor,
                    eps: EPS,
                    out: &mut out,
                };
                op.run(backend)?;
                backend.synchronize()?;
                let (sum, want) = crate::add_rms_norm::reference(&residual, &delta, &weight, EPS);
                let sum_error = worst(&read_output(backend, &residual_tensor, rows)?, &sum, |_| 0.0);
                let error = worst(&read_output(backend, &out, rows)?, &want, magnitude(&want, dtype));
                Ok(Outcome { error: error.max(sum_error), tolerance: tolerance(roundoffs(hidden), dtype) })
            });
        }
    }
}

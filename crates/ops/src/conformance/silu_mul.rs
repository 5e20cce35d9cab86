//! Relative to each output: two units in the last place for the exponential, and a sum, a division and a product.

use super::{inputs::Inputs, *};

/// Rows, intermediate size, magnitude. Gates of 100 and more saturate the exponential on both sides.
const CASES: &[(usize, usize, f32)] =
    &[(3, 17, 4.0), (2, 90, 80.0), (1, 1, 1.0), (20, 4864, 8.0), (1, 64, 1e4), (1, 64, 1e-4)];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, cols, size) in CASES {
        for dtype in DType::FLOATS {
            rig.case(crate::silu_mul::NAME, dtype, format!("{rows} x {cols}, magnitude {size}"), |backend| {
                let mut gate_up = Inputs::new(8).floats(rows * 2 * cols, size);
                for row in gate_up.chunks_exact_mut(2 * cols) {
                    // Products stay within the range of every type.
                    row[cols..].iter_mut().for_each(|up| *up /= size.max(1.0));
                }
                let gate_up_tensor = upload(backend, DType::F32, 2 * cols, &gate_up)?;
                let mut out = output(backend, dtype, rows, cols)?;
                SiluMul { rows, gate_up: &gate_up_tensor, out: &mut out }.run(backend)?;
                backend.synchronize()?;
                let want = crate::silu_mul::reference(&gate_up, cols);
                let error = worst(&read_output(backend, &out, rows)?, &want, magnitude(&want, dtype));
                Ok(Outcome { error, tolerance: tolerance(10.0, dtype) })
            });
        }
    }
}

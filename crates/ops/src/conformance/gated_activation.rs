//! Relative to each output: two units in the last place for the exponential, and a sum, a division and a product. The argument of
//! GELU's exponential is four roundoffs off, and that of ClampedSwiglu's one, which its result shows as often as the argument is large.

use super::{inputs::Inputs, *};

/// Rows, intermediate size, magnitude. Gates of 100 and more saturate the exponential on both sides.
const CASES: &[(usize, usize, f32)] =
    &[(3, 17, 4.0), (2, 90, 80.0), (1, 1, 1.0), (20, 4864, 8.0), (1, 64, 1e4), (1, 64, 1e-4)];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &case in CASES {
        // Neighbours, so that a short selection has all.
        for activation in Activation::ALL {
            for dtype in DType::FLOATS {
                verify_case(rig, case, activation, dtype);
            }
        }
    }
}

fn verify_case<B: Backend>(
    rig: &mut Rig<'_, B>,
    (rows, cols, size): (usize, usize, f32),
    activation: Activation,
    dtype: DType,
) {
    let name = format!("{activation:?}, {rows} x {cols}, magnitude {size}");
    rig.case(crate::gated_activation::NAME, dtype, name, |backend| {
        let mut gate_up = Inputs::new(8).floats(rows * 2 * cols, size);
        for row in gate_up.chunks_exact_mut(2 * cols) {
            if activation == Activation::ClampedSwiglu {
                // It has bounds of its own.
                break;
            }
            // Products stay within the range of every type.
            row[cols..].iter_mut().for_each(|up| *up /= size.max(1.0));
        }
        let gate_up_tensor = upload(backend, DType::F32, 2 * cols, &gate_up)?;
        let mut out = output(backend, dtype, rows, cols)?;
        GatedActivation { rows, activation, gate_up: &gate_up_tensor, out: &mut out }.run(backend)?;
        backend.synchronize()?;
        let want = crate::gated_activation::reference(activation, &gate_up, cols);
        let magnitude = magnitude(&want, dtype);
        let amplified = |i: usize| match activation {
            Activation::Silu => 1.0,
            Activation::GeluTanh | Activation::ClampedSwiglu => {
                let gate = f64::from(gate_up[i / cols * 2 * cols + i % cols]);
                // The sigmoid of a positive argument hardly moves with it.
                1.0 + (-activation.argument(gate)).max(0.0)
            }
        };
        let error = worst(&read_output(backend, &out, rows)?, &want, |i| magnitude(i) * amplified(i));
        Ok(Outcome { error, tolerance: tolerance(10.0, dtype) })
    });
}

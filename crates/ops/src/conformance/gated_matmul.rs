//! The bits of the two ops that it is made of, whose own cases hold them to their references.

use super::{inputs::Inputs, *};

/// Rows, intermediate size, K, whether there is a bias.
const CASES: &[(usize, usize, usize, bool)] = &[
    (5, 90, 96, false),
    (30, 33, 600, true),
    (1, 1, 7, true),
    (16, 17, 160, false),
    (9, 8, 31, true),
    (70, 64, 160, true),
    // Whole panels of many rows, which backends may multiply together.
    (48, 32, 96, false),
];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, width, k, with_bias) in CASES {
        for activation in Activation::ALL {
            for format in WeightFormat::CHECKED {
                let dtype = format.input();
                let name = format!("{activation:?}, {rows} x 2 * {width} x {k}, bias {with_bias}");
                rig.case_with_weight(crate::gated_matmul::NAME, format, name, |backend| {
                    let mut inputs = Inputs::new(15);
                    let x = upload(backend, dtype, k, &rounded(&mut inputs, dtype, rows * k))?;
                    let weight = KnownWeight::new(&mut inputs, format, [1, 2 * width, k]).upload_parts(backend)?;
                    let bias = inputs.floats(if with_bias { 2 * width } else { 0 }, 2.0);
                    let bias = if with_bias { Some(upload(backend, DType::F32, 2 * width, &bias)?) } else { None };
                    let (x, weight, bias) = (&x, &weight, bias.as_ref());
                    let mut run = |is_apart| -> Result<Vec<f32>> {
                        let (gate_up, out) = (
                            &mut output(backend, DType::F32, rows, 2 * width)?,
                            &mut output(backend, dtype, rows, width)?,
                        );
                        let op = GatedMatmul { rows, x, weight, bias, activation, gate_up, out };
                        if is_apart {
                            op.run_apart(backend)?
                        } else {
                            op.run(backend)?
                        }
                        backend.synchronize()?;
                        // What is in `gate_up` may be anything, but not behind its rows.
                        read_output(backend, gate_up, rows)?;
                        read_output(backend, out, rows)
                    };
                    let (together, apart) = (run(false)?, run(true)?);
                    let differ = apart.iter().zip(&together).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                    Ok(Outcome { error: differ as f64, tolerance: 0.0 })
                });
            }
        }
    }
}

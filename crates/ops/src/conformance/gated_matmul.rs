//! The bits of the two ops that it is made of.

use super::{inputs::Inputs, *};

/// Rows, intermediate size, K, whether there is a bias.
const CASES: &[(usize, usize, usize, bool)] = &[
    (5, 90, 96, false),
    (30, 33, 600, true),
    (1, 1, 7, true),
    (16, 17, 160, false),
    (9, 8, 31, true),
    (70, 40, 64, false),
];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, cols, k, with_bias) in CASES {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for format in WeightFormat::ALL {
                let dtype = format.input();
                let name = format!("{activation:?}, {rows} x 2 * {cols} x {k}, bias {with_bias}");
                rig.case(crate::gated_matmul::NAME, dtype, name, |backend| {
                    let mut inputs = Inputs::new(15);
                    let x = upload(backend, dtype, k, &rounded(&mut inputs, dtype, rows * k))?;
                    let weight = weight_values(&mut inputs, format, 2 * cols * k);
                    let weight = upload_weight(backend, format, [1, 2 * cols, k], &weight)?;
                    let bias = inputs.floats(if with_bias { 2 * cols } else { 0 }, 2.0);
                    let bias = if with_bias { Some(upload(backend, DType::F32, 2 * cols, &bias)?) } else { None };
                    let (x, weight, bias) = (&x, &weight, bias.as_ref());
                    let mut results = Vec::new();
                    for at_once in [true, false] {
                        let mut gate_up = output(backend, DType::F32, rows, 2 * cols)?;
                        let mut out = output(backend, dtype, rows, cols)?;
                        let op =
                            GatedMatmul { rows, x, weight, bias, activation, gate_up: &mut gate_up, out: &mut out };
                        if at_once {
                            op.run(backend)?
                        } else {
                            op.apart(backend)?
                        }
                        backend.synchronize()?;
                        read_output(backend, &gate_up, rows)?;
                        results.push(read_output(backend, &out, rows)?);
                    }
                    let different = results[0].iter().zip(&results[1]).filter(|(a, b)| a.to_bits() != b.to_bits());
                    Ok(Outcome { error: different.count() as f64, tolerance: 0.0 })
                });
            }
        }
    }
}

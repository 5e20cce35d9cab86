//! The bits of the two ops that it is made of, whose own cases hold them to their references.

use super::{inputs::Inputs, *};

/// Rows, intermediate size, K: products that a backend may keep to itself, with one row and several tiles; columns that fill no tile.
const CASES: &[(usize, usize, usize)] = &[(1, 64, 90), (70, 32, 160), (5, 50, 64)];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, width, k) in CASES {
        for format in WeightFormat::CHECKED {
            let dtype = format.input();
            rig.case_with_weight(crate::gated_matmul::NAME, format, format!("{rows} x {width} x {k}"), |backend| {
                let mut inputs = Inputs::new(9);
                let x = upload(backend, dtype, k, &inputs.floats(rows * k, 2.0))?;
                let weight = KnownWeight::new(&mut inputs, format, [1, 2 * width, k]).upload_parts(backend)?;
                let bias = upload(backend, DType::F32, 2 * width, &inputs.floats(2 * width, 2.0))?;
                let mut run = |is_apart| -> Result<Vec<f32>> {
                    let mut gate_up = backend.allocate(DType::F32, rows, 2 * width)?;
                    let mut out = output(backend, dtype, rows, width)?;
                    let op = GatedMatmul {
                        rows,
                        x: &x,
                        weight: &weight,
                        bias: Some(&bias),
                        activation: Activation::Silu,
                        gate_up: &mut gate_up,
                        out: &mut out,
                    };
                    if is_apart {
                        op.run_apart(backend)?
                    } else {
                        op.run(backend)?
                    }
                    backend.synchronize()?;
                    read_output(backend, &out, rows)
                };
                let (apart, together) = (run(true)?, run(false)?);
                let differ = apart.iter().zip(&together).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                Ok(Outcome { error: differ as f64, tolerance: 0.0 })
            });
        }
    }
}

//! The experts must be the reference's. Weights are relative: a logit's distance from the largest is a roundoff off for each
//! unit of it, the exponential two units in the last place, the sum `sqrt(experts)`.

use super::{inputs::Inputs, *};

/// Rows, experts, chosen, largest logit.
const CASES: &[(usize, usize, usize, f32)] =
    &[(3, 8, 2, 4.0), (40, 60, 4, 10.0), (1, 1, 1, 1.0), (7, 128, 8, 3.0), (2, 17, 17, 40.0), (3, 600, 9, 5.0)];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, experts, top_k, size) in CASES {
        for renormalize in [false, true] {
            for ties in [false, true] {
                let name = format!("{rows} x {top_k} of {experts}, renormalize {renormalize}, ties {ties}");
                rig.case(crate::topk_softmax::NAME, DType::F32, name, |backend| {
                    let mut logits = Inputs::new(9).floats(rows * experts, size);
                    if ties {
                        logits.iter_mut().for_each(|l| *l = l.round());
                    }
                    let logits_tensor = upload(backend, DType::F32, experts, &logits)?;
                    let mut ids = output(backend, DType::U32, rows, top_k)?;
                    let mut weights = output(backend, DType::F32, rows, top_k)?;
                    let op =
                        TopkSoftmax { rows, logits: &logits_tensor, renormalize, ids: &mut ids, weights: &mut weights };
                    op.run(backend)?;
                    backend.synchronize()?;
                    let (mut want_ids, mut want) = (Vec::new(), Vec::new());
                    for logits in logits.chunks_exact(experts) {
                        let (ids, weights) = crate::topk_softmax::reference(logits, top_k, renormalize);
                        want_ids.extend(ids);
                        want.extend(weights);
                    }
                    let right_ids = read_output_u32(backend, &ids, rows)? == want_ids;
                    let error = worst(&read_output(backend, &weights, rows)?, &want, magnitude(&want, DType::F32));
                    let roundoffs = 12.0 + 2.0 * f64::from(size) + (experts as f64).sqrt();
                    let error = if right_ids { error } else { f64::INFINITY };
                    Ok(Outcome { error, tolerance: tolerance(roundoffs, DType::F32) })
                });
            }
        }
    }
}

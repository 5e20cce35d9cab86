//! Embedding is a copy: no error at all.

use super::{inputs::Inputs, *};

/// Rows, vocabulary, hidden size.
const CASES: &[[usize; 3]] = &[[3, 100, 64], [17, 257, 90], [1, 1, 8], [5, 40, 100], [70, 1000, 896]];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &[rows, vocab, hidden] in CASES {
        for dtype in DType::FLOATS {
            rig.case(crate::embedding::NAME, dtype, format!("{rows} of {vocab} x {hidden}"), |backend| {
                let mut inputs = Inputs::new(1);
                let values: Vec<f32> = inputs.floats(vocab * hidden, 2.0).iter().map(|&v| dtype.round(v)).collect();
                let mut ids = inputs.below(rows, vocab);
                ids[rows - 1] = vocab as u32 - 1;
                let table = upload_weight(backend, dtype, [1, vocab, hidden], &values)?;
                let ids_tensor = upload_u32(backend, rows, &ids)?;
                let mut out = output(backend, DType::F32, rows, hidden)?;
                Embedding { rows, ids: &ids_tensor, table: &table, out: &mut out }.run(backend)?;
                backend.synchronize()?;
                let want = crate::embedding::reference(&ids, &values, hidden);
                let got = read_output(backend, &out, rows)?;
                Ok(Outcome { error: worst(&got, &want, |_| 0.0), tolerance: 0.0 })
            });
        }
    }
}

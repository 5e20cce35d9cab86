//! Embedding is a copy, or one product that the reference rounds alike: no error at all. What has a subnormal factor may become zero, as on
//! Apple's GPUs.

use super::{inputs::Inputs, *};

/// Rows, vocabulary, hidden size, scale.
const CASES: &[(usize, usize, usize, f32)] = &[
    (3, 100, 64, 1.0),
    (17, 257, 90, 9.486_833),
    (1, 1, 8, 1.0),
    (5, 40, 100, 1.0),
    (70, 1000, 896, 1.0),
    (9, 300, 1152, 34.0),
];

/// Zero for what may have a subnormal factor: the others are small powers of two.
fn normal(x: f32) -> f32 {
    const LEAST: f32 = f32::from_bits((127 - 110) << 23);
    if x.abs() < LEAST { 0.0 } else { x }
}

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &(rows, vocab, hidden, scale) in CASES {
        for format in WeightFormat::CHECKED {
            let name = format!("{rows} of {vocab} x {hidden}, times {scale}");
            rig.case_with_weight(crate::embedding::NAME, format, name, |backend| {
                let mut inputs = Inputs::new(1);
                let weight = KnownWeight::new(&mut inputs, format, [1, vocab, hidden]);
                let mut ids = inputs.below(rows, vocab);
                ids[rows - 1] = vocab as u32 - 1;
                let table = weight.upload(backend)?;
                let ids_tensor = upload_u32(backend, rows, &ids)?;
                let mut out = output(backend, DType::F32, rows, hidden)?;
                Embedding { rows, ids: &ids_tensor, table: &table, scale, out: &mut out }.run(backend)?;
                backend.synchronize()?;
                let want = crate::embedding::reference(&ids, &weight.values, hidden, scale);
                let got = read_output(backend, &out, rows)?;
                let [got, want] = [got, want].map(|values| values.into_iter().map(normal).collect::<Vec<_>>());
                Ok(Outcome { error: worst(&got, &want, |_| 0.0), tolerance: 0.0 })
            });
        }
    }
}

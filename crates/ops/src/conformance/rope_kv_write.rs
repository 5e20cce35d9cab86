//! A rotated element is two products and a sum, relative to the products' magnitudes; keys are then rounded to the cache's
//! type, and values only that.

use super::{inputs::Inputs, *};

/// Rows, query heads, key heads, head size, block size.
const CASES: &[[usize; 5]] = &[
    [3, 6, 2, 40, 16],
    [35, 14, 2, 64, 16],
    [1, 1, 1, 8, 16],
    [9, 4, 4, 72, 32],
    [70, 8, 1, 128, 16],
    [5, 3, 3, 256, 64],
];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &case in CASES {
        for dtype in DType::FLOATS {
            let [rows, num_heads, num_kv_heads, head_dim, block_size] = case;
            let name = format!("{rows} x ({num_heads} + 2 * {num_kv_heads}) x {head_dim}, blocks of {block_size}");
            rig.case(crate::rope_kv_write::NAME, dtype, name, |backend| verify_case(backend, dtype, case));
        }
    }
}

fn verify_case<B: Backend>(
    backend: &mut B,
    dtype: DType,
    [rows, num_heads, num_kv_heads, head_dim, block_size]: [usize; 5],
) -> Result<Outcome> {
    let mut inputs = Inputs::new(12);
    let (width, half) = ((num_heads + 2 * num_kv_heads) * head_dim, head_dim / 2);
    let max_positions = 100;
    let qkv = inputs.floats(rows * width, 3.0);
    let angles = inputs.floats(max_positions * half, 3.0);
    let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
    let num_blocks = rows.div_ceil(block_size) + 2;
    let slots = &inputs.shuffled(num_blocks * block_size)[..rows];
    let positions = inputs.below(rows, max_positions);

    let table =
        RopeTable { cos: upload(backend, DType::F32, half, &cos)?, sin: upload(backend, DType::F32, half, &sin)? };
    let mut cache = backend.allocate_kv_cache(KvSpec { dtype, num_blocks, block_size, num_kv_heads, head_dim })?;
    let mut qkv_tensor = upload(backend, DType::F32, width, &qkv)?;
    let op = RopeKvWrite {
        rows,
        qkv: &mut qkv_tensor,
        num_heads,
        positions: &upload_u32(backend, rows, &positions)?,
        slot_mapping: &upload_u32(backend, rows, slots)?,
        table: &table,
        cache: &mut cache,
    };
    op.run(backend)?;
    backend.synchronize()?;

    let got_qkv = read_output(backend, &qkv_tensor, rows)?;
    let (mut q_error, mut kv_error) = (0.0f64, 0.0f64);
    for t in 0..rows {
        let at = positions[t] as usize * half;
        let (cos, sin) = (&cos[at..][..half], &sin[at..][..half]);
        let (keys, values) = backend.read_kv(&cache, slots[t] as usize);
        for (h, head) in qkv[t * width..][..width].chunks_exact(head_dim).enumerate() {
            let want = crate::rope_kv_write::reference(head, cos, sin);
            let size = |i: usize| {
                let other = head[(i + half) % head_dim];
                f64::from((head[i] * cos[i % half]).abs() + (other * sin[i % half]).abs())
            };
            if h < num_heads {
                let got = &got_qkv[t * width + h * head_dim..][..head_dim];
                q_error = q_error.max(worst(got, &want, size));
            } else if h < num_heads + num_kv_heads {
                let got = &keys[(h - num_heads) * head_dim..][..head_dim];
                kv_error = kv_error.max(worst(got, &want, size));
            } else {
                let want: Vec<f32> = head.iter().map(|&v| dtype.round(v)).collect();
                let got = &values[(h - num_heads - num_kv_heads) * head_dim..][..head_dim];
                kv_error = kv_error.max(worst(got, &want, |_| 0.0));
            }
        }
    }
    // Queries are not rounded to the cache's type: judged on its scale, they must not be as far off as keys may be.
    let (q_tolerance, tolerance) = (tolerance(4.0, DType::F32), tolerance(4.0, dtype));
    Ok(Outcome { error: kv_error.max(q_error * tolerance / q_tolerance), tolerance })
}

//! A rotated element is two products and a sum, relative to the products' magnitudes; and its bits are those of `rope_kv_write`.

use super::{inputs::Inputs, *};

/// Rows, query heads, head size.
const CASES: &[[usize; 3]] = &[[3, 6, 40], [35, 14, 64], [1, 1, 8], [9, 4, 72], [70, 8, 128], [5, 3, 256]];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &case in CASES {
        let [rows, num_heads, head_dim] = case;
        rig.case(crate::rope::NAME, DType::F32, format!("{rows} x {num_heads} x {head_dim}"), |backend| {
            verify_case(backend, case)
        });
    }
}

fn verify_case<B: Backend>(backend: &mut B, [rows, num_heads, head_dim]: [usize; 3]) -> Result<Outcome> {
    let mut inputs = Inputs::new(15);
    let (width, half, max_positions) = (num_heads * head_dim, head_dim / 2, 100);
    let q = inputs.floats(rows * width, 3.0);
    let angles = inputs.floats(max_positions * half, 3.0);
    let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
    let positions = inputs.below(rows, max_positions);
    let table =
        RopeTable { cos: upload(backend, DType::F32, half, &cos)?, sin: upload(backend, DType::F32, half, &sin)? };
    let positions_tensor = upload_u32(backend, rows, &positions)?;
    let mut q_tensor = output(backend, DType::F32, rows, width)?;
    backend.write(&mut q_tensor, &DType::F32.encode(&q));
    Rope { rows, q: &mut q_tensor, num_heads, positions: &positions_tensor, table: &table }.run(backend)?;
    backend.synchronize()?;

    let got = read_output(backend, &q_tensor, rows)?;
    let mut error = 0f64;
    for (i, (got, head)) in got.chunks_exact(head_dim).zip(q.chunks_exact(head_dim)).enumerate() {
        let at = positions[i / num_heads] as usize * half;
        let (cos, sin) = (&cos[at..][..half], &sin[at..][..half]);
        let size = |i: usize| {
            let other = head[(i + half) % head_dim];
            f64::from((head[i] * cos[i % half]).abs() + (other * sin[i % half]).abs())
        };
        error = error.max(worst(got, &crate::rope::reference(head, cos, sin), size));
    }
    let same = with_keys(backend, &q, num_heads, &positions_tensor, &table)?;
    let same = got.iter().zip(&same).all(|(a, b)| a.to_bits() == b.to_bits());
    Ok(Outcome { error: if same { error } else { f64::INFINITY }, tolerance: tolerance(4.0, DType::F32) })
}

/// The queries as `rope_kv_write` rotates them beside a key and a value.
fn with_keys<B: Backend>(
    backend: &mut B,
    q: &[f32],
    num_heads: usize,
    positions: &Tensor<B::Memory>,
    table: &RopeTable<B::Memory>,
) -> Result<Vec<f32>> {
    let head_dim = 2 * table.cos.cols();
    let (width, rows) = (num_heads * head_dim, q.len() / (num_heads * head_dim));
    let (block_size, num_blocks) = (16, rows.div_ceil(16));
    let spec = KvSpec { dtype: DType::F32, num_blocks, block_size, num_kv_heads: 1, head_dim };
    let mut cache = backend.allocate_kv_cache(spec)?;
    let padded: Vec<f32> = q
        .chunks_exact(width)
        .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(0.5, 2 * head_dim)))
        .collect();
    let mut qkv = upload(backend, DType::F32, width + 2 * head_dim, &padded)?;
    let slots: Vec<u32> = (0..rows as u32).collect();
    let slot_mapping = &upload_u32(backend, rows, &slots)?;
    RopeKvWrite { rows, qkv: &mut qkv, num_heads, positions, slot_mapping, table, cache: &mut cache }.run(backend)?;
    backend.synchronize()?;
    let rotated = read_output(backend, &qkv, rows)?;
    Ok(rotated.chunks_exact(width + 2 * head_dim).flat_map(|row| row[..width].to_vec()).collect())
}

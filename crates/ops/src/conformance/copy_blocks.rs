//! Blocks are copied bit by bit, and no other block changes.

use super::paged_attention::write_cache;
use super::{inputs::Inputs, *};

/// Pairs, blocks, key heads, head size, block size.
const CASES: &[[usize; 5]] = &[[3, 9, 2, 40, 16], [8, 16, 8, 128, 16], [1, 2, 1, 8, 16], [2, 5, 3, 72, 48]];

pub(super) fn verify<B: Backend>(rig: &mut Rig<'_, B>) {
    for &case in CASES {
        for dtype in DType::FLOATS {
            let [pairs, blocks, kv_heads, head_dim, block_size] = case;
            let name = format!("{pairs} of {blocks} blocks of {block_size}, {kv_heads} heads of {head_dim}");
            rig.case("copy_blocks", dtype, name, |backend| verify_case(backend, dtype, case));
        }
    }
}

fn verify_case<B: Backend>(
    backend: &mut B,
    dtype: DType,
    [num_pairs, num_blocks, num_kv_heads, head_dim, block_size]: [usize; 5],
) -> Result<Outcome> {
    let mut inputs = Inputs::new(14);
    let mut cache = backend.allocate_kv_cache(KvSpec { dtype, num_blocks, block_size, num_kv_heads, head_dim })?;
    let slots: Vec<u32> = (0..cache.spec.num_slots() as u32).collect();
    let rows = inputs.floats(slots.len() * 2 * num_kv_heads * head_dim, 3.0);
    write_cache(backend, &mut cache, &slots, &rows)?;
    // The first of a shuffle are written, the others read: some by several, some by none.
    let ids = inputs.shuffled(num_blocks);
    let from = inputs.below(num_pairs, num_blocks - num_pairs);
    let pairs: Vec<(u32, u32)> = (0..num_pairs).map(|i| (ids[num_pairs + from[i] as usize], ids[i])).collect();
    let mut flat: Vec<u32> = pairs.iter().flat_map(|&(from, to)| [from, to]).collect();
    // Behind the pairs: what the op may not follow.
    flat.extend([ids[num_blocks - 1], ids[num_blocks - 1]]);
    let read = |backend: &B, cache: &KvCache<B::Memory>, offset: usize| -> Vec<(Vec<f32>, Vec<f32>)> {
        (0..num_blocks).map(|block| backend.read_kv(cache, block * block_size + offset)).collect()
    };
    let before: Vec<_> = (0..block_size).map(|offset| read(backend, &cache, offset)).collect();
    let pairs_tensor = upload_u32(backend, flat.len(), &flat)?;
    CopyBlocks { num_pairs, pairs: &pairs_tensor, cache: &mut cache }.run(backend)?;
    backend.finish()?;
    let mut error = 0f64;
    for (offset, before) in before.iter().enumerate() {
        let want = crate::copy_blocks::reference(before, &pairs);
        for ((k, v), (want_k, want_v)) in read(backend, &cache, offset).iter().zip(&want) {
            error = error.max(worst(k, want_k, |_| 0.0)).max(worst(v, want_v, |_| 0.0));
        }
    }
    Ok(Outcome { error, tolerance: 0.0 })
}

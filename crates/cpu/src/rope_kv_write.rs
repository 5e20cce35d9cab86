//! Rotates query and key heads and writes keys and values to the cache, token by token.

use std::ops::Range;

use vllm_apple_ops::{Error, Result, RopeKvWrite};

use crate::CpuBackend;
use crate::kv_layout::KvLayout;
use crate::memory::Memory;
use crate::memory::{elements, elements_mut};
use crate::pack::SendPtr;
use crate::simd::{Element, Kernel, LANES, Simd, load_padded, store_part};

/// Tokens that a thread takes at a time, at most: neighbours share cache lines.
const MOST_TOKENS: usize = 32;

pub(crate) fn run<T: Element>(backend: &CpuBackend, op: RopeKvWrite<'_, Memory>) -> Result<()> {
    let layout = KvLayout::new(&op.cache.spec)?;
    let positions: &[u32] = &elements(op.positions, 1)[..op.rows];
    let slots: &[u32] = &elements(op.slot_mapping, 1)[..op.rows];
    check(vllm_apple_ops::rope_kv_write::NAME, "positions", positions, op.table.cos.rows())?;
    check(vllm_apple_ops::rope_kv_write::NAME, "slot_mapping", slots, op.cache.spec.num_slots())?;
    let width = op.qkv.cols();
    let qkv: &mut [f32] = elements_mut(op.qkv, op.rows);
    let qkv = SendPtr(qkv.as_mut_ptr());
    let keys: &mut [T] = bytemuck::cast_slice_mut(op.cache.keys.bytes_mut());
    let values: &mut [T] = bytemuck::cast_slice_mut(op.cache.values.bytes_mut());
    let (keys, values) = (SendPtr(keys.as_mut_ptr()), SendPtr(values.as_mut_ptr()));
    let (cos, sin) = (elements(&op.table.cos, op.table.cos.rows()), elements(&op.table.sin, op.table.cos.rows()));
    let grain = (op.rows / backend.pool.threads()).clamp(1, MOST_TOKENS);
    backend.pool.run_ranges(op.rows, grain, &|tokens, _| {
        backend.dispatch.run(Tokens {
            tokens,
            width,
            num_heads: op.num_heads,
            layout,
            positions,
            slots,
            cos,
            sin,
            qkv,
            keys,
            values,
        });
    });
    Ok(())
}

/// The memory safety of what follows rests on the caller's promise being kept, so it is checked.
pub(crate) fn check(op: &'static str, what: &'static str, ids: &[u32], limit: usize) -> Result<()> {
    match ids.iter().max() {
        Some(&id) if id as usize >= limit => {
            Err(Error::InvalidArgument { op, what, expected: format!("below {limit}"), got: id.to_string() })
        }
        _ => Ok(()),
    }
}

struct Tokens<'a, T> {
    tokens: Range<usize>,
    /// Elements in a row of `qkv`.
    width: usize,
    num_heads: usize,
    layout: KvLayout,
    positions: &'a [u32],
    slots: &'a [u32],
    cos: &'a [f32],
    sin: &'a [f32],
    qkv: SendPtr<f32>,
    keys: SendPtr<T>,
    values: SendPtr<T>,
}

impl<T: Element> Kernel for Tokens<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let KvLayout { head_dim, num_kv_heads, .. } = self.layout;
        let half = head_dim / 2;
        for token in self.tokens.clone() {
            // SAFETY: each token has a row of its own and is in one range only.
            let row = unsafe { std::slice::from_raw_parts_mut(self.qkv.get().add(token * self.width), self.width) };
            let position = self.positions[token] as usize;
            let (cos, sin) = (&self.cos[position * half..][..half], &self.sin[position * half..][..half]);
            let (rotated, values) = row.split_at_mut((self.num_heads + num_kv_heads) * head_dim);
            for head in rotated.chunks_exact_mut(head_dim) {
                rotate(s, head, cos, sin);
            }
            let keys = &rotated[self.num_heads * head_dim..];
            let slot = self.slots[token] as usize;
            for h in 0..num_kv_heads {
                let mut rounded = [T::zeroed(); vllm_apple_ops::MAX_HEAD_DIM];
                let rounded = &mut rounded[..head_dim];
                round(s, &keys[h * head_dim..][..head_dim], rounded);
                for (i, keys) in rounded.chunks_exact(T::TOGETHER).enumerate() {
                    // SAFETY: the slot is within the cache, and only this token is written to it.
                    unsafe {
                        let to = self.keys.get().add(self.layout.key(slot, h, 0) + i * LANES * T::TOGETHER);
                        to.copy_from_nonoverlapping(keys.as_ptr(), T::TOGETHER);
                    }
                }
                round(s, &values[h * head_dim..][..head_dim], rounded);
                for (d, &value) in rounded.iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { *self.values.get().add(self.layout.value(slot, h, 0) + d * T::TOGETHER) = value };
                }
            }
        }
    }
}

#[inline(always)]
pub(crate) fn rotate<S: Simd>(s: S, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    let tables = cos.chunks(LANES).zip(sin.chunks(LANES));
    for ((a, b), (cos, sin)) in first.chunks_mut(LANES).zip(second.chunks_mut(LANES)).zip(tables) {
        let (x, y) = (load_padded(s, a), load_padded(s, b));
        let (cos, sin) = (load_padded(s, cos), load_padded(s, sin));
        store_part(s, s.sub(s.mul(x, cos), s.mul(y, sin)), a);
        store_part(s, s.mul_add(y, cos, s.mul(x, sin)), b);
    }
}

#[inline(always)]
fn round<S: Simd, T: Element>(s: S, from: &[f32], to: &mut [T]) {
    for (from, to) in from.chunks(LANES).zip(to.chunks_mut(LANES)) {
        store_part(s, load_padded(s, from), to);
    }
}

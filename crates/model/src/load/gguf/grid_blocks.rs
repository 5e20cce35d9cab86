//! Groups of GGUF's blocks that name entries of grids, eight or four elements at once: IQ1, IQ2 and IQ3. The grids are ggml's, as its package gguf
//! has them: `tools/golden/gguf_grids.py`.

use half::f16;
use vllm_apple_ops::Scale;

use super::blocks::{half, scale};

/// Entries of 16 bits, one grid after the other.
const GRIDS: &[u8; 9216] = include_bytes!("grids.bin");

/// Where a type's grid begins.
mod grid {
    pub(super) const IQ2_XXS: usize = 0;
    pub(super) const IQ2_XS: usize = IQ2_XXS + 256;
    pub(super) const IQ2_S: usize = IQ2_XS + 512;
    pub(super) const IQ3_XXS: usize = IQ2_S + 1024;
    pub(super) const IQ3_S: usize = IQ3_XXS + 256;
    pub(super) const IQ1: usize = IQ3_S + 512;
}

fn entry(grid: usize, number: usize) -> u16 {
    u16_at(GRIDS, grid + number)
}

/// Number `number` of 16 bits.
fn u16_at(bytes: &[u8], number: usize) -> u16 {
    u16::from_le_bytes([bytes[number * 2], bytes[number * 2 + 1]])
}

/// An odd number of factors.
fn odd(factor: f32, number: u8) -> Scale {
    scale(factor * f32::from(2 * number + 1))
}

/// A half of a byte, the lower one first.
fn nibble(bytes: &[u8], number: usize) -> u8 {
    bytes[number / 2] >> (number % 2 * 4) & 15
}

/// The eighth of eight signs makes their number even.
fn with_eighth(signs: u32) -> u8 {
    let signs = signs as u8 & 127;
    signs | (signs.count_ones() as u8 & 1) << 7
}

/// Eight elements of IQ2: a sign is the third bit of a code.
fn put_iq2(entry: u16, signs: u8, codes: &mut [u8]) {
    for (k, code) in codes.iter_mut().enumerate() {
        *code = (entry >> (k * 2) & 3) as u8 | (signs >> k & 1) << 2;
    }
}

/// A factor, then for each group four entries and 32 bits of signs and a scale.
pub(super) fn iq2_xxs(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    let from = &block[2 + group * 8..];
    let rest = u32::from_le_bytes([from[4], from[5], from[6], from[7]]);
    for (part, codes) in codes.chunks_mut(8).enumerate() {
        put_iq2(entry(grid::IQ2_XXS, from[part].into()), with_eighth(rest >> (part * 7)), codes);
    }
    odd(half(block, 0), (rest >> 28) as u8)
}

/// A factor, 32 times an entry with its signs, then scales.
pub(super) fn iq2_xs(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    for (part, codes) in codes.chunks_mut(8).enumerate() {
        let both = u16_at(&block[2..], group * 2 + part);
        put_iq2(entry(grid::IQ2_XS, (both & 511).into()), with_eighth((both >> 9).into()), codes);
    }
    odd(half(block, 0), nibble(&block[66..], group))
}

/// A factor, the lower bits of 32 entries, their signs, their upper bits, then scales.
pub(super) fn iq2_s(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    for (part, codes) in codes.chunks_mut(8).enumerate() {
        let number = group * 2 + part;
        let upper = block[66 + number / 4] >> (number % 4 * 2) & 3;
        put_iq2(entry(grid::IQ2_S, joined(block[2 + number], upper)), block[34 + number], codes);
    }
    odd(half(block, 0), nibble(&block[74..], group))
}

/// The number of an entry.
fn joined(lower: u8, upper: u8) -> usize {
    usize::from(lower) | usize::from(upper) << 8
}

/// A factor, 64 entries of four elements, then for each group 32 bits of signs and a scale.
pub(super) fn iq3_xxs(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    let rest = &block[66 + group * 4..];
    let rest = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
    for (part, codes) in codes.chunks_mut(4).enumerate() {
        let entry = entry(grid::IQ3_XXS, block[2 + group * 8 + part].into());
        let signs = with_eighth(rest >> (part / 2 * 7)) >> (part % 2 * 4);
        for (k, code) in codes.iter_mut().enumerate() {
            *code = (entry >> (k * 4) & 7) as u8 | (signs >> k & 1) << 3;
        }
    }
    odd(half(block, 0), (rest >> 28) as u8)
}

/// A factor, the lower bits of 64 entries of four elements, their upper bits, signs, then scales.
pub(super) fn iq3_s(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    for (part, codes) in codes.chunks_mut(4).enumerate() {
        let number = group * 8 + part;
        let entry = entry(grid::IQ3_S, joined(block[2 + number], block[66 + group] >> part & 1));
        let signs = block[74 + number / 2] >> (number % 2 * 4);
        for (k, code) in codes.iter_mut().enumerate() {
            // Of the odd numbers from -15 to 15.
            let magnitude = (entry >> (k * 4) & 7) as u8;
            *code = if signs >> k & 1 == 1 { 7 - magnitude } else { 8 + magnitude };
        }
    }
    odd(half(block, 0), nibble(&block[106..], group))
}

/// Eight elements of IQ1.
fn put_iq1(entry: u16, less: bool, codes: &mut [u8]) {
    for (k, code) in codes.iter_mut().enumerate() {
        *code = (entry >> (k * 2) & 3) as u8 | u8::from(less) << 2;
    }
}

/// A factor, the lower bits of 32 entries, then for each group 16 bits: their upper bits, a scale, and whether an eighth is taken away.
pub(super) fn iq1_s(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    let rest = u16_at(&block[34..], group);
    for (part, codes) in codes.chunks_mut(8).enumerate() {
        let upper = (rest >> (part * 3) & 7) as u8;
        put_iq1(entry(grid::IQ1, joined(block[2 + group * 4 + part], upper)), rest >> 15 == 1, codes);
    }
    odd(half(block, 0), (rest >> 12 & 7) as u8)
}

/// The lower bits of 32 entries, for each of them a half of a byte of its upper bits and whether an eighth is taken away, then scales of 3 bits.
pub(super) fn iq1_m(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    for (part, codes) in codes.chunks_mut(8).enumerate() {
        let number = group * 2 + part;
        let rest = nibble(&block[32..], number);
        put_iq1(entry(grid::IQ1, joined(block[number], rest & 7)), rest & 8 != 0, codes);
    }
    odd(iq1_factor(block), (u16_at(&block[48..], group / 4) >> (group % 4 * 3) & 7) as u8)
}

/// The factor of IQ1_M: the upper four bits of each fourth of the scales.
pub(super) fn iq1_factor(block: &[u8]) -> f32 {
    let part = |number: usize| u16_at(&block[48..], number) >> 12 << (number * 4);
    f16::from_bits(part(0) | part(1) | part(2) | part(3)).to_f32()
}

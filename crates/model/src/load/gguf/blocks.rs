//! Groups of the blocks of GGUF's quantised types. It knows no file.

use half::f16;
use vllm_apple_ops::{Codebook, ReadGroups, Scale, power_of_two};

use super::grid_blocks::{iq1_factor, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};
use super::types::Type;

/// A quantised matrix.
pub(crate) struct Blocks<'a> {
    pub(crate) kind: Type,
    pub(crate) bytes: &'a [u8],
    pub(crate) cols: usize,
    pub(crate) group_size: usize,
    /// In which order the rows lie.
    pub(crate) rows: super::RowOrder,
    /// Of all scales of NVFP4.
    pub(crate) factor: f32,
}

impl ReadGroups for Blocks<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let groups = self.kind.block().0 / self.group_size;
        let block = self.block(row, group / groups);
        let group = group % groups;
        match self.kind {
            Type::Q2K => q2_k(block, group, codes),
            Type::Q3K => q3_k(block, group, codes),
            Type::Q4K => q4_k(block, group, codes),
            Type::Q5K => q5_k(block, group, codes),
            Type::Q6K => q6_k(block, group, codes),
            Type::Iq1S => iq1_s(block, group, codes),
            Type::Iq1M => iq1_m(block, group, codes),
            Type::Iq2Xxs => iq2_xxs(block, group, codes),
            Type::Iq2Xs => iq2_xs(block, group, codes),
            Type::Iq2S => iq2_s(block, group, codes),
            Type::Iq3Xxs => iq3_xxs(block, group, codes),
            Type::Iq3S => iq3_s(block, group, codes),
            Type::Iq4Xs => iq4_xs(block, group, codes),
            Type::Nvfp4 => nvfp4(block, group, self.factor, codes),
            kind => simple(kind, block, codes),
        }
    }

    fn factors(&self, row: usize, super_block: usize) -> Scale {
        if self.kind == Type::Nvfp4 {
            return scale(self.factor);
        }
        let block = self.block(row, super_block);
        match self.kind {
            Type::Q2K => Scale { scale: half(block, 80), bias: -half(block, 82) },
            Type::Q3K => scale(half(block, 108)),
            Type::Q4K | Type::Q5K => Scale { scale: half(block, 0), bias: -half(block, 2) },
            Type::Q6K => scale(half(block, 208)),
            Type::Iq1M => scale(iq1_factor(block)),
            Type::Iq1S | Type::Iq2Xxs | Type::Iq2Xs | Type::Iq2S | Type::Iq3Xxs | Type::Iq3S | Type::Iq4Xs => {
                scale(half(block, 0))
            }
            kind => unreachable!("{kind} has no super-blocks"),
        }
    }
}

impl Blocks<'_> {
    /// Block number `number` of a row.
    fn block(&self, row: usize, number: usize) -> &[u8] {
        let (elements, bytes) = self.kind.block();
        let block = self.rows.stored(row) * (self.cols / elements) + number;
        &self.bytes[block * bytes..][..bytes]
    }
}

pub(super) fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

pub(super) const fn scale(scale: f32) -> Scale {
    Scale { scale, bias: 0.0 }
}

/// The lower halves of 16 bytes, then the upper.
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    for (k, code) in codes.iter_mut().enumerate() {
        *code = if k < 16 { bytes[k] & 15 } else { bytes[k - 16] >> 4 };
    }
}

/// Adds a fifth bit.
fn fifth(bits: &[u8], codes: &mut [u8]) {
    for (k, code) in codes.iter_mut().enumerate() {
        *code |= (bits[k / 8] >> (k % 8) & 1) << 4;
    }
}

/// Blocks of one group.
fn simple(kind: Type, block: &[u8], codes: &mut [u8]) -> Scale {
    match kind {
        Type::Q4_0 | Type::Iq4Nl => nibbles(&block[2..], codes),
        Type::Q4_1 => nibbles(&block[4..], codes),
        Type::Q5_0 => {
            nibbles(&block[6..], codes);
            fifth(&block[2..6], codes);
        }
        Type::Q5_1 => {
            nibbles(&block[8..], codes);
            fifth(&block[4..8], codes);
        }
        Type::Mxfp4 => {
            nibbles(&block[1..], codes);
            return scale(power_of_two(block[0]));
        }
        Type::Q1_0 => codes.iter_mut().enumerate().for_each(|(k, code)| *code = block[2 + k / 8] >> (k % 8) & 1),
        Type::Q2_0 | Type::Pq2_0 => {
            codes.iter_mut().enumerate().for_each(|(k, code)| *code = block[2 + k / 4] >> (k % 4 * 2) & 3)
        }
        Type::Tq1_0 => {
            tq1_0(block, codes);
            return scale(half(block, 52));
        }
        Type::Tq2_0 => {
            let byte = |k: usize| block[k / 128 * 32 + k % 32];
            codes.iter_mut().enumerate().for_each(|(k, code)| *code = byte(k) >> (k % 128 / 32 * 2) & 3);
            return scale(half(block, 64));
        }
        // Q8_0: signed bytes.
        _ => codes.iter_mut().zip(&block[2..]).for_each(|(code, byte)| *code = byte ^ 0x80),
    }
    let bias = if matches!(kind, Type::Q4_1 | Type::Q5_1) { half(block, 2) } else { 0.0 };
    Scale { scale: half(block, 0), bias }
}

/// 16 bytes of scales, 64 of codes, then two factors.
fn q2_k(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    let from = &block[16 + group / 8 * 32 + group % 2 * 16..];
    let shift = group % 8 / 2 * 2;
    codes.iter_mut().zip(from).for_each(|(code, byte)| *code = byte >> shift & 3);
    let both = block[group];
    Scale { scale: half(block, 80) * f32::from(both & 15), bias: -(half(block, 82) * f32::from(both >> 4)) }
}

/// 32 bytes of third bits, 64 of the others, 12 of scales, then a factor.
fn q3_k(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    let upper = &block[group % 2 * 16..];
    let from = &block[32 + group / 8 * 32 + group % 2 * 16..];
    let shift = group % 8 / 2 * 2;
    for (k, code) in codes.iter_mut().enumerate() {
        *code = from[k] >> shift & 3 | (upper[k] >> (group / 2) & 1) << 2;
    }
    let scales = &block[96..108];
    let low = if group < 8 { scales[group] & 15 } else { scales[group - 8] >> 4 };
    let high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    scale(half(block, 108) * (f32::from(low | high << 4) - 32.0))
}

/// Scale and bias of a group of Q4_K and Q5_K: two factors, then 12 bytes of eight pairs of 6 bits.
fn scale_and_bias(block: &[u8], group: usize) -> Scale {
    let packed = &block[4..16];
    let (scale, least) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let both = packed[group + 4];
        (both & 15 | packed[group - 4] >> 6 << 4, both >> 4 | packed[group] >> 6 << 4)
    };
    Scale { scale: half(block, 0) * f32::from(scale), bias: -(half(block, 2) * f32::from(least)) }
}

/// Groups in pairs: one in the lower halves of 32 bytes, one in the upper.
fn paired(bytes: &[u8], group: usize, codes: &mut [u8]) {
    let from = &bytes[group / 2 * 32..];
    codes.iter_mut().zip(from).for_each(|(code, byte)| *code = byte >> (group % 2 * 4) & 15);
}

fn q4_k(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    paired(&block[16..], group, codes);
    scale_and_bias(block, group)
}

fn q5_k(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    paired(&block[48..], group, codes);
    codes.iter_mut().zip(&block[16..48]).for_each(|(code, byte)| *code |= (byte >> group & 1) << 4);
    scale_and_bias(block, group)
}

/// 128 bytes of lower bits, 64 of upper, 16 of scales, then a factor.
fn q6_k(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    // Groups of 32 by number; each is two groups with a scale.
    let (of_32, within) = (group / 2, group % 2 * 16);
    let (part, quarter) = (of_32 / 4, of_32 % 4);
    let lower = &block[part * 64 + quarter % 2 * 32 + within..];
    let upper = &block[128 + part * 32 + within..];
    for (k, code) in codes.iter_mut().enumerate() {
        let low = if quarter < 2 { lower[k] & 15 } else { lower[k] >> 4 };
        *code = low | (upper[k] >> (quarter * 2) & 3) << 4;
    }
    scale(half(block, 208) * f32::from(block[192 + group].cast_signed()))
}

/// A factor, 16 bits of upper and 4 bytes of lower bits of scales, then codes.
fn iq4_xs(block: &[u8], group: usize, codes: &mut [u8]) -> Scale {
    nibbles(&block[8 + group * 16..], codes);
    let high = u16::from_le_bytes([block[2], block[3]]) >> (group * 2) & 3;
    let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
    scale(half(block, 0) * (f32::from(u16::from(low) | high << 4) - 32.0))
}

/// 32 and 16 bytes of five elements each and 4 of four, then a factor. A byte is a fraction in base 3, its first digit the first element.
fn tq1_0(block: &[u8], codes: &mut [u8]) {
    for (k, code) in codes.iter_mut().enumerate() {
        let (at, digit) = match k {
            0..160 => (k % 32, k / 32),
            160..240 => (32 + k % 16, (k - 160) / 16),
            _ => (48 + k % 4, (k - 240) / 4),
        };
        let rest = block[at].wrapping_mul([1, 3, 9, 27, 81][digit]);
        *code = ((u16::from(rest) * 3) >> 8) as u8;
    }
}

/// 4 bytes of scales, without a sign and of which the largest stands for none, then codes.
fn nvfp4(block: &[u8], group: usize, factor: f32, codes: &mut [u8]) -> Scale {
    let from = &block[4 + group * 8..];
    for (k, code) in codes.iter_mut().enumerate() {
        *code = from[k % 8] >> (k / 8 * 4) & 15;
    }
    let float = block[group] & 0x7f;
    scale(if float == 0x7f { 0.0 } else { Codebook::E4m3.value(float) * factor })
}

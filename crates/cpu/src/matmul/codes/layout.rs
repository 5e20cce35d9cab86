//! Where codes, scales, biases and factors of a quantised weight are in a panel. It multiplies nothing.

use half::{bf16, f16};
use vllm_apple_ops::{Activations, Codebook, DType, Quantised, SUPER_BLOCK, Scales};

use crate::matmul::format::PANEL;
use crate::simd::{CHUNK, Element, LANES, Simd, code_at, put_code};

/// How a code lies in a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// So many bits, 2 to 6, looked up: [`crate::simd::Planes`].
    Planes(u8),
    /// The value, as a signed byte.
    Signed,
    /// The value, as an unsigned byte.
    Unsigned,
    /// A float of 8 bits: [`Codebook::E4m3`].
    E4m3,
}

/// How a quantised weight lies in a panel: one group of K after the other, its codes, then the scales and the biases of the panel's 32 outputs. Where scales
/// have super-blocks, one of these (or a half) after the other: the codes of its groups, their scales and biases, and then the factors of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub code: Code,
    pub codebook: Codebook,
    pub group_size: usize,
    pub scales: Scales,
    pub biases: bool,
    /// Of the number of groups that lie together, the power of two.
    together: u32,
    /// Bytes of a group's codes.
    code_bytes: usize,
    /// Bytes of a group of a panel, with its share of what groups that lie together have in common.
    step_bytes: usize,
}

/// Elements of a group whose products with bytes are less than 2^31.
const MOST_INTEGERS: usize = (i32::MAX / (255 * 127)) as usize;

impl Code {
    /// Bytes of a chunk of a panel.
    #[inline(always)]
    pub(super) const fn chunk_bytes(self) -> usize {
        match self {
            Self::Planes(bits) => PANEL * CHUNK * bits as usize / 8,
            Self::Signed | Self::Unsigned | Self::E4m3 => PANEL * CHUNK,
        }
    }
}

impl Layout {
    /// `None` if no code holds the codebook, or groups of this size have no such scales.
    pub(crate) fn new(quantised: Quantised) -> Option<Self> {
        let Quantised { codebook, group_size, scales, biases, .. } = quantised;
        // Where activations are whole numbers, codes must be: see `integers`.
        let multiplied_exactly = match quantised.activations {
            Activations::Exact => true,
            Activations::Int8 => codebook.whole_numbers().is_some() && group_size <= MOST_INTEGERS,
        };
        if !quantised.scales_fit() || !multiplied_exactly {
            return None;
        }
        let code = match codebook {
            Codebook::E4m3 => Code::E4m3,
            _ if codebook.bits() <= 4 => Code::Planes(codebook.bits().max(2)),
            Codebook::Integer { bits: bits @ (5 | 6), .. } => Code::Planes(bits),
            Codebook::Integer { bits, zero_point } => {
                match (-i32::from(zero_point), (1 << bits) - 1 - i32::from(zero_point)) {
                    (-128.., ..=127) => Code::Signed,
                    (0, _) => Code::Unsigned,
                    _ => return None,
                }
            }
            _ => return None,
        };
        let together = match scales {
            Scales::Float(_) | Scales::ZeroPoints(_) | Scales::PowersOfTwo => 0,
            Scales::SuperBlocks | Scales::SuperBlocksOfNibbles => (SUPER_BLOCK / group_size).trailing_zeros(),
            // Rows are multiples of 128 long more often than of 256, and what is filled up costs more than factors do.
            Scales::SuperBlocksOfFloats => (SUPER_BLOCK / 2 / group_size).max(1).trailing_zeros(),
        };
        let code_bytes = group_size.div_ceil(CHUNK) * code.chunk_bytes();
        let factors = ((PANEL * scales.factor_size()) >> together) * (1 + usize::from(biases));
        let step_bytes = code_bytes + PANEL * (scales.size() + quantised.bias_size()) + factors;
        Some(Self { code, codebook, group_size, scales, biases, together, code_bytes, step_bytes })
    }

    /// Chunks of a group; what the last has too many is multiplied by zeros.
    pub(crate) fn chunks(&self) -> usize {
        self.group_size.div_ceil(CHUNK)
    }

    /// Bytes of a chunk of a panel.
    #[inline(always)]
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.code.chunk_bytes()
    }

    /// Groups that lie together.
    pub(crate) fn together(&self) -> usize {
        1 << self.together
    }

    /// Bytes of a group of a panel, with its share of what groups that lie together have in common.
    #[inline(always)]
    pub(crate) fn step_bytes(&self) -> usize {
        self.step_bytes
    }

    /// Where the groups begin with which group `step` lies together, and which of them it is.
    #[inline(always)]
    fn place_of(&self, step: usize) -> (usize, usize) {
        (((step >> self.together) << self.together) * self.step_bytes, step & ((1 << self.together) - 1))
    }

    /// Where a group has its codes, if groups that lie together begin at the first.
    #[inline(always)]
    pub(crate) fn codes_at(&self, step: usize) -> usize {
        let (start, number) = self.place_of(step);
        start + number * self.code_bytes
    }

    /// Where a group has the scales of the panel's outputs, or the biases: the same place if they are in one byte.
    #[inline(always)]
    pub(crate) fn scales_at(&self, step: usize, biases: bool) -> usize {
        let (start, number) = self.place_of(step);
        let bias_size = if self.biases { self.scales.bias_size() } else { 0 };
        let before =
            number * (self.scales.size() + bias_size) + if biases && bias_size > 0 { self.scales.size() } else { 0 };
        start + (self.code_bytes << self.together) + before * PANEL
    }

    /// Where the factors of these are.
    #[inline(always)]
    pub(crate) fn factors_at(&self, step: usize, biases: bool) -> usize {
        let (start, _) = self.place_of(step);
        let from_end = 1 + usize::from(self.biases) - usize::from(biases);
        start + (self.step_bytes << self.together) - from_end * PANEL * self.scales.factor_size()
    }

    /// Vectors of a group's scales from number `first` on.
    ///
    /// # Safety
    /// At `weights` groups that lie together begin, and the group's are there.
    #[inline(always)]
    pub(in crate::matmul) unsafe fn scales<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        weights: *const u8,
        step: usize,
        first: usize,
    ) -> [S::V; VECTORS] {
        // SAFETY: the caller vouches for it.
        unsafe { self.numbers(s, weights, step, false, first) }
    }

    /// Those of a group's biases, whose scales are `scales`.
    ///
    /// # Safety
    /// As for [`Layout::scales`].
    #[inline(always)]
    pub(in crate::matmul) unsafe fn biases<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        weights: *const u8,
        step: usize,
        first: usize,
        mut scales: [S::V; VECTORS],
    ) -> [S::V; VECTORS] {
        let Scales::ZeroPoints(_) = self.scales else {
            // SAFETY: the caller vouches for it.
            return unsafe { self.numbers(s, weights, step, true, first) };
        };
        let from = weights.wrapping_add(self.scales_at(step, true));
        for (v, scale) in (first..).zip(&mut scales) {
            // SAFETY: as above.
            let zero_points = s.load_u8(unsafe { &*from.cast::<[u8; LANES]>().add(v) });
            *scale = s.mul(s.sub(s.splat(0.0), zero_points), *scale);
        }
        scales
    }

    /// Vectors of a group's scales, or of its biases as they are. What they are is asked once for all of them.
    ///
    /// # Safety
    /// As for [`Layout::scales`].
    #[inline(always)]
    unsafe fn numbers<S: Simd, const VECTORS: usize>(
        &self,
        s: S,
        weights: *const u8,
        step: usize,
        biases: bool,
        first: usize,
    ) -> [S::V; VECTORS] {
        let from = weights.wrapping_add(self.scales_at(step, biases));
        let mut numbers = [s.splat(0.0); VECTORS];
        // A loop: closures that make arrays are not always inlined, and vectors then go through memory.
        macro_rules! each {
            ($v:ident => $number:expr) => {
                for ($v, number) in (first..).zip(&mut numbers) {
                    // SAFETY: the caller vouches for it; scales are aligned for their type, as codes are multiples of 16 bytes.
                    *number = unsafe { $number };
                }
            };
        }
        match self.scales {
            Scales::Float(DType::F16) | Scales::ZeroPoints(DType::F16) => {
                each!(v => f16::load(s, &*from.cast::<[f16; LANES]>().add(v)));
            }
            Scales::Float(DType::BF16) | Scales::ZeroPoints(DType::BF16) => {
                each!(v => bf16::load(s, &*from.cast::<[bf16; LANES]>().add(v)));
            }
            Scales::Float(_) | Scales::ZeroPoints(_) => each!(v => f32::load(s, &*from.cast::<[f32; LANES]>().add(v))),
            Scales::PowersOfTwo => each!(v => s.load_powers_of_two(&*from.cast::<[u8; LANES]>().add(v))),
            Scales::SuperBlocks => {
                let factors = weights.wrapping_add(self.factors_at(step, biases)).cast::<[f16; LANES]>();
                each!(v => s.mul(f16::load(s, &*factors.add(v)), s.load_i8(&*from.cast::<[i8; LANES]>().add(v))));
            }
            Scales::SuperBlocksOfNibbles => {
                let factors = weights.wrapping_add(self.factors_at(step, biases)).cast::<[f16; LANES]>();
                each!(v => s.mul(f16::load(s, &*factors.add(v)), s.load_nibbles(&*from.cast::<[u8; LANES]>().add(v), biases)));
            }
            Scales::SuperBlocksOfFloats => {
                let factors = weights.wrapping_add(self.factors_at(step, biases)).cast::<[f32; LANES]>();
                each!(v => s.mul(f32::load(s, &*factors.add(v)), s.load_e4m3(&*from.cast::<[u8; LANES]>().add(v))));
            }
        }
        numbers
    }

    /// Writes the code of element `k` of a group for output `lane` of a panel to the group's codes, zeros until then.
    pub(crate) fn put(&self, k: usize, lane: usize, code: u8, codes: &mut [u8]) {
        match self.code {
            Code::Planes(bits) => put_code(bits, in_chunk(k, lane), code, &mut codes[k / CHUNK * self.chunk_bytes()..]),
            Code::Signed => codes[byte_at(k, lane)] = (self.codebook.value(code) as i8).cast_unsigned(),
            Code::Unsigned | Code::E4m3 => codes[byte_at(k, lane)] = code,
        }
    }

    /// What it means.
    pub(crate) fn value(&self, k: usize, lane: usize, codes: &[u8]) -> f32 {
        match self.code {
            Code::Planes(bits) => {
                self.codebook.value(code_at(bits, in_chunk(k, lane), &codes[k / CHUNK * self.chunk_bytes()..]))
            }
            Code::Signed => f32::from(codes[byte_at(k, lane)].cast_signed()),
            Code::Unsigned => f32::from(codes[byte_at(k, lane)]),
            Code::E4m3 => self.codebook.value(codes[byte_at(k, lane)]),
        }
    }
}

/// Element of a chunk, vector of a panel and lane of that.
fn in_chunk(k: usize, lane: usize) -> (usize, usize, usize) {
    (k % CHUNK, lane / LANES, lane % LANES)
}

/// Where a code is that takes a byte.
fn byte_at(k: usize, lane: usize) -> usize {
    let (i, vector, lane) = in_chunk(k, lane);
    (k / CHUNK * PANEL + vector * LANES) * CHUNK + i * LANES + lane
}

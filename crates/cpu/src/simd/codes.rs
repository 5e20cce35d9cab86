//! Codebooks of 16 values, as instruction sets look them up. It knows no format.

use half::bf16;

/// Bytes of 64 codes of 4 bits: of 16 lanes, 4 codes each. Byte `2 * lane + i` has code `i` in its lower half, and code `i + 2` in its upper.
pub(crate) const NIBBLES: usize = 32;

/// What codes of 4 bits mean: 16 values that bf16 holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    /// The lower bytes of the values, for instructions that look bytes up.
    pub(super) low: [u8; 16],
    /// The upper bytes.
    pub(super) high: [u8; 16],
    /// The values twice, so that one which looks up 5 bits need not be told to ignore the fifth.
    pub(super) twice: [bf16; 32],
}

impl Table {
    /// Of `value(0)` to `value(15)`.
    pub(crate) fn new(value: impl Fn(u8) -> f32) -> Self {
        let values: [bf16; 16] = std::array::from_fn(|code| bf16::from_f32(value(code as u8)));
        Self {
            low: values.map(|value| value.to_le_bytes()[0]),
            high: values.map(|value| value.to_le_bytes()[1]),
            twice: std::array::from_fn(|code| values[code % 16]),
        }
    }

    /// The value of a code.
    #[inline(always)]
    pub(super) fn value(&self, code: u8) -> f32 {
        f32::from_bits(u32::from(self.twice[usize::from(code)].to_bits()) << 16)
    }
}

//! Products of f32 in two bf16 terms each, their sum rounded to 16 bits of mantissa, with bf16: up to 16 rows by 64 columns, or 32.
//!
//! A sum is one chain over K in a register: a block of K with the large terms, then with the small ones, and on. Each weight is loaded once, from where it lies.

use std::arch::asm;
use std::mem::offset_of;

use super::{Configuration, SIDE, load};

/// The tiles of this thread, for a number of rows, until it is dropped: a processor saves power with none in use.
pub(crate) struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`works`](super::works) must have said so, and there are 1 to 16 rows.
    pub(crate) unsafe fn of(rows: usize) -> Self {
        debug_assert!((1..=SIDE).contains(&rows));
        let (rows, side) = (rows as u8, SIDE as u8);
        let configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [rows, rows, rows, rows, rows, rows, side, side, 0, 0, 0, 0, 0, 0, 0, 0],
        };
        // SAFETY: the caller vouches for the instruction and for the rows.
        unsafe { load(&configuration) };
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: there are `Tiles` only where the instructions work.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// What one call of [`multiply`] reads and writes, of as many rows as the tiles are configured for.
#[repr(C)]
pub(crate) struct Operands {
    /// Large terms; a row's blocks follow each other.
    pub large: *const u8,
    /// Small terms, likewise.
    pub small: *const u8,
    /// Bytes between rows of terms, and between blocks.
    pub row: usize,
    pub block: usize,
    /// Where the blocks of K of the first 16 columns are, and next to them those of the others: rows of 16 pairs of bf16.
    pub weights: *const *const u8,
    /// Pointers between blocks of K, in bytes.
    pub next: usize,
    /// Bytes between rows of weights.
    pub line: usize,
    /// Blocks of K.
    pub blocks: usize,
    /// Sums.
    pub out: *mut f32,
    /// Bytes between rows of sums.
    pub out_row: usize,
    /// Memory to ask for, for each block of K, and how many times four cache lines of it. It need not be valid.
    pub ahead: *const *const u8,
    pub fours: usize,
}

/// The body of [`multiply`], with what the second pair of blocks of columns takes.
macro_rules! multiply {
    ($o:expr, [$($zero:literal)*], [$($product:literal)*], [$($store:literal)*]) => {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            $($zero,)*
            "2:",
            "mov {fours}, [{operands} + {ahead_fours}]",
            "test {fours}, {fours}",
            "jz 4f",
            "mov {at}, [{ahead}]",
            "add {ahead}, 8",
            "3:",
            "prefetcht1 byte ptr [{at}]",
            "prefetcht1 byte ptr [{at} + 64]",
            "prefetcht1 byte ptr [{at} + 128]",
            "prefetcht1 byte ptr [{at} + 192]",
            "add {at}, 256",
            "dec {fours}",
            "jnz 3b",
            "4:",
            "tileloadd tmm4, [{large} + {row}]",
            "mov {at}, [{weights}]",
            "tileloadd tmm6, [{at} + {line}]",
            "mov {at}, [{weights} + 8]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{at} + {line}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{small} + {row}]",
            "tdpbf16ps tmm0, tmm5, tmm6",
            "tdpbf16ps tmm1, tmm5, tmm7",
            $($product,)*
            "add {large}, [{operands} + {block}]",
            "add {small}, [{operands} + {block}]",
            "add {weights}, [{operands} + {next}]",
            "dec {blocks}",
            "jnz 2b",
            "mov {at}, [{operands} + {out}]",
            "mov {line}, [{operands} + {out_row}]",
            "tilestored [{at} + {line}], tmm0",
            "tilestored [{at} + {line} + 64], tmm1",
            $($store,)*
            operands = in(reg) $o,
            large = inout(reg) $o.large => _,
            small = inout(reg) $o.small => _,
            row = in(reg) $o.row,
            weights = inout(reg) $o.weights => _,
            line = inout(reg) $o.line => _,
            blocks = inout(reg) $o.blocks => _,
            ahead = inout(reg) $o.ahead => _,
            fours = out(reg) _,
            at = out(reg) _,
            block = const offset_of!(Operands, block),
            next = const offset_of!(Operands, next),
            out = const offset_of!(Operands, out),
            out_row = const offset_of!(Operands, out_row),
            ahead_fours = const offset_of!(Operands, fours),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// Computes the sums of 32 columns, or of 64 if `wide`.
///
/// # Safety
/// The operands must be as their fields say, with at least one block of K.
#[inline(always)]
pub(crate) unsafe fn multiply(_: &Tiles, wide: bool, operands: &Operands) {
    // SAFETY: the caller vouches for the operands, and the tiles are configured.
    unsafe {
        if wide {
            multiply!(
                operands,
                ["tilezero tmm2" "tilezero tmm3"],
                [
                    "mov {at}, [{weights} + 16]"
                    "tileloadd tmm6, [{at} + {line}]"
                    "mov {at}, [{weights} + 24]"
                    "tdpbf16ps tmm2, tmm4, tmm6"
                    "tileloadd tmm7, [{at} + {line}]"
                    "tdpbf16ps tmm3, tmm4, tmm7"
                    "tdpbf16ps tmm2, tmm5, tmm6"
                    "tdpbf16ps tmm3, tmm5, tmm7"
                ],
                ["tilestored [{at} + {line} + 128], tmm2" "tilestored [{at} + {line} + 192], tmm3"]
            );
        } else {
            multiply!(operands, [], [], []);
        }
    }
}

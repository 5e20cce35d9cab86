//! Products of f32 in two bf16 terms each, their sum rounded to 16 bits of mantissa, with bf16: up to 16 rows by 64 columns, or 32.
//!
//! A sum is one chain over K in a register: 32 of K with the large terms, then with the small ones, and on. Each weight is loaded once.

use std::arch::asm;

use super::{Configuration, SIDE, load};

/// The tiles of this thread, for a number of rows, until it is dropped: a processor saves power with none in use.
pub(crate) struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`works`](super::works) must have said so, and there are 1 to 16 rows.
    pub(crate) unsafe fn configure(rows: usize) -> Self {
        let (rows, all) = (rows as u8, SIDE as u8);
        let configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [rows, rows, rows, rows, rows, rows, all, all, 0, 0, 0, 0, 0, 0, 0, 0],
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
pub(crate) struct Operands {
    /// Large terms, 32 to a block; a row's blocks follow each other.
    pub large: *const u8,
    /// Small terms, likewise.
    pub small: *const u8,
    /// Bytes between rows of terms.
    pub row: usize,
    /// Blocks of 16 rows of 16 pairs of bf16, 1 KiB each.
    pub weights: *const u8,
    /// Bytes between blocks of columns, and between blocks of K.
    pub column: usize,
    pub step: usize,
    /// Blocks of K.
    pub blocks: usize,
    /// Sums.
    pub out: *mut f32,
    /// Bytes between rows of sums.
    pub out_row: usize,
}

/// The body of [`multiply`], with what the second pair of blocks of columns takes.
macro_rules! multiply {
    ($o:expr, [$($zero:literal)*], [$($product:literal)*], [$($store:literal)*]) => {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            $($zero,)*
            "2:",
            "tileloadd tmm4, [{large} + {row}]",
            "tileloadd tmm6, [{weights} + {line}]",
            "lea {at}, [{weights} + {column}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{at} + {line}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{small} + {row}]",
            "tdpbf16ps tmm0, tmm5, tmm6",
            "tdpbf16ps tmm1, tmm5, tmm7",
            $($product,)*
            "add {large}, 64",
            "add {small}, 64",
            "add {weights}, {step}",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{out} + {out_row}], tmm0",
            "tilestored [{out} + {out_row} + 64], tmm1",
            $($store,)*
            large = inout(reg) $o.large => _,
            small = inout(reg) $o.small => _,
            row = in(reg) $o.row,
            weights = inout(reg) $o.weights => _,
            line = in(reg) 64_usize,
            column = in(reg) $o.column,
            step = in(reg) $o.step,
            blocks = inout(reg) $o.blocks => _,
            out = in(reg) $o.out,
            out_row = in(reg) $o.out_row,
            at = out(reg) _,
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
                    "add {at}, {column}"
                    "tileloadd tmm6, [{at} + {line}]"
                    "add {at}, {column}"
                    "tdpbf16ps tmm2, tmm4, tmm6"
                    "tileloadd tmm7, [{at} + {line}]"
                    "tdpbf16ps tmm3, tmm4, tmm7"
                    "tdpbf16ps tmm2, tmm5, tmm6"
                    "tdpbf16ps tmm3, tmm5, tmm7"
                ],
                ["tilestored [{out} + {out_row} + 128], tmm2" "tilestored [{out} + {out_row} + 192], tmm3"]
            );
        } else {
            multiply!(operands, [], [], []);
        }
    }
}

//! Intel's matrix extensions for bf16: finding out whether they work here, and their instructions. It knows no matmul.
//!
//! A tile is a register of 16 rows of 64 bytes. `tdpbf16ps` adds to a tile of 16x16 f32 the product of 16 rows of 32 bf16 and of 16 rows of
//! 16 pairs. It takes as long for one row as for 16, and no row has a part in another's result.

mod probe;

use std::arch::asm;

pub(crate) use probe::works;

/// Rows of a tile, and f32 or pairs of bf16 in each of its rows.
pub(crate) const SIDE: usize = 16;
/// Bytes of a tile's row.
const ROW_BYTES: usize = 64;

/// The results of [`multiply`]: tiles of 16 rows by two vectors of 16 outputs, `[rows / 16][vector][row][output]`.
#[repr(C, align(64))]
pub(crate) struct Sums(pub [[[[f32; SIDE]; SIDE]; 2]; 2]);

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// Every tile whole: rows that are not there are computed and not stored.
static WHOLE: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The tiles of this thread, ready for [`multiply`] until it is dropped: a processor saves power with none in use.
pub(crate) struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`works`] must have said so.
    pub(crate) unsafe fn configure() -> Self {
        // SAFETY: the caller vouches for the instruction, and the configuration is one that all such processors take.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, readonly, preserves_flags)) };
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: there is a `Tiles` only where the instructions work.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// What one call of [`multiply`] reads.
pub(crate) struct Operands {
    /// Activations, `[blocks][rows][16]` pairs. Behind the last there are 15 rows that may be read and are not used.
    pub x: *const u32,
    /// Bytes between blocks of activations.
    pub x_block: usize,
    /// Weights, `[blocks][16]` rows of two vectors of 16 pairs.
    pub weights: *const u8,
    /// How many blocks of 16 pairs.
    pub blocks: usize,
    /// Memory to ask for, and how many cache lines of it at every block. It need not be valid.
    pub prefetch: *const u8,
    pub lines_per_block: usize,
}

/// The body of [`multiply`] for one tile of rows or for two, with what the second takes.
macro_rules! multiply {
    ($sums:expr, $operands:expr, [$($load:literal)*], [$($product:literal)*], [$($store:literal)*]) => {
        asm!(
            "tileloadd tmm0, [{sums} + {row}]",
            "tileloadd tmm1, [{sums} + {row} + 1024]",
            $($load,)*
            "2:",
            "mov {line}, {lines}",
            "test {line}, {line}",
            "jz 4f",
            "3:",
            "prefetcht0 byte ptr [{prefetch}]",
            "add {prefetch}, 64",
            "dec {line}",
            "jnz 3b",
            "4:",
            "tileloadd tmm6, [{weights} + 2 * {row}]",
            "tileloadd tmm4, [{x} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{weights} + 2 * {row} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            $($product,)*
            "add {x}, {x_block}",
            "add {weights}, 2048",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + 1024], tmm1",
            $($store,)*
            sums = in(reg) $sums,
            row = in(reg) ROW_BYTES,
            x = inout(reg) $operands.x => _,
            x_block = in(reg) $operands.x_block,
            weights = inout(reg) $operands.weights => _,
            blocks = inout(reg) $operands.blocks => _,
            prefetch = inout(reg) $operands.prefetch => _,
            lines = in(reg) $operands.lines_per_block,
            line = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// Adds products to `sums`: of the first 16 rows, or of 32.
///
/// # Safety
/// The operands must be as their fields say, with at least one block.
#[inline(always)]
pub(crate) unsafe fn multiply(_: &Tiles, sums: &mut Sums, two_tiles: bool, operands: &Operands) {
    let sums = &raw mut *sums;
    // SAFETY: the caller vouches for the operands; the tiles are configured as `WHOLE` says.
    unsafe {
        if two_tiles {
            multiply!(
                sums, operands,
                ["tileloadd tmm2, [{sums} + {row} + 2048]" "tileloadd tmm3, [{sums} + {row} + 3072]"],
                ["tileloadd tmm5, [{x} + {row} + 1024]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"],
                ["tilestored [{sums} + {row} + 2048], tmm2" "tilestored [{sums} + {row} + 3072], tmm3"]
            );
        } else {
            multiply!(sums, operands, [], [], []);
        }
    }
}

/// Products of tiles without memory, to measure the machine's peak; returns how many multiplications and additions.
pub(crate) fn spin(_: &Tiles, rounds: usize) -> usize {
    // SAFETY: there are `Tiles` only where the instructions work.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm4", "tilezero tmm6",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm4, tmm6",
            "tdpbf16ps tmm3, tmm4, tmm6",
            "dec {rounds}",
            "jnz 2b",
            rounds = inout(reg) rounds.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm6") _,
            options(nostack, nomem)
        );
    }
    rounds.max(1) * 4 * SIDE * SIDE * 2 * SIDE * 2
}

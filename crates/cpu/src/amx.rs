//! Intel's matrix extensions for bf16 and bytes: finding out whether they work here, and their instructions. It knows no matmul.
//!
//! A tile is a register of at most 16 rows of 64 bytes. `tdpbf16ps` adds to a tile of 16x16 f32 the product of 16 rows of 32 bf16 and of 16
//! rows of 16 pairs. No row has a part in another's result. The order is fixed (Intel's Software Developer's Manual, volume 2, TDPBF16PS): the
//! products of the pairs' first elements are added up from zero by fused multiply-adds, those of their second ones likewise, and the sum of the two
//! is added to the tile; subnormal numbers are zeros. Vectors can therefore compute the same bits where no number is subnormal.
//! `tdpbsud` adds the product of 16 rows of 64 signed bytes and of 16 rows of 16 times four unsigned ones to a tile of 16x16 i32: exactly.

mod probe;
pub(crate) mod terms;

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::cell::Cell;

pub(crate) use probe::works;

/// Rows of a tile, and f32, pairs of bf16 or fours of bytes in each of its rows.
pub(crate) const SIDE: usize = 16;

/// Bytes of a unit of K of a panel's weights.
const WEIGHTS_ROW: usize = 128;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// Sums and activations of `rows` rows, at most 32: tiles 0, 1 and 4 have the first 16, and 2, 3 and 5 the others. Weights in 6 and 7.
    const fn of(Shape { rows, units }: Shape) -> Self {
        let first = if rows < SIDE { rows } else { SIDE } as u8;
        let second = rows.saturating_sub(SIDE) as u8;
        let (bytes, x_bytes) = if second > 0 { (64, 4 * units as u16) } else { (0, 0) };
        Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes_per_row: [64, 64, bytes, bytes, 4 * units as u16, x_bytes, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [first, first, second, second, first, second, units as u8, units as u8, 0, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// What is multiplied at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Of activations, from 1 to 32.
    rows: usize,
    /// Of K, pairs of bf16 or four bytes, from 1 to 16.
    units: usize,
}

impl Shape {
    const WHOLE: Self = Self { rows: 2 * SIDE, units: SIDE };
}

/// Every tile whole.
static WHOLE: Configuration = Configuration::of(Shape::WHOLE);

/// The tiles of this thread, until it is dropped: a processor saves power with none in use.
pub(crate) struct Tiles {
    /// For which they are configured.
    shape: Cell<Shape>,
}

impl Tiles {
    /// # Safety
    /// [`works`] must have said so.
    pub(crate) unsafe fn configure() -> Self {
        // SAFETY: the caller vouches for the instruction.
        unsafe { load(&WHOLE) };
        Self { shape: Cell::new(Shape::WHOLE) }
    }

    /// Makes the tiles fit.
    fn fit(&self, shape: Shape) {
        if self.shape.replace(shape) != shape {
            // SAFETY: there are `Tiles` only where the instructions work.
            unsafe { load(&Configuration::of(shape)) };
        }
    }
}

/// # Safety
/// The machine must have the instruction.
unsafe fn load(configuration: &Configuration) {
    // SAFETY: the caller vouches for the instruction, and the configuration is one that all such processors take.
    unsafe { asm!("ldtilecfg [{}]", in(reg) configuration, options(nostack, readonly, preserves_flags)) };
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: there are `Tiles` only where the instructions work.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// What one call of [`multiply`] or [`multiply_bytes`] reads and writes. K comes in groups that have sums of their own. A unit of K is a pair of bf16, or
/// four bytes.
pub(crate) struct Operands {
    /// Activations, blocks of units of each row.
    pub x: *const u8,
    /// Bytes between rows of activations, and between blocks.
    pub x_row: usize,
    pub x_block: usize,
    /// Weights, `[groups][blocks][units]` rows of two vectors of 16 units.
    pub weights: *const u8,
    /// Units of a block, at most 16, and how many blocks a group has.
    pub units: usize,
    pub blocks: usize,
    pub groups: Groups,
    /// The sums: rows of 32 f32, or i32.
    pub out: *mut f32,
    /// Bytes between rows of sums.
    pub out_row: usize,
    /// Whether the sums of every group continue those in `out`.
    pub resume: bool,
    /// Memory to ask for, and how many cache lines of it at every block. It need not be valid.
    pub prefetch: *const u8,
    pub lines_per_block: usize,
    /// Bytes from a block's activations to others that are asked for, or 0.
    pub x_ahead: usize,
    /// What will be written at the end, or memory of no meaning: of so many rows as are multiplied, rounded up to tiles, one or two cache lines each, or none.
    /// They are asked for at the last blocks of a group, as others push them out of the cache else.
    pub writes: *const u8,
    pub writes_row: usize,
    pub writes_lines: usize,
}

/// Groups of K with sums of their own.
pub(crate) struct Groups {
    pub count: usize,
    /// Bytes to where a group's activations begin from where blocks behind those of the one before would.
    pub x: usize,
    /// Bytes from a group's sums to the next group's.
    pub out: usize,
}

impl Groups {
    /// All of K.
    pub(crate) const ONE: Self = Self { count: 1, x: 0, out: 0 };
}

/// Other work, which vectors do while matrices are multiplied: a part of it after every block.
pub(crate) trait Beside {
    /// Must be `#[inline(always)]`.
    fn step(&mut self);
}

/// None.
impl Beside for () {
    #[inline(always)]
    fn step(&mut self) {}
}

/// Cache lines of a block of weights, which are asked for by as many instructions: in a loop, processors take an instruction's stride for a stream of its own.
const LINES_OF_BLOCK: usize = 32;

/// One instruction on tiles. The compiler keeps nothing in them and leaves such instructions in their order, so what one leaves there the next finds.
macro_rules! tile {
    (zero $tile:tt) => {
        asm!(concat!("tilezero ", $tile), out($tile) _, options(nostack, nomem, preserves_flags))
    };
    (load $tile:tt, $at:expr, $offset:literal, $row:expr) => {
        asm!(
            concat!("tileloadd ", $tile, ", [{at} + {row} + ", $offset, "]"),
            at = in(reg) $at, row = in(reg) $row, out($tile) _,
            options(nostack, readonly, preserves_flags)
        )
    };
    (store $tile:tt, $at:expr, $offset:literal, $row:expr) => {
        asm!(
            concat!("tilestored [{at} + {row} + ", $offset, "], ", $tile),
            at = in(reg) $at, row = in(reg) $row,
            options(nostack, preserves_flags)
        )
    };
    ($product:literal $sums:tt, $x:tt, $weights:tt) => {
        asm!(concat!($product, " ", $sums, ", ", $x, ", ", $weights), out($sums) _, options(nostack, nomem, preserves_flags))
    };
}

/// Asks for half a block's cache lines.
#[inline(always)]
unsafe fn ask_for_lines(from: *const u8) {
    // SAFETY: memory that is asked for need not be valid.
    unsafe {
        asm!(
            ".irp at, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960",
            "prefetcht0 byte ptr [{from} + \\at]",
            ".endr",
            from = in(reg) from,
            options(nostack, readonly, preserves_flags)
        );
    }
}

/// Asks for a cache line of each row of a tile.
#[inline(always)]
unsafe fn ask_for_rows(from: *const u8, row: usize) {
    // SAFETY: as above.
    unsafe {
        asm!(
            ".rept 8",
            "prefetcht0 byte ptr [{from}]",
            "prefetcht0 byte ptr [{from} + {row}]",
            "lea {from}, [{from} + 2 * {row}]",
            ".endr",
            from = inout(reg) from => _,
            row = in(reg) row,
            options(nostack, readonly, preserves_flags)
        );
    }
}

/// Asks for a cache line to write.
#[inline(always)]
unsafe fn ask_to_write(at: *const u8) {
    // SAFETY: as above.
    unsafe { asm!("prefetchw byte ptr [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags)) };
}

/// The body of [`multiply`] and [`multiply_bytes`] by their instruction.
macro_rules! multiply {
    ($product:literal, $tiles:expr, $rows:expr, $operands:expr, $beside:expr) => {
        let Operands { x_row, x_block, units, blocks, out_row, lines_per_block, x_ahead, writes_row, writes_lines, .. } = *$operands;
        let (mut x, mut weights, mut out) = ($operands.x, $operands.weights, $operands.out.cast::<u8>());
        let (mut prefetch, mut writes) = ($operands.prefetch, $operands.writes);
        let two = $rows > SIDE;
        let all_lines = lines_per_block == LINES_OF_BLOCK;
        $tiles.fit(Shape { rows: $rows, units });
        for _ in 0..$operands.groups.count {
            let second_out = out.wrapping_add(SIDE * out_row);
            if $operands.resume {
                tile!(load "tmm0", out, 0, out_row);
                tile!(load "tmm1", out, 64, out_row);
                if two {
                    tile!(load "tmm2", second_out, 0, out_row);
                    tile!(load "tmm3", second_out, 64, out_row);
                }
            } else {
                tile!(zero "tmm0");
                tile!(zero "tmm1");
                if two {
                    tile!(zero "tmm2");
                    tile!(zero "tmm3");
                }
            }
            for left in (1..=blocks).rev() {
                tile!(load "tmm6", weights, 0, WEIGHTS_ROW);
                tile!(load "tmm7", weights, 64, WEIGHTS_ROW);
                if left <= SIDE && writes_lines > 0 {
                    for _ in 0..if two { 2 } else { 1 } {
                        ask_to_write(writes);
                        if writes_lines > 1 {
                            ask_to_write(writes.wrapping_add(64));
                        }
                        writes = writes.wrapping_add(writes_row);
                    }
                }
                if all_lines {
                    ask_for_lines(prefetch);
                } else {
                    for line in 0..lines_per_block {
                        _mm_prefetch::<_MM_HINT_T0>(prefetch.wrapping_add(64 * line).cast());
                    }
                    if x_ahead > 0 {
                        ask_for_rows(x.wrapping_add(x_ahead), x_row);
                    }
                }
                tile!(load "tmm4", x, 0, x_row);
                tile!($product "tmm0", "tmm4", "tmm6");
                if all_lines {
                    ask_for_lines(prefetch.wrapping_add(64 * LINES_OF_BLOCK / 2));
                }
                tile!($product "tmm1", "tmm4", "tmm7");
                if two {
                    let second = x.wrapping_add(SIDE * x_row);
                    if x_ahead > 0 {
                        ask_for_rows(second.wrapping_add(x_ahead), x_row);
                    }
                    tile!(load "tmm5", second, 0, x_row);
                    tile!($product "tmm2", "tmm5", "tmm6");
                    tile!($product "tmm3", "tmm5", "tmm7");
                }
                x = x.wrapping_add(x_block);
                weights = weights.wrapping_add(units * WEIGHTS_ROW);
                prefetch = prefetch.wrapping_add(64 * lines_per_block);
                $beside.step();
            }
            tile!(store "tmm0", out, 0, out_row);
            tile!(store "tmm1", out, 64, out_row);
            if two {
                tile!(store "tmm2", second_out, 0, out_row);
                tile!(store "tmm3", second_out, 64, out_row);
            }
            x = x.wrapping_add($operands.groups.x);
            out = out.wrapping_add($operands.groups.out);
        }
    };
}

/// Computes the sums of `rows` rows, from 1 to 32, in f32 of pairs of bf16.
///
/// # Safety
/// The operands must be as their fields say.
#[inline(always)]
pub(crate) unsafe fn multiply(tiles: &Tiles, rows: usize, operands: &Operands, beside: &mut impl Beside) {
    // SAFETY: the caller vouches for the operands; the tiles have as many rows.
    unsafe {
        multiply!("tdpbf16ps", tiles, rows, operands, beside);
    }
}

/// The same in i32 of four signed bytes of activations and four unsigned ones of weights.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
pub(crate) unsafe fn multiply_bytes(tiles: &Tiles, rows: usize, operands: &Operands, beside: &mut impl Beside) {
    // SAFETY: as above.
    unsafe {
        multiply!("tdpbsud", tiles, rows, operands, beside);
    }
}

macro_rules! spin {
    ($product:literal, $tiles:expr, $rounds:expr) => {{
        $tiles.fit(Shape::WHOLE);
        // SAFETY: there are `Tiles` only where the instructions work.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm4", "tilezero tmm6",
                "2:",
                concat!($product, " tmm0, tmm4, tmm6"),
                concat!($product, " tmm1, tmm4, tmm6"),
                concat!($product, " tmm2, tmm4, tmm6"),
                concat!($product, " tmm3, tmm4, tmm6"),
                "dec {rounds}",
                "jnz 2b",
                rounds = inout(reg) $rounds.max(1) => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm6") _,
                options(nostack, nomem)
            );
        }
        // Of tiles of 16 rows of 4 bytes for each of 16 outputs, without their elements for each.
        $rounds.max(1) * 4 * SIDE * SIDE * SIDE * 2
    }};
}

/// Products of tiles of bf16 without memory, to measure the machine's peak; returns how many multiplications and additions.
pub(crate) fn spin(tiles: &Tiles, rounds: usize) -> usize {
    spin!("tdpbf16ps", tiles, rounds) * 2
}

/// The same of bytes.
pub(crate) fn spin_bytes(tiles: &Tiles, rounds: usize) -> usize {
    spin!("tdpbsud", tiles, rounds) * 4
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// Numbers between 2^-10 and 2^10 from a counter.
    fn number(i: usize) -> bf16 {
        let bits = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        bf16::from_bits(((bits & 1) << 15 | (117 + (bits >> 1) % 20) << 7 | (bits >> 10) & 0x7f) as u16)
    }

    #[test]
    fn products_are_added_up_in_the_order_that_is_documented() {
        if !works() {
            return;
        }
        // SAFETY: as has been asked.
        let tiles = unsafe { Tiles::configure() };
        for seed in 0..100 {
            let x: [[bf16; 2 * SIDE]; SIDE] =
                std::array::from_fn(|row| std::array::from_fn(|k| number((seed * 64 + row) * 32 + k)));
            let weights: [[[[bf16; 2]; SIDE]; 2]; SIDE] = std::array::from_fn(|k| {
                let of = |v: usize, n: usize, i: usize| number((1 << 20) + (seed * 64 + v * 16 + n) * 32 + 2 * k + i);
                std::array::from_fn(|v| std::array::from_fn(|n| [of(v, n, 0), of(v, n, 1)]))
            });
            let mut out = [[[1.5f32; SIDE]; 2]; SIDE];
            let operands = Operands {
                x: x.as_ptr().cast(),
                x_row: 64,
                x_block: 0,
                weights: weights.as_ptr().cast(),
                units: SIDE,
                blocks: 1,
                groups: Groups::ONE,
                out: out.as_mut_ptr().cast(),
                out_row: 128,
                resume: true,
                prefetch: std::ptr::null(),
                lines_per_block: 0,
                x_ahead: 0,
                writes: std::ptr::null(),
                writes_row: 0,
                writes_lines: 0,
            };
            // SAFETY: one block of 16 rows of each.
            unsafe { multiply(&tiles, SIDE, &operands, &mut ()) };
            for (row, v, n) in (0..SIDE * 32).map(|i| (i / 32, i / 16 % 2, i % 16)) {
                let sum = |i: usize| {
                    let product =
                        |sum: f32, k: usize| x[row][2 * k + i].to_f32().mul_add(weights[k][v][n][i].to_f32(), sum);
                    (0..SIDE).fold(0.0, product)
                };
                assert_eq!(out[row][v][n].to_bits(), (1.5 + (sum(0) + sum(1))).to_bits(), "row {row}, output {v} {n}");
            }
        }
    }
}

//! Which tile kernel serves which instruction set and weight type. It knows the kernels by name only.

use vllm_apple_ops::DType;

use crate::isa::Isa;
#[cfg(target_arch = "aarch64")]
use crate::matmul::neon;
use crate::matmul::portable;
use crate::matmul::tile::{MAX_TILE_ROWS, TileKernel};
#[cfg(target_arch = "x86_64")]
use crate::matmul::{avx2, avx512};

/// What a 32-bit unit of packed activations holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Two consecutive bf16 elements of K.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "stable Rust has bf16 dot products for x86-64 only")
    )]
    Bf16Pair,
    /// One element of K.
    F32,
}

/// A tile kernel and what its caller must know.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub tile: TileKernel,
    /// Register-only loop for measuring the peak: see `tile_kernels`.
    pub peak: unsafe fn(usize) -> usize,
    /// The most rows of a tile.
    pub rows: usize,
    /// What the kernel expects of activations.
    pub unit: Unit,
    /// Multiplications and additions per `accumulate` instruction.
    pub flops: usize,
}

/// The kernels of a module that multiplies in f32 whatever the weights' type.
macro_rules! by_dtype {
    ($module:ident, $dtype:expr, $flops:literal) => {{
        let (tile, peak): (TileKernel, unsafe fn(usize) -> usize) = match $dtype {
            DType::BF16 => ($module::bf16_wide, $module::bf16_wide_peak),
            DType::F16 => ($module::f16, $module::f16_peak),
            DType::F32 => ($module::f32, $module::f32_peak),
            DType::U32 => panic!("weights must be of a float type"),
        };
        Self { tile, peak, rows: $module::TILE_ROWS, unit: Unit::F32, flops: $flops }
    }};
}

impl Kernel {
    /// The kernel for `isa` and weights of `dtype`.
    ///
    /// # Panics
    /// If the machine lacks `isa`, as running the kernel would then be undefined, or if `dtype` is not a float type.
    pub(crate) fn select(isa: Isa, dtype: DType) -> Self {
        assert!(isa.is_available(), "this machine does not have {isa}");
        let kernel = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 if dtype == DType::BF16 => Self {
                tile: avx512::bf16_dot,
                peak: avx512::bf16_dot_peak,
                rows: avx512::TILE_ROWS,
                unit: Unit::Bf16Pair,
                flops: 64,
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 | Isa::Avx512 => by_dtype!(avx512, dtype, 32),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => by_dtype!(avx2, dtype, 16),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => by_dtype!(neon, dtype, 8),
            _ => by_dtype!(portable, dtype, 8),
        };
        debug_assert!(kernel.rows <= MAX_TILE_ROWS);
        kernel
    }
}

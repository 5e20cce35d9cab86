//! Measures what this machine can do at most: memory read bandwidth and multiply-add rate of all threads together. Speeds
//! of kernels are stated as fractions of these. It knows no kernel's memory layout.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use vllm_apple_ops::{Activations, DType, WeightFormat};

use crate::isa::Isa;
use crate::matmul::spin_bytes;
use crate::matmul::tile::TileKernel;
use crate::simd::{Dispatch, Kernel, LANES, Simd};
use vllm_apple_ops::pool::Pool;

/// Far more than last-level caches hold.
const BUFFER_BYTES: usize = 512 << 20;
/// Vectors of 64 bytes that one thread reads at a time.
const CHUNK_LINES: usize = 1 << 14;
/// The best of these counts: a limit is what is reached when nothing disturbs.
const PASSES: usize = 5;
/// Rounds of the register-only loop per item: some milliseconds.
const ROUNDS: usize = 500_000;
/// Items per thread, so that a pass does not wait long for a thread that was held up.
const ITEMS_PER_THREAD: usize = 8;
/// Vectors that are read together.
const VECTORS: usize = 8;

/// Bytes per second that all threads together read from memory, with the widest loads there are: narrow ones reach two thirds of it on some machines.
///
/// # Errors
/// If there is no memory for a buffer larger than the caches.
pub fn read_bandwidth(pool: &Pool) -> std::io::Result<f64> {
    let mut buffer = MmapMut::map_anon(BUFFER_BYTES)?;
    #[cfg(target_os = "linux")]
    let _ = buffer.advise(memmap2::Advice::HugePage);
    buffer.fill(1);
    let lines: &[[f32; LANES]] = bytemuck::cast_slice(&buffer);
    let dispatch = Dispatch::new(Isa::best());
    let best = best_time(|| {
        pool.run(lines.len() / CHUNK_LINES, &|chunk, _| {
            dispatch.run(Read { lines: &lines[chunk * CHUNK_LINES..][..CHUNK_LINES] });
        });
    });
    Ok(BUFFER_BYTES as f64 / best.as_secs_f64())
}

/// Reads memory, in order.
struct Read<'a> {
    lines: &'a [[f32; LANES]],
}

impl Kernel for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Independent, so that no vector waits for another.
        let mut largest = [s.splat(0.0); VECTORS];
        for lines in self.lines.as_chunks::<VECTORS>().0 {
            for (largest, line) in largest.iter_mut().zip(lines) {
                *largest = s.max(*largest, s.load(line));
            }
        }
        std::hint::black_box(largest.map(|vector| s.max_lane(vector)));
    }
}

/// The most multiplications and additions per second of all threads together that this machine has for `weights`, whichever instructions are
/// in use: of the type of the activations, or of bytes where activations are rounded to 8 bits.
#[must_use]
pub fn peak_flops(pool: &Pool, weights: WeightFormat) -> f64 {
    let of_bytes = weights.activations() == Activations::Int8;
    let peak = |isa| {
        let bytes = if of_bytes { peak_byte_flops_of(pool, isa) } else { 0.0 };
        peak_flops_of(pool, isa, weights.input()).max(bytes)
    };
    Isa::available().into_iter().map(peak).fold(0.0, f64::max)
}

/// The same with the inner instruction of a set's matmul kernel, on registers alone, for weights of `dtype`.
///
/// # Panics
/// If the machine does not have `isa`.
#[must_use]
pub fn peak_flops_of(pool: &Pool, isa: Isa, dtype: DType) -> f64 {
    let kernel = TileKernel::new(Dispatch::new(isa), WeightFormat::Float(dtype), 1);
    rate(pool, || kernel.spin(ROUNDS))
}

/// The same of bytes.
///
/// # Panics
/// If the machine does not have `isa`.
#[must_use]
pub fn peak_byte_flops_of(pool: &Pool, isa: Isa) -> f64 {
    let dispatch = Dispatch::new(isa);
    rate(pool, || spin_bytes(dispatch, ROUNDS))
}

/// How many operations a second all threads do, of which `spin` does some and says how many.
fn rate(pool: &Pool, spin: impl Fn() -> usize + Sync) -> f64 {
    let flops = AtomicUsize::new(0);
    let best = best_time(|| {
        flops.store(0, Ordering::Relaxed);
        pool.run(pool.threads() * ITEMS_PER_THREAD, &|_, _| {
            flops.fetch_add(spin(), Ordering::Relaxed);
        });
    });
    flops.into_inner() as f64 / best.as_secs_f64()
}

fn best_time(mut pass: impl FnMut()) -> Duration {
    let timed = |_| {
        let start = Instant::now();
        pass();
        start.elapsed()
    };
    (0..PASSES).map(timed).min().unwrap_or_default()
}

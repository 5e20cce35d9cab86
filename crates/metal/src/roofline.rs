//! Measures what a GPU can do at most: how fast it reads memory and multiplies matrices. Speeds of kernels are stated as fractions of
//! these. It knows no op.

use std::time::{Duration, Instant};

use vllm_apple_ops::{Limits, Result};

use crate::backend::MetalBackend;
use crate::gpu::{Gpu, Kernel, Work};
use crate::recorder::Recorder;
use crate::recorder::dispatch::{Arg, Grid};
use crate::recorder::region::Region;

/// What errors call it.
const NAME: &str = "roofline";

/// A kernel of `roofline.metal`.
const fn kernel(function: &'static str) -> Kernel {
    let source = concat!(
        "#line 1 \"matrix.metal\"\n",
        include_str!("../kernels/matrix.metal"),
        "#line 1 \"roofline.metal\"\n",
        include_str!("../kernels/roofline.metal")
    );
    Kernel { file: "roofline.metal", source, function }
}

/// The kernels' `THREADS`.
const THREADS: usize = 256;
const SIMDGROUPS: usize = THREADS / 32;
/// What a threadgroup of `read_bandwidth` reads: `LOADS` elements of 16 bytes a thread.
const TILE_BYTES: usize = 16 * 16 * THREADS;
/// Far more than caches hold; devices that are slow read less.
const MAX_BYTES: usize = 512 << 20;
const MIN_BYTES: usize = 16 << 20;
/// Threadgroups of `peak_flops`.
const PEAK_TILES: usize = 512;
const MAX_ROUNDS: u32 = 1 << 14;
/// Operations of a simdgroup in a round: `CHAINS` products of 8x8 matrices.
const ROUND_FLOPS: usize = 8 * 2 * 8 * 8 * 8;
/// Dispatches that are submitted together, so that submitting them counts little.
const DISPATCHES: usize = 8;
/// The best of these counts: a limit is what is reached when nothing disturbs.
const PASSES: usize = 5;
/// A device that idled takes its time to reach its full clock: it has when passes are hardly faster than those before.
const SETTLED: f64 = 0.95;
const LONGEST_WARM_UP: Duration = Duration::from_millis(300);
/// What all dispatches of a pass must take at least, for the clock to tell.
const LONG_ENOUGH: Duration = Duration::from_millis(10);

impl<G: Gpu> MetalBackend<G> {
    /// Measures the device's limits, in some tenths of a second: steps are divided for them from now on.
    ///
    /// # Errors
    /// If there is no memory for the measurement, or the device fails.
    pub fn measure(&mut self) -> Result<()> {
        let limits = Limits { read_bandwidth: read_bandwidth(self)?, peak_flops: peak_flops(self)? };
        tracing::info!(
            "the device reads {:.0} GB/s and computes {:.1} TFLOPS",
            limits.read_bandwidth / 1e9,
            limits.peak_flops / 1e12
        );
        self.set_limits(limits);
        Ok(())
    }
}

/// Bytes per second that the device reads from its memory.
///
/// # Errors
/// If there is no memory for a buffer larger than the caches, or the device fails.
pub fn read_bandwidth<G: Gpu>(backend: &mut MetalBackend<G>) -> Result<f64> {
    let recorder = &mut backend.recorder;
    let mut len = MIN_BYTES;
    loop {
        let x = recorder.region(len, "measuring read bandwidth")?;
        let out = recorder.region(len / TILE_BYTES * SIMDGROUPS * size_of::<u32>(), "measuring read bandwidth")?;
        let best = best_time(recorder, |recorder| read(recorder, &x, &out))?;
        if best >= LONG_ENOUGH || len == MAX_BYTES {
            return Ok((len * DISPATCHES) as f64 / best.as_secs_f64());
        }
        len *= 2;
    }
}

/// Multiplications and additions per second of the device in 8x8 matrices of f32, which all kernels multiply, on registers alone.
///
/// # Errors
/// If the device fails.
pub fn peak_flops<G: Gpu>(backend: &mut MetalBackend<G>) -> Result<f64> {
    let recorder = &mut backend.recorder;
    let out = recorder.region(PEAK_TILES * THREADS * size_of::<f32>(), "measuring arithmetic")?;
    let mut rounds = 1;
    loop {
        let best = best_time(recorder, |recorder| multiply(recorder, rounds, &out))?;
        if best >= LONG_ENOUGH || rounds == MAX_ROUNDS {
            let flops = rounds as usize * ROUND_FLOPS * SIMDGROUPS * PEAK_TILES * DISPATCHES;
            return Ok(flops as f64 / best.as_secs_f64());
        }
        rounds *= 2;
    }
}

fn read<G: Gpu>(recorder: &mut Recorder<G>, x: &Region<G>, out: &Region<G>) -> Result<()> {
    let grid = Grid { threadgroups: [x.len / TILE_BYTES, 1, 1], threads: THREADS, work: Work::default() };
    recorder.dispatch(NAME, kernel("read_bandwidth"), &[], [Arg::Constant(x), Arg::Write(out)], grid)
}

fn multiply<G: Gpu>(recorder: &mut Recorder<G>, rounds: u32, out: &Region<G>) -> Result<()> {
    let grid = Grid { threadgroups: [PEAK_TILES, 1, 1], threads: THREADS, work: Work::default() };
    recorder.dispatch(NAME, kernel("peak_flops"), &[], [Arg::Write(out), Arg::bytes(&rounds)], grid)
}

/// The shortest time of a pass of [`DISPATCHES`]; a first pass does not count.
fn best_time<G: Gpu>(
    recorder: &mut Recorder<G>,
    mut dispatch: impl FnMut(&mut Recorder<G>) -> Result<()>,
) -> Result<Duration> {
    let mut pass = || {
        let mut start = Instant::now();
        recorder.run(|recorder| {
            (0..DISPATCHES).try_for_each(|_| dispatch(recorder))?;
            start = Instant::now();
            Ok(())
        })?;
        Ok(start.elapsed())
    };
    pass()?;
    let mut best_of_some = || (0..PASSES).map(|_| pass()).try_fold(Duration::MAX, |best, time| Ok(best.min(time?)));
    let (start, mut best) = (Instant::now(), best_of_some()?);
    loop {
        let next = best_of_some()?;
        let is_settled = next.as_secs_f64() > SETTLED * best.as_secs_f64();
        best = best.min(next);
        if is_settled || start.elapsed() > LONGEST_WARM_UP {
            return Ok(best);
        }
    }
}

#[cfg(test)]
mod tests {
    use vllm_apple_ops::Backend;

    use super::*;
    use crate::MetalOptions;
    use crate::gpu::software::SoftwareGpu;

    fn backend(gpu: SoftwareGpu) -> MetalBackend<SoftwareGpu> {
        MetalBackend::new(gpu, MetalOptions::default()).unwrap()
    }

    #[test]
    fn every_byte_is_read_once() {
        let mut backend = backend(SoftwareGpu::checked().unwrap());
        let mut x = backend.recorder.region(3 * TILE_BYTES, "test").unwrap();
        let mut out = backend.recorder.region(3 * SIMDGROUPS * 4, "test").unwrap();
        let words: &mut [u32] = bytemuck::cast_slice_mut(backend.recorder.bytes_mut(&mut x));
        words.iter_mut().zip(0u32..).for_each(|(word, i)| *word = i.wrapping_mul(2_654_435_761));
        let expected = words.iter().fold(0, |all, word| all ^ word);
        backend.recorder.bytes_mut(&mut out).fill(0xff);
        backend.take_traffic();
        read(&mut backend.recorder, &x, &out).unwrap();
        backend.synchronize().unwrap();
        let found: &[u32] = bytemuck::cast_slice(backend.recorder.bytes(&out));
        assert_eq!(found.iter().fold(0, |all, word| all ^ word), expected);
        assert_eq!(backend.take_traffic().unwrap().loaded, 3 * TILE_BYTES as u64);
    }

    #[test]
    fn every_round_is_multiplied() {
        let mut backend = backend(SoftwareGpu::checked().unwrap());
        let out = backend.recorder.region(PEAK_TILES * THREADS * 4, "test").unwrap();
        multiply(&mut backend.recorder, 3, &out).unwrap();
        backend.synchronize().unwrap();
        // Eight matrices with i + 3 / 2 on their diagonals, of 8 elements.
        let expected = 8.0 * (0..8).map(|i| i as f32 + 1.5).sum::<f32>();
        let simdgroups = bytemuck::cast_slice::<u8, f32>(backend.recorder.bytes(&out)).chunks(32);
        assert!(simdgroups.map(|lanes| lanes.iter().sum::<f32>()).all(|sum| sum == expected));
    }

    #[test]
    fn limits_are_measured() {
        let mut backend = backend(SoftwareGpu::fast().unwrap());
        assert!(read_bandwidth(&mut backend).unwrap() > 0.0);
        assert!(peak_flops(&mut backend).unwrap() > 0.0);
    }
}

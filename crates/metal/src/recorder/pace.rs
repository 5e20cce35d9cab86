//! How long commands take, by estimate, and what follows from it: the system ends command buffers that run for seconds, and shows no
//! picture meanwhile. It knows no op and no device.

use vllm_apple_ops::Limits;

use crate::gpu::Work;

/// The shares of a device's limits that the slowest of the kernels are expected to reach: attention of prompts, and products with 32 rows.
/// Estimates are too long rather than too short.
const OF_PEAK_FLOPS: f64 = 0.35;
const OF_BANDWIDTH: f64 = 0.45;
/// Seconds that any dispatch takes.
const DISPATCH: f64 = 4e-6;

/// Most seconds of a dispatch: the system cannot interrupt one.
const LONGEST_DISPATCH: f64 = 0.05;
/// Most seconds of a command buffer.
const LONGEST_BUFFER: f64 = 0.15;
/// Most seconds of a step's first one: the device begins while the host still encodes.
const FIRST_BUFFER: f64 = 0.002;

/// Times slower than by its limits that a device is taken to be at most: commands of a few milliseconds that are ended nevertheless are
/// not ended for their length, and smaller ones only cost time.
const SLOWEST: f64 = 16.0;
/// Steps without such an end, and with a command buffer that was as long as may be, after which it is taken to be twice as fast again, up to
/// its limits: what made it slow, another program or heat, may be over. If not, one step is computed twice. Short steps, as decodes are, say
/// nothing about that.
const STEPS_UNTIL_FASTER: usize = 500;

/// Where a step is cut into command buffers.
#[derive(Debug)]
pub(crate) struct Pace {
    limits: Option<Limits>,
    /// How many times slower than by `limits` the device is taken to be.
    slowness: f64,
    /// Steps with a long command buffer that ran since that changed.
    steps: usize,
    /// What is recorded has one.
    is_long: bool,
    /// Seconds of what is recorded and not committed.
    recorded: f64,
    /// Most seconds of the command buffer that is recorded.
    longest: f64,
}

impl Pace {
    /// Of a device with these limits; a step of an unknown one is one command buffer.
    pub fn new(limits: Option<Limits>) -> Self {
        Self { limits, slowness: 1.0, steps: 0, is_long: false, recorded: 0.0, longest: FIRST_BUFFER }
    }

    pub fn limits(&self) -> Option<Limits> {
        self.limits
    }

    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = Some(limits);
    }

    /// Takes in a dispatch that is recorded next. True: what is recorded is to be committed before.
    pub fn add(&mut self, work: Work) -> bool {
        let seconds = self.seconds(work);
        let full = self.recorded > 0.0 && self.recorded + seconds > self.longest;
        if full {
            self.is_long |= self.longest == LONGEST_BUFFER;
            (self.recorded, self.longest) = (0.0, LONGEST_BUFFER);
        }
        self.recorded += seconds;
        full
    }

    /// The step has been submitted or given up.
    pub fn end_step(&mut self) {
        (self.recorded, self.longest) = (0.0, FIRST_BUFFER);
    }

    /// Takes in that the system ended commands because they ran too long.
    pub fn slow_down(&mut self) {
        self.take_as((2.0 * self.slowness).min(SLOWEST));
    }

    /// Takes in that a step has run.
    pub fn ran(&mut self) {
        self.steps += usize::from(std::mem::take(&mut self.is_long));
        if self.slowness > 1.0 && self.steps >= STEPS_UNTIL_FASTER {
            self.take_as((self.slowness / 2.0).max(1.0));
        }
    }

    fn take_as(&mut self, slowness: f64) {
        (self.steps, self.is_long) = (0, false);
        if slowness != self.slowness {
            tracing::info!("commands are divided as for a device {slowness} times slower than measured");
        }
        self.slowness = slowness;
    }

    /// How many pieces of equal work, at least one, a dispatch may have.
    pub fn pieces(&self, one: Work) -> usize {
        (LONGEST_DISPATCH / self.seconds(one)).clamp(1.0, f64::from(u32::MAX)) as usize
    }

    /// In how many dispatches work is to be divided.
    pub fn dispatches(&self, work: Work) -> usize {
        (self.seconds(work) / LONGEST_DISPATCH).ceil().max(1.0) as usize
    }

    /// Most rows of a dispatch, of these rows that do so much together. A dispatch's rows begin where loads of 16 bytes may.
    pub fn rows(&self, rows: usize, work: Work) -> usize {
        const TOGETHER: usize = 8;
        self.pieces(work.times(TOGETHER as f64 / rows as f64)).saturating_mul(TOGETHER)
    }

    fn seconds(&self, work: Work) -> f64 {
        let Some(limits) = self.limits else { return 0.0 };
        let computing = work.flops / (OF_PEAK_FLOPS * limits.peak_flops);
        let moving = work.bytes / (OF_BANDWIDTH * limits.read_bandwidth);
        DISPATCH + computing.max(moving) * self.slowness
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ended_is_tried_in_halves_and_not_in_ever_smaller_pieces() {
        let mut pace = Pace::new(Some(Limits { read_bandwidth: 1e11, peak_flops: 1e12 }));
        // Of a millisecond by estimate.
        let work = Work { flops: OF_PEAK_FLOPS * 1e9, bytes: 0.0 };
        // The dispatches of the second command buffer: the first is short.
        let buffer = |pace: &mut Pace| {
            let cuts: Vec<usize> = (0..1000).filter(|_| pace.add(work)).collect();
            pace.end_step();
            cuts[1] - cuts[0]
        };
        assert_eq!((pace.pieces(work), buffer(&mut pace)), (49, 149));
        pace.slow_down();
        assert_eq!((pace.pieces(work), buffer(&mut pace)), (24, 74));
        (0..100).for_each(|_| pace.slow_down());
        assert_eq!((pace.pieces(work), buffer(&mut pace)), (3, 9));
    }

    #[test]
    fn a_device_that_was_slow_is_tried_as_fast_again_after_many_steps() {
        let mut pace = Pace::new(Some(Limits { read_bandwidth: 1e11, peak_flops: 1e12 }));
        let work = Work { flops: OF_PEAK_FLOPS * 1e9, bytes: 0.0 };
        let step = |dispatches: usize, pace: &mut Pace| {
            (0..dispatches).for_each(|_| _ = pace.add(work));
            pace.end_step();
            pace.ran();
        };
        let after = |steps: usize, pace: &mut Pace| {
            (0..steps).for_each(|_| step(1000, pace));
            pace.pieces(work)
        };
        assert_eq!(after(10 * STEPS_UNTIL_FASTER, &mut pace), 49, "never faster than measured");
        pace.slow_down();
        pace.slow_down();
        assert_eq!(after(STEPS_UNTIL_FASTER - 1, &mut pace), 12);
        // An end begins the count anew.
        pace.slow_down();
        assert_eq!(after(STEPS_UNTIL_FASTER - 1, &mut pace), 6);
        // Short steps prove nothing.
        (0..10 * STEPS_UNTIL_FASTER).for_each(|_| step(3, &mut pace));
        assert_eq!(pace.pieces(work), 6);
        assert_eq!(after(1, &mut pace), 12);
        assert_eq!(after(STEPS_UNTIL_FASTER, &mut pace), 24);
        assert_eq!(after(10 * STEPS_UNTIL_FASTER, &mut pace), 49);
    }
}

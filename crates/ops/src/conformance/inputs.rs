//! A small seeded generator of inputs.

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(super) struct Inputs(u64);

impl Inputs {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Floats of at most `magnitude`, uniform.
    pub(super) fn floats(&mut self, len: usize, magnitude: f32) -> Vec<f32> {
        let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        (0..len).map(|_| unit(self.next()) * magnitude).collect()
    }

    /// Integers below `limit`.
    pub(super) fn below(&mut self, len: usize, limit: usize) -> Vec<u32> {
        (0..len).map(|_| self.one_below(limit) as u32).collect()
    }

    /// An integer below `limit`.
    pub(super) fn one_below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// One of the choices.
    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.one_below(choices.len())]
    }

    /// `0..len` in random order.
    pub(super) fn shuffled(&mut self, len: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..len as u32).collect();
        for i in (1..len).rev() {
            ids.swap(i, self.one_below(i + 1));
        }
        ids
    }
}

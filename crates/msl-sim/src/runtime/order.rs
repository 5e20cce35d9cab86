//! In which order threads, simdgroups and threadgroups run. A kernel that is right gives the same result in every order.

/// The order in which lanes, simdgroups and threadgroups run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Lowest index first.
    #[default]
    Forward,
    /// Highest index first.
    Reverse,
    /// Pseudo-random, a function of the seed.
    Shuffled(u64),
}

impl Order {
    /// Whether a simdgroup may be left while some of its lanes can run.
    pub(crate) fn interleaves(self) -> bool {
        matches!(self, Self::Shuffled(_))
    }

    /// The lane that runs next of those in `mask`, which is not 0, in an order that does not interleave.
    #[inline]
    pub(crate) fn next(self, mask: u32) -> usize {
        let bit = if self == Self::Reverse { 31 - mask.leading_zeros() } else { mask.trailing_zeros() };
        bit as usize
    }
}

/// Picks what runs next.
#[derive(Debug, Clone)]
pub struct Picker {
    order: Order,
    state: u64,
}

impl Picker {
    pub fn new(order: Order) -> Self {
        let state = match order {
            Order::Shuffled(seed) => seed ^ 0x9E37_79B9_7F4A_7C15,
            _ => 0,
        };
        Self { order, state }
    }

    /// One of the bits that are set in `mask`, which is not 0.
    #[inline]
    pub fn pick(&mut self, mask: u32) -> usize {
        match self.order {
            Order::Shuffled(_) => {
                let skipped = self.below(u64::from(mask.count_ones()));
                (0..skipped).fold(mask, |mask, _| mask & (mask - 1)).trailing_zeros() as usize
            }
            order => order.next(mask),
        }
    }

    /// The threadgroups of a grid, in the order in which they run; `None` for their own order.
    pub fn sequence(&mut self, count: u64) -> Option<Vec<u64>> {
        match self.order {
            Order::Forward => None,
            Order::Reverse => Some((0..count).rev().collect()),
            Order::Shuffled(_) => {
                let mut sequence: Vec<u64> = (0..count).collect();
                for i in (1..sequence.len()).rev() {
                    let other = self.below(i as u64 + 1) as usize;
                    sequence.swap(i, other);
                }
                Some(sequence)
            }
        }
    }

    /// A number below `limit`: splitmix64, whose bias does not matter here.
    fn below(&mut self, limit: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

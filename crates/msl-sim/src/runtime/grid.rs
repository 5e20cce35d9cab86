//! The shape of a dispatch: how a grid is cut into threadgroups, ragged at its edges. It knows nothing of kernels.

use super::SIMDGROUP_SIZE;
use crate::abi::MslThread;

/// A grid, checked: no extent is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Threads of the grid.
    pub threads: [u32; 3],
    /// Threads of a full threadgroup.
    pub threads_per_threadgroup: [u32; 3],
    /// Threadgroups, those cut off at the edges included.
    pub threadgroups: [u32; 3],
}

impl Grid {
    /// A grid of full threadgroups. `None` if it has more threads in a dimension than 32 bits can count.
    pub fn of_threadgroups(threadgroups: [u32; 3], threads_per_threadgroup: [u32; 3]) -> Option<Self> {
        let mut threads = [0; 3];
        for i in 0..3 {
            threads[i] = threadgroups[i].checked_mul(threads_per_threadgroup[i])?;
        }
        Some(Self { threads, threads_per_threadgroup, threadgroups })
    }

    /// A grid of threads; its last threadgroups may be smaller.
    pub fn of_threads(threads: [u32; 3], threads_per_threadgroup: [u32; 3]) -> Self {
        let threadgroups = std::array::from_fn(|i| threads[i].div_ceil(threads_per_threadgroup[i]));
        Self { threads, threads_per_threadgroup, threadgroups }
    }

    /// Number of threadgroups.
    pub fn count(&self) -> u64 {
        self.threadgroups.iter().map(|&n| u64::from(n)).product()
    }

    /// Position of a threadgroup by its number, x fastest.
    pub fn position(&self, number: u64) -> [u32; 3] {
        let [x, y, _] = self.threadgroups.map(u64::from);
        [(number % x) as u32, (number / x % y) as u32, (number / (x * y)) as u32]
    }

    /// Threads of the threadgroup at `position`.
    pub fn size(&self, position: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|i| {
            let full = self.threads_per_threadgroup[i];
            full.min(self.threads[i] - position[i] * full)
        })
    }

    /// What thread `index` of the threadgroup at `position`, of `size` threads, is told of itself.
    pub fn thread(&self, position: [u32; 3], size: [u32; 3], index: u32) -> MslThread {
        let within = [index % size[0], index / size[0] % size[1], index / (size[0] * size[1])];
        let lanes = SIMDGROUP_SIZE as u32;
        MslThread {
            position_in_grid: std::array::from_fn(|i| position[i] * self.threads_per_threadgroup[i] + within[i]),
            position_in_threadgroup: within,
            threadgroup_position_in_grid: position,
            threads_per_threadgroup: size,
            dispatch_threads_per_threadgroup: self.threads_per_threadgroup,
            threadgroups_per_grid: self.threadgroups,
            threads_per_grid: self.threads,
            index_in_threadgroup: index,
            index_in_simdgroup: index % lanes,
            simdgroup_index_in_threadgroup: index / lanes,
            simdgroups_per_threadgroup: size.iter().product::<u32>().div_ceil(lanes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ragged_threadgroups_are_cut_off() {
        let grid = Grid::of_threads([70, 3, 1], [32, 2, 1]);
        assert_eq!(grid.threadgroups, [3, 2, 1]);
        assert_eq!(grid.size([2, 1, 0]), [6, 1, 1]);
        assert_eq!(grid.position(5), [2, 1, 0]);
        let thread = grid.thread([2, 1, 0], [6, 1, 1], 5);
        assert_eq!(thread.position_in_grid, [69, 2, 0]);
        assert_eq!(thread.simdgroups_per_threadgroup, 1);
    }
}

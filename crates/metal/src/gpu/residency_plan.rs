//! Which of several sets keeps a buffer within the GPU's reach, where the system keeps a set as a whole or not at all. It knows no device.

/// The set for a buffer of so many bytes: the first that has room or is empty, else the smallest. `None` if there are no sets.
pub(crate) fn set_for(sizes: impl Iterator<Item = u64>, bytes: u64, most: u64) -> Option<usize> {
    let sizes: Vec<u64> = sizes.collect();
    let has_room = |size: &u64| *size == 0 || size.saturating_add(bytes) <= most;
    let smallest = || (0..sizes.len()).min_by_key(|&at| sizes[at]);
    sizes.iter().position(has_room).or_else(smallest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_filled_one_after_the_other_and_long_buffers_have_their_own() {
        let most = 100;
        let mut sizes = [0; 4];
        let mut add = |bytes| {
            let at = set_for(sizes.iter().copied(), bytes, most).unwrap();
            sizes[at] += bytes;
            at
        };
        assert_eq!([60, 30, 20, 10, 300].map(&mut add), [0, 0, 1, 0, 2]);
        // Not beside the long one; and where nothing fits, where there is least.
        assert_eq!([80, 90, 50, 1000].map(&mut add), [1, 3, 3, 0]);
        assert_eq!(set_for(std::iter::empty(), 1, most), None);
    }
}

//! Random numbers by key and counter: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
//! There is no state, so neither batch order nor preemption can move a request's stream.

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// 64 random bits for the request's `seed` and the position in its output.
pub fn bits(seed: u64, position: u64) -> u64 {
    let counter = [position as u32, (position >> 32) as u32, 0, 0];
    let [low, high, ..] = philox(counter, [seed as u32, (seed >> 32) as u32]);
    u64::from(high) << 32 | u64::from(low)
}

/// The same as a number above 0 and below 1.
pub fn uniform(seed: u64, position: u64) -> f64 {
    // The middle of one of 2^53 equal parts.
    ((bits(seed, position) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let products = [0, 1].map(|i| u64::from(MULTIPLIERS[i]) * u64::from(counter[2 * i]));
        let [high0, high1] = products.map(|p| (p >> 32) as u32);
        let [low0, low1] = products.map(|p| p as u32);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers from the authors' Random123 library (`kat_vectors`).
    #[test]
    fn philox_gives_the_published_numbers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let all = u32::MAX;
        assert_eq!(philox([all; 4], [all; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn uniform_stays_inside_and_depends_on_seed_and_position() {
        let draws: Vec<f64> = (0..100).flat_map(|s| (0..100).map(move |p| uniform(s, p))).collect();
        assert!(draws.iter().all(|&u| u > 0.0 && u < 1.0));
        let mut sorted = draws.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        assert_eq!(sorted.len(), draws.len());
    }
}

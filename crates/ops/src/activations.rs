//! What activations are multiplied as by quantised weights. It knows no op.

use std::fmt;
use std::str::FromStr;

/// What the activations of a product with quantised weights are multiplied as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Activations {
    /// What they are.
    #[default]
    Exact,
    /// Whole numbers from -127 to 127, and a scale in f32 for each row and each group of its weights, by which the largest magnitude is 127: the
    /// nearest, of two the even one. Products with codes of whole numbers are then whole numbers, whose sum over a group is exact, and
    /// `acc += (scale * scale_of_activations) * sum_of_products` in f32: several times as fast where instructions multiply bytes, and less exact.
    Int8,
}

/// The largest of the whole numbers.
const MOST: f32 = 127.0;

impl Activations {
    /// All by their names.
    pub const NAMES: [(&'static str, Self); 2] = [("auto", Self::Exact), ("int8", Self::Int8)];

    /// What a group whose largest magnitude is `largest` is multiplied by for whole numbers, and what these are multiplied by in turn: zeros where
    /// the first would not be a number.
    pub fn factors(largest: f32) -> (f32, f32) {
        const LEAST: f32 = f32::from_bits((127 - 100) << 23);
        if largest < LEAST { (0.0, 0.0) } else { (MOST / largest, largest / MOST) }
    }

    /// Makes of a group's activations what they are multiplied as.
    pub fn round(self, group: &mut [f32]) {
        match self {
            Self::Exact => {}
            Self::Int8 => {
                let (to_whole, scale) = Self::factors(group.iter().fold(0.0, |most, x| x.abs().max(most)));
                group.iter_mut().for_each(|x| *x = (*x * to_whole).round_ties_even() * scale);
            }
        }
    }
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(_, activations)| activations == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for Activations {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, activations)| activations).ok_or_else(|| {
            format!("unknown activations {text:?}: expected {}", Self::NAMES.map(|(name, _)| name).join(" or "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_keep_the_largest_and_round_others_to_a_127th_of_it() {
        let exact = [0.0, -3.0, 1.0, 0.011, 0.0117, f32::MIN_POSITIVE];
        let mut group = exact;
        Activations::Int8.round(&mut group);
        let step = 3.0 / 127.0;
        assert_eq!(group.map(|x| x / step), [0.0, -127.0, 42.0, 0.0, 0.0, 0.0]);
        let mut group = [1e-35, -1e-36];
        Activations::Int8.round(&mut group);
        assert_eq!(group, [0.0; 2]);
        let mut group = exact;
        Activations::Exact.round(&mut group);
        assert_eq!(group, exact);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, activations) in Activations::NAMES {
            assert_eq!((activations.to_string().as_str(), name.parse()), (name, Ok(activations)));
        }
        assert!("int4".parse::<Activations>().unwrap_err().contains("auto or int8"));
    }
}

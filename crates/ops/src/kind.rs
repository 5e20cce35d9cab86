//! Which of an op's kernels a computation needs: what can be right on a device though others are wrong. It knows no device.

use crate::{DType, WeightFormat};
use std::fmt;

/// An op with a type, and for attention a size of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// The op's name.
    pub op: &'static str,
    /// The type of weights, cache or output, whichever the op has.
    pub dtype: DType,
    /// Heads of up to so many elements: 64, 128 or 256; 0 in ops that have the same kernels for all.
    pub max_head_dim: usize,
    /// Whether the weight is quantised, which other kernels compute.
    pub quantised: bool,
}

impl Kind {
    /// Of an op that does not know heads, or treats all alike.
    pub fn new(op: &'static str, dtype: DType) -> Self {
        Self { op, dtype, max_head_dim: 0, quantised: false }
    }

    /// Of an op with a weight.
    pub fn of_weight(op: &'static str, format: WeightFormat) -> Self {
        Self { quantised: matches!(format, WeightFormat::Quantised(_)), ..Self::new(op, format.input()) }
    }

    /// Of attention with such heads.
    pub fn of_heads(op: &'static str, dtype: DType, head_dim: usize) -> Self {
        Self { max_head_dim: head_dim.next_power_of_two().max(64), ..Self::new(op, dtype) }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.op, self.dtype, if self.quantised { ", quantised weights" } else { "" })?;
        match self.max_head_dim {
            0 => Ok(()),
            most => write!(f, ", heads of up to {most}"),
        }
    }
}

//! Arrays in a backend's memory and on the host: shape and type, no device.

use crate::{DType, WeightFormat};
use std::fmt;
use std::sync::Arc;

/// A dense row-major `[rows, cols]` array in a backend's memory `M`. `rows` is a capacity: an op may use fewer.
#[derive(Debug)]
pub struct Tensor<M> {
    memory: M,
    dtype: DType,
    rows: usize,
    cols: usize,
}

impl<M> Tensor<M> {
    /// Describes `memory`, which must hold `rows * cols` elements of `dtype`. For backends.
    pub fn new(memory: M, dtype: DType, rows: usize, cols: usize) -> Self {
        Self { memory, dtype, rows, cols }
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Most rows that it holds.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The backend's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The backend's memory, to write to.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }
}

impl<M> fmt::Display for Tensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}, {}]", self.dtype, self.rows, self.cols)
    }
}

/// A weight matrix `[groups, rows, cols]` = `[experts, out_features, in_features]`, laid out as the backend's matmul likes
/// it. `groups` is 1 outside mixtures of experts.
#[derive(Debug)]
pub struct Weight<P> {
    packed: P,
    format: WeightFormat,
    groups: usize,
    rows: usize,
    cols: usize,
}

impl<P> Weight<P> {
    /// Describes `packed`. For backends.
    pub fn new(packed: P, format: WeightFormat, groups: usize, rows: usize, cols: usize) -> Self {
        Self { packed, format, groups, rows, cols }
    }

    /// What its numbers are.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Number of matrices: experts, or 1.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Outputs of a matrix, `N`.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of a matrix, `K`.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The backend's form of the weight.
    pub fn packed(&self) -> &P {
        &self.packed
    }
}

impl<P> fmt::Display for Weight<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} weight [{}, {}, {}]", self.format, self.groups, self.rows, self.cols)
    }
}

/// A dense row-major `[rows, cols]` array on the host, as a checkpoint holds it: little-endian, of any alignment.
#[derive(Clone, Copy)]
pub struct HostTensor<'a> {
    /// Type of the elements.
    pub dtype: DType,
    /// Rows: `out_features` of a linear layer.
    pub rows: usize,
    /// Columns: `in_features` of a linear layer.
    pub cols: usize,
    /// `rows * cols * dtype.size()` bytes.
    pub bytes: &'a [u8],
    /// The mapped file that `bytes` lies in, for devices that compute on it in place.
    pub file: Option<&'a Arc<dyn MappedFile>>,
}

/// A file that is mapped into the host's memory, from a page boundary on, and never changes.
pub trait MappedFile: Send + Sync {
    /// All of it.
    fn bytes(&self) -> &[u8];
}

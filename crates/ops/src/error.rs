//! What can go wrong in an op or on a device.

use crate::{DType, Tensor};

/// Result of a backend's methods.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused argument or a failed device.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// An argument does not fit the op. Found before anything is computed.
    #[error("{op}: {what} must be {expected}, got {got}")]
    InvalidArgument {
        /// The op.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// The backend cannot do this op with these types or sizes.
    #[error("{device} cannot compute {op}: {reason}")]
    Unsupported {
        /// The backend's name.
        device: String,
        /// The op.
        op: &'static str,
        /// Why, and what would work.
        reason: String,
    },
    /// A weight's value does not fit the type that it is converted to.
    #[error("weight {name}: value {value} does not fit {dtype}; use `dtype` bfloat16 or `dtype` float32")]
    OutOfRange {
        /// The weight.
        name: String,
        /// The first value out of range.
        value: f32,
        /// The type asked for.
        dtype: DType,
    },
    /// A scale or bias of a quantised weight is no number of the type that it is held in: the weight has values that are no numbers, or
    /// so large that no group of them has a scale.
    #[error(
        "weight {name}: a group's scale or bias is {value}, which does not fit {dtype}: the checkpoint is damaged, or has weights that cannot be \
         quantised"
    )]
    ScaleOutOfRange {
        /// The weight.
        name: String,
        /// The first one.
        value: f32,
        /// The type of scales and biases.
        dtype: DType,
    },
    /// The device has not enough memory.
    #[error("{device}: no memory for {bytes} bytes ({purpose})")]
    OutOfMemory {
        /// The backend's name.
        device: String,
        /// Bytes asked for.
        bytes: usize,
        /// What they were for.
        purpose: String,
    },
    /// The commands of a step failed. Nothing that they were to write may be trusted; the next step may run.
    #[error("{device}: the step's commands failed: {reason}")]
    Commands {
        /// The backend's name.
        device: String,
        /// What it said.
        reason: String,
    },
    /// The system ended the commands of a step because they ran for too long; as [`Error::Commands`]. The same step, recorded again, is
    /// divided more finely.
    #[error("{device}: the step's commands were ended: {reason}")]
    TooLong {
        /// The backend's name.
        device: String,
        /// What it said.
        reason: String,
    },
    /// The system discarded the commands of a step though nothing is wrong with them: because of others' that it had to end, or because it
    /// had no memory for them at the time; as [`Error::Commands`]. The same step may be recorded again.
    #[error("{device}: the step's commands were discarded: {reason}")]
    Discarded {
        /// The backend's name.
        device: String,
        /// What it said.
        reason: String,
    },
    /// There was no memory for the commands of a step, not even a while later; as [`Error::Commands`].
    #[error("{device}: there was no memory for the step's commands: {reason}")]
    NoMemory {
        /// The backend's name.
        device: String,
        /// What it said.
        reason: String,
    },
    /// The device is lost: nothing may run on it any more.
    #[error("{device} failed: {reason}")]
    Device {
        /// The backend's name.
        device: String,
        /// What it said.
        reason: String,
    },
}

impl Error {
    /// Whether the device refused or failed, and not for want of memory: another may compute the same.
    pub fn is_of_device(&self) -> bool {
        match self {
            Self::Unsupported { .. }
            | Self::Commands { .. }
            | Self::TooLong { .. }
            | Self::Discarded { .. }
            | Self::Device { .. } => true,
            Self::InvalidArgument { .. }
            | Self::OutOfRange { .. }
            | Self::ScaleOutOfRange { .. }
            | Self::OutOfMemory { .. }
            | Self::NoMemory { .. } => false,
        }
    }
}

/// Fails unless `ok`, naming the op and the argument.
pub(crate) fn ensure(
    ok: bool,
    op: &'static str,
    what: &'static str,
    expected: impl ToString,
    got: impl ToString,
) -> Result<()> {
    if ok {
        return Ok(());
    }
    Err(Error::InvalidArgument { op, what, expected: expected.to_string(), got: got.to_string() })
}

/// Fails unless `tensor` has this type, this many columns and at least this many rows.
pub(crate) fn ensure_tensor<M>(
    op: &'static str,
    what: &'static str,
    tensor: &Tensor<M>,
    dtype: DType,
    min_rows: usize,
    cols: usize,
) -> Result<()> {
    let fits = tensor.dtype() == dtype && tensor.rows() >= min_rows && tensor.cols() == cols;
    ensure(fits, op, what, format_args!("{dtype} [at least {min_rows}, {cols}]"), tensor)
}

/// Fails unless `n` columns of `out` from `first` on are within it.
pub(crate) fn ensure_columns<M>(op: &'static str, out: &Tensor<M>, first: usize, n: usize) -> Result<()> {
    let (cols, end) = (out.cols(), first.checked_add(n));
    ensure(end.is_some_and(|end| end <= cols), op, "first", format_args!("at most {cols} - {n}"), first)
}

/// Fails unless `tensor` is of a float type, with this many columns and at least this many rows.
pub(crate) fn ensure_floats<M>(
    op: &'static str,
    what: &'static str,
    tensor: &Tensor<M>,
    min_rows: usize,
    cols: usize,
) -> Result<()> {
    let fits = tensor.dtype() != DType::U32 && tensor.rows() >= min_rows && tensor.cols() == cols;
    ensure(fits, op, what, format_args!("float [at least {min_rows}, {cols}]"), tensor)
}

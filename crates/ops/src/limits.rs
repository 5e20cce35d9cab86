//! What a device can do at most, by measurement. It knows no device.

/// In bytes and operations per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Of memory that is read.
    pub read_bandwidth: f64,
    /// Of multiplications and additions.
    pub peak_flops: f64,
}

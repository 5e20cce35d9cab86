//! How a device's limits are measured. Speeds are stated as fractions of them. It knows no model.

use std::io;

use vllm_apple_cpu::CpuBackend;
use vllm_apple_metal::MetalBackend;
use vllm_apple_metal::gpu::Gpu;
use vllm_apple_ops::{Backend, Limits, WeightFormat};

/// A backend whose limits can be measured, for products with weights of a format.
pub trait Measurable: Backend {
    /// Takes some tenths of a second.
    ///
    /// # Errors
    /// There is no memory for the measurement, or the device failed.
    fn limits(&mut self, weights: WeightFormat) -> io::Result<Limits>;
}

impl Measurable for CpuBackend {
    fn limits(&mut self, weights: WeightFormat) -> io::Result<Limits> {
        use vllm_apple_cpu::roofline::{peak_flops, read_bandwidth};
        let read_bandwidth = read_bandwidth(self.pool())?;
        Ok(Limits { read_bandwidth, peak_flops: peak_flops(self.pool(), weights) })
    }
}

impl<G: Gpu> Measurable for MetalBackend<G> {
    /// The kernels multiply in f32 whatever the format.
    fn limits(&mut self, _: WeightFormat) -> io::Result<Limits> {
        use vllm_apple_metal::roofline::{peak_flops, read_bandwidth};
        let read_bandwidth = read_bandwidth(self).map_err(io::Error::other)?;
        Ok(Limits { read_bandwidth, peak_flops: peak_flops(self).map_err(io::Error::other)? })
    }
}

//! Whether the device computes right, at the sizes of the model itself, what would be no use on the host: products with its own weights,
//! attention with its own heads. They are noted with what steps need, run once, and held against their references at some outputs. It knows
//! no model.

mod attention;
mod products;

use vllm_apple_ops::{DType, Error, GatedMatmul, GroupedMatmul, Matmul, PagedAttention, Result, Tensor, gated_matmul};

use super::MetalBackend;
use crate::fallback::Why;
use crate::gpu::Gpu;
use crate::recorder::Recorder;
use crate::recorder::region::Region;
use crate::weight::PackedWeight;
use attention::Attention;
use products::Product;

/// What was noted.
pub(super) struct OwnSizes<G: Gpu> {
    products: Vec<Product<G>>,
    attention: Vec<Attention<G>>,
}

impl<G: Gpu> OwnSizes<G> {
    pub fn new() -> Self {
        Self { products: Vec::new(), attention: Vec::new() }
    }

    pub fn note_matmul(&mut self, op: &Matmul<'_, Region<G>, PackedWeight<G>>) {
        self.note_product(Product::of_matmul(op));
    }

    pub fn note_gated_matmul(&mut self, op: &GatedMatmul<'_, Region<G>, PackedWeight<G>>) {
        self.note_product(Product::of_gated_matmul(op));
    }

    pub fn note_grouped_matmul(&mut self, op: &GroupedMatmul<'_, Region<G>, PackedWeight<G>>) {
        self.note_product(Product::of_grouped_matmul(op));
    }

    /// One of each shape, and of each the most rows.
    fn note_product(&mut self, new: Product<G>) {
        match self.products.iter_mut().find(|known| known.is_like(&new)) {
            Some(known) => known.rows = known.rows.max(new.rows),
            None => self.products.push(new),
        }
    }

    pub fn note_attention(&mut self, op: &PagedAttention<'_, Region<G>>) {
        let new = Attention::of(op);
        match self.attention.iter_mut().find(|known| known.is_like(&new)) {
            Some(known) => known.grow(&new),
            None => self.attention.push(new),
        }
    }
}

impl<G: Gpu> MetalBackend<G> {
    /// Runs what was noted. Products with gates that are wrong or refused are computed in two steps from then on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for what else the device gets wrong or refuses; and what else the device says.
    pub(super) fn test_own_sizes(&mut self, OwnSizes { products, attention }: &OwnSizes<G>) -> Result<()> {
        for product in products {
            if !self.fallback.may_ask(&product.kind()) {
                continue;
            }
            product.test(&mut self.recorder)?;
            let at_once = product.kind_of(gated_matmul::NAME);
            if !self.fallback.may_ask(&at_once) {
                continue;
            }
            match product.test_at_once(&mut self.recorder) {
                Err(Error::Unsupported { device, reason, .. }) => {
                    self.fallback.fall_back(at_once, Why::Wrong, &device, reason)?;
                }
                result => result?,
            }
        }
        let recorder = &mut self.recorder;
        attention.iter().filter(|attention| self.fallback.may_ask(&attention.kind())).try_for_each(|a| a.test(recorder))
    }
}

/// The error of an op whose error is so many times its tolerance, if that is too much.
fn judge<G: Gpu>(recorder: &Recorder<G>, op: &'static str, worst: f64, case: &str) -> Result<()> {
    if worst <= 1.0 {
        return Ok(());
    }
    let reason = format!(
        "it is wrong at the model's own sizes, {case}: {worst:.1e} times its tolerance; use `device` cpu, and please report this"
    );
    Err(recorder.unsupported(op, reason))
}

/// Numbers between -1 and 1 that any float type holds exactly, in no order that matters.
fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + i / 61 * 31) % 127) as f32 / 64.0 - 1.0).collect()
}

/// A tensor of `values`.
fn tensor<G: Gpu>(recorder: &Recorder<G>, dtype: DType, cols: usize, values: &[f32]) -> Result<Tensor<Region<G>>> {
    let mut tensor = recorder.tensor(dtype, values.len() / cols, cols)?;
    recorder.write(&mut tensor, &dtype.encode(values));
    Ok(tensor)
}

/// A tensor of integers.
fn integers<G: Gpu>(recorder: &Recorder<G>, values: &[u32]) -> Result<Tensor<Region<G>>> {
    let mut tensor = recorder.tensor(DType::U32, 1, values.len())?;
    recorder.write(&mut tensor, bytemuck::cast_slice(values));
    Ok(tensor)
}

/// Another handle of the same tensor.
fn handle<G: Gpu>(tensor: &Tensor<Region<G>>) -> Tensor<Region<G>> {
    Tensor::new(tensor.memory().clone(), tensor.dtype(), tensor.rows(), tensor.cols())
}

/// Runs what can be computed nowhere else on this device.
fn run_or_leave<G: Gpu>(recorder: &mut Recorder<G>, record: impl FnMut(&mut Recorder<G>) -> Result<()>) -> Result<()> {
    recorder.run(record).map_err(|error| match error {
        Error::Unsupported { device, op, reason } => {
            Error::Unsupported { device, op, reason: format!("{reason}; use `device` cpu") }
        }
        error => error,
    })
}

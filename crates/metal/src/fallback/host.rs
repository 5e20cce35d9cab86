//! The host's view of the device's memory, for ops that it computes: nothing is recorded while it looks. It knows no op.

use std::sync::OnceLock;

use vllm_apple_ops::Tensor;
use vllm_apple_ops::pool::Pool;

use crate::gpu::Gpu;
use crate::recorder::Recorder;
use crate::recorder::region::Region;

/// What an op on the host works with.
pub(crate) struct Host<'a, G: Gpu> {
    pub recorder: &'a Recorder<G>,
    pub pool: &'a Pool,
}

impl<G: Gpu> Host<'_, G> {
    /// The first rows of a float tensor.
    pub fn floats(&self, tensor: &Tensor<Region<G>>, rows: usize) -> Vec<f32> {
        tensor.dtype().decode(&self.recorder.read(tensor)[..rows * tensor.cols() * tensor.dtype().size()])
    }

    /// The first `len` integers of a tensor.
    pub fn integers(&self, tensor: &Tensor<Region<G>>, len: usize) -> Vec<u32> {
        bytemuck::allocation::pod_collect_to_vec(&self.recorder.read(tensor)[..len * 4])
    }

    /// Makes `values`, rounded, the first of a float tensor.
    pub fn put(&self, tensor: &mut Tensor<Region<G>>, values: &[f32]) {
        let bytes = tensor.dtype().encode(values);
        self.recorder.write(tensor, &bytes);
    }

    /// `f(0), f(1), …` of `n`, computed on all threads.
    pub fn parallel<T: Send + Sync>(&self, n: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let results: Vec<OnceLock<T>> = (0..n).map(|_| OnceLock::new()).collect();
        self.pool.run(n, &|i, _| {
            // Every number comes once.
            let _ = results[i].set(f(i));
        });
        results.into_iter().map(|result| result.into_inner().expect("every number came")).collect()
    }
}

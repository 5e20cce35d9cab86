//! What the kernels of norms refuse.

use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{Backend, DType, RmsNorm, Tensor};

type Metal = MetalBackend<SoftwareGpu>;
type Floats = Tensor<<Metal as Backend>::Memory>;

fn upload(backend: &Metal, cols: usize, values: &[f32]) -> Floats {
    let mut tensor = backend.allocate(DType::F32, values.len() / cols, cols).unwrap();
    backend.write(&mut tensor, bytemuck::cast_slice(values));
    tensor
}

#[test]
fn rows_that_a_threadgroup_cannot_keep_are_refused() {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(SoftwareGpu::checked().unwrap(), options).unwrap();
    let hidden = 32_769;
    let (x, weight) = (upload(&backend, hidden, &vec![1.0; hidden]), upload(&backend, hidden, &vec![1.0; hidden]));
    let mut out = backend.allocate(DType::F32, 1, hidden).unwrap();
    let error = RmsNorm { rows: 1, x: &x, weight: &weight, eps: 0.0, out: &mut out }.run(&mut backend).unwrap_err();
    assert!(error.to_string().contains("up to 32768 work"), "{error}");
}

//! The norms of the same residual have the same bits: fused or not, alone or in a batch.

use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{AddRmsNorm, Backend, DType, RmsNorm, Tensor};

type Metal = MetalBackend<SoftwareGpu>;
type Floats = Tensor<<Metal as Backend>::Memory>;

fn upload(backend: &Metal, cols: usize, values: &[f32]) -> Floats {
    let mut tensor = backend.allocate(DType::F32, values.len() / cols, cols).unwrap();
    backend.write(&mut tensor, bytemuck::cast_slice(values));
    tensor
}

/// Numbers of both signs and many magnitudes.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f32 - 1001.0;
    (0..len).map(|i| value(i) * 10f32.powi((i % 5) as i32 - 4)).collect()
}

fn rms_norm(backend: &mut Metal, dtype: DType, x: &[f32], weight: &Floats) -> Vec<u8> {
    let (cols, rows) = (weight.cols(), x.len() / weight.cols());
    let x = upload(backend, cols, x);
    let mut out = backend.allocate(dtype, rows, cols).unwrap();
    RmsNorm { rows, x: &x, weight, eps: 1e-5, out: &mut out }.run(backend).unwrap();
    backend.finish().unwrap();
    backend.read(&out).to_vec()
}

#[test]
fn norms_have_the_same_bits_however_they_are_computed() {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(SoftwareGpu::checked().unwrap(), options).unwrap();
    for hidden in [1, 90, 896, 1000, 4096, 16384] {
        let rows = 3;
        let (residual, delta) = (numbers(rows * hidden, 1), numbers(rows * hidden, 2));
        let sum: Vec<f32> = residual.iter().zip(&delta).map(|(r, d)| r + d).collect();
        let weight = upload(&backend, hidden, &numbers(hidden, 3));
        for dtype in [DType::F32, DType::BF16] {
            let together = rms_norm(&mut backend, dtype, &sum, &weight);
            let row_bytes = hidden * dtype.size();
            for (row, expected) in sum.chunks_exact(hidden).zip(together.chunks_exact(row_bytes)) {
                assert_eq!(rms_norm(&mut backend, dtype, row, &weight), expected, "a row alone, {hidden} {dtype}");
            }
            let mut residual = upload(&backend, hidden, &residual);
            let delta = upload(&backend, hidden, &delta);
            let mut out = backend.allocate(dtype, rows, hidden).unwrap();
            AddRmsNorm { rows, residual: &mut residual, delta: &delta, weight: &weight, eps: 1e-5, out: &mut out }
                .run(&mut backend)
                .unwrap();
            backend.finish().unwrap();
            assert_eq!(backend.read(&out), together, "fused, {hidden} {dtype}");
            assert_eq!(backend.read(&residual), bytemuck::cast_slice::<f32, u8>(&sum));
        }
    }
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

//! Matmul gives a row the same bits whichever kernel computes it, and wherever the weight lies.

use std::sync::Arc;

use vllm_apple_metal::gpu::Gpu;
use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::gpu::software::{Refusal, SoftwareGpu};
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{
    Activation, Backend, DType, GatedMatmul, GroupedMatmul, HostTensor, Limits, MappedFile, Matmul, Tensor,
    TopkSoftmax, Weight, WeightFormat, WeightSource,
};

type Metal = MetalBackend<SoftwareGpu>;
type MetalTensor = Tensor<<Metal as Backend>::Memory>;
type MetalWeight = Weight<<Metal as Backend>::Packed>;

fn backend() -> Metal {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    MetalBackend::new(SoftwareGpu::checked().unwrap(), options).unwrap()
}

/// One that refuses some kernels.
fn refusing(refusal: Refusal) -> Metal {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    MetalBackend::new(SoftwareGpu::fast().unwrap().with_refusal(refusal), options).unwrap()
}

/// The functions of a type that it has refused and that others are in the place of.
fn replaced(backend: &Metal, dtype: DType) -> Vec<&str> {
    let functions = backend.replaced().map(|(function, _)| function);
    functions.filter(|function| function.ends_with(&format!("_{}", short(dtype)))).collect()
}

fn short(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::U32 => "u32",
    }
}

/// Bytes of floats between -2 and 2.
fn floats(dtype: DType, len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let values: Vec<f32> = (0..len)
        .map(|_| {
            // Knuth's MMIX constants.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect();
    dtype.encode(&values)
}

fn upload(backend: &Metal, dtype: DType, cols: usize, bytes: &[u8]) -> MetalTensor {
    let mut tensor = backend.allocate(dtype, bytes.len() / cols / dtype.size(), cols).unwrap();
    backend.write(&mut tensor, bytes);
    tensor
}

fn matmul(backend: &mut Metal, x: &[u8], weight: &MetalWeight, bias: Option<&MetalTensor>) -> Vec<u8> {
    let (k, dtype) = (weight.cols(), weight.format().input());
    let x = upload(backend, dtype, k, x);
    let mut out = backend.allocate(DType::F32, x.rows(), weight.rows()).unwrap();
    Matmul { rows: x.rows(), x: &x, weight, bias, out: &mut out, first: 0 }.run(backend).unwrap();
    backend.synchronize().unwrap();
    backend.read(&out).to_vec()
}

#[test]
fn lower_tiles_in_the_place_of_refused_ones_have_the_same_bits() {
    const ROWS: usize = 70;
    const N: usize = 130;
    let refusals: [Refusal; 3] = [
        |function, _| function.starts_with("matmul_64"),
        |function, _| function.starts_with("matmul_64") || function.starts_with("matmul_32"),
        |function, _| function.starts_with("matmul_") && !function.starts_with("matmul_8"),
    ];
    for (dtype, k) in DType::FLOATS.into_iter().zip([64, 300, 91]) {
        let (bytes, x) = (floats(dtype, N * k, 4), floats(dtype, ROWS * k, 5));
        let part = HostTensor { dtype, rows: N, cols: k, bytes: &bytes, file: None };
        let product = |backend: &mut Metal| {
            let source = WeightSource::matrix("a weight", std::slice::from_ref(&part));
            let weight = backend.load_weight(source, WeightFormat::Float(dtype)).unwrap();
            matmul(backend, &x, &weight, None)
        };
        let expected = product(&mut backend());
        for (refusal, functions) in refusals.into_iter().zip([
            &["matmul_64"][..],
            &["matmul_32", "matmul_64"],
            &["matmul_16", "matmul_32", "matmul_64"],
        ]) {
            let mut refusing = refusing(refusal);
            assert!(product(&mut refusing) == expected, "{dtype} without {functions:?}");
            let functions: Vec<_> = functions.iter().map(|name| format!("{name}_{}", short(dtype))).collect();
            assert_eq!(replaced(&refusing, dtype), functions);
        }
    }
    // Behind the last there is no other.
    let mut without_any = refusing(|function, _| function.starts_with("matmul_"));
    let part = HostTensor { dtype: DType::F32, rows: 1, cols: 4, bytes: &[0; 16], file: None };
    let source = WeightSource::matrix("a weight", std::slice::from_ref(&part));
    let weight = &without_any.load_weight(source, WeightFormat::Float(DType::F32)).unwrap();
    let x = &without_any.allocate(DType::F32, ROWS, 4).unwrap();
    let out = &mut without_any.allocate(DType::F32, ROWS, 1).unwrap();
    let error =
        Matmul { rows: ROWS, x, weight, bias: None, out, first: 0 }.run(&mut without_any).unwrap_err().to_string();
    assert!(error.contains("matmul_8_f32") && error.contains("use `device` cpu"), "{error}");
}

#[test]
fn experts_give_the_bits_of_matmul() {
    give_the_bits_of_matmul(&mut backend());
    let refusals: [(Refusal, usize); 2] = [
        (|function, _| function.starts_with("grouped_matmul_64"), 3),
        (|function, _| function.starts_with("grouped_matmul") && !function.starts_with("grouped_matmul_8"), 6),
    ];
    for (refusal, functions) in refusals {
        let mut refusing = refusing(refusal);
        give_the_bits_of_matmul(&mut refusing);
        assert_eq!(refusing.replaced().count(), functions);
    }
}

fn give_the_bits_of_matmul(backend: &mut Metal) {
    // Tokens, experts per token, experts: tiles of 8, 32 and 64 rows, and a single token.
    for (tokens, top_k, experts) in [(1, 3, 5), (6, 2, 4), (25, 3, 5), (130, 2, 3)] {
        for (dtype, (n, k)) in DType::FLOATS.into_iter().zip([(40, 64), (33, 300), (17, 91)]) {
            let bytes = floats(dtype, experts * n * k, 4);
            let size = n * k * dtype.size();
            let parts: Vec<_> =
                bytes.chunks(size).map(|bytes| HostTensor { dtype, rows: n, cols: k, bytes, file: None }).collect();
            let weight = backend
                .load_weight(WeightSource::matrices("experts", experts, &parts), WeightFormat::Float(dtype))
                .unwrap();
            let x = floats(dtype, tokens * k, 5);
            let ids: Vec<u32> =
                (0..tokens).flat_map(|t| (0..top_k).map(move |j| ((t * t + j) % experts) as u32)).collect();
            let ids_tensor = upload(backend, DType::U32, top_k, bytemuck::cast_slice(&ids));
            let x_tensor = upload(backend, dtype, k, &x);
            let mut out = backend.allocate(DType::F32, ids.len(), n).unwrap();
            let (x_tensor, ids_tensor) = (&x_tensor, &ids_tensor);
            GroupedMatmul {
                tokens,
                pairs_per_row: top_k,
                x: x_tensor,
                ids: ids_tensor,
                weight: &weight,
                bias: None,
                out: &mut out,
                first: 0,
            }
            .run(backend)
            .unwrap();
            backend.synchronize().unwrap();
            let got = backend.read(&out).to_vec();
            for (expert, part) in parts.iter().enumerate() {
                let weight =
                    backend.load_weight(WeightSource::matrix("expert", &[*part]), WeightFormat::Float(dtype)).unwrap();
                let all = matmul(backend, &x, &weight, None);
                for pair in (0..ids.len()).filter(|&pair| ids[pair] as usize == expert) {
                    let want = &all[pair / top_k * n * 4..][..n * 4];
                    assert_eq!(&got[pair * n * 4..][..n * 4], want, "{dtype}, pair {pair} of {tokens} x {top_k}");
                }
            }
        }
    }
}

/// The products of two layers, which choose their experts one after the other into the same tensor, in one step or in two.
fn two_layers<G: Gpu>(backend: &mut MetalBackend<G>, in_one_step: bool) -> Vec<Vec<u8>> {
    const TOKENS: usize = 9;
    const EXPERTS: usize = 4;
    const SIZE: usize = 16;
    let dtype = DType::F32;
    let tensor = |backend: &MetalBackend<G>, cols: usize, seed| {
        let mut tensor = backend.allocate(dtype, TOKENS, cols).unwrap();
        backend.write(&mut tensor, &floats(dtype, TOKENS * cols, seed));
        tensor
    };
    let bytes = floats(dtype, EXPERTS * SIZE * SIZE, 1);
    let part = |bytes| HostTensor { dtype, rows: SIZE, cols: SIZE, bytes, file: None };
    let parts: Vec<_> = bytes.chunks(SIZE * SIZE * dtype.size()).map(part).collect();
    let source = WeightSource::matrices("experts", EXPERTS, &parts);
    let weight = backend.load_weight(source, WeightFormat::Float(dtype)).unwrap();
    let (x, logits) = (tensor(backend, SIZE, 2), [3, 4].map(|seed| tensor(backend, EXPERTS, seed)));
    let mut ids = backend.allocate(DType::U32, TOKENS, 2).unwrap();
    let mut weights = backend.allocate(DType::F32, TOKENS, 2).unwrap();
    let mut outs: Vec<_> = (0..4).map(|_| backend.allocate(DType::F32, 2 * TOKENS, SIZE).unwrap()).collect();
    for (logits, outs) in logits.iter().zip(outs.chunks_mut(2)) {
        let (ids, weights) = (&mut ids, &mut weights);
        TopkSoftmax { rows: TOKENS, logits, renormalize: true, ids, weights }.run(backend).unwrap();
        for out in outs {
            let (x, weight) = (&x, &weight);
            GroupedMatmul { tokens: TOKENS, pairs_per_row: 2, x, ids, weight, bias: None, out, first: 0 }
                .run(backend)
                .unwrap();
        }
        if !in_one_step {
            backend.synchronize().unwrap();
        }
    }
    backend.synchronize().unwrap();
    outs.iter().map(|out| backend.read(out).to_vec()).collect()
}

#[test]
fn pairs_are_sorted_once_for_each_choice_of_experts() {
    let together = two_layers(&mut backend(), true);
    assert_eq!(together, two_layers(&mut backend(), false));
    assert!(together[0] == together[1] && together[2] == together[3] && together[0] != together[2]);
    let mut recording = MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
    two_layers(&mut recording, true);
    // Twice the choice, the sorting and two products.
    assert_eq!(recording.gpu().num_commands(), 8);
}

/// The size of a weight whose tiles, of 64, 16 or 8 outputs, are no multiple of the pieces' and end within one.
const UNEVEN: [usize; 2] = [2 * 197, 40];

/// A product of so many rows, and, of few, the activations of its gates and ups.
fn uneven_products<G: Gpu>(backend: &mut MetalBackend<G>, rows: usize) -> Vec<Vec<u8>> {
    let (dtype, [n, k]) = (DType::BF16, UNEVEN);
    let bytes = floats(dtype, n * k, 1);
    let part = HostTensor { dtype, rows: n, cols: k, bytes: &bytes, file: None };
    let weight = backend.load_weight(WeightSource::matrix("uneven", &[part]), WeightFormat::Float(dtype)).unwrap();
    let mut x = backend.allocate(dtype, rows, k).unwrap();
    backend.write(&mut x, &floats(dtype, rows * k, 2));
    let mut bias = backend.allocate(DType::F32, 1, n).unwrap();
    backend.write(&mut bias, &floats(DType::F32, n, 3));
    let mut out = backend.allocate(DType::F32, rows, n).unwrap();
    let mut gate_up = backend.allocate(DType::F32, rows, n).unwrap();
    let mut activations = backend.allocate(dtype, rows, n / 2).unwrap();
    let (x, weight, bias) = (&x, &weight, Some(&bias));
    Matmul { rows, x, weight, bias, out: &mut out, first: 0 }.run(backend).unwrap();
    if rows <= 64 {
        let (gate_up, out) = (&mut gate_up, &mut activations);
        GatedMatmul { rows, x, weight, bias, activation: Activation::Silu, gate_up, out }.run(backend).unwrap();
    }
    backend.synchronize().unwrap();
    vec![backend.read(&out).to_vec(), backend.read(&activations).to_vec()]
}

/// Of so many tiles each, as on a device that is slow and not hopeless: in the smallest pieces, and undivided, a tile's place is one of the
/// two that it is the sum of.
#[test]
fn products_in_pieces_of_several_tiles_have_the_bits_of_undivided_ones() {
    let [n, k] = UNEVEN;
    // Tiles of the product, and of gates: 25 and 25, or 7, in three pieces and what is left.
    for (rows, dispatches) in [(3usize, 8), (20, 8), (50, 8), (70, 4)] {
        let flops = 2.0 * (rows.next_multiple_of(8) * n * k) as f64;
        // At 35% of this, the 50 ms of a dispatch are enough for 1 of 2.5 parts.
        let limits = Limits { read_bandwidth: f64::INFINITY, peak_flops: flops / 2.5 / 0.05 / 0.35 };
        let mut recording = MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
        recording.set_limits(limits);
        uneven_products(&mut recording, rows);
        assert_eq!(recording.gpu().num_commands(), dispatches, "{rows} rows");
        let mut in_pieces = backend();
        in_pieces.set_limits(limits);
        assert_eq!(uneven_products(&mut in_pieces, rows), uneven_products(&mut backend(), rows), "{rows} rows");
    }
}

/// A file in memory.
struct File(Vec<u128>);

impl MappedFile for File {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

#[test]
fn weights_in_a_file_give_the_bits_of_copied_ones() {
    let mut backend = backend();
    let dtype = DType::BF16;
    // Rows of q, k and v; where they begin: at multiples of 16, of 8, and of neither, which makes a copy.
    for (starts, k) in [([0, 16384, 8192], 96), ([8, 16384, 8200], 96), ([8, 16384, 8192], 45), ([2, 16384, 8192], 96)]
    {
        let mut file = File(vec![0; 2048]);
        let rows = [24, 10, 7];
        let mut all = Vec::new();
        for (i, (start, rows)) in starts.into_iter().zip(rows).enumerate() {
            let bytes = floats(dtype, rows * k, 10 + i as u64);
            bytemuck::cast_slice_mut(&mut file.0)[start..][..bytes.len()].copy_from_slice(&bytes);
            all.extend(bytes);
        }
        let file: Arc<dyn MappedFile> = Arc::new(file);
        let parts: Vec<_> = starts
            .into_iter()
            .zip(rows)
            .map(|(start, rows)| {
                let bytes = &file.bytes()[start..][..rows * k * dtype.size()];
                HostTensor { dtype, rows, cols: k, bytes, file: Some(&file) }
            })
            .collect();
        let in_place = backend.load_weight(WeightSource::matrix("qkv", &parts), WeightFormat::Float(dtype)).unwrap();
        let whole = HostTensor { dtype, rows: 41, cols: k, bytes: &all, file: None };
        let copied = backend.load_weight(WeightSource::matrix("qkv", &[whole]), WeightFormat::Float(dtype)).unwrap();
        for rows in [1, 20, 70] {
            let x = floats(dtype, rows * k, 20);
            let want = matmul(&mut backend, &x, &copied, None);
            assert!(matmul(&mut backend, &x, &in_place, None) == want, "{rows} rows, parts at {starts:?}");
        }
    }
}

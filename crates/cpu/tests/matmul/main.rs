//! Matmul against plain loops on every instruction set, and bitwise invariance over rows, threads and placement.

mod codes;

use std::num::NonZeroUsize;

use proptest::prelude::*;
use vllm_apple_cpu::matmul::{Columns, Gated, Matmuls, Pairs};
use vllm_apple_cpu::pack::PackedMatrix;
use vllm_apple_cpu::weight_memory::WeightMemory;
use vllm_apple_cpu::{CpuBackend, Isa};
use vllm_apple_ops::pool::Pool;
use vllm_apple_ops::{
    Activation, Backend, DType, GatedActivation, HostTensor, WeightFormat, WeightSource, grouped_matmul, matmul,
};

fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).unwrap())
}

/// Values in (-1, 1) from a counter, the same on every machine.
fn values(seed: u64, len: usize) -> Vec<f32> {
    let value = |i: u64| {
        let mut z = (seed << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    };
    (0..len as u64).map(value).collect()
}

/// A weight of random values and its exact content.
fn weight(pool: &Pool, dtype: DType, groups: usize, n: usize, k: usize) -> (PackedMatrix, Vec<f32>) {
    let bytes = dtype.encode(&values(1, groups * n * k));
    let parts: Vec<_> = bytes
        .chunks(n * k * dtype.size())
        .map(|bytes| HostTensor { dtype, rows: n, cols: k, bytes, file: None })
        .collect();
    (
        PackedMatrix::pack(
            pool,
            &WeightMemory::default(),
            WeightSource::matrices("w", groups, &parts),
            WeightFormat::Float(dtype),
        )
        .unwrap(),
        dtype.decode(&bytes),
    )
}

fn activations(dtype: DType, rows: usize, k: usize) -> (Vec<u8>, Vec<f32>) {
    let bytes = dtype.encode(&values(2, rows * k));
    let exact = dtype.decode(&bytes);
    (bytes, exact)
}

/// Each of at most 2K roundings (and the bias's) errs by at most half of epsilon times a partial sum. As |x|, |w| < 1 have
/// random signs, partial sums stay near sqrt(K / 9) and errors add up as sqrt(2K): K epsilons are some six times as much.
fn tolerance(k: usize) -> f32 {
    f32::EPSILON * (k + 1) as f32
}

fn assert_close(got: &[f32], expected: &[f32], k: usize, what: &str) {
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= tolerance(k), "{what}: element {i} is {got}, expected {expected}");
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn equals_plain_loops_on_every_instruction_set() {
    let pool = pool(2);
    // N below, at and above one panel; K odd, one, and longer than a slice of K.
    let shapes = [(1, 1), (31, 7), (32, 64), (33, 129), (100, 896), (64, 1501)];
    for isa in Isa::available() {
        let mut matmuls = Matmuls::new(isa);
        for dtype in DType::FLOATS {
            for (n, k) in shapes {
                let (packed, exact) = weight(&pool, dtype, 1, n, k);
                let bias = values(3, n);
                for rows in [1, 2, 5, 12, 13, 40] {
                    let (x, exact_x) = activations(dtype, rows, k);
                    for bias in [&[][..], &bias] {
                        let mut out = vec![f32::NAN; rows * n];
                        matmuls.matmul(&pool, &packed, &x, (!bias.is_empty()).then_some(bias), &mut out);
                        let expected = matmul::reference(&exact_x, &exact, bias, k);
                        assert_close(&out, &expected, k, &format!("{isa} {dtype} {rows}x{n}x{k}"));
                    }
                }
            }
        }
    }
}

/// What the op makes of gates and ups.
fn activate(backend: &mut CpuBackend, activation: Activation, dtype: DType, gate_up: &[f32], width: usize) -> Vec<u8> {
    let rows = gate_up.len() / (2 * width);
    let mut from = backend.allocate(DType::F32, rows, 2 * width).unwrap();
    backend.write(&mut from, &DType::F32.encode(gate_up));
    let mut out = backend.allocate(dtype, rows, width).unwrap();
    GatedActivation { rows, activation, gate_up: &from, out: &mut out }.run(backend).unwrap();
    backend.read(&out).to_vec()
}

/// Whole and, with vectors (rows of 1,501), cut K, one tile and several: of these matrices compute some rows' activations or all while they multiply the next tile.
#[test]
fn gates_and_ups_together_have_the_bits_of_matmul_and_activation() {
    let pool = pool(3);
    let activations_of = [
        (Activation::GeluTanh, DType::BF16),
        (Activation::Silu, DType::BF16),
        (Activation::ClampedSwiglu, DType::BF16),
        (Activation::Silu, DType::F32),
    ];
    for isa in Isa::available() {
        let (mut matmuls, mut backend) = (Matmuls::new(isa), CpuBackend::with_isa(Some(1), isa));
        for format in DType::FLOATS {
            for (width, k, rows) in
                [(32, 40, 1), (64, 129, 13), (96, 1501, 40), (32, 24, 70), (64, 200, 100), (64, 1501, 530)]
            {
                let (packed, _) = weight(&pool, format, 1, 2 * width, k);
                let bias = values(3, 2 * width);
                let (x, _) = activations(format, rows, k);
                let mut gate_up = vec![f32::NAN; rows * 2 * width];
                matmuls.matmul(&pool, &packed, &x, Some(&bias), &mut gate_up);
                for (activation, dtype) in activations_of {
                    let apart = activate(&mut backend, activation, dtype, &gate_up, width);
                    let mut together = vec![0; apart.len()];
                    let mut sums = vec![f32::NAN; gate_up.len()];
                    let gated = Gated::new(activation, dtype, &mut together);
                    matmuls.gated(&pool, &packed, &x, Some(&bias), &mut sums, gated);
                    assert!(together == apart, "{isa} {format} {rows}x{width}x{k} {activation:?} {dtype}");
                }
            }
        }
    }
}

#[test]
fn nothing_to_do_is_done() {
    let pool = pool(2);
    let (packed, _) = weight(&pool, DType::BF16, 2, 33, 8);
    let mut matmuls = Matmuls::new(Isa::best());
    matmuls.matmul(&pool, &packed, &[], None, &mut []);
    matmuls.grouped(&pool, &packed, &[], Pairs { ids: &[], per_row: 2 }, None, Columns::whole(&mut [], &packed));
}

#[test]
fn a_row_of_nan_or_infinity_leaves_other_rows_alone() {
    let pool = pool(2);
    let (n, k) = (40, 65);
    for isa in Isa::available() {
        let mut matmuls = Matmuls::new(isa);
        for dtype in DType::FLOATS {
            let (packed, _) = weight(&pool, dtype, 1, n, k);
            let (x, _) = activations(dtype, 3, k);
            let mut clean = vec![0.0; 3 * n];
            matmuls.matmul(&pool, &packed, &x, None, &mut clean);
            let mut poisoned = x.clone();
            let row_bytes = k * dtype.size();
            poisoned[row_bytes..2 * row_bytes].copy_from_slice(&dtype.encode(&vec![f32::NAN; k]));
            let mut out = vec![0.0; 3 * n];
            matmuls.matmul(&pool, &packed, &poisoned, None, &mut out);
            assert_eq!(bits(&out[..n]), bits(&clean[..n]));
            assert!(out[n..2 * n].iter().all(|v| v.is_nan()));
            assert_eq!(bits(&out[2 * n..]), bits(&clean[2 * n..]));
        }
    }
}

#[test]
fn grouped_equals_plain_loops_and_dense_bitwise() {
    let pool = pool(3);
    let (groups, n, k) = (5, 70, 77);
    // Group 3 gets no rows and group 1 more than a tile.
    let ids: Vec<u32> = (0..60).map(|p| [1, 0, 1, 4, 1, 2][p % 6]).collect();
    for isa in Isa::available() {
        let mut matmuls = Matmuls::new(isa);
        for dtype in DType::FLOATS {
            let (packed, exact) = weight(&pool, dtype, groups, n, k);
            for pairs_per_row in [1, 2] {
                let (x, exact_x) = activations(dtype, ids.len() / pairs_per_row, k);
                let mut out = vec![f32::NAN; ids.len() * n];
                let bias = if pairs_per_row == 1 { values(3, groups * n) } else { Vec::new() };
                let given = (!bias.is_empty()).then_some(&bias[..]);
                matmuls.grouped(
                    &pool,
                    &packed,
                    &x,
                    Pairs { ids: &ids, per_row: pairs_per_row },
                    given,
                    Columns::whole(&mut out, &packed),
                );
                let expected = grouped_matmul::reference(&exact_x, &ids, pairs_per_row, &exact, &bias, [n, k]);
                assert_close(&out, &expected, k, &format!("{isa} {dtype} grouped"));
                for (pair, &id) in ids.iter().enumerate() {
                    let single = &ids[pair..=pair];
                    let row_bytes = k * dtype.size();
                    let x = &x[pair / pairs_per_row * row_bytes..][..row_bytes];
                    let mut alone = vec![f32::NAN; n];
                    matmuls.grouped(
                        &pool,
                        &packed,
                        x,
                        Pairs { ids: single, per_row: 1 },
                        given,
                        Columns::whole(&mut alone, &packed),
                    );
                    assert_eq!(bits(&alone), bits(&out[pair * n..][..n]), "{isa} {dtype} pair {pair} expert {id}");
                }
            }
        }
    }
}

#[test]
fn every_row_count_and_thread_count_gives_the_same_bits() {
    let pools: Vec<_> = (1..=4).map(pool).collect();
    // Of long rows a few are worth several threads.
    let shapes = |isa: Isa| [(97, 1100, 40), (33, 9001, 5)].map(|shape| (isa, shape));
    for (isa, (n, k, rows)) in Isa::available().into_iter().flat_map(shapes) {
        let mut matmuls = Matmuls::new(isa);
        for dtype in DType::FLOATS {
            let (packed, _) = weight(&pools[0], dtype, 1, n, k);
            let (x, _) = activations(dtype, rows, k);
            let bias = values(3, n);
            let mut all = vec![0.0; rows * n];
            matmuls.matmul(&pools[0], &packed, &x, Some(&bias), &mut all);
            for count in 1..=rows {
                let mut out = vec![f32::NAN; count * n];
                matmuls.matmul(&pools[count % 4], &packed, &x, Some(&bias), &mut out);
                assert_eq!(bits(&out), bits(&all[..count * n]), "{isa} {dtype} {count} rows");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Rows in any order and in chunks of any size give the bits that they give alone.
    #[test]
    fn placement_does_not_show(
        n in 1usize..150,
        k in 1usize..700,
        order in proptest::collection::vec(0usize..24, 1..60),
        chunk in 1usize..40,
        threads in 1usize..5,
        dtype in proptest::sample::select(DType::FLOATS.to_vec()),
        isa in proptest::sample::select(Isa::available()),
    ) {
        let pool = pool(threads);
        let (packed, _) = weight(&pool, dtype, 1, n, k);
        let (x, _) = activations(dtype, 24, k);
        let row_bytes = k * dtype.size();
        let mut matmuls = Matmuls::new(isa);
        let mut alone = vec![0.0; 24 * n];
        for row in 0..24 {
            matmuls.matmul(&pool, &packed, &x[row * row_bytes..], None, &mut alone[row * n..][..n]);
        }
        for rows in order.chunks(chunk) {
            let x: Vec<u8> = rows.iter().flat_map(|&row| x[row * row_bytes..][..row_bytes].to_vec()).collect();
            let mut out = vec![f32::NAN; rows.len() * n];
            matmuls.matmul(&pool, &packed, &x, None, &mut out);
            for (&row, out) in rows.iter().zip(out.chunks(n)) {
                prop_assert_eq!(bits(out), bits(&alone[row * n..][..n]));
            }
        }
    }
}

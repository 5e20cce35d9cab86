//! Quantised weights: bits do not depend on the number of rows, whether vectors or matrices multiply them.

use vllm_apple_ops::{
    Activations, Codebook, Quantised, QuantisedTensor, ReadGroups, SUPER_BLOCK, Scale, Scales, power_of_two,
};

use super::*;

/// Codes and scales that differ along both axes.
struct Mixed(Quantised);

impl ReadGroups for Mixed {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let most = u8::MAX >> (8 - self.0.codebook.bits());
        for (k, code) in codes.iter_mut().enumerate() {
            *code = ((row * 31 + group * 17 + k * 7) % 251) as u8 & most;
        }
        match self.0.scales {
            Scales::ZeroPoints(dtype) => {
                let scale = dtype.round((row % 7) as f32 / 61.0 - 0.05);
                Scale { scale, bias: -scale * ((row * 3 + group) % 256) as f32 }
            }
            Scales::PowersOfTwo => Scale { scale: power_of_two(120 + ((row + 3 * group) % 7) as u8), bias: 0.0 },
            Scales::Float(_) => Scale { scale: (row % 7) as f32 / 64.0 - 0.05, bias: (group % 5) as f32 / 16.0 - 0.1 },
            Scales::SuperBlocksOfFloats => {
                let factor = self.factors(row, group * self.0.group_size / SUPER_BLOCK).scale;
                // Of either sign, from the least on.
                let code = ((row * 5 + group * 3) % 127) as u8 | (row * 31 + group * 128) as u8 & 128;
                Scale { scale: Codebook::E4m3.value(code) * factor, bias: 0.0 }
            }
            Scales::SuperBlocks | Scales::SuperBlocksOfNibbles => {
                let factors = self.factors(row, group * self.0.group_size / SUPER_BLOCK);
                let multiple = |i: usize| match self.0.scales {
                    Scales::SuperBlocks => ((row * 5 + group * 3 + i) % 64) as f32 - 20.0,
                    _ => ((row * 5 + group * 3 + i) % 16) as f32,
                };
                Scale { scale: multiple(0) * factors.scale, bias: multiple(7) * factors.bias }
            }
        }
    }

    fn factors(&self, row: usize, super_block: usize) -> Scale {
        let factor = |i: usize| 0.003 * ((row * 3 + super_block + i) % 11) as f32 - 0.01;
        if self.0.scales == Scales::SuperBlocksOfFloats {
            return Scale { scale: factor(0), bias: 0.0 };
        }
        let factor = |i: usize| DType::F16.round(factor(i));
        Scale { scale: factor(0), bias: factor(5) }
    }
}

/// All of them, those of whole numbers also with activations of 8 bits.
fn formats() -> Vec<Quantised> {
    let exact = formats_of_exact_activations();
    let int8 = exact.iter().filter(|format| format.codebook != Codebook::E4m3);
    let int8: Vec<_> = int8.map(|&format| Quantised { activations: Activations::Int8, ..format }).collect();
    [exact, int8].concat()
}

fn formats_of_exact_activations() -> Vec<Quantised> {
    let quantised = |codebook, group_size, scales, biases| {
        let (input, scales) = (DType::BF16, Scales::Float(scales));
        Quantised { input, codebook, group_size, scales, biases, activations: Activations::Exact }
    };
    let in_super_blocks = |codebook, group_size, biases| {
        let (input, scales) = (DType::BF16, Scales::SuperBlocks);
        Quantised { input, codebook, group_size, scales, biases, activations: Activations::Exact }
    };
    let with_zero_points = |bits, group_size, scales| {
        let (codebook, scales) = (Codebook::Integer { bits, zero_point: 0 }, Scales::ZeroPoints(scales));
        Quantised { input: DType::BF16, codebook, group_size, scales, biases: true, activations: Activations::Exact }
    };
    let quantised_by_powers = Quantised {
        input: DType::BF16,
        codebook: Codebook::E2m1,
        group_size: 32,
        scales: Scales::PowersOfTwo,
        biases: false,
        activations: Activations::Exact,
    };
    vec![
        quantised(Codebook::INT4, 32, DType::F16, false),
        quantised(Codebook::Integer { bits: 4, zero_point: 0 }, 128, DType::BF16, true),
        quantised(Codebook::Integer { bits: 5, zero_point: 0 }, 32, DType::F32, true),
        in_super_blocks(Codebook::Integer { bits: 4, zero_point: 0 }, 32, true),
        in_super_blocks(Codebook::Integer { bits: 6, zero_point: 32 }, 16, false),
        Quantised {
            scales: Scales::SuperBlocksOfNibbles,
            ..in_super_blocks(Codebook::Integer { bits: 2, zero_point: 0 }, 16, true)
        },
        Quantised { scales: Scales::SuperBlocksOfFloats, ..in_super_blocks(Codebook::E2m1, 16, false) },
        with_zero_points(4, 32, DType::F16),
        quantised_by_powers,
        quantised(Codebook::Iq4Nl, 32, DType::F32, true),
        in_super_blocks(Codebook::Iq3Xxs, 32, false),
        in_super_blocks(Codebook::Iq2, 16, false),
        quantised(Codebook::Odd { bits: 1 }, 128, DType::F16, false),
        with_zero_points(8, 1104, DType::BF16),
        quantised(Codebook::Integer { bits: 3, zero_point: 4 }, 16, DType::F16, false),
        quantised(Codebook::INT8, 48, DType::F16, false),
        quantised(Codebook::INT4, 96, DType::F16, true),
        quantised(Codebook::E4m3, 512, DType::F32, false),
        // Too large to be laid out for several tiles.
        quantised(Codebook::INT8, 8192, DType::F32, true),
    ]
}

fn codes(pool: &Pool, format: Quantised, groups: usize, n: usize, k: usize) -> PackedMatrix {
    let reader = Mixed(format);
    let parts: Vec<_> = (0..groups).map(|_| QuantisedTensor { rows: n, cols: k, groups: &reader }).collect();
    PackedMatrix::pack(
        pool,
        &WeightMemory::default(),
        WeightSource::quantised("w", groups, &parts),
        WeightFormat::Quantised(format),
    )
    .unwrap()
}

/// Rows of usual numbers, one of zeros, and one of numbers whose products are subnormal.
fn rows(count: usize, k: usize) -> Vec<u8> {
    let mut x = values(2, count * k);
    x[..k].fill(0.0);
    x[k..2 * k].iter_mut().for_each(|x| *x *= 1e-36);
    x[2 * k..3 * k].iter_mut().step_by(3).for_each(|x| *x *= 1e-38);
    DType::BF16.encode(&x)
}

#[test]
fn every_row_count_and_thread_count_gives_the_same_bits() {
    let pools: Vec<_> = (1..=3).map(pool).collect();
    // Of long rows a few are worth several threads.
    let shapes = |isa: Isa| [(130, 1100, 70), (33, 9000, 5)].map(|shape| (isa, shape));
    for (isa, (n, k, count)) in Isa::available().into_iter().flat_map(shapes) {
        let mut matmuls = Matmuls::new(isa);
        for format in formats() {
            let k = if format.group_size == 8192 { k.max(2500) } else { k };
            let packed = codes(&pools[0], format, 1, n, k);
            let (x, bias) = (rows(count, k), values(3, n));
            let row = |row: usize| &x[row * k * 2..];
            let alone: Vec<f32> = (0..count)
                .flat_map(|i| {
                    let mut out = vec![f32::NAN; n];
                    matmuls.matmul(&pools[i % 3], &packed, row(i), Some(&bias), &mut out);
                    out
                })
                .collect();
            assert!(alone.iter().all(|sum| sum.is_finite()), "{isa} {format}");
            for together in [2, 3, 5, 16, 17, 33, 70].into_iter().filter(|together| *together <= count) {
                let mut out = vec![f32::NAN; together * n];
                matmuls.matmul(&pools[together % 3], &packed, &x, Some(&bias), &mut out);
                assert_eq!(bits(&out), bits(&alone[..together * n]), "{isa} {format} {together} rows");
            }
        }
    }
}

/// One tile and several, K whole and cut.
#[test]
fn gates_and_ups_together_have_the_bits_of_matmul_and_activation() {
    let pool = pool(2);
    for isa in Isa::available() {
        let (mut matmuls, mut backend) = (Matmuls::new(isa), CpuBackend::with_isa(Some(1), isa));
        for format in formats() {
            for (width, k, count) in [(64, 300, 16), (32, 300, 100), (32, 5000, 300)] {
                let packed = codes(&pool, format, 1, 2 * width, k);
                let x = rows(count, k);
                let mut gate_up = vec![f32::NAN; count * 2 * width];
                matmuls.matmul(&pool, &packed, &x, None, &mut gate_up);
                let apart = activate(&mut backend, Activation::Silu, DType::BF16, &gate_up, width);
                let mut together = vec![0; apart.len()];
                let gated = Gated::new(Activation::Silu, DType::BF16, &mut together);
                matmuls.gated(&pool, &packed, &x, None, &mut gate_up, gated);
                assert!(together == apart, "{isa} {format} {count}x{width}x{k}");
            }
        }
    }
}

#[test]
fn a_grouped_row_has_the_bits_that_it_has_alone() {
    let pool = pool(3);
    let (groups, n, k) = (4, 70, 200);
    let ids: Vec<u32> = (0..120).map(|p| [1, 0, 1, 3, 1, 1][p % 6]).collect();
    for isa in Isa::available() {
        let mut matmuls = Matmuls::new(isa);
        for format in formats() {
            let packed = codes(&pool, format, groups, n, k);
            let x = rows(ids.len(), k);
            let mut out = vec![f32::NAN; ids.len() * n];
            matmuls.grouped(
                &pool,
                &packed,
                &x,
                Pairs { ids: &ids, per_row: 1 },
                None,
                Columns::whole(&mut out, &packed),
            );
            for (pair, id) in ids.chunks(1).enumerate() {
                let mut alone = vec![f32::NAN; n];
                matmuls.grouped(
                    &pool,
                    &packed,
                    &x[pair * k * 2..],
                    Pairs { ids: id, per_row: 1 },
                    None,
                    Columns::whole(&mut alone, &packed),
                );
                assert_eq!(bits(&alone), bits(&out[pair * n..][..n]), "{isa} {format} pair {pair}");
            }
        }
    }
}

#[test]
fn a_row_of_nan_or_infinity_leaves_other_rows_alone() {
    let pool = pool(2);
    // More than a tile of matrices has.
    let (n, k, count) = (40, 300, 35);
    for isa in Isa::available() {
        let mut matmuls = Matmuls::new(isa);
        for format in formats() {
            let packed = codes(&pool, format, 1, n, k);
            let mut x = values(2, count * k);
            let mut run = |x: &[f32]| {
                let mut out = vec![0.0; count * n];
                matmuls.matmul(&pool, &packed, &DType::BF16.encode(x), None, &mut out);
                out
            };
            let clean = run(&x);
            (x[2 * k + 70], x[5 * k + 133]) = (f32::NAN, f32::INFINITY);
            for (row, (got, clean)) in run(&x).chunks(n).zip(clean.chunks(n)).enumerate() {
                match row {
                    2 => assert!(got.iter().all(|sum| sum.is_nan()), "{isa} {format}"),
                    5 => assert!(got.iter().all(|sum| !sum.is_finite()), "{isa} {format}"),
                    _ => assert_eq!(bits(got), bits(clean), "{isa} {format} row {row}"),
                }
            }
        }
    }
}

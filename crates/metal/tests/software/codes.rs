//! Weights of codes: every width and every size of groups, whichever kernel computes a row, and the bytes that they take on their way.

use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::conformance::of_product;
use vllm_apple_ops::{
    Activations, Backend, Codebook, DType, GroupedMatmul, Matmul, Quantised, QuantisedTensor, ReadGroups, SUPER_BLOCK,
    Scale, Scales, Tensor, Weight, WeightFormat, WeightSource, power_of_two,
};

type Metal = MetalBackend<SoftwareGpu>;
type MetalWeight = Weight<<Metal as Backend>::Packed>;

fn backend() -> Metal {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    MetalBackend::new(SoftwareGpu::checked().unwrap(), options).unwrap()
}

/// Codes and scales that are a function of their place.
struct Codes {
    quantised: Quantised,
    cols: usize,
    first_row: usize,
}

impl Codes {
    fn code(&self, row: usize, k: usize) -> u8 {
        ((row * 7 + k * 5 + k / 9 + row * k) % (1 << self.quantised.codebook.bits())) as u8
    }

    fn scale(&self, row: usize, group: usize) -> Scale {
        let factors = match self.quantised.scales {
            Scales::PowersOfTwo => {
                return Scale { scale: power_of_two(((row * 3 + group * 5) % 6 + 122) as u8), bias: 0.0 };
            }
            Scales::ZeroPoints(_) => {
                let (scale, zero_point) = (((row * 3 + group * 5) % 16 + 1) as f32 / 64.0, (row * 5 + group * 3) % 256);
                return Scale { scale, bias: -scale * zero_point as f32 };
            }
            Scales::Float(_) => Scale { scale: 1.0 / 64.0, bias: 1.0 / 8.0 },
            Scales::SuperBlocksOfFloats => {
                // Of either sign, from the least on.
                let code = ((row * 5 + group * 3) % 127) as u8 | (row * 31 + group * 128) as u8 & 128;
                let factor = self.super_block(row, group * self.quantised.group_size / SUPER_BLOCK).scale;
                return Scale { scale: Codebook::E4m3.value(code) * factor, bias: 0.0 };
            }
            Scales::SuperBlocks | Scales::SuperBlocksOfNibbles => {
                self.super_block(row, group * self.quantised.group_size / SUPER_BLOCK)
            }
        };
        let (scale, bias) = ((row * 3 + group * 5) % 15 + 1, (group % 5) as f32);
        let bias = match self.quantised {
            Quantised { biases: false, .. } => 0.0,
            Quantised { scales: Scales::SuperBlocksOfNibbles, .. } => 3.0 * bias,
            _ => bias - 2.0,
        } * factors.bias;
        Scale { scale: scale as f32 * factors.scale, bias }
    }

    fn super_block(&self, row: usize, number: usize) -> Scale {
        if self.quantised.scales == Scales::SuperBlocksOfFloats {
            return Scale { scale: 1.0 / (3 * (row + number) + 7) as f32, bias: 0.0 };
        }
        Scale { scale: ((row + number) % 3 + 1) as f32 / 128.0, bias: -((row + 2 * number) as f32 / 64.0) }
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let element = |k: usize| {
            let Scale { scale, bias } = self.scale(row, k / self.quantised.group_size);
            self.quantised.value(self.code(row, k), scale, bias)
        };
        (0..self.cols).map(element).collect()
    }

    fn load(&self, backend: &Metal, rows: usize) -> MetalWeight {
        let parts = [QuantisedTensor { rows, cols: self.cols, groups: self }];
        backend.load_weight(WeightSource::quantised("w", 1, &parts), WeightFormat::Quantised(self.quantised)).unwrap()
    }
}

impl ReadGroups for Codes {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let (row, start) = (self.first_row + row, group * self.quantised.group_size);
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = self.code(row, start + i));
        self.scale(row, group)
    }

    fn factors(&self, row: usize, super_block: usize) -> Scale {
        self.super_block(self.first_row + row, super_block)
    }
}

fn activations(backend: &Metal, dtype: DType, rows: usize, k: usize) -> (Vec<f32>, Tensor<<Metal as Backend>::Memory>) {
    let values: Vec<f32> = (0..rows * k).map(|i| ((i * 7919 + i / 61 * 31) % 127) as f32 / 64.0 - 1.0).collect();
    let mut tensor = backend.allocate(dtype, rows, k).unwrap();
    backend.write(&mut tensor, &dtype.encode(&values));
    (values, tensor)
}

fn matmul(backend: &mut Metal, x: &Tensor<<Metal as Backend>::Memory>, rows: usize, weight: &MetalWeight) -> Vec<f32> {
    let mut out = backend.allocate(DType::F32, rows, weight.rows()).unwrap();
    Matmul { rows, x, weight, bias: None, out: &mut out, first: 0 }.run(backend).unwrap();
    backend.synchronize().unwrap();
    DType::F32.decode(backend.read(&out))
}

/// Tiles of 8, 16, 32 and 64 rows.
const ROWS: [usize; 4] = [3, 12, 20, 66];

#[test]
fn codes_of_every_width_in_groups_of_every_size_have_the_same_bits_in_every_tile() {
    let mut backend = backend();
    let integer = |bits| Codebook::Integer { bits, zero_point: (1 << (bits - 1)) as u8 };
    let books = (1..=8).map(integer).chain(Codebook::TABLES).chain([Codebook::E4m3]);
    let groups = [16, 32, 64, 128, 8, 20, 300, 96, 256];
    let mut formats = Vec::new();
    for (i, codebook) in books.enumerate() {
        for (j, &group_size) in groups.iter().enumerate().filter(|(j, _)| (i + j).is_multiple_of(4)) {
            let [input, scales] = [i + j / 3, i + j / 2].map(|i| DType::FLOATS[i % 3]);
            let scales = match group_size {
                16 | 32 | 64 | 128 | 8 | 256 if (i + j / 2).is_multiple_of(2) => Scales::SuperBlocks,
                _ => Scales::Float(scales),
            };
            formats.push(Quantised {
                input,
                codebook,
                group_size,
                scales,
                biases: (i + j / 3).is_multiple_of(2),
                activations: Activations::Exact,
            });
        }
    }
    for (bits, group_size, scales) in [(2, 64, 2), (4, 8, 1), (4, 32, 1), (8, 16, 0), (8, 128, 2)] {
        let codebook = Codebook::Integer { bits, zero_point: 0 };
        let scales = Scales::ZeroPoints(DType::FLOATS[scales]);
        formats.push(Quantised {
            input: DType::BF16,
            codebook,
            group_size,
            scales,
            biases: true,
            activations: Activations::Exact,
        });
    }
    for (bits, group_size) in [(2, 16), (4, 32), (8, 128)] {
        let (codebook, scales) = (Codebook::Integer { bits, zero_point: 0 }, Scales::SuperBlocksOfNibbles);
        formats.push(Quantised {
            input: DType::BF16,
            codebook,
            group_size,
            scales,
            biases: true,
            activations: Activations::Exact,
        });
    }
    let e2m1 = [(16, Scales::PowersOfTwo), (32, Scales::PowersOfTwo), (128, Scales::PowersOfTwo)];
    for (group_size, scales) in e2m1.into_iter().chain([16, 64, 256].map(|size| (size, Scales::SuperBlocksOfFloats))) {
        let codebook = Codebook::E2m1;
        formats.push(Quantised {
            input: DType::BF16,
            codebook,
            group_size,
            scales,
            biases: false,
            activations: Activations::Exact,
        });
    }
    for quantised in formats {
        let (n, k) = (27, 300);
        let codes = Codes { quantised, cols: k, first_row: 0 };
        let weight = codes.load(&backend, n);
        let (values, x) = activations(&backend, quantised.input, ROWS[3], k);
        let all = ROWS.map(|rows| matmul(&mut backend, &x, rows, &weight));
        let bits = |out: &[f32]| out.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for out in &all[..3] {
            assert_eq!(bits(out), bits(&all[3][..out.len()]), "{quantised}, {} outputs", out.len());
        }
        for row in [0, ROWS[3] - 1] {
            for output in 0..n {
                let times = of_product(all[3][row * n + output], &values[row * k..][..k], &codes.row(output), &[]);
                assert!(times <= 1.0, "{quantised}, row {row}, output {output}: {times} times its tolerance");
            }
        }
    }
}

#[test]
fn experts_give_the_bits_of_matmul() {
    let mut backend = backend();
    let quantised = Quantised {
        input: DType::BF16,
        codebook: Codebook::INT4,
        group_size: 32,
        scales: Scales::SuperBlocks,
        biases: false,
        activations: Activations::Exact,
    };
    // Tokens, experts per token, experts: tiles of 8, 32 and 64 rows, and a single token.
    for (tokens, top_k, experts) in [(1, 3, 5), (6, 2, 4), (25, 3, 5), (130, 2, 3)] {
        let (n, k) = (33, 160);
        let codes: Vec<_> = (0..experts).map(|e| Codes { quantised, cols: k, first_row: e * n }).collect();
        let parts: Vec<_> = codes.iter().map(|groups| QuantisedTensor { rows: n, cols: k, groups }).collect();
        let source = WeightSource::quantised("experts", experts, &parts);
        let weight = backend.load_weight(source, WeightFormat::Quantised(quantised)).unwrap();
        let (_, x) = activations(&backend, DType::BF16, tokens, k);
        let ids: Vec<u32> = (0..tokens).flat_map(|t| (0..top_k).map(move |j| ((t * t + j) % experts) as u32)).collect();
        let mut ids_tensor = backend.allocate(DType::U32, tokens, top_k).unwrap();
        backend.write(&mut ids_tensor, bytemuck::cast_slice(&ids));
        let mut out = backend.allocate(DType::F32, ids.len(), n).unwrap();
        let op = GroupedMatmul {
            tokens,
            pairs_per_row: top_k,
            x: &x,
            ids: &ids_tensor,
            weight: &weight,
            bias: None,
            out: &mut out,
            first: 0,
        };
        op.run(&mut backend).unwrap();
        backend.synchronize().unwrap();
        let got = DType::F32.decode(backend.read(&out));
        for (expert, codes) in codes.iter().enumerate() {
            let weight = codes.load(&backend, n);
            let all = matmul(&mut backend, &x, tokens, &weight);
            for pair in (0..ids.len()).filter(|&pair| ids[pair] as usize == expert) {
                let want = &all[pair / top_k * n..][..n];
                assert_eq!(&got[pair * n..][..n], want, "pair {pair} of {tokens} x {top_k}");
            }
        }
    }
}

/// Of one request and of eight: codes and scales come from memory once, and little else.
#[test]
fn no_more_than_codes_and_scales_is_moved() {
    const N: usize = 512;
    const K: usize = 2048;
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(SoftwareGpu::counting().unwrap(), options).unwrap();
    let float = Scales::Float(DType::F16);
    for (bits, group_size, biases, scales) in [
        (2, 16, true, float),
        (3, 32, false, float),
        (4, 32, false, float),
        (4, 64, true, float),
        (5, 32, true, float),
        (6, 16, false, float),
        (8, 128, false, float),
        (4, 32, true, Scales::SuperBlocks),
        (6, 16, false, Scales::SuperBlocks),
        (2, 16, true, Scales::SuperBlocksOfNibbles),
        (4, 32, false, Scales::PowersOfTwo),
        (4, 16, false, Scales::SuperBlocksOfFloats),
        (4, 32, true, Scales::ZeroPoints(DType::F16)),
        (4, 128, true, Scales::ZeroPoints(DType::BF16)),
    ] {
        let codebook = Codebook::Integer { bits, zero_point: 0 };
        let quantised =
            Quantised { input: DType::BF16, codebook, group_size, scales, biases, activations: Activations::Exact };
        let weight = Codes { quantised, cols: K, first_row: 0 }.load(&backend, N);
        for rows in [1, 8] {
            let (_, x) = activations(&backend, DType::BF16, rows, K);
            let mut out = backend.allocate(DType::F32, rows, N).unwrap();
            backend.take_traffic();
            Matmul { rows, x: &x, weight: &weight, bias: None, out: &mut out, first: 0 }.run(&mut backend).unwrap();
            backend.synchronize().unwrap();
            let moved = backend.take_traffic().unwrap().moved() as f64;
            let least = WeightFormat::Quantised(quantised).bytes(N, K) as f64;
            let others = (rows * (2 * K + 4 * N)) as f64;
            println!("{quantised}, {rows} rows: {:.3} times codes and scales", (moved - others) / least);
            assert!(moved <= 1.05 * least + others, "{quantised}: {moved} bytes for {least} and {others}");
            assert!(moved >= least, "{quantised}: {moved} bytes for {least}");
        }
    }
}

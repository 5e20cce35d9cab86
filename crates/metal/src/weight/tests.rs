//! What stays in the checkpoint's memory, what is copied, and that rows are the same either way.

use std::sync::Arc;

use vllm_apple_ops::{
    Activations, Backend, Codebook, DType, Error, HostTensor, MappedFile, Quantised, QuantisedTensor, ReadGroups,
    Scale, Scales, Weight, WeightFormat, WeightSource,
};

use super::{PackedWeight, codes, row};
use crate::gpu::PAGE;
use crate::gpu::Value;
use crate::gpu::fake::FakeGpu;
use crate::{MetalBackend, MetalOptions};

/// A file of bytes that tell their places, aligned as mapped files are at least.
struct File(Vec<u128>);

impl MappedFile for File {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

fn file(seed: usize) -> Arc<dyn MappedFile> {
    // Finite as any float type: the upper bits of the exponent stay 0.
    let bytes: Vec<u8> = (0..1 << 14).map(|i: usize| ((i * 31 + seed * 7 + i / 251) % 120) as u8).collect();
    Arc::new(File(bytes.chunks_exact(16).map(|chunk| u128::from_le_bytes(chunk.try_into().unwrap())).collect()))
}

fn tensor(file: &Arc<dyn MappedFile>, dtype: DType, start: usize, [rows, cols]: [usize; 2]) -> HostTensor<'_> {
    HostTensor { dtype, rows, cols, bytes: &file.bytes()[start..][..rows * cols * dtype.size()], file: Some(file) }
}

fn backend() -> MetalBackend<FakeGpu> {
    MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap()
}

/// Loads as `dtype`, checks every row, and returns the weight with what was said of bytes in place and copied.
fn load(
    backend: &MetalBackend<FakeGpu>,
    dtype: DType,
    groups: usize,
    parts: &[HostTensor<'_>],
) -> (Weight<PackedWeight<FakeGpu>>, String) {
    let weight = backend.load_weight(WeightSource::matrices("w", groups, parts), WeightFormat::Float(dtype)).unwrap();
    let per_group = parts.len() / groups;
    for (group, parts) in parts.chunks(per_group).enumerate() {
        let rows =
            parts.iter().flat_map(|part| part.bytes.chunks(part.cols * part.dtype.size()).map(|r| (part.dtype, r)));
        for (i, (from, want)) in rows.enumerate() {
            let want = dtype.decode(&dtype.encode(&from.decode(want)));
            assert_eq!(row(&backend.recorder, &weight, group, i).values(), want, "row {i} of group {group}");
        }
    }
    (weight, backend.checkpoints.report().unwrap())
}

fn load_width(weight: &Weight<PackedWeight<FakeGpu>>) -> Value {
    PackedWeight::constants(weight)[2]
}

#[test]
fn parts_stay_where_they_are() {
    let (backend, file) = (backend(), file(1));
    assert!(!backend.keeps_host_tensors());
    let parts =
        [(64, [5, 8]), (1600, [3, 8]), (320, [3, 8])].map(|(start, shape)| tensor(&file, DType::BF16, start, shape));
    let (weight, report) = load(&backend, DType::BF16, 1, &parts);
    assert_eq!(report, format!("{} bytes used in place", 11 * 8 * 2));
    for (part, region) in parts.iter().zip(&weight.packed().parts) {
        assert_eq!(backend.recorder.bytes(region).as_ptr(), part.bytes.as_ptr());
    }
    assert_eq!(load_width(&weight), Value::U32(16));
    assert_eq!(PackedWeight::first_rows(&weight), [5, 8]);
    assert!(backend.keeps_host_tensors());
}

#[test]
fn loads_are_as_wide_as_all_rows_allow() {
    let (backend, file) = (backend(), file(2));
    let width = |starts: &[usize], cols| {
        let parts: Vec<_> = starts.iter().map(|&start| tensor(&file, DType::F16, start, [4, cols])).collect();
        load_width(&load(&backend, DType::F16, 1, &parts).0)
    };
    assert_eq!(width(&[0, 512], 16), Value::U32(16));
    assert_eq!(width(&[0, 520], 16), Value::U32(8), "the second part");
    assert_eq!(width(&[0], 12), Value::U32(8), "the second row");
    assert_eq!(width(&[0], 31), Value::U32(2));
}

#[test]
fn what_cannot_stay_is_copied_and_said() {
    let (backend, file) = (backend(), file(3));
    let said = |dtype, groups, parts: &[HostTensor<'_>]| load(&backend, dtype, groups, parts).1;
    let at = |start| tensor(&file, DType::F16, start, [4, 6]);
    assert_eq!(said(DType::F16, 1, &[at(2)]), "48 bytes copied (not aligned to 8 bytes in the file)");
    assert_eq!(said(DType::F32, 1, &[at(0)]), "96 bytes copied (converted to another type)");
    assert_eq!(
        said(DType::F16, 1, &[at(0), at(64), at(128), at(192)]),
        "192 bytes copied (made of more than three tensors)"
    );
    assert_eq!(said(DType::F16, 1, &[HostTensor { file: None, ..at(0) }]), "48 bytes copied (not from a mapped file)");
    let mixed = said(DType::F16, 1, &[at(0), at(66)]);
    assert_eq!(mixed, "48 bytes used in place, 48 bytes copied (not aligned to 8 bytes in the file)");
}

#[test]
fn experts_of_one_file_stay_in_any_order() {
    let (backend, file, other) = (backend(), file(4), file(5));
    // Gates and ups of three experts, scattered.
    let starts = [4096, 256, 1024, 8000, 512, 2048];
    let parts: Vec<_> = starts.iter().map(|&start| tensor(&file, DType::BF16, start, [3, 20])).collect();
    let (weight, report) = load(&backend, DType::BF16, 3, &parts);
    assert_eq!(report, format!("{} bytes used in place", 6 * 3 * 20 * 2));
    assert_eq!(load_width(&weight), Value::U32(8));

    let mut apart = parts.clone();
    apart[3] = tensor(&other, DType::BF16, 8000, [3, 20]);
    let (_, report) = load(&backend, DType::BF16, 3, &apart);
    assert_eq!(report, format!("{} bytes copied (experts spread over files)", 3 * 240));

    // A group of 60 bytes: the next begins at a multiple of 16.
    let odd: Vec<_> = (0..4).map(|i| tensor(&file, DType::F16, 1000 * i + 2, [5, 6])).collect();
    let (weight, _) = load(&backend, DType::F16, 4, &odd);
    assert_eq!(load_width(&weight), Value::U32(4));
}

#[test]
fn files_longer_than_a_buffer_stay_too() {
    let bytes = vec![0u128; 40 * PAGE / 16];
    let file: Arc<dyn MappedFile> = Arc::new(File(bytes));
    let gpu = FakeGpu::recording().with_longest_buffer(8 * PAGE as u64);
    let backend = MetalBackend::new(gpu, MetalOptions::default()).unwrap();
    let at = |start| tensor(&file, DType::BF16, start, [PAGE, 3]);
    // Parts of 6 pages in views of 8: of their own, at the end of one, and in the file's last pages.
    for start in [0, 5 * PAGE, 7 * PAGE + 24, 29 * PAGE + 8, 34 * PAGE] {
        let (weight, report) = load(&backend, DType::BF16, 1, &[at(start)]);
        assert_eq!(report, format!("{} bytes used in place", 6 * PAGE));
        let region = &weight.packed().parts[0];
        assert_eq!(backend.recorder.bytes(region).as_ptr(), at(start).bytes.as_ptr());
    }
    let experts: Vec<_> = [9, 12, 10, 11].map(|page| tensor(&file, DType::BF16, page * PAGE, [512, 16])).to_vec();
    assert_eq!(load(&backend, DType::BF16, 4, &experts).1, format!("{} bytes used in place", 4 * PAGE));
    let apart: Vec<_> = [9, 30].map(|page| tensor(&file, DType::BF16, page * PAGE, [512, 16])).to_vec();
    let (_, report) = load(&backend, DType::BF16, 2, &apart);
    assert_eq!(report, format!("{} bytes copied (the device cannot use the file's memory)", 2 * PAGE));
}

#[test]
fn a_value_that_becomes_infinite_is_refused_by_name() {
    let mut values = vec![1.0; 40];
    values[33] = -7e4;
    values[35] = f32::INFINITY;
    let bytes = DType::F32.encode(&values);
    let part = HostTensor { dtype: DType::F32, rows: 5, cols: 8, bytes: &bytes, file: None };
    let error = backend()
        .load_weight(WeightSource::matrix("blk.w", &[part]), WeightFormat::Float(DType::F16))
        .map(drop)
        .unwrap_err();
    assert_eq!(error, Error::OutOfRange { name: "blk.w".into(), value: -7e4, dtype: DType::F16 });
    assert!(backend().load_weight(WeightSource::matrix("blk.w", &[part]), WeightFormat::Float(DType::BF16)).is_ok());
}

/// Codes in turn; scales that are small numbers, but for one.
struct Turns {
    codebook: Codebook,
    scale: fn(usize, usize) -> Scale,
}

impl Turns {
    fn code(&self, row: usize, k: usize) -> u8 {
        ((row * 5 + k * 3 + k / 7) % (1 << self.codebook.bits())) as u8
    }
}

/// With the groups of 20 elements that the tests have.
const GROUP: usize = 20;

impl ReadGroups for Turns {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        codes.iter_mut().enumerate().for_each(|(i, code)| *code = self.code(row, group * GROUP + i));
        (self.scale)(row, group)
    }
}

fn small_scale(row: usize, group: usize) -> Scale {
    Scale { scale: (row + 3 * group + 1) as f32 / 8.0, bias: group as f32 - 1.0 }
}

fn quantised(codebook: Codebook, biases: bool) -> WeightFormat {
    let scales = Scales::Float(DType::F16);
    WeightFormat::Quantised(Quantised {
        input: DType::F16,
        codebook,
        group_size: GROUP,
        scales,
        biases,
        activations: Activations::Exact,
    })
}

#[test]
fn codes_of_every_width_are_where_rows_are_read() {
    let backend = backend();
    let integers = (1..=8).map(|bits| Codebook::Integer { bits, zero_point: bits });
    for codebook in integers.chain(Codebook::TABLES).chain([Codebook::E4m3]) {
        for biases in [false, true] {
            let format = quantised(codebook, biases);
            let turns = Turns { codebook, scale: small_scale };
            let part = |rows| QuantisedTensor { rows, cols: 150, groups: &turns };
            // Two groups of 11 rows in two parts: every part begins anew.
            let parts = [part(9), part(2), part(9), part(2)];
            let weight = backend.load_weight(WeightSource::quantised("w", 2, &parts), format).unwrap();
            assert_eq!(weight.packed().parts[0].len as u128, super::bytes(format, 2, 11, 150), "{format}");
            let WeightFormat::Quantised(quantised) = format else { unreachable!("it is") };
            for (group, n) in (0..2).flat_map(|group| (0..11).map(move |n| (group, n))) {
                let of_part = if n < 9 { n } else { n - 9 };
                let element = |k| {
                    let Scale { scale, bias } = small_scale(of_part, k / GROUP);
                    quantised.value(turns.code(of_part, k), scale, bias)
                };
                let want: Vec<f32> = (0..150).map(element).collect();
                assert_eq!(row(&backend.recorder, &weight, group, n).values(), want, "{format}, row {n} of {group}");
            }
        }
    }
    let report = backend.checkpoints.report().unwrap();
    assert!(report.ends_with("bytes copied (quantised: laid out for the device)"), "{report}");
}

#[test]
fn codes_and_scales_take_no_more_than_they_need() {
    let bytes = |codebook, group_size, scales, cols| {
        let biases = matches!(scales, Scales::ZeroPoints(_));
        let quantised =
            Quantised { input: DType::BF16, codebook, group_size, scales, biases, activations: Activations::Exact };
        let layout = codes::Layout::new(quantised, cols);
        layout.matrix_bytes(16, cols) as f64 / WeightFormat::Quantised(quantised).bytes(16, cols) as f64
    };
    for bits in [2, 3, 4, 5, 6, 8] {
        let codebook = Codebook::Integer { bits, zero_point: 0 };
        for group_size in [16, 32, 64, 128] {
            for scales in [Scales::Float(DType::F16), Scales::SuperBlocks, Scales::ZeroPoints(DType::F16)] {
                // Those of 128 in super-blocks, which no format has, are two of 64; zero points are filled up to 16 bytes.
                let most = if group_size == 128 && scales != Scales::Float(DType::F16) { 1.03 } else { 1.0 };
                let times = bytes(codebook, group_size, scales, 4096);
                assert!((1.0..=most).contains(&times), "{bits} bits, groups of {group_size}: {times}");
            }
        }
    }
    assert_eq!(bytes(Codebook::E2m1, 16, Scales::SuperBlocksOfFloats, 4096), 1.0);
    // A scale is there for every 128 elements, and a row is a multiple of 128 long.
    assert!(bytes(Codebook::INT4, 4096, Scales::Float(DType::BF16), 4096) < 1.04);
    assert!(bytes(Codebook::E4m3, 4096, Scales::Float(DType::F32), 4096) < 1.04);
    assert!(bytes(Codebook::INT4, 32, Scales::Float(DType::F16), 2880) < 1.03);
}

#[test]
fn a_scale_that_is_no_number_is_refused_by_name() {
    let refused = |scale: fn(usize, usize) -> Scale, biases| {
        let turns = Turns { codebook: Codebook::INT4, scale };
        let parts = [QuantisedTensor { rows: 20, cols: 64, groups: &turns }];
        let source = WeightSource::quantised("blk.w", 1, &parts);
        backend().load_weight(source, quantised(Codebook::INT4, biases)).map(drop)
    };
    let error = |value| Err(Error::ScaleOutOfRange { name: "blk.w".into(), value, dtype: DType::F16 });
    let large = |row: usize, group| Scale {
        scale: if row >= 13 { 1e5 * row as f32 } else { small_scale(row, group).scale },
        bias: -7e4,
    };
    assert_eq!(refused(large, false), error(13e5), "the first row that has one");
    assert_eq!(refused(large, true), error(-7e4));
    assert_eq!(refused(small_scale, true), Ok(()));
}

#[test]
fn a_float_of_8_bits_that_is_no_number_is_refused_by_name() {
    struct Ones(f32);
    impl ReadGroups for Ones {
        fn read(&self, row: usize, _: usize, codes: &mut [u8]) -> Scale {
            codes.fill(1);
            Scale { scale: if row == 13 { self.0 } else { 2.0 }, bias: 0.0 }
        }

        fn factors(&self, _: usize, _: usize) -> Scale {
            Scale { scale: 0.5, bias: 0.0 }
        }
    }
    let load = |scale| {
        let parts = [QuantisedTensor { rows: 20, cols: 64, groups: &Ones(scale) }];
        let format = Quantised {
            input: DType::BF16,
            codebook: Codebook::E2m1,
            group_size: 16,
            scales: Scales::SuperBlocksOfFloats,
            biases: false,
            activations: Activations::Exact,
        };
        let source = WeightSource::quantised("blk.w", 1, &parts);
        backend().load_weight(source, WeightFormat::Quantised(format)).map(drop)
    };
    assert_eq!(load(3.0), Ok(()));
    assert!(load(f32::NAN).unwrap_err().to_string().contains("blk.w"));
}

//! Accesses of every width are counted and checked, whether or not a machine has an instruction for them.

use msl_sim::{
    Argument, Buffer, Check, Config, Device, Dispatch, FindingKind, Instrument, Pipeline, RaceKind, Report, Size,
    Source,
};

const TEXT: &str = include_str!("fixtures/widths.metal");
const THREADS: usize = 64;

/// The types of the fixture and their sizes in Metal, in bytes.
const TYPES: [(&str, usize); 24] = [
    ("char", 1),
    ("uchar3", 4),
    ("uchar4", 4),
    ("packed_uchar3", 3),
    ("half", 2),
    ("half3", 8),
    ("packed_half3", 6),
    ("bfloat4", 8),
    ("float3", 16),
    ("packed_float3", 12),
    ("packed_float4", 16),
    ("float4", 16),
    ("ulong2", 16),
    ("ulong3", 32),
    ("ulong4", 32),
    ("float4x4", 64),
    ("half3x3", 24),
    ("bytes3", 3),
    ("bytes5", 8),
    ("bytes6", 6),
    ("bytes7", 7),
    ("bytes12", 12),
    ("bytes20", 32),
    ("bytes48", 48),
];

/// What a kernel does on elements of `size` bytes, with room for `elements` of them.
fn run(kernel: &str, size: usize, elements: usize, wrong: bool) -> Option<(Report, Vec<u8>)> {
    if !msl_sim::compile::clang_available() {
        return None;
    }
    let defines = [("WRONG", if wrong { "1" } else { "0" })];
    let source = Source { name: "widths.metal", text: TEXT, include_dirs: &[], defines: &defines };
    let binary = msl_sim::compile(&source, Instrument::Accesses).expect("the fixture compiles");
    let pipeline = Pipeline::new(&binary, kernel, &[]).expect("the fixture loads");
    let x = Buffer::from_slice(&input(elements * size)).unwrap();
    let y = Buffer::new(elements * size).unwrap();
    let dispatch = Dispatch {
        arguments: &[(0, Argument::buffer(&x)), (1, Argument::buffer(&y))],
        size: Size::Threads([THREADS as u32, 1, 1]),
        threads_per_threadgroup: [THREADS as u32, 1, 1],
    };
    let mut device = Device::new(Config { check: Check::Full, ..Config::default() }).unwrap();
    let report = device.dispatch(&pipeline, &dispatch).expect("the dispatch runs");
    Some((report, y.to_vec()))
}

fn input(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

#[test]
fn every_byte_is_counted_once() {
    for (name, size) in TYPES {
        let len = THREADS * size;
        let reversed: Vec<u8> = input(len).chunks(size).rev().flatten().copied().collect();
        for (kernel, expected) in [("copy", input(len)), ("exchange", reversed)] {
            let kernel = format!("{kernel}_{name}");
            let Some((report, found)) = run(&kernel, size, THREADS, false) else { return };
            assert!(report.findings.is_empty(), "{kernel}: {:#?}", report.findings);
            assert_eq!((report.traffic.loaded, report.traffic.stored), (len as u64, len as u64), "{kernel}");
            assert_eq!(found, expected, "{kernel}");
        }
    }
}

#[test]
fn races_are_found_whatever_the_width() {
    for (name, size) in TYPES {
        let kernel = format!("exchange_{name}");
        let Some((report, _)) = run(&kernel, size, THREADS, true) else { return };
        let is_race = |kind: &FindingKind| matches!(kind, FindingKind::Race { kind: RaceKind::NoBarrier, .. });
        assert!(report.findings.iter().any(|finding| is_race(&finding.kind)), "{kernel}: {:#?}", report.findings);
    }
}

#[test]
fn accesses_out_of_bounds_are_found_whatever_the_width() {
    for (name, size) in TYPES {
        let kernel = format!("copy_{name}");
        let Some((report, _)) = run(&kernel, size, THREADS - 1, false) else { return };
        for buffer in ["buffer(0) `x`", "buffer(1) `y`"] {
            let len = (THREADS - 1) * size;
            let expected = format!("{buffer} at {len} of {len} bytes");
            let is_it = |kind: &FindingKind| matches!(kind, FindingKind::OutOfBounds { place: Some(place), .. } if place.to_string() == expected);
            assert!(report.findings.iter().any(|finding| is_it(&finding.kind)), "{kernel}: {:#?}", report.findings);
        }
    }
}

//! Kernels that are right compute what they should, in every order and on any number of host threads.

use msl_sim::{Argument, Buffer, Config, Constant, Device, Dispatch, Instrument, Order, Pipeline, Size, Source};

const TEXT: &str = include_str!("fixtures/execute.metal");

fn pipeline(function: &str, constants: &[(u32, Constant)]) -> Option<Pipeline> {
    if !msl_sim::compile::clang_available() {
        return None;
    }
    let source = Source { name: "execute.metal", text: TEXT, include_dirs: &[], defines: &[] };
    let binary = msl_sim::compile(&source, Instrument::None).expect("the fixture compiles");
    Some(Pipeline::new(&binary, function, constants).expect("the fixture loads"))
}

/// The configurations under which a kernel that is right gives the same result.
fn devices() -> impl Iterator<Item = Device> {
    let orders = [Order::Forward, Order::Reverse, Order::Shuffled(1), Order::Shuffled(2)];
    let configs =
        orders.into_iter().flat_map(|order| [1, 2].map(|threads| Config { order, threads, ..Config::default() }));
    configs.map(|config| Device::new(config).unwrap())
}

const CONSTANTS: &[(u32, Constant)] = &[(0, Constant::F32(2.0)), (1, Constant::U32(3))];

#[test]
fn threadgroups_reduce() {
    let Some(pipeline) = pipeline("sum_rows", CONSTANTS) else { return };
    let (rows, columns) = (5usize, 1000usize);
    let x: Vec<f32> = (0..rows * columns).map(|i| (i % 17) as f32).collect();
    let expected: Vec<f32> = x.chunks(columns).map(|row| row.iter().sum::<f32>() * 2.0 + 6.0).collect();
    let (x, y) = (Buffer::from_slice(&x).unwrap(), Buffer::new(rows * 4).unwrap());
    for mut device in devices() {
        y.write(0, &[0f32; 5]);
        let n = (columns as u32).to_ne_bytes();
        let arguments = [(0, Argument::buffer(&x)), (1, Argument::buffer(&y)), (2, Argument::Bytes(&n))];
        let dispatch = Dispatch {
            arguments: &arguments,
            size: Size::Threadgroups([rows as u32, 1, 1]),
            threads_per_threadgroup: [128, 1, 1],
        };
        let report = device.dispatch(&pipeline, &dispatch).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(y.to_vec::<f32>(), expected);
    }
}

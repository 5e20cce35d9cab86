//! Kernels that are right compute what they should, in every order, on any number of host threads, and checked.

use half::{bf16, f16};
use msl_sim::{Argument, Buffer, Check, Config, Constant, Device, Dispatch, Instrument, Order, Pipeline, Size, Source};

const TEXT: &str = include_str!("fixtures/execute.metal");
const CONSTANTS: &[(u32, Constant)] = &[(0, Constant::F32(2.0)), (1, Constant::U32(3))];

/// The configurations under which a kernel that is right gives the same result.
fn configs() -> Vec<Config> {
    let orders = [Order::Forward, Order::Reverse, Order::Shuffled(1), Order::Shuffled(2)];
    let ways = [(Check::Off, 1), (Check::Off, 2), (Check::Full, 1)];
    let config = |order| ways.map(|(check, threads)| Config { order, check, threads, ..Config::default() });
    orders.into_iter().flat_map(config).collect()
}

/// What a kernel leaves in the last of its buffers, which is zero before: the same in all configurations, without findings.
fn run(function: &str, inputs: &[Buffer], output: usize, size: Size, threads: [u32; 3]) -> Option<Vec<u32>> {
    if !msl_sim::compile::clang_available() {
        return None;
    }
    let source = Source { name: "execute.metal", text: TEXT, include_dirs: &[], defines: &[] };
    let pipeline = |instrument| {
        let binary = msl_sim::compile(&source, instrument).expect("the fixture compiles");
        Pipeline::new(&binary, function, CONSTANTS).expect("the fixture loads")
    };
    let (fast, checked) = (pipeline(Instrument::None), pipeline(Instrument::Accesses));
    let mut results = configs().into_iter().map(|config| {
        let output = Buffer::new(output * 4).unwrap();
        let arguments: Vec<_> = inputs.iter().chain([&output]).map(Argument::buffer).enumerate().collect();
        let dispatch = Dispatch { arguments: &arguments, size, threads_per_threadgroup: threads };
        let pipeline = if config.check == Check::Off { &fast } else { &checked };
        let report = Device::new(config.clone()).unwrap().dispatch(pipeline, &dispatch).unwrap();
        assert!(report.findings.is_empty(), "{function} with {config:?}: {:#?}", report.findings);
        output.to_vec::<u32>()
    });
    let first = results.next().unwrap();
    assert!(results.all(|result| result == first), "{function} depends on the order");
    Some(first)
}

fn floats(bits: Vec<u32>) -> Vec<f32> {
    bits.into_iter().map(f32::from_bits).collect()
}

#[test]
fn threadgroups_reduce_and_constants_are_derived() {
    let (rows, columns) = (5, 1000);
    let x: Vec<f32> = (0..rows * columns).map(|i| (i % 17) as f32).collect();
    let expected: Vec<f32> = x.chunks(columns).map(|row| row.iter().sum::<f32>() * 2.0 + 6.0).collect();
    let inputs = [Buffer::from_slice(&x).unwrap(), Buffer::from_slice(&[columns as u32]).unwrap()];
    let found = run("sum_rows", &inputs, rows, Size::Threadgroups([rows as u32, 1, 1]), [128, 1, 1]);
    found.into_iter().for_each(|found| assert_eq!(floats(found), expected));
}

#[test]
fn lanes_exchange_values() {
    let x: Vec<u32> = (0..32).map(|i| i * i % 29).collect();
    let input = Buffer::from_slice(&x).unwrap();
    let Some(found) = run("shuffles", &[input], 256, Size::Threadgroups([1, 1, 1]), [32, 1, 1]) else { return };
    let even = (0..32).filter(|&i| x[i].is_multiple_of(2)).fold(0u32, |bits, i| bits | 1 << i);
    let rows: [&dyn Fn(usize) -> u32; 8] = [
        &|i| x[(i * 5 + 3) % 32],
        &|i| x[i ^ 8],
        &|i| x[if i < 28 { i + 4 } else { i }],
        &|i| x[i.saturating_sub(1)],
        &|_| x[9],
        &|i| x[..i].iter().sum(),
        &|_| *x.iter().max().unwrap(),
        &|_| if x.contains(&7) { even } else { 0 },
    ];
    for (row, expected) in rows.iter().enumerate() {
        let expected: Vec<u32> = (0..32).map(expected).collect();
        // What lanes get for which there is no source is undefined on the GPU: they are not compared.
        let defined = match row {
            2 => 0..28,
            3 => 1..32,
            _ => 0..32,
        };
        assert_eq!(found[row * 32..][defined.clone()], expected[defined], "row {row}");
    }
}

#[test]
fn matrices_multiply() {
    const K: usize = 24;
    fn case<T: Copy + bytemuck::NoUninit>(function: &str, round: impl Fn(f32) -> T, widen: impl Fn(T) -> f32) {
        let elements = |seed: usize| (0..8 * K).map(|i| round(((i * 37 + seed) % 101) as f32 / 64.0 - 0.75)).collect();
        let (a, b): (Vec<T>, Vec<T>) = (elements(1), elements(50));
        let inputs = [Buffer::from_slice(&a).unwrap(), Buffer::from_slice(&b).unwrap()];
        let found = run(function, &inputs, 64, Size::Threadgroups([1, 1, 1]), [32, 1, 1]);
        for (i, found) in found.map(floats).into_iter().flatten().enumerate() {
            let (row, column) = (i / 8, i % 8);
            let exact: f64 =
                (0..K).map(|k| f64::from(widen(a[row * K + k])) * f64::from(widen(b[k * 8 + column]))).sum();
            assert!(
                (f64::from(found) - exact).abs() < 1e-5,
                "{function}: {found} instead of {exact} at {row}, {column}"
            );
        }
    }
    case("product_f32", |x| x, |x| x);
    case("product_f16", f16::from_f32, f16::to_f32);
    case("product_bf16", bf16::from_f32, bf16::to_f32);
}

#[test]
fn atomics_count_every_thread() {
    let x: Vec<u32> = (0..4096u32).map(|i| i.wrapping_mul(2654435761) >> 20).collect();
    let input = Buffer::from_slice(&x).unwrap();
    let Some(found) = run("histogram", &[input], 9, Size::Threads([4096, 1, 1]), [256, 1, 1]) else { return };
    let mut expected: Vec<u32> = (0..8).map(|rest| x.iter().filter(|&&x| x % 8 == rest).count() as u32).collect();
    expected.push(*x.iter().max().unwrap());
    assert_eq!(found, expected);
}

#[test]
fn grids_are_cut_into_threadgroups() {
    let (size, threads) = ([13, 5, 3], [4, 2, 2]);
    let count = size.iter().product::<u32>() as usize;
    let Some(found) = run("positions", &[], count * 4, Size::Threads(size), threads) else { return };
    let groups: [u32; 3] = std::array::from_fn(|i| size[i].div_ceil(threads[i]));
    for (i, found) in found.chunks(4).enumerate() {
        let i = i as u32;
        let at = [i % size[0], i / size[0] % size[1], i / (size[0] * size[1])];
        let group: [u32; 3] = std::array::from_fn(|i| at[i] / threads[i]);
        let within: [u32; 3] = std::array::from_fn(|i| at[i] % threads[i]);
        let full: [u32; 3] = std::array::from_fn(|i| threads[i].min(size[i] - group[i] * threads[i]));
        let expected = [
            (group[2] * groups[1] + group[1]) * groups[0] + group[0],
            (within[2] * full[1] + within[1]) * full[0] + within[0],
            full[0] * 100 + full[1] * 10 + full[2],
            full.iter().product(), // No more than a simdgroup: all its lanes count.
        ];
        assert_eq!(found, expected, "at {at:?}");
    }
}

//! The shim's arithmetic against plain Rust: conversions, functions, simdgroup operations, matrices, atomics, positions.

use half::{bf16, f16};
use msl_sim::{Argument, Buffer, Config, Constant, Device, Dispatch, Instrument, Pipeline, Size, Source};

const TEXT: &str = include_str!("fixtures/arithmetic.metal");

fn pipeline(function: &str, constants: &[(u32, Constant)]) -> Option<Pipeline> {
    if !msl_sim::compile::clang_available() {
        return None;
    }
    let source = Source { name: "arithmetic.metal", text: TEXT, include_dirs: &[], defines: &[] };
    let binary = msl_sim::compile(&source, Instrument::None).unwrap_or_else(|error| panic!("{error}"));
    Some(Pipeline::new(&binary, function, constants).expect("the fixture loads"))
}

const CONSTANTS: [(u32, Constant); 2] = [(0, Constant::U32(3)), (1, Constant::Undefined)];

/// Runs a kernel on buffers in their order.
fn run(function: &str, buffers: &[&Buffer], size: Size, threads: [u32; 3]) -> Option<()> {
    let pipeline = pipeline(function, &CONSTANTS)?;
    let arguments: Vec<_> = buffers.iter().enumerate().map(|(i, b)| (i, Argument::buffer(b))).collect();
    let dispatch = Dispatch { arguments: &arguments, size, threads_per_threadgroup: threads };
    let report = Device::new(Config::default()).unwrap().dispatch(&pipeline, &dispatch).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    Some(())
}

/// Runs a kernel with a thread for each of `threads`, from an input to an output of `len` elements.
fn map<T, U>(function: &str, input: &[T], len: usize, threads: u32) -> Option<Vec<U>>
where
    T: bytemuck::NoUninit,
    U: bytemuck::AnyBitPattern + bytemuck::NoUninit,
{
    let (x, y) = (Buffer::from_slice(input).unwrap(), Buffer::new(len * size_of::<U>()).unwrap());
    run(function, &[&x, &y], Size::Threads([threads, 1, 1]), [32, 1, 1])?;
    Some(y.to_vec())
}

/// Values of all magnitudes, exact ties between bfloats and halves, infinities and NaN.
fn hard_values() -> Vec<f32> {
    let mut values =
        vec![0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-45];
    let mut state = 1u32;
    for i in 0..1000 {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        let upper = state & 0xffff_0000;
        values.push(f32::from_bits(upper | 0x8000));
        values.push(f32::from_bits(upper | 0x8001));
        values.push(f32::from_bits(state));
        values.push(f32::from_bits((state & 0x8fff_ffff) | 0x3000_0000));
        values.push((i as f32 - 500.0) * 0.12345);
    }
    values.truncate(values.len() / 4 * 4);
    values
}

fn same(left: f32, right: f32) -> bool {
    left.to_bits() == right.to_bits() || (left.is_nan() && right.is_nan())
}

#[test]
fn floats_round_to_bfloat_and_half_once() {
    let values = hard_values();
    let n = values.len();
    let Some(scalars) = map::<_, bf16>("to_bfloat", &values, n, n as u32) else { return };
    let vectors: Vec<bf16> = map("to_bfloat4", &values, n, n as u32 / 4).unwrap();
    let halves: Vec<f16> = map("to_half", &values, n, n as u32).unwrap();
    for (i, &x) in values.iter().enumerate() {
        let expected = bf16::from_f32(x).to_f32();
        assert!(same(scalars[i].to_f32(), expected), "bfloat({x:e}) = {:e}, not {expected:e}", scalars[i].to_f32());
        assert!(same(vectors[i].to_f32(), expected), "bfloat4({x:e}) = {:e}, not {expected:e}", vectors[i].to_f32());
        let expected = f16::from_f32(x).to_f32();
        assert!(same(halves[i].to_f32(), expected), "half({x:e}) = {:e}, not {expected:e}", halves[i].to_f32());
    }
}

#[test]
fn every_operation_on_narrow_floats_rounds() {
    let values: Vec<f32> = hard_values().into_iter().filter(|x| x.abs() > 1e-3 && x.abs() < 1e2).collect();
    let n = values.len() / 2;
    let bfloats: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
    let Some(out) = map::<_, bf16>("rounds_bfloat", &bfloats[..2 * n], n, n as u32) else { return };
    let round = |x: f32| bf16::from_f32(x).to_f32();
    for (pair, out) in bfloats.chunks_exact(2).zip(&out) {
        let (a, b) = (pair[0].to_f32(), pair[1].to_f32());
        let expected = round(round(round(a + b) * a) - round(b / a));
        assert!(same(out.to_f32(), expected), "{a} {b}: {out}, not {expected}");
    }
    let halves: Vec<f16> = values.iter().copied().map(f16::from_f32).collect();
    let out: Vec<f16> = map("rounds_half", &halves[..2 * n], n, n as u32).unwrap();
    let round = |x: f32| f16::from_f32(x).to_f32();
    for (pair, out) in halves.chunks_exact(2).zip(&out) {
        let (a, b) = (pair[0].to_f32(), pair[1].to_f32());
        let expected = round(round(round(a + b) * a) - round(b / a));
        assert!(same(out.to_f32(), expected), "{a} {b}: {out}, not {expected}");
    }
}

#[test]
fn products_and_sums_fuse_only_when_told() {
    let values: Vec<f32> = (0..256).map(|i| 1.0 + (i * i % 977) as f32 * 1.3e-4).collect();
    let Some(out) = map::<_, f32>("product_and_sum", &values, 256, 128) else { return };
    for (pair, out) in values.chunks_exact(2).zip(out.chunks_exact(2)) {
        assert_eq!(out, [pair[0] * pair[1] + pair[0], pair[0].mul_add(pair[1], pair[0])]);
    }
}

#[test]
fn functions_are_those_of_their_names() {
    let values: Vec<f32> = (1..64).map(|i| i as f32 * 0.17).collect();
    let Some(out) = map::<_, f32>("functions", &values, values.len() * 20, values.len() as u32) else { return };
    for (&x, out) in values.iter().zip(out.chunks_exact(20)) {
        let d = f64::from(x);
        let exact = [
            d.exp(),
            (-d).exp(),
            d.exp2(),
            d.ln(),
            d.log2(),
            1.0 / d.sqrt(),
            d.sqrt(),
            d.powf(1.5),
            d.sin(),
            d.cos(),
            d.tanh(),
        ];
        for (i, (out, exact)) in out.iter().zip(exact).enumerate() {
            let error = (f64::from(*out) - exact).abs();
            let ulp = f64::from((exact as f32).abs().max(1e-2)) * f64::from(f32::EPSILON);
            assert!(error <= 1.5 * ulp, "function {i} of {x}: {out}, not {exact}");
        }
        let nan_is_left_out = x + x - 1.0 - 1.0;
        let rest = [
            x.floor(),
            x.round_ties_even(),
            x.round(),
            x - x.floor(),
            x.clamp(1.0, 2.0),
            1.0 + (3.0 - 1.0) * x,
            if x < 2.0 { 0.0 } else { 1.0 },
            if x > 2.0 { 2.0 } else { 1.0 },
            nan_is_left_out,
        ];
        assert_eq!(out[11..], rest, "functions of {x}");
    }
}

#[test]
fn integer_functions_count_and_move_bits() {
    let values: Vec<u32> =
        (0..200u32).map(|i| i.wrapping_mul(0x9e37_79b9) >> (i % 33).min(31)).chain([0, u32::MAX]).collect();
    let Some(out) = map::<_, u32>("integers", &values, values.len() * 12, values.len() as u32) else { return };
    for (&x, out) in values.iter().zip(out.chunks_exact(12)) {
        let expected = [
            x.leading_zeros(),
            x.trailing_zeros(),
            x.count_ones(),
            x.reverse_bits(),
            x.rotate_left(7),
            ((u64::from(x) * 0x9e37_79b9) >> 32) as u32,
            x >> 4 & 0x1ff,
            (x & 0x1ff) << 4,
            x.saturating_add(0xf000_0000),
            x | 0x3f80_0000,
            (x as i32).unsigned_abs(),
            (x as u8).leading_zeros() + (x as u16).count_ones(),
        ];
        assert_eq!(out, expected, "functions of {x:#x}");
    }
}

#[test]
fn divisions_end_whatever_the_divisor() {
    let pairs = [[7, 2], [-7, 2], [7, -2], [5, 0], [i32::MIN, -1], [i32::MIN, 1]];
    let Some(found) = map::<[i32; 2], [i32; 4]>("divisions", &pairs, pairs.len(), pairs.len() as u32) else { return };
    for ([a, b], found) in pairs.into_iter().zip(found) {
        // Where Metal leaves it undefined, the divisor counts as one.
        let (divisor, unsigned) = (if b == 0 { 1 } else { b }, if b == 0 { 1 } else { b as u32 });
        let narrow = (a as i16).wrapping_div(if b == 0 { 1 } else { b as i16 }) + 2;
        let expected = [a.wrapping_div(divisor), a.wrapping_rem(divisor), (a as u32 / unsigned) as i32, narrow.into()];
        assert_eq!(found, expected, "{a} by {b}");
    }
}

#[test]
fn comparisons_of_vectors_are_zero_and_one() {
    let values = [0.0f32, 1.0, 1.75, 2.25, 5.0];
    let Some(out) = map::<_, f32>("comparisons", &values, values.len() * 6, values.len() as u32) else { return };
    for (&x, out) in values.iter().zip(out.chunks_exact(6)) {
        let bit = |b: bool| f32::from(u8::from(b));
        let expected = [
            bit(x < 2.0),
            1.0 + bit(x <= 1.5),
            bit(x > 4.0) + 2.0 * bit(x < 4.0) + 4.0,
            if x > 2.0 { -x } else { x },
            5.0 + if x > 2.0 { x } else { 0.0 },
            if x < 2.0 { 7.0 } else { 8.0 },
        ];
        assert_eq!(out, expected, "of {x}");
    }
}

#[test]
fn lanes_exchange_values() {
    let x: Vec<f32> = (0..32).map(|i| ((i * 7 + 3) % 32) as f32).collect();
    let Some(out) = map::<_, f32>("simd_operations", &x, 32 * 24, 32) else { return };
    let u: Vec<u32> = x.iter().map(|&x| x as u32).collect();
    for (i, out) in out.chunks_exact(24).enumerate() {
        let quad = i & !3;
        let expected = [
            496.0,
            31.0,
            0.0,
            x[..8].iter().product(),
            (0x100) as f32,
            31.0,
            u.iter().fold(0, |a, b| a ^ b) as f32,
            x[..=i].iter().sum(),
            x[..i].iter().fold(0.0, |a, b| a + b),
            x[31 - i],
            x[i ^ 5],
            if i == 0 { x[0] } else { x[i - 1] },
            if i > 29 { x[i] } else { x[i + 2] },
            x[(i + 3) % 32],
            x[7],
            x[0],
            3.0,
            f32::from_bits((0..32).filter(|i| i % 3 == 0).map(|i| 1 << i).sum()),
            if i == 0 { 1.0 } else { 0.0 },
            x[quad..quad + 4].iter().sum(),
            x[quad + 2],
            x[i ^ 1],
            48.0,
            31.0,
        ];
        for (k, (out, expected)) in out.iter().zip(expected).enumerate() {
            assert!(same(*out, expected), "lane {i}, operation {k}: {out}, not {expected}");
        }
    }
}

#[test]
fn matrices_multiply_with_ascending_sums() {
    let a: Vec<f32> = (0..64).map(|i| ((i * 37) % 29) as f32 / 8.0 - 1.5).collect();
    let b: Vec<f32> = (0..64).map(|i| ((i * 53) % 31) as f32 / 16.0 - 0.75).collect();
    let c: Vec<f32> = (0..64).map(|i| i as f32 * 0.3337).collect();
    let mut expected = vec![0f32; 128];
    for row in 0..8 {
        for column in 0..8 {
            // B is given transposed.
            let sum = (0..8).fold(c[row * 8 + column], |sum, k| sum + a[row * 8 + k] * b[column * 8 + k]);
            expected[row * 8 + column] = sum;
            expected[64 + column * 8 + row] = a[row * 8 + column] * 3.0;
        }
    }
    let out = Buffer::new(128 * 4).unwrap();
    let c = Buffer::from_slice(&c).unwrap();
    let halves = |x: &[f32]| Buffer::from_slice(&x.iter().copied().map(f16::from_f32).collect::<Vec<_>>()).unwrap();
    let bfloats = |x: &[f32]| Buffer::from_slice(&x.iter().copied().map(bf16::from_f32).collect::<Vec<_>>()).unwrap();
    for (name, a, b) in [
        ("matrices_float", Buffer::from_slice(&a).unwrap(), Buffer::from_slice(&b).unwrap()),
        ("matrices_half", halves(&a), halves(&b)),
        ("matrices_bfloat", bfloats(&a), bfloats(&b)),
    ] {
        let Some(()) = run(name, &[&a, &b, &c, &out], Size::Threadgroups([1, 1, 1]), [32, 1, 1]) else { return };
        assert_eq!(out.to_vec::<f32>(), expected, "{name}");
    }
}

#[test]
fn atomics_lose_nothing() {
    let counters = Buffer::from_slice(&[0u32, 0, u32::MAX, 0, 0, 0, 0]).unwrap();
    let total = Buffer::new(4).unwrap();
    let Some(()) = run("atomics", &[&counters, &total], Size::Threads([200, 1, 1]), [64, 1, 1]) else { return };
    let xor = (0..200).fold(0, |a, b| a ^ b);
    assert_eq!(counters.to_vec::<u32>(), [200, 199, 5, u32::MAX, xor, 600, 400]);
    assert_eq!(total.to_vec::<f32>(), [100.0]);
}

#[test]
fn structs_and_packed_vectors_are_copied_whole() {
    let pairs: Vec<[u32; 2]> = (0..32).map(|i| [(i as f32 * 1.5).to_bits(), i]).collect();
    let (x, y) = (Buffer::from_slice(&pairs).unwrap(), Buffer::new(32 * 8).unwrap());
    let packed: Vec<[f32; 3]> = (0..32).map(|i| [i as f32, i as f32 + 0.25, i as f32 + 0.5]).collect();
    let packed_buffer = Buffer::from_slice(&packed).unwrap();
    let Some(()) = run("structs", &[&x, &y, &packed_buffer], Size::Threads([32, 1, 1]), [32, 1, 1]) else { return };
    let expected: Vec<[u32; 2]> = (0..32).map(|i| [pairs[31 - i][0], 31]).collect();
    assert_eq!(y.to_vec::<[u32; 2]>(), expected);
    let expected: Vec<[f32; 3]> = packed.iter().map(|[a, b, c]| [c * 2.0, b * 2.0, a * 2.0]).collect();
    assert_eq!(packed_buffer.to_vec::<[f32; 3]>(), expected);
}

#[test]
fn packed_vectors_compute_as_vectors_do() {
    let x = Buffer::from_slice(&[[1f32, 2.0, 3.0], [4.0, 8.0, -6.0]]).unwrap();
    let mut parameters = vec![0u8; 96];
    for (at, value) in [(0, 10u32), (4, 20), (8, 30)] {
        parameters[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    // Two packed vectors follow, and then, aligned to 16 bytes, columns of 16 bytes.
    let floats = (0..6).map(|i| (12 + 4 * i, i)).chain((0..12).map(|i| (48 + 4 * i, i)));
    for (at, value) in floats {
        parameters[at..at + 4].copy_from_slice(&(value as f32).to_ne_bytes());
    }
    let (parameters, y) = (Buffer::from_slice(&parameters).unwrap(), Buffer::new(2 * 16 * 4).unwrap());
    let Some(()) = run("packed_vectors", &[&x, &parameters, &y], Size::Threads([2, 1, 1]), [2, 1, 1]) else { return };
    let same = |x: [f32; 3], i: usize| {
        let v: [f32; 3] = std::array::from_fn(|j| (x[j] * 2.0 + (j + 1) as f32) * 0.5 + x[j] - 1.0);
        let dot = v[0] + 2.0 * v[1] + 3.0 * v[2] + 6.0;
        let equal = if x == [1.0, 2.0, 3.0] { 4.0 } else { 0.0 };
        let (weights, m) = ([0.5, 1.0], 6.0 + 12.0);
        let squared = x[1] * x[1] + 0.5;
        let components = 3.0 + 1.0 + 2.0 * x[2] + x[1];
        let bools = [2.0 + 4.0 + 8.0 + 16.0 + 32.0, 1.0];
        let last = [7.0 + 2.0, 7.0, components, bools[0], bools[1]];
        let first = [v[0], v[1], v[2], 5.0, dot, -3.0, squared, 3.0 + equal, 3.0, 53.0 + weights[i], 5.0 + m];
        [&first[..], &last].concat()
    };
    let y = y.to_vec::<[f32; 16]>();
    assert_eq!(y[0].to_vec(), same([1.0, 2.0, 3.0], 0));
    assert_eq!(y[1].to_vec(), same([4.0, 8.0, -6.0], 1));
    assert_eq!(x.to_vec::<[f32; 3]>(), [[0.0, 7.0, 0.0], [3.0, 7.0, -18.0]]);
}

#[test]
fn matrices_are_made_of_scalars() {
    let x = Buffer::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let y = Buffer::new(44).unwrap();
    let Some(()) = run("matrices_of_scalars", &[&x, &y], Size::Threads([1, 1, 1]), [1, 1, 1]) else { return };
    // A determinant is also that of the matrix whose rows the scalars spell.
    assert_eq!(y.to_vec::<f32>(), [3.0, 6.0, 2.0, -2.0, -85.0, 30.0, 4.0, 3.0, 7.0, 8.0, 9.0]);
}

#[test]
fn constants_are_read_when_the_library_is_bound() {
    for (second, expected) in [(Constant::F32(2.5), 10.5), (Constant::Undefined, 2.0)] {
        let Some(pipeline) = pipeline("constants", &[(0, Constant::U32(3)), (1, second)]) else { return };
        let out = Buffer::new(4).unwrap();
        let arguments = [(1, Argument::buffer(&out))];
        let (size, threads_per_threadgroup) = (Size::Threads([1, 1, 1]), [1, 1, 1]);
        let dispatch = Dispatch { arguments: &arguments, size, threads_per_threadgroup };
        Device::new(Config::default()).unwrap().dispatch(&pipeline, &dispatch).unwrap();
        assert_eq!(out.to_vec::<f32>(), [expected]);
    }
}

#[test]
fn threads_know_where_they_are() {
    let (all, threads) = ([10u32, 3, 2], [4u32, 2, 2]);
    let out = Buffer::new(60 * 6 * 16).unwrap();
    let Some(()) = run("positions", &[&out], Size::Threads(all), threads) else { return };
    let out = out.to_vec::<[u32; 4]>();
    for z in 0..all[2] {
        for y in 0..all[1] {
            for x in 0..all[0] {
                let grid = [x, y, z];
                let group = std::array::from_fn::<_, 3, _>(|i| grid[i] / threads[i]);
                let local = std::array::from_fn::<_, 3, _>(|i| grid[i] % threads[i]);
                let size = std::array::from_fn::<_, 3, _>(|i| threads[i].min(all[i] - group[i] * threads[i]));
                let t = local[0] + size[0] * (local[1] + size[1] * local[2]);
                let with = |v: [u32; 3], last| [v[0], v[1], v[2], last];
                let expected = [
                    with(grid, t),
                    with(local, t % 32),
                    with(group, t / 32),
                    with(size, (size[0] * size[1] * size[2]).div_ceil(32)),
                    with(threads, 32),
                    with(std::array::from_fn(|i| all[i].div_ceil(threads[i])), t),
                ];
                let at = (x + all[0] * (y + all[1] * z)) as usize * 6;
                assert_eq!(out[at..at + 6], expected, "thread {grid:?}");
            }
        }
    }
}

//! Each bug in fixtures/bugs.metal is found, where it is and as what it is, in every order of running; the same kernel without the
//! bug is silent. Where the bug is in the dispatch (too many threads, a missing barrier between dispatches, read-only memory), the same
//! kernel rightly dispatched is.

use msl_sim::{
    Argument, Buffer, Check, Config, Device, Dispatch, DispatchError, Finding, FindingKind, Instrument, Order,
    ParameterKind, Pipeline, RaceKind, Report, Size, Source,
};

const TEXT: &str = include_str!("fixtures/bugs.metal");
const ORDERS: [Order; 3] = [Order::Forward, Order::Reverse, Order::Shuffled(7)];

/// What a kernel runs on: elements of `x` and `y`, threadgroups, threads in each, bytes of threadgroup memory.
#[derive(Clone, Copy)]
struct Case {
    kernel: &'static str,
    elements: [usize; 2],
    threadgroups: u32,
    threads: u32,
    memory: usize,
}

const fn case(kernel: &'static str, elements: [usize; 2], threadgroups: u32, threads: u32) -> Case {
    Case { kernel, elements, threadgroups, threads, memory: 256 }
}

fn pipeline(kernel: &str, wrong: bool) -> Option<Pipeline> {
    if !msl_sim::compile::clang_available() {
        return None;
    }
    let defines = [("WRONG", if wrong { "1" } else { "0" })];
    let source = Source { name: "bugs.metal", text: TEXT, include_dirs: &[], defines: &defines };
    let binary = msl_sim::compile(&source, Instrument::Accesses).expect("the fixture compiles");
    Some(Pipeline::new(&binary, kernel, &[]).expect("the fixture loads"))
}

fn run(case: &Case, pipeline: &Pipeline, order: Order) -> Report {
    let mut device = Device::new(Config { check: Check::Full, order, ..Config::default() }).unwrap();
    let buffers = case.elements.map(|n| Buffer::from_slice(&(0..n).map(|i| i as f32).collect::<Vec<_>>()).unwrap());
    let arguments: Vec<_> = pipeline
        .parameters()
        .iter()
        .filter_map(|parameter| match parameter.kind {
            ParameterKind::Buffer { .. } => Some((parameter.index, Argument::buffer(&buffers[parameter.index]))),
            ParameterKind::Threadgroup => Some((parameter.index, Argument::Threadgroup(case.memory))),
            ParameterKind::Builtin => None,
        })
        .collect();
    let dispatch = Dispatch {
        arguments: &arguments,
        size: Size::Threadgroups([case.threadgroups, 1, 1]),
        threads_per_threadgroup: [case.threads, 1, 1],
    };
    device.dispatch(pipeline, &dispatch).expect("the dispatch runs")
}

/// The lines of the fixture that are marked for a kernel.
fn marked(kernel: &str) -> Vec<u32> {
    let is_marked = |line: &str| line.split("// FINDING ").nth(1).is_some_and(|name| name.trim() == kernel);
    (1..).zip(TEXT.lines()).filter(|(_, line)| is_marked(line)).map(|(number, _)| number).collect()
}

/// A finding of the expected kind on a marked line, whatever the order; without the bug, none.
fn check(case: Case, expected: impl Fn(&FindingKind) -> bool) {
    let (Some(wrong), Some(right)) = (pipeline(case.kernel, true), pipeline(case.kernel, false)) else { return };
    let lines = marked(case.kernel);
    let is_it = |finding: &Finding| {
        let at = finding.location.as_ref().is_some_and(|at| at.file == "bugs.metal" && lines.contains(&at.line));
        at && finding.kernel == case.kernel && expected(&finding.kind)
    };
    for order in ORDERS {
        let found = run(&case, &wrong, order).findings;
        for finding in &found {
            println!("{order:?}: {finding}");
        }
        assert!(found.iter().any(is_it), "{} in {order:?}: lines {lines:?}, found {}", case.kernel, text(&found));
        let found = run(&case, &right, order).findings;
        assert!(found.is_empty(), "the right {} in {order:?}: {}", case.kernel, text(&found));
    }
}

fn text(found: &[Finding]) -> String {
    found.iter().map(|finding| format!("\n{finding}")).collect()
}

fn race(expected: RaceKind) -> impl Fn(&FindingKind) -> bool {
    move |kind| matches!(kind, FindingKind::Race { kind, other, .. } if *kind == expected && other.location.is_some())
}

#[test]
fn missing_barriers() {
    check(case("reduction", [128, 2], 2, 64), race(RaceKind::NoBarrier));
    check(case("reuse", [64, 2], 1, 64), race(RaceKind::NoBarrier));
    check(case("neighbour", [0, 64], 1, 64), race(RaceKind::NoBarrier));
    check(case("narrow_barrier", [0, 64], 1, 64), race(RaceKind::NoBarrier));
    check(case("tile_stride", [64, 128], 1, 64), race(RaceKind::NoBarrier));
}

#[test]
fn missing_simdgroup_barriers() {
    check(case("lockstep", [32, 1], 1, 32), race(RaceKind::Simdgroup));
    check(case("transpose_tile", [64, 64], 1, 32), race(RaceKind::Simdgroup));
    check(case("mixed_atomics", [0, 1], 1, 32), race(RaceKind::Simdgroup));
    check(case("halves", [0, 16], 1, 32), race(RaceKind::Simdgroup));
}

#[test]
fn barriers_for_other_memory() {
    check(case("wrong_flags", [0, 64], 1, 64), race(RaceKind::WrongFlags));
    check(case("wrong_flags_threadgroup", [0, 64], 1, 64), race(RaceKind::WrongFlags));
}

#[test]
fn races_between_threadgroups() {
    check(case("same_output", [0, 128], 4, 32), race(RaceKind::Threadgroups));
    check(case("other_group", [0, 4], 4, 1), race(RaceKind::Threadgroups));
}

#[test]
fn barriers_that_not_all_threads_reach() {
    let after_return = FindingKind::BarrierAfterReturn { waiting: 32, returned: 32 };
    check(case("early_return", [0, 64], 1, 64), |kind| *kind == after_return);
    check(case("two_barriers", [0, 64], 1, 64), |kind| matches!(kind, FindingKind::DivergentBarrier { .. }));
}

#[test]
fn simdgroup_operations_without_all_lanes() {
    let mask = |expected| move |kind: &FindingKind| matches!(kind, FindingKind::PartialSimdgroup { mask, .. } if *mask == expected);
    check(case("ragged_loop", [64, 32], 1, 32), mask((1 << 18) - 1));
    check(case("inactive_lane", [0, 32], 1, 32), mask(0xFFFF));
}

#[test]
fn memory_that_nobody_wrote() {
    check(case("tail", [64, 1], 1, 64), |kind| matches!(kind, FindingKind::Uninitialised { size: 4, .. }));
}

/// Whether a finding is out of bounds, and the nearest memory is described by `place`.
fn outside(place: &'static str) -> impl Fn(&FindingKind) -> bool {
    move |kind| matches!(kind, FindingKind::OutOfBounds { place: Some(found), .. } if found.to_string() == place)
}

#[test]
fn accesses_out_of_bounds() {
    check(case("past_end", [40, 40], 2, 32), outside("buffer(0) `x` at 160 of 160 bytes"));
    check(case("past_end", [40, 40], 2, 32), outside("buffer(1) `y` at 160 of 160 bytes"));
    check(case("before_start", [32, 32], 1, 32), outside("buffer(0) `x` at -4 of 128 bytes"));
    check(case("far_away", [32, 32], 1, 32), |kind| matches!(kind, FindingKind::OutOfBounds { .. }));
    check(case("atomic_past_end", [32, 1], 1, 32), outside("buffer(1) `y` at 4 of 4 bytes"));
    check(case("too_little", [0, 65], 1, 65), outside("threadgroup memory `s` at 256 of 256 bytes"));
    check(case("next_variable", [0, 32], 1, 32), outside("threadgroup memory `a` at 128 of 128 bytes"));
}

/// A dispatch that is given up leaves nothing to the next one on the same device, of whatever size.
#[test]
fn dispatches_after_one_that_was_given_up() {
    let (Some(wrong), Some(right)) = (pipeline("one_far_away", true), pipeline("one_far_away", false)) else { return };
    for order in ORDERS {
        let mut device = Device::new(Config { check: Check::Full, order, ..Config::default() }).unwrap();
        let mut run = |pipeline: &Pipeline, astray: u32, threads: u32| {
            let x: Vec<f32> = (0..threads).map(|i| if i == 0 { astray } else { i } as f32).collect();
            let (x, y) = (Buffer::from_slice(&x).unwrap(), Buffer::new(threads as usize * 4).unwrap());
            let arguments = [(0, Argument::buffer(&x)), (1, Argument::buffer(&y))];
            let size = Size::Threadgroups([1, 1, 1]);
            let dispatch = Dispatch { arguments: &arguments, size, threads_per_threadgroup: [threads, 1, 1] };
            (device.dispatch(pipeline, &dispatch).unwrap(), y.to_vec::<f32>())
        };
        for (astray, threads) in [(0, 32), (100, 33), (255, 1), (700, 256)] {
            let (report, _) = run(&wrong, astray, 1024);
            assert!(
                matches!(report.findings[..], [Finding { kind: FindingKind::OutOfBounds { .. }, .. }]),
                "{report:#?}"
            );
            assert_eq!(report.counts.abandoned, 1);
            let (report, y) = run(&right, threads, threads);
            assert!(report.findings.is_empty() && report.counts.abandoned == 0, "{report:#?}");
            let first: f32 = threads as f32 + (1..threads.min(32)).sum::<u32>() as f32;
            assert_eq!(y[0], first * threads.min(32) as f32, "{order:?}, {threads} threads");
        }
    }
}

#[test]
fn too_much_threadgroup_memory() {
    let expected = FindingKind::ThreadgroupMemory { used: 4 * 8193, limit: 32768 };
    check(case("too_much", [0, 32], 1, 32), |kind| *kind == expected);
}

#[test]
fn misaligned_and_forbidden_accesses() {
    check(case("misaligned", [128, 32], 1, 32), |kind| matches!(kind, FindingKind::Misaligned { .. }));
    check(case("read_only", [32, 64], 1, 32), |kind| matches!(kind, FindingKind::ReadOnly { size: 4, .. }));
}

#[test]
fn divisions_by_zero() {
    check(case("quotient", [0, 32], 1, 32), |kind| *kind == FindingKind::DivisionByZero);
    check(case("remainders", [0, 32], 1, 32), |kind| *kind == FindingKind::DivisionByZero);
}

#[test]
fn indices_out_of_range() {
    let index = |expected: i64, of: &'static str| move |kind: &FindingKind| matches!(kind, FindingKind::IndexOutOfRange { index, array } if *index == expected && array == of);
    let any = |of: &'static str| move |kind: &FindingKind| matches!(kind, FindingKind::IndexOutOfRange { array, .. } if array == of);
    check(case("own_array", [8, 8], 1, 8), any("uint[4]"));
    check(case("table", [8, 8], 1, 8), any("constant float[4]"));
    check(case("component", [4, 8], 1, 8), any("device float4"));
    check(case("last_member", [8, 8], 1, 8), index(8, "float[8]"));
    check(case("column", [8, 8], 1, 8), any("float2[2]"));
    check(case("list", [9, 8], 1, 8), outside("threadgroup memory `s` at 32 of 32 bytes"));
}

/// The dispatch ends before the element is touched, and says which thread asked for which.
#[test]
fn an_index_out_of_range_does_not_harm_the_host() {
    let Some(pipeline) = pipeline("own_array", true) else { return };
    for index in [4, 5, 6, 7, 1000, 100_000_000] {
        let x = Buffer::from_slice(&[0.0, index as f32]).unwrap();
        let y = Buffer::new(8).unwrap();
        for check in [Check::Full, Check::Traffic] {
            let mut device = Device::new(Config { check, ..Config::default() }).unwrap();
            let arguments = [(0, Argument::buffer(&x)), (1, Argument::buffer(&y))];
            let size = Size::Threadgroups([1, 1, 1]);
            let dispatch = Dispatch { arguments: &arguments, size, threads_per_threadgroup: [2, 1, 1] };
            let report = device.dispatch(&pipeline, &dispatch).unwrap();
            let [finding] = &report.findings[..] else { panic!("{report:#?}") };
            let line = marked("own_array")[0];
            let expected = format!(
                "bugs.metal:{line}: index {index} is out of range for uint[4], by thread 1 of threadgroup (0, 0, 0), in kernel own_array"
            );
            assert_eq!((finding.to_string(), report.counts.abandoned), (expected, 1));
        }
    }
}

#[test]
fn more_threads_than_the_pipeline_allows() {
    let y = Buffer::new(8192).unwrap();
    let mut device = Device::new(Config { check: Check::Full, ..Config::default() }).unwrap();
    let mut run = |pipeline: &Pipeline, threads| {
        let arguments = [(1, Argument::buffer(&y))];
        let size = Size::Threadgroups([1, 1, 1]);
        device.dispatch(pipeline, &Dispatch { arguments: &arguments, size, threads_per_threadgroup: [threads, 1, 1] })
    };
    let Some(mut any) = pipeline("increment", false) else { return };
    assert!(run(&any, 1024).unwrap().findings.is_empty());
    assert!(matches!(run(&any, 1025), Err(DispatchError::TooManyThreads { threads: 1025, limit: 1024, .. })));
    any.set_max_total_threads_per_threadgroup(256);
    assert!(run(&any, 256).unwrap().findings.is_empty());
    assert!(matches!(run(&any, 288), Err(DispatchError::TooManyThreads { threads: 288, limit: 256, .. })));
    for kernel in ["limited", "limited_by_argument"] {
        let (Some(wrong), Some(mut right)) = (pipeline(kernel, true), pipeline(kernel, false)) else { return };
        assert!(
            matches!(run(&wrong, 64), Err(DispatchError::TooManyThreads { threads: 64, limit: 32, .. })),
            "{kernel}"
        );
        assert!(run(&right, 64).unwrap().findings.is_empty(), "{kernel}");
        right.set_max_total_threads_per_threadgroup(1024);
        assert_eq!(right.max_total_threads_per_threadgroup(), 64, "{kernel}: it is only lowered");
    }
}

#[test]
fn dispatches_without_a_barrier_between_them() {
    let Some(pipeline) = pipeline("increment", false) else { return };
    let y = Buffer::new(256).unwrap();
    let mut device = Device::new(Config { check: Check::Full, ..Config::default() }).unwrap();
    let run = |device: &mut Device, offset| {
        let arguments = [(1, Argument::Buffer { buffer: &y, offset, len: Some(128) })];
        let size = Size::Threads([32, 1, 1]);
        let dispatch = Dispatch { arguments: &arguments, size, threads_per_threadgroup: [32, 1, 1] };
        device.dispatch(&pipeline, &dispatch).unwrap().findings
    };
    assert!(run(&mut device, 0).is_empty());
    assert!(run(&mut device, 0).is_empty(), "dispatches are ordered");
    device.begin_group();
    assert!(run(&mut device, 0).is_empty());
    assert!(run(&mut device, 128).is_empty(), "other memory");
    let found = run(&mut device, 64);
    assert!(found.iter().any(|finding| race(RaceKind::Dispatches)(&finding.kind)), "{found:#?}");
    device.barrier();
    assert!(run(&mut device, 0).is_empty(), "a barrier orders");
    device.end_group();
    assert!(run(&mut device, 0).is_empty(), "the group is over");
}

#[test]
fn memory_of_others_that_is_read_only() {
    let Some(pipeline) = pipeline("increment", false) else { return };
    for writable in [true, false] {
        let mut numbers = vec![0f32; 64];
        // SAFETY: the vector outlives the buffer and the device.
        let y = unsafe { Buffer::from_raw(numbers.as_mut_ptr().cast(), 256, writable) };
        let mut device = Device::new(Config { check: Check::Full, ..Config::default() }).unwrap();
        let arguments = [(1, Argument::buffer(&y))];
        let size = Size::Threads([64, 1, 1]);
        let dispatch = Dispatch { arguments: &arguments, size, threads_per_threadgroup: [32, 1, 1] };
        let report = device.dispatch(&pipeline, &dispatch).unwrap();
        if writable {
            assert!(report.findings.is_empty(), "{report:#?}");
            assert_eq!(numbers, [1.0; 64]);
        } else {
            assert!(matches!(report.findings[..], [Finding { kind: FindingKind::ReadOnly { .. }, .. }]), "{report:#?}");
            assert_eq!(report.counts.abandoned, 1, "the write is not made");
            assert_eq!(numbers, [0.0; 64]);
        }
    }
}

/// What a kernel moves, with 32 threads in each threadgroup.
fn traffic(kernel: &str, elements: [usize; 2], threadgroups: u32, check: Check) -> Option<msl_sim::Traffic> {
    let pipeline = pipeline(kernel, false)?;
    let buffers = elements.map(|n| Buffer::new(n * 4).unwrap());
    let mut device = Device::new(Config { check, ..Config::default() }).unwrap();
    let arguments = [(0, Argument::buffer(&buffers[0])), (1, Argument::buffer(&buffers[1]))];
    let size = Size::Threadgroups([threadgroups, 1, 1]);
    let dispatch = Dispatch { arguments: &arguments, size, threads_per_threadgroup: [32, 1, 1] };
    let report = device.dispatch(&pipeline, &dispatch).unwrap();
    assert!(report.findings.is_empty());
    Some(report.traffic)
}

#[test]
fn traffic_is_counted() {
    for check in [Check::Traffic, Check::Full] {
        let Some(found) = traffic("increment", [1, 4096], 128, check) else { return };
        let expected = msl_sim::Traffic {
            loaded: 16384,
            stored: 16384,
            dram_read: 16384,
            dram_written: 16384,
            ..Default::default()
        };
        assert_eq!(found, expected, "{check:?}");
        let found = traffic("transpose_tile", [64, 64], 1, check).unwrap();
        assert_eq!((found.loaded, found.stored), (256, 256), "{check:?}");
        assert_eq!((found.threadgroup_loaded, found.threadgroup_stored), (256, 256), "{check:?}");
        assert_eq!((found.dram_read, found.dram_written), (256, 256), "{check:?}");
    }
}

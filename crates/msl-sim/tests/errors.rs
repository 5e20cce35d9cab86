//! What cannot be loaded or dispatched is an error that says what to do, before anything runs.

use msl_sim::{
    Argument, Binary, Buffer, Check, Config, Constant, Device, Dispatch, DispatchError, Instrument, LoadError,
    Parameter, ParameterKind, Pipeline, Size, Source,
};

const TEXT: &str = "
#include <metal_stdlib>
constant uint N [[function_constant(3)]];
kernel void fill(device float* y [[buffer(1)]], constant float& value [[buffer(4)]], threadgroup float* s [[threadgroup(0)]],
                 uint i [[thread_position_in_grid]]) {
  if (i < N) y[i] = value;
}
";

fn library() -> Option<Binary> {
    if !msl_sim::compile::clang_available() {
        return None;
    }
    let source = Source { name: "errors.metal", text: TEXT, include_dirs: &[], defines: &[] };
    Some(msl_sim::compile(&source, Instrument::None).expect("it compiles"))
}

#[test]
fn pipelines_that_cannot_be_loaded() {
    let Some(library) = library() else { return };
    let load = |function, constants: &[_]| Pipeline::new(&library, function, constants).map(|_| ());
    let missing = load("fil", &[(3, Constant::U32(1))]).unwrap_err();
    assert_eq!(missing.to_string(), "there is no kernel named \"fil\"; there are: fill");
    assert!(matches!(load("fill", &[]), Err(LoadError::MissingConstant { index: 3 })));
    assert!(matches!(
        load("fill", &[(3, Constant::Bool(true))]),
        Err(LoadError::ConstantSize { index: 3, size: 4, .. })
    ));
    assert!(load("fill", &[(3, Constant::Undefined)]).is_ok());
}

#[test]
fn parameters_are_reflected() {
    let Some(library) = library() else { return };
    let pipeline = Pipeline::new(&library, "fill", &[(3, Constant::U32(1))]).unwrap();
    let parameter = |name: &str, kind, index| Parameter { name: name.to_owned(), kind, index };
    let expected = [
        parameter("y", ParameterKind::Buffer { writable: true }, 1),
        parameter("value", ParameterKind::Buffer { writable: false }, 4),
        parameter("s", ParameterKind::Threadgroup, 0),
        parameter("i", ParameterKind::Builtin, 0),
    ];
    assert_eq!(pipeline.parameters(), expected);
}

#[test]
fn dispatches_that_cannot_run() {
    let Some(library) = library() else { return };
    let pipeline = Pipeline::new(&library, "fill", &[(3, Constant::U32(2))]).unwrap();
    let y = Buffer::new(8).unwrap();
    let run = |arguments: &[(usize, Argument<'_>)], size, check| {
        let mut device = Device::new(Config { check, ..Config::default() }).unwrap();
        let dispatch = Dispatch { arguments, size, threads_per_threadgroup: [32, 1, 1] };
        device.dispatch(&pipeline, &dispatch).map(|_| ())
    };
    let one = Size::Threadgroups([1, 1, 1]);
    let value = 1.5f32.to_ne_bytes();
    let all = [(1, Argument::buffer(&y)), (4, Argument::Bytes(&value)), (0, Argument::Threadgroup(64))];
    let missing = run(&all[..2], one, Check::Off).unwrap_err();
    assert_eq!(missing.to_string(), "kernel fill: nothing is bound to threadgroup(0), parameter `s`");
    assert!(matches!(run(&all[1..], one, Check::Off), Err(DispatchError::MissingArgument { index: 1, .. })));
    assert!(matches!(run(&all, Size::Threads([4, 0, 1]), Check::Off), Err(DispatchError::EmptyGrid { .. })));
    assert!(matches!(run(&all, one, Check::Full), Err(DispatchError::NotInstrumented { .. })));
    let beyond = Argument::Buffer { buffer: &y, offset: 4, len: Some(8) };
    assert!(matches!(
        run(&[(1, beyond), all[1], all[2]], one, Check::Off),
        Err(DispatchError::Argument { index: 1, .. })
    ));
    let large = [0; 4100];
    let too_large = [all[0], (4, Argument::Bytes(&large)), all[2]];
    assert!(matches!(run(&too_large, one, Check::Off), Err(DispatchError::Argument { index: 4, .. })));
    assert_eq!(y.to_vec::<f32>(), [0.0; 2], "nothing ran");
    run(&all, one, Check::Off).unwrap();
    assert_eq!(y.to_vec::<f32>(), [1.5; 2]);
}

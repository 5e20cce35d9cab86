//! What cannot be loaded or dispatched is an error that says what to do, before anything runs.

use msl_sim::{
    Argument, Binary, Buffer, Check, CompileError, Config, Constant, Device, Dispatch, DispatchError, Instrument,
    LoadError, Parameter, ParameterKind, Pipeline, Size, Source,
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
    let parameter = |name: &str, kind, index, size| Parameter { name: name.to_owned(), kind, index, size };
    let expected = [
        parameter("y", ParameterKind::Buffer { writable: true }, 1, 4),
        parameter("value", ParameterKind::Buffer { writable: false }, 4, 4),
        parameter("s", ParameterKind::Threadgroup, 0, 4),
        parameter("i", ParameterKind::Builtin, 0, 0),
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

/// A kernel whose variables would leave the stack of its thread is an error, however it comes to have them.
#[test]
fn variables_that_do_not_fit_on_a_stack() {
    if !msl_sim::compile::clang_available() {
        return;
    }
    let text = |count: u32| {
        format!(
            "#include <metal_stdlib>
template <typename T>
kernel void large(device T* y [[buffer(0)]], device const uint* x [[buffer(1)]], uint t [[thread_index_in_threadgroup]]) {{
  T a[{count}];
  for (uint i = 0; i < {count}; i++) a[i] = T(x[i]);
  y[t] = a[x[t] % {count}];
}}
template [[host_name(\"large_float\")]] kernel void large<float>(device float*, device const uint*, uint);
template [[host_name(\"large_half\")]] kernel void large<half>(device half*, device const uint*, uint);
"
        )
    };
    let compile = |count, instrument| {
        let source = Source { name: "large.metal", text: &text(count), include_dirs: &[], defines: &[] };
        msl_sim::compile(&source, instrument)
    };
    for instrument in [Instrument::None, Instrument::Accesses] {
        compile(16000, instrument).unwrap();
        let error = compile(600_000, instrument).unwrap_err();
        let CompileError::Stack { function, at, bytes, limit: 65536 } = &error else { panic!("{error}") };
        assert!((2_399_000..2_401_000).contains(bytes), "{error}");
        assert_eq!((function.as_str(), at.as_deref()), ("large", Some("large.metal:3")), "{error}");
    }
}

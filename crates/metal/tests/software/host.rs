//! Every op as the host computes it, in place of a device that compiles nothing.

use vllm_apple_metal::gpu::GpuError;
use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::gpu::faulty::{Faults, FaultyGpu, Request};
use vllm_apple_metal::gpu::software::{Edit, SoftwareGpu};
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{
    Backend, DType, Error, Kind, conformance, gated_matmul, grouped_matmul, matmul, paged_attention, rms_norm,
};

use crate::conformance::kinds;

/// Ops that would take minutes for a token there, or are made of such.
const HEAVY: [&str; 4] = [matmul::NAME, gated_matmul::NAME, grouped_matmul::NAME, paged_attention::NAME];

#[test]
fn all_ops_conform_on_the_host() {
    let mut backend = MetalBackend::new(FakeGpu::without_compiler(), MetalOptions::default()).unwrap();
    backend.allow_all_on_host();
    let verdicts = conformance::run(&mut backend);
    let failed: Vec<String> = verdicts.iter().filter(|v| !v.pass()).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{} of {} cases fail:\n{}", failed.len(), verdicts.len(), failed.join("\n"));
    let mut kinds: std::collections::BTreeSet<Kind> = verdicts.iter().map(|verdict| verdict.kind).collect();
    kinds.retain(|kind| kind.op != conformance::invariance::NAME);
    assert!(backend.fallbacks().iter().map(|fallback| fallback.0).eq(kinds.iter().copied()), "each with a reason");
    assert!(kinds.iter().all(|kind| backend.choices().iter().any(|(what, _)| *what == kind.to_string())));
}

#[test]
fn what_the_device_refuses_is_computed_on_the_host_unless_that_takes_minutes_for_a_token() {
    let mut backend = MetalBackend::new(FakeGpu::without_compiler(), MetalOptions::default()).unwrap();
    let verdicts =
        conformance::run_selected(&mut backend, conformance::Selection { short: true, ..Default::default() });
    let (heavy, light): (Vec<_>, Vec<_>) = verdicts.iter().partition(|verdict| HEAVY.contains(&verdict.kind.op));
    for verdict in &heavy {
        let failure = verdict.failure.as_ref().expect("nothing is computed");
        assert!(failure.contains("no compiler") && failure.contains("use `device` cpu"), "{failure}");
    }
    assert!(HEAVY.iter().all(|op| heavy.iter().any(|verdict| verdict.kind.op == *op)));
    assert!(light.iter().all(|verdict| verdict.pass()), "{light:?}");
    let elsewhere = backend.fallbacks();
    let is_made_of_others = |kind: &Kind| kind.op == gated_matmul::NAME;
    assert!(elsewhere.iter().all(|(kind, _)| is_made_of_others(kind) || !HEAVY.contains(&kind.op)), "{elsewhere:?}");
}

#[test]
fn what_the_self_test_finds_wrong_is_computed_on_the_host() {
    // Its kernels compile and do nothing.
    let mut backend = MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
    let (wrong, other) = (Kind::new(rms_norm::NAME, DType::F16), Kind::new(rms_norm::NAME, DType::F32));
    let fails = |backend: &mut MetalBackend<FakeGpu>, kind| {
        let selection = conformance::Selection { kinds: Some(&[kind]), short: true, ..Default::default() };
        conformance::run_selected(backend, selection).iter().any(|verdict| !verdict.pass())
    };
    assert!(fails(&mut backend, wrong));
    backend.self_test(Some(&[wrong])).unwrap();
    assert!(!fails(&mut backend, wrong));
    assert!(fails(&mut backend, other), "nobody has asked for it");
    let [(kind, reason)] = &backend.fallbacks()[..] else { panic!("{:?}", backend.fallbacks()) };
    assert_eq!(*kind, wrong);
    assert!(reason.contains("the self-test failed") && reason.contains("error"), "{reason}");
}

#[test]
fn what_the_host_is_too_slow_for_is_an_error_if_it_is_wrong() {
    for kind in [Kind::new(matmul::NAME, DType::BF16), Kind::of_heads(paged_attention::NAME, DType::BF16, 128)] {
        let mut backend = MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
        let error = backend.self_test(Some(&[kind])).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { op, .. } if *op == kind.op), "{error}");
        assert!(error.to_string().contains("use `device` cpu"), "{error}");
    }
}

#[test]
fn a_kernel_that_a_model_does_not_need_may_be_wrong() {
    // Of large heads only.
    let edit = Edit::new("if (p * JOINED + own_element < HEAD_DIM) to.values", "if (p == 0) to.values");
    let heads = |head_dim| Kind::of_heads(paged_attention::NAME, DType::BF16, head_dim);
    let test = |kind| {
        let gpu = SoftwareGpu::fast().unwrap().with_edit(edit);
        let mut backend = MetalBackend::new(gpu, MetalOptions::default()).unwrap();
        backend.self_test(Some(&[kind])).map(|()| backend.fallbacks())
    };
    assert_eq!(test(heads(64)), Ok(Vec::new()));
    assert!(test(heads(256)).is_err());
}

#[test]
fn the_self_test_notices_what_is_wrong_in_any_kernel_of_an_op() {
    for (op, find, replace) in [
        ("grouped_matmul", "out_row(rows, m) / PAIRS_PER_ROW", "0 * out_row(rows, m)"),
        ("grouped_matmul", "if (mine != 0) order[at + before] = pair;", "if (mine != 0) order[at] = pair;"),
        // Tiles of many rows only.
        ("matmul", "if (k % SLICE == 0) {", "if (k == 0) {"),
        // Large heads only, and sequences of several splits.
        ("paged_attention", "if (p * JOINED + own_element < HEAD_DIM) to.values", "if (p == 0) to.values"),
        ("paged_attention", "store_quad(out + row * HEAD_DIM, quad", "store_quad(out + row * HEAD_DIM, 0"),
        ("topk_softmax", "RENORMALIZE ? chosen : total", "chosen"),
        // Of one activation only.
        ("gated_activation", "fma(gate * gate,", "fma(gate,"),
    ] {
        let gpu = SoftwareGpu::fast().unwrap().with_edit(Edit::new(find, replace));
        let mut backend = MetalBackend::new(gpu, MetalOptions::default()).unwrap();
        let found = match backend.self_test(Some(&kinds(op, false))) {
            Ok(()) => format!("{:?}", backend.fallbacks()),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(op) && !found.contains("does not compile"), "{replace}: {found}");
    }
}

#[test]
fn a_test_that_the_system_ended_is_run_again_and_one_that_failed_is_not() {
    let self_test = |after, error: &GpuError| {
        let faults = Faults::default();
        let gpu = FaultyGpu::new(SoftwareGpu::fast().unwrap(), faults.clone());
        let mut backend = MetalBackend::new(gpu, MetalOptions::default()).unwrap();
        faults.fail(Request::Submit, after, error.clone());
        let result = backend.self_test(Some(&[Kind::new(matmul::NAME, DType::F32)]));
        assert_eq!(faults.left(), 0);
        result.map(|()| backend.fallbacks())
    };
    let [too_long, discarded, failed] =
        [GpuError::TooLong, GpuError::Discarded, GpuError::Commands].map(|error| error("a test".to_owned()));
    for after in [0, 1, 3] {
        assert_eq!(self_test(after, &too_long), Ok(Vec::new()), "{after}");
        assert_eq!(self_test(after, &discarded), Ok(Vec::new()), "{after}");
    }
    // The first is not a case of an op.
    let error = self_test(1, &failed).unwrap_err();
    assert!(matches!(error, Error::Unsupported { op: matmul::NAME, .. }), "{error}");
}

#[test]
fn want_of_memory_in_a_test_is_that_and_no_fault_of_the_device() {
    let kinds = [Kind::new(matmul::NAME, DType::F32)];
    let self_test = |request, after, error: GpuError| {
        let faults = Faults::default();
        let gpu = FaultyGpu::new(SoftwareGpu::fast().unwrap(), faults.clone());
        let mut backend = MetalBackend::new(gpu, MetalOptions::default()).unwrap();
        faults.fail(request, after, error);
        let error = backend.self_test(Some(&kinds)).unwrap_err();
        assert_eq!(faults.left(), 0);
        assert!(!error.is_of_device(), "{error}");
        // Nothing was found wrong with it.
        assert_eq!(backend.self_test(Some(&kinds)), Ok(()));
        assert_eq!(backend.fallbacks(), []);
        error
    };
    for after in [0, 1, 3] {
        let error = self_test(Request::Submit, after, GpuError::NoMemory("Insufficient Memory".to_owned()));
        assert!(matches!(&error, Error::NoMemory { reason, .. } if reason == "Insufficient Memory"), "{error}");
        let error = self_test(Request::Allocate, after, GpuError::OutOfMemory { bytes: 77, purpose: "a test".into() });
        assert!(matches!(&error, Error::OutOfMemory { bytes: 77, .. }), "{error}");
    }
}

#[test]
fn with_strict_no_op_falls_back() {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(FakeGpu::without_compiler(), options.clone()).unwrap();
    let verdicts =
        conformance::run_selected(&mut backend, conformance::Selection { short: true, ..Default::default() });
    for verdict in verdicts {
        let failure = verdict.failure.expect("nothing is computed");
        // The caches of attention's cases are filled by another op.
        let product = [matmul::NAME, gated_matmul::NAME, grouped_matmul::NAME].contains(&verdict.kind.op);
        let remedy = if product { "use `device` cpu" } else { "`metal_strict`=1" };
        assert!(failure.contains(remedy) && failure.contains("no compiler"), "{failure}");
    }
    // The two ops that it is made of would be the device's, if this one had any.
    assert!(backend.fallbacks().iter().all(|(kind, _)| kind.op == gated_matmul::NAME), "{:?}", backend.fallbacks());

    let mut wrong = MetalBackend::new(FakeGpu::recording(), options).unwrap();
    let error = wrong.self_test(Some(&[Kind::new(rms_norm::NAME, DType::F32)])).unwrap_err();
    assert!(matches!(&error, Error::Unsupported { op: "rms_norm", .. }), "{error}");
    assert!(error.to_string().contains("`metal_strict`=1"), "{error}");
}

#[test]
fn attention_is_on_the_host_if_the_user_wants_it() {
    let options = MetalOptions { attention: false, strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(FakeGpu::recording(), options).unwrap();
    // The caches of the cases are filled by another op, which this device does not compute.
    let selection = conformance::Selection { op: Some("paged_attention"), short: true, ..Default::default() };
    conformance::run_selected(&mut backend, selection);
    assert!(backend.choices().contains(&("attention".to_owned(), "on the host: `metal_attention`=0".to_owned())));
    assert!(backend.gpu().num_commands() > 0, "the other op is not on the host");
}

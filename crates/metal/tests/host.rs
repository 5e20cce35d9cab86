//! Every op as the host computes it, in place of a device that compiles nothing.

use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{Backend, Error, conformance};

#[test]
fn all_ops_conform_on_the_host() {
    let mut backend = MetalBackend::new(FakeGpu::without_compiler(), MetalOptions::default()).unwrap();
    let verdicts = conformance::run(&mut backend);
    let failed: Vec<String> = verdicts.iter().filter(|v| !v.pass()).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{} of {} cases fail:\n{}", failed.len(), verdicts.len(), failed.join("\n"));
    let ops: std::collections::BTreeSet<&str> = verdicts.iter().map(|verdict| verdict.op).collect();
    assert!(backend.fallbacks().iter().map(|fallback| fallback.0).eq(ops.iter().copied()), "each with a reason");
    assert_eq!(backend.choices().len(), ops.len());
}

#[test]
fn ops_that_the_self_test_finds_wrong_are_computed_on_the_host() {
    // Its kernels compile and do nothing.
    let mut backend = MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
    let short = conformance::Selection { op: None, cases: 3 };
    assert!(conformance::run_selected(&mut backend, short).iter().any(|verdict| !verdict.pass()));
    backend.self_test().unwrap();
    let verdicts = conformance::run_selected(&mut backend, short);
    assert!(verdicts.iter().all(|verdict| verdict.pass()));
    let reason = &backend.fallbacks()[0].1;
    assert!(reason.contains("the self-test failed") && reason.contains("error"), "{reason}");
}

#[test]
fn with_strict_no_op_falls_back() {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(FakeGpu::without_compiler(), options.clone()).unwrap();
    let verdicts = conformance::run_selected(&mut backend, conformance::Selection { op: None, cases: 1 });
    for verdict in verdicts {
        let failure = verdict.failure.expect("nothing is computed");
        assert!(failure.contains("VLLM_METAL_STRICT=1") && failure.contains("no compiler"), "{failure}");
    }
    assert_eq!(backend.fallbacks(), []);

    let mut wrong = MetalBackend::new(FakeGpu::recording(), options).unwrap();
    let error = wrong.self_test().unwrap_err();
    assert!(matches!(&error, Error::Unsupported { op: "embedding", .. }), "{error}");
    assert!(error.to_string().contains("VLLM_METAL_STRICT=1"), "{error}");
}

#[test]
fn attention_is_on_the_host_if_the_user_wants_it() {
    let options = MetalOptions { attention: false, strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(FakeGpu::recording(), options).unwrap();
    // The caches of the cases are filled by another op, which this device does not compute.
    let selection = conformance::Selection { op: Some("paged_attention"), cases: 1 };
    conformance::run_selected(&mut backend, selection);
    let expected = [("paged_attention", "VLLM_METAL_ATTENTION=0".to_owned())];
    assert_eq!(backend.fallbacks(), expected);
    assert!(backend.gpu().num_commands() > 0, "the other op is not on the host");
}

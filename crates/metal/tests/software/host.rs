//! Every op as the host computes it, in place of a device that compiles nothing.

use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::gpu::software::{Edit, SoftwareGpu};
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::{Backend, Error, conformance};

#[test]
fn all_ops_conform_on_the_host() {
    let mut backend = MetalBackend::new(FakeGpu::without_compiler(), MetalOptions::default()).unwrap();
    let verdicts = conformance::run(&mut backend);
    let failed: Vec<String> = verdicts.iter().filter(|v| !v.pass()).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{} of {} cases fail:\n{}", failed.len(), verdicts.len(), failed.join("\n"));
    let mut ops: std::collections::BTreeSet<&str> = verdicts.iter().map(|verdict| verdict.op).collect();
    assert!(ops.remove("batch_invariance"), "it is a property of several");
    assert!(backend.fallbacks().iter().map(|fallback| fallback.0).eq(ops.iter().copied()), "each with a reason");
    assert!(ops.iter().all(|op| backend.choices().iter().any(|(what, _)| what == op)));
}

#[test]
fn ops_that_the_self_test_finds_wrong_are_computed_on_the_host() {
    // Its kernels compile and do nothing.
    let mut backend = MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
    let short = conformance::Selection { op: None, short: true };
    assert!(conformance::run_selected(&mut backend, short).iter().any(|verdict| !verdict.pass()));
    backend.self_test().unwrap();
    let verdicts = conformance::run_selected(&mut backend, short);
    assert!(verdicts.iter().all(|verdict| verdict.pass()));
    let reason = &backend.fallbacks()[0].1;
    assert!(reason.contains("the self-test failed") && reason.contains("error"), "{reason}");
}

#[test]
fn the_self_test_notices_what_is_wrong_in_any_kernel_of_an_op() {
    for (op, find, replace) in [
        ("grouped_matmul", "out_row(rows, m) / PAIRS_PER_ROW", "0 * out_row(rows, m)"),
        ("grouped_matmul", "if (mine != 0) order[at + before] = pair;", "if (mine != 0) order[at] = pair;"),
        // Tiles of many rows only.
        ("matmul", "if (k % SLICE == 0) {", "if (k == 0) {"),
        // Large heads only, and sequences of several splits.
        ("paged_attention", "if (p * JOINED + own_element < HEAD_DIM) part_values", "if (p == 0) part_values"),
        ("paged_attention", "store_quad(out + row * HEAD_DIM, quad", "store_quad(out + row * HEAD_DIM, 0"),
        ("topk_softmax", "RENORMALIZE ? chosen : total", "chosen"),
        // Of one activation only.
        ("gated_activation", "fma(gate * gate,", "fma(gate,"),
    ] {
        let gpu = SoftwareGpu::fast().unwrap().with_edit(Edit { find, replace });
        let mut backend = MetalBackend::new(gpu, MetalOptions::default()).unwrap();
        backend.self_test().unwrap();
        let fallbacks = backend.fallbacks();
        assert!(fallbacks.iter().any(|(wrong, _)| *wrong == op), "{replace}: {fallbacks:?}");
        assert!(!fallbacks.iter().any(|(_, reason)| reason.contains("does not compile")), "{replace}: {fallbacks:?}");
    }
}

#[test]
fn with_strict_no_op_falls_back() {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(FakeGpu::without_compiler(), options.clone()).unwrap();
    let verdicts = conformance::run_selected(&mut backend, conformance::Selection { op: None, short: true });
    for verdict in verdicts {
        let failure = verdict.failure.expect("nothing is computed");
        assert!(failure.contains("`metal_strict`=1") && failure.contains("no compiler"), "{failure}");
    }
    assert_eq!(backend.fallbacks(), []);

    let mut wrong = MetalBackend::new(FakeGpu::recording(), options).unwrap();
    let error = wrong.self_test().unwrap_err();
    assert!(matches!(&error, Error::Unsupported { op: "embedding", .. }), "{error}");
    assert!(error.to_string().contains("`metal_strict`=1"), "{error}");
}

#[test]
fn attention_is_on_the_host_if_the_user_wants_it() {
    let options = MetalOptions { attention: false, strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(FakeGpu::recording(), options).unwrap();
    // The caches of the cases are filled by another op, which this device does not compute.
    let selection = conformance::Selection { op: Some("paged_attention"), short: true };
    conformance::run_selected(&mut backend, selection);
    let expected = [("paged_attention", "`metal_attention`=0".to_owned())];
    assert_eq!(backend.fallbacks(), expected);
    assert!(backend.gpu().num_commands() > 0, "the other op is not on the host");
}

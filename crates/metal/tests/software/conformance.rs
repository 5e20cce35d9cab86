//! Every op on the software Metal device against its reference, with every access checked, in the smallest pieces that dispatches are divided
//! into. Undivided, `doctor --device software-metal` runs the same cases, and a test of the program runs that.

use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::conformance::{Selection, run_selected};
use vllm_apple_ops::{DType, Kind, Limits};

/// A device so slow that every dispatch is as small as it can be, in a command buffer of its own.
pub const SMALLEST_PIECES: Limits = Limits { read_bandwidth: 1.0, peak_flops: 1.0 };

/// An op with weights and caches of every type, or with quantised weights.
pub fn kinds(op: &'static str, quantised: bool) -> Vec<Kind> {
    let of_type = |dtype| {
        let of_heads = [64, 128, 256].map(|heads| Kind::of_heads(op, dtype, heads));
        [Kind { quantised, ..Kind::new(op, dtype) }].into_iter().chain(of_heads)
    };
    [DType::F32, DType::F16, DType::BF16].into_iter().flat_map(of_type).collect()
}

/// All cases of an op, none of them on the host.
fn check(op: &str) {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    let mut backend = MetalBackend::new(SoftwareGpu::checked().unwrap(), options).unwrap();
    backend.set_limits(SMALLEST_PIECES);
    let verdicts = run_selected(&mut backend, Selection { op: Some(op), ..Selection::default() });
    assert!(!verdicts.is_empty(), "there are no cases of {op}");
    let failed: Vec<String> = verdicts.iter().filter(|v| !v.pass()).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{} of {} cases fail:\n{}", failed.len(), verdicts.len(), failed.join("\n"));
}

/// A test per op, of its name.
macro_rules! conform {
    ($($op:ident)*) => {
        $(
            #[test]
            fn $op() {
                check(stringify!($op));
            }
        )*
    };
}

conform! {
    add_rms_norm add_shared_expert batch_invariance embedding gated_activation gated_matmul gather_rows grouped_matmul matmul
    moe_combine paged_attention permute_columns qk_norm rms_norm rope rope_kv_write sample topk_softmax
}

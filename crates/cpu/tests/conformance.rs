//! Every op on every instruction set of this machine against its reference.

use vllm_apple_cpu::{CpuBackend, Isa};
use vllm_apple_ops::conformance;

#[test]
fn all_ops_conform_on_every_instruction_set() {
    for isa in Isa::available() {
        let verdicts = conformance::run(&mut CpuBackend::with_isa(Some(2), isa));
        let failed: Vec<String> = verdicts.iter().filter(|v| !v.pass()).map(ToString::to_string).collect();
        assert!(failed.is_empty(), "{isa}: {} of {} cases fail:\n{}", failed.len(), verdicts.len(), failed.join("\n"));
    }
}

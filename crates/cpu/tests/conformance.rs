//! Every op on every instruction set of this machine against its reference.

use vllm_apple_cpu::{CpuBackend, Isa};
use vllm_apple_ops::{Backend, WeightFormat, conformance};

#[test]
fn all_ops_conform_on_every_instruction_set() {
    for isa in Isa::available() {
        let mut backend = CpuBackend::with_isa(Some(2), isa);
        // Cases of formats that a backend refuses are left out.
        let refused = WeightFormat::CHECKED.map(|format| backend.check_weight_format(format).err());
        assert!(refused.iter().all(Option::is_none), "{isa}: {refused:?}");
        let verdicts = conformance::run(&mut backend);
        let failed: Vec<String> = verdicts.iter().filter(|v| !v.pass()).map(ToString::to_string).collect();
        assert!(failed.is_empty(), "{isa}: {} of {} cases fail:\n{}", failed.len(), verdicts.len(), failed.join("\n"));
    }
}

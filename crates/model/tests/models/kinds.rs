//! What a checkpoint says that it needs of a device is what its steps use.

use std::collections::BTreeSet;

use crate::common::{Sequence, golden_of, load_on, models, options, step};
use vllm_apple_executor::{Executor, RowTask, SamplingRow};
use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_model::{Checkpoint, LoadOptions, Quantization};
use vllm_apple_ops::{DType, Kind, permute_columns};

#[test]
fn the_kinds_of_ops_are_those_that_a_step_uses() {
    let both = |name: String| [None, Some(Quantization::Int4)].map(|quantization| (name.clone(), quantization));
    // With columns in another order, in buffers of their own and in those of others.
    let in_order = ["gptq-act-order", "compressed-act-order", "gptq-moe-act-order"];
    let in_order = in_order.map(|name| (format!("quantised/{name}"), None));
    for (name, quantization) in models().into_iter().flat_map(both).chain(in_order) {
        let options = LoadOptions { quantization: quantization.map(Into::into), ..options(DType::BF16, 64) };
        let kinds: BTreeSet<Kind> =
            Checkpoint::open(&golden_of("models", &name)).unwrap().kinds(&options).unwrap().into_iter().collect();
        // It compiles nothing, and keeps a list of all that it is asked for.
        let mut backend = MetalBackend::new(FakeGpu::without_compiler(), MetalOptions::default()).unwrap();
        backend.allow_all_on_host();
        let mut model = load_on(backend, &name, &options);
        let mut sequences = [Sequence { tokens: vec![1, 2, 3], computed: 0, blocks: vec![0] }];
        step(&mut model, &mut sequences, &[(0, 3)]);
        let row = SamplingRow { logit_row: 0, task: RowTask::Score { token_id: 0 }, num_logprobs: None };
        model.sample(&[row], &mut Vec::new()).unwrap();
        let used: BTreeSet<Kind> = model.backend().fallbacks().into_iter().map(|(kind, _)| kind).collect();
        let is_quantised = quantization.is_some() || name.starts_with("quantised/");
        match is_quantised {
            false => assert_eq!(kinds, used, "{name}"),
            // What chooses experts is of floats, as tables may be, and which ops have such weights nobody asks.
            true => {
                let permutes = |kinds: &BTreeSet<Kind>| kinds.iter().any(|kind| kind.op == permute_columns::NAME);
                assert_eq!(permutes(&kinds), permutes(&used), "{name}");
                assert!(kinds.is_superset(&used), "{name}: {kinds:?}, but not all of {used:?}");
                assert!(kinds.iter().any(|kind| kind.quantised) && kinds.len() < used.len() + 5, "{name}");
            }
        }
    }
}

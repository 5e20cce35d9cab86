//! How often a decode step waits: commands and barriers of a layer, on a device that counts them.

use crate::decoder::{BLOCK, LLAMA_8B, Model, Shape, Step};
use vllm_apple_metal::gpu::fake::FakeGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::Backend;

/// Commands and barriers of a step.
fn counted(layers: usize, requests: usize, context: usize) -> [usize; 2] {
    let shape = Shape { layers, ..LLAMA_8B };
    let mut backend = MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
    let mut model = Model::new(&backend, shape, requests * context.div_ceil(BLOCK)).unwrap();
    let mut step = Step::new(&backend, shape, requests, 1, context).unwrap();
    model.encode(&mut backend, &mut step).unwrap();
    backend.synchronize().unwrap();
    assert_eq!(backend.fallbacks(), []);
    [backend.gpu().num_commands(), backend.gpu().num_barriers()]
}

/// The table is in docs/PERFORMANCE.md.
#[test]
fn a_layer_waits_eight_times_and_once_more_for_splits_of_long_sequences_or_for_many_rows() {
    for (requests, context, per_layer) in [(1, 500, 8), (32, 500, 8), (64, 500, 9), (1, 4096, 9), (8, 4096, 9)] {
        let [few, more] = [1, 5].map(|layers| counted(layers, requests, context));
        let of_layer = [0, 1].map(|i| (more[i] - few[i]) / 4);
        // Each reads what the one before wrote.
        assert_eq!(of_layer, [per_layer; 2], "{requests} requests of {context}");
        println!("| {requests} x {context} | {} | {} |", of_layer[0], of_layer[1]);
    }
}

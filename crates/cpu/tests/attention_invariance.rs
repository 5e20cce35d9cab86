//! Attention gives a request the same bits however it is run: alone or in a batch, whole or in chunks, in any blocks, on any
//! number of threads.

use proptest::prelude::*;
use vllm_apple_cpu::{CpuBackend, Isa};
use vllm_apple_ops::conformance::invariance;
use vllm_apple_ops::{Backend, DType, KvSpec};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_request_has_the_same_bits_in_any_batch_chunks_blocks_and_threads(
        isa in prop::sample::select(Isa::available()),
        threads in 1..4usize,
        seed in any::<u64>().no_shrink(),
    ) {
        let [mut together, mut alone] = [threads, 1].map(|threads| CpuBackend::with_isa(Some(threads), isa));
        invariance::any_schedule(&mut together, &mut alone, seed).unwrap();
    }
}

#[test]
fn the_last_tokens_of_a_long_sequence_have_the_same_bits_by_decode_and_by_prefill_on_any_number_of_threads() {
    for isa in Isa::available() {
        let run = |threads| invariance::decode_and_prefill(&mut CpuBackend::with_isa(Some(threads), isa)).unwrap();
        let one = run(1);
        assert!((2..6).all(|threads| run(threads) == one), "{isa}");
    }
}

#[test]
fn a_block_size_that_does_not_fit_vectors_is_refused_with_advice() {
    let spec = KvSpec { dtype: DType::F32, num_blocks: 1, block_size: 8, num_kv_heads: 1, head_dim: 8 };
    let message = CpuBackend::new(Some(1)).allocate_kv_cache(spec).unwrap_err().to_string();
    assert!(message.contains("block size 8") && message.contains("`block_size` 16"), "{message}");
}

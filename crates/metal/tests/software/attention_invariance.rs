//! Attention gives a request the same bits however it is run: alone or in a batch, whole or in chunks, in any blocks, with a
//! threadgroup for all splits of a sequence or one for each.

use proptest::prelude::*;
use vllm_apple_metal::gpu::software::SoftwareGpu;
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::conformance::invariance;

use crate::conformance::SMALLEST_PIECES;

fn metal() -> MetalBackend<SoftwareGpu> {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    MetalBackend::new(SoftwareGpu::fast().unwrap(), options).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn a_request_has_the_same_bits_in_any_batch_chunks_and_blocks(seed in any::<u64>().no_shrink()) {
        invariance::any_schedule(&mut metal(), &mut metal(), seed).unwrap();
    }
}

/// Few tiles get a threadgroup per split, many get one for all, very many are wide: see the unit tests of `Plan`, whose numbers these are.
#[test]
fn the_last_tokens_of_a_long_sequence_have_the_same_bits_by_decode_and_by_prefill() {
    invariance::decode_and_prefill(&mut metal()).unwrap();
}

/// Wide tiles take the most registers of all kernels: a compiler may refuse them.
#[test]
fn narrow_tiles_in_the_place_of_refused_wide_ones_have_the_same_bits() {
    let gpu = SoftwareGpu::fast().unwrap().with_refusal(|function, _| function.starts_with("paged_attention_wide"));
    let mut refusing = MetalBackend::new(gpu, MetalOptions { strict: true, ..MetalOptions::default() }).unwrap();
    let narrow = invariance::decode_and_prefill(&mut refusing).unwrap();
    assert_eq!(narrow, invariance::decode_and_prefill(&mut metal()).unwrap());
    let refused: Vec<&str> = refusing.replaced().map(|(function, _)| function).collect();
    assert_eq!(refused, ["paged_attention_wide_128_bf16", "paged_attention_wide_64_f16"]);
}

/// On a slow device the walk through a sequence's splits is several dispatches.
#[test]
fn a_walk_in_pieces_has_the_bits_of_an_undivided_one() {
    let mut slow = metal();
    slow.set_limits(SMALLEST_PIECES);
    let in_pieces = invariance::decode_and_prefill(&mut slow).unwrap();
    assert_eq!(in_pieces, invariance::decode_and_prefill(&mut metal()).unwrap());
}

//! What is planned for models on machines of people, and what they are told.

use super::*;
use crate::Checkpoint;
use vllm_apple_cpu::CpuBackend;

fn gib(number: f64) -> u64 {
    (number * f64::from(1 << 30)) as u64
}

/// A Mac of so many GiB, with what is free, pageable and recommended for its GPU.
fn mac([total, free, pageable, recommended]: [f64; 4]) -> Machine {
    let [total, free, pageable, recommended] = [total, free, pageable, recommended].map(gib);
    Machine { total, free, pageable: Some(pageable), recommended: Some(recommended), is_of_addresses: false }
}

/// A MacBook Air in daily use, one with an M3 Pro, and one with an M4 Max.
const AIR: [f64; 4] = [16.0, 4.0, 11.0, 10.7];
const M3_PRO: [f64; 4] = [36.0, 18.0, 29.0, 27.0];
const M4_MAX: [f64; 4] = [128.0, 90.0, 118.0, 107.5];

fn linux(free: f64) -> Machine {
    Machine { total: gib(2.0 * free), free: gib(free), pageable: None, recommended: None, is_of_addresses: false }
}

/// Weights and scratch in GiB, KiB of KV cache for a token, and the longest sequence.
type Model = (f64, f64, u64, usize);

/// mlx-community/Qwen3-8B-4bit, and Devstral of 24B in Q4_K_M.
const QWEN3_8B: Model = (4.3, 0.3, 144, 40_960);
const DEVSTRAL: Model = (13.6, 0.6, 160, 131_072);

/// The plan before it is made shorter.
fn plan(machine: Machine, (weights, scratch, kib, longest): Model, max_num_seqs: usize) -> MemoryPlan {
    let block_size = 32;
    let kv_block = KvBlock {
        num_layers: 1,
        num_kv_heads: 1,
        head_dim: 64,
        dtype: DType::BF16,
        bytes: kib * 1024 * block_size as u64,
    };
    let info = ExecutorInfo {
        vocab_size: 512,
        max_model_len: longest,
        max_num_batched_tokens: 512,
        costly_context: None,
        embedding_size: None,
        max_num_seqs,
        max_logit_rows: 64,
        block_size,
        num_blocks: 0,
    };
    MemoryPlan {
        weights: gib(weights),
        kv_cache: 0,
        scratch: gib(scratch),
        available: machine.most(),
        kv_block,
        step_millis: None,
        shortened_from: None,
        info,
        machine,
    }
}

/// The same where nobody says how long sequences are.
fn open(machine: Machine, model: Model, memory: Option<u64>) -> MemoryPlan {
    let of = |length| {
        let (weights, scratch, kib, _) = model;
        Ok(plan(machine, (weights, scratch, kib, length), 64))
    };
    plan(machine, model, 64).shortened(memory, of).unwrap()
}

fn cache_of(plan: &MemoryPlan, memory: Option<u64>) -> f64 {
    let blocks = plan.num_blocks(memory).unwrap_or_else(|error| panic!("{error}"));
    (blocks as u64 * plan.kv_block.bytes) as f64 / gib(1.0) as f64
}

#[test]
fn every_machine_serves_what_it_has_room_for() {
    for (what, machine, model, tokens, cache) in [
        // 8.03 GiB may be taken, of which 3.43 are left: a sequence has all but an eighth.
        ("8B on the Air", mac(AIR), QWEN3_8B, 21_504, 2.953),
        // 24 GiB, 9.8 left.
        ("Devstral on the M3 Pro", mac(M3_PRO), DEVSTRAL, 55_296, 8.438),
        // 104.5 GiB, 90.3 left: a quarter holds a sequence of 20 GiB.
        ("Devstral on the M4 Max", mac(M4_MAX), DEVSTRAL, 131_072, 22.575),
        // 99.9 GiB left.
        ("8B on the M4 Max", mac(M4_MAX), QWEN3_8B, 40_960, 24.975),
        // 4.4 GiB left.
        ("8B on a laptop with Linux", linux(9.0), QWEN3_8B, 27_648, 3.797),
        // 7.4 GiB left: the sequence needs more than half of that, and has it.
        ("8B on one with more", linux(12.0), QWEN3_8B, 40_960, 5.625),
        // 27.4 GiB left: half.
        ("8B on one with 32 GB free", linux(32.0), QWEN3_8B, 40_960, 13.7),
        // As many sequences as may run are enough.
        ("a small model", linux(32.0), (0.2, 0.1, 12, 4096), 4096, 3.0),
    ] {
        let plan = open(machine, model, None);
        assert_eq!(plan.info.max_model_len, tokens, "{what}");
        let found = cache_of(&plan, None);
        assert!((found - cache).abs() < 0.01, "{what}: {found} GiB instead of {cache}");
        assert_eq!(plan.shortened_from, (tokens != model.3).then_some(model.3), "{what}");
        let blocks = plan.num_blocks(None).unwrap();
        assert!(plan.with_blocks(blocks).is_ok(), "{what}");
    }
    // Room for 655 tokens is none.
    let too_small = open(mac([24.0, 10.0, 19.0, 17.3]), DEVSTRAL, None);
    assert_eq!((too_small.info.max_model_len, too_small.shortened_from), (DEVSTRAL.3, None));
    assert!(too_small.num_blocks(None).is_err());
}

#[test]
fn what_is_shorter_is_said_with_what_helps() {
    let warnings = |machine: Machine, model| {
        let plan = open(machine, model, None);
        let blocks = plan.num_blocks(None).unwrap();
        let plan = plan.with_blocks(blocks).unwrap();
        (plan.shortening(), plan.taking())
    };
    let (shorter, taking) = warnings(mac(AIR), QWEN3_8B);
    let shorter = shorter.unwrap();
    assert!(shorter.contains("21504 tokens, not 40960") && shorter.contains("5.62 GiB"), "{shorter}");
    assert!(shorter.contains("`max_model_len`") && !shorter.contains("sysctl"), "macOS needs the rest: {shorter}");
    let taking = taking.unwrap();
    assert!(taking.contains("are free") && taking.contains("4.00 GiB"), "{taking}");
    let (shorter, taking) = warnings(mac([36.0, 30.0, 33.0, 27.0]), DEVSTRAL);
    assert!(!shorter.unwrap().contains("sysctl") && taking.is_none(), "even 32 GiB would not be enough");
    let (shorter, _) = warnings(mac([36.0, 30.0, 33.0, 24.0]), (13.6, 0.6, 160, 65_536));
    assert!(shorter.as_ref().unwrap().contains("iogpu.wired_limit_mb=29696"), "{shorter:?}");
    let (shorter, taking) = warnings(linux(9.0), QWEN3_8B);
    assert!(shorter.unwrap().ends_with("or end other programs") && taking.is_none());
    assert_eq!(warnings(linux(32.0), QWEN3_8B), (None, None));
    assert_eq!(warnings(mac(M4_MAX), QWEN3_8B), (None, None));
}

#[test]
fn what_is_asked_for_is_had_or_refused() {
    let asked = |tokens| plan(mac(AIR), (QWEN3_8B.0, QWEN3_8B.1, QWEN3_8B.2, tokens), 64);
    // Also what is not taken by itself: 3.3 of 3.43 GiB.
    assert!((cache_of(&asked(24_000), None) - 3.43).abs() < 0.2);
    let error = asked(40_960).num_blocks(None).unwrap_err().to_string();
    assert!(error.contains("one sequence of `max_model_len` 40960") && error.contains("to at most 249"), "{error}");
    assert!(!error.contains("kv_cache_memory"), "a larger cache would not fit: {error}");
    let error = asked(20_000).num_blocks(Some(1 << 30)).unwrap_err().to_string();
    assert!(error.contains("to at most 7264, or raise `kv_cache_memory`"), "{error}");
    // A cache of the user's says how long sequences are, too.
    assert_eq!(open(mac(AIR), QWEN3_8B, Some(1 << 30)).info.max_model_len, 7168);
    let error = open(mac(AIR), QWEN3_8B, Some(6 << 30)).num_blocks(Some(6 << 30)).unwrap_err().to_string();
    assert!(
        error.contains("6.00 GiB does not fit beside weights and scratch; set it") || error.contains("at most 36"),
        "{error}"
    );
}

#[test]
fn a_model_beyond_the_machine_is_refused_with_what_helps() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/bench/qwen2-0.5b");
    let checkpoint = Checkpoint::describe(directory.as_ref()).unwrap();
    let types = ModelTypes::all(DType::BF16);
    let plan = |available: u64, max_model_len| {
        let options =
            LoadOptions { available_memory: Some(available), max_model_len, max_num_seqs: 4, ..LoadOptions::default() };
        MemoryPlan::new(checkpoint.config(), &Survey::default(), types, &options, &CpuBackend::new(Some(1)))
    };
    let whole = plan(1 << 40, None).unwrap();
    assert_eq!((whole.info.max_model_len, whole.shortened_from), (32_768, None));
    // 12 KiB a token: room for a third of it. Tables and scratch are smaller then, too.
    let some = plan(whole.scratch + (128 << 20), None).unwrap();
    assert!((8192..16_384).contains(&some.info.max_model_len) && some.scratch < whole.scratch, "{some:?}");
    assert!(some.num_blocks(None).is_ok());
    let error = plan(whole.scratch + (128 << 20), Some(32_768)).unwrap().num_blocks(None).unwrap_err().to_string();
    assert!(error.contains("32768"), "{error}");
    let error = plan(1 << 20, None).unwrap_err().to_string();
    assert!(error.contains("alone do not fit") && error.contains("use a smaller model"), "{error}");
}

#[test]
fn no_longer_sequences_than_are_of_use() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/bench/qwen2-0.5b");
    let checkpoint = Checkpoint::describe(directory.as_ref()).unwrap();
    let length = |max_model_len, longest_of_use| {
        let options = LoadOptions { max_model_len, longest_of_use, ..LoadOptions::default() };
        longest_sequence(checkpoint.config(), &options).map_err(|error| error.to_string())
    };
    assert_eq!(length(None, Some(512)), Ok(512));
    assert_eq!(length(None, Some(1 << 20)), Ok(32_768), "the model has no longer ones");
    assert_eq!(length(Some(1024), Some(512)), Ok(1024), "what is asked for comes first");
    assert!(length(Some(40_000), None).unwrap_err().contains("from 1 to 32768"));
}

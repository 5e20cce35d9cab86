//! What examining steps op by op finds: faults are planted, one at a time, and each must be found and named.

mod faulty;

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use faulty::{Fault, Faulty};
use vllm_apple_cpu::CpuBackend;
use vllm_apple_model::{Checkpoint, LoadOptions, LoadedModel, ModelExecutor};
use vllm_apple_ops::DType;

use crate::checked::Checked;
use crate::sections::layers::{Examined, Plan, examine};

/// Beside the others.
const ACT_ORDER: &str = "../quantised/models/gptq-act-order";

type Noted = Arc<Mutex<Vec<&'static str>>>;

fn examined(model: &str, fault: Fault) -> Examined {
    let (mut model, plan, _) = loaded(model, fault);
    examine(&mut model, &plan, &mut ()).unwrap()
}

/// The model, the steps to examine it by, and what its backend is asked to note.
fn loaded(model: &str, fault: Fault) -> (ModelExecutor<Checked<Faulty<CpuBackend>>>, Plan, Noted) {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models").join(model);
    let checkpoint = Checkpoint::open(&directory).unwrap();
    let longest = checkpoint.config().derived_max_model_len();
    let prompts: Vec<Vec<u32>> = (0..3).map(|p| (0..600).map(|i| (i * 37 + p * 11) % 89 + 3).collect()).collect();
    let mut options = LoadOptions {
        dtype: Some(DType::F32),
        kv_cache_dtype: Some(DType::BF16),
        available_memory: Some(1 << 30),
        ..LoadOptions::default()
    };
    let plan = Plan::new(&prompts, longest, options.block_size);
    plan.limit(&mut options);
    let (inner, noted) = (CpuBackend::new(Some(2)), Noted::default());
    let faulty = Faulty { inner, fault, calls: Cell::new(0), noted: Arc::clone(&noted) };
    let backend = Checked::new(faulty, None);
    let loaded = LoadedModel::load(backend, &checkpoint, &options).unwrap();
    let num_blocks = loaded.num_blocks().unwrap();
    (loaded.allocate(num_blocks).unwrap(), plan, noted)
}

#[test]
fn a_warm_up_reaches_the_device_and_its_ops_are_not_looked_at() {
    let (mut model, plan, noted) = loaded("qwen2", Fault::None);
    model.warm_up(&mut |_| {}).unwrap();
    assert_eq!(*noted.lock().unwrap(), ["note", "prepare", "test"]);
    assert!(model.backend_mut().take_log().is_empty());
    let examined = examine(&mut model, &plan, &mut ()).unwrap();
    assert!(examined.records.iter().all(|records| !records.is_empty()), "ops are looked at afterwards");
}

#[test]
fn nothing_is_wrong_with_what_is_right() {
    for model in ["qwen2", "mistral", "qwen3", "qwen2-moe", "mixtral", "gemma3", "llama", "gpt-oss", ACT_ORDER] {
        let Examined { beyond_tolerance, changing, dependent, .. } = examined(model, Fault::None);
        assert_eq!([beyond_tolerance, changing, dependent], [None, None, None], "{model}");
    }
}

#[test]
fn every_planted_fault_is_found_in_the_op_that_has_it() {
    use Fault::*;
    let (qwen2, mistral) = ("qwen2", "mistral");
    let faults = [
        (EmbeddingFactor, qwen2, "embedding"),
        (NextToken, qwen2, "embedding"),
        (NormEpsilon, qwen2, "rms_norm"),
        (ResidualLost, qwen2, "add_rms_norm"),
        (NormBeforeAddition, qwen2, "add_rms_norm"),
        (KeyNormSkipped, "qwen3", "qk_norm"),
        (BiasDropped, qwen2, "matmul"),
        (EndOfK, qwen2, "matmul"),
        (TileOfZeros, qwen2, "matmul"),
        (SumsInBf16, qwen2, "matmul"),
        (RowOfAnother, qwen2, "matmul"),
        (Race, qwen2, "matmul"),
        (RowsMatter, qwen2, "matmul"),
        (GateAndUpSwapped, qwen2, "gated_matmul"),
        (OtherActivation, qwen2, "gated_matmul"),
        (PositionOffByOne, qwen2, "rope_kv_write"),
        (NeighboursArePairs, qwen2, "rope_kv_write"),
        (SineNegated, qwen2, "rope_kv_write"),
        (RotationForgotten, qwen2, "rope_kv_write"),
        (SlotAtChunkBoundary, qwen2, "rope_kv_write"),
        (ValueHeadsSwapped, qwen2, "rope_kv_write"),
        (ValuesTruncated, qwen2, "rope_kv_write"),
        (MaskTooLong, qwen2, "paged_attention"),
        (MaskTooShort, qwen2, "paged_attention"),
        (ScaleMissing, qwen2, "paged_attention"),
        (WindowIgnored, mistral, "paged_attention"),
        (WindowTooLong, mistral, "paged_attention"),
        (BlocksInOtherOrder, qwen2, "paged_attention"),
        (HeadsSwapped, qwen2, "paged_attention"),
        (EarlyPartLost, qwen2, "paged_attention"),
        (SinksIgnored, "gpt-oss", "paged_attention"),
        (BoundsIgnored, "gpt-oss", "gated_activation"),
        (BiasOfExpertsDropped, "gpt-oss", "grouped_matmul"),
        (OtherRow, qwen2, "gather_rows"),
        (ColumnsSwapped, ACT_ORDER, "permute_columns"),
        (ExpertsSwapped, "qwen2-moe", "topk_softmax"),
        (WeightsNotRenormalised, "qwen2-moe", "topk_softmax"),
        (OtherExpert, "qwen2-moe", "grouped_matmul"),
        (LastExpertLost, "qwen2-moe", "moe_combine"),
        (GateOfSharedExpertIgnored, "qwen2-moe", "add_shared_expert"),
    ];
    let mut wrong = Vec::new();
    for (fault, model, op) in faults {
        let Examined { beyond_tolerance, changing, dependent, .. } = examined(model, fault);
        match beyond_tolerance.or(changing).or(dependent) {
            Some(culprit) if culprit.op == op => {}
            other => wrong.push(format!("{fault:?}: {op} expected, {other:?} found")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! Do the checks notice? Each row breaks one kernel in one place: a barrier, an index, a bound, a scale, an order. The conformance
//! cases of its op, run on the software device with its checker, must fail.

use std::sync::atomic::{AtomicUsize, Ordering};

use vllm_apple_metal::gpu::software::{Edit, SoftwareGpu};
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::conformance::{Selection, run_selected};

/// The op whose cases must fail, the file, the text that occurs once in it, what replaces it.
type Mutation = (&'static str, &'static str, &'static str, &'static str);

const MUTATIONS: &[Mutation] = &[
    // What several kernels share.
    (
        "rms_norm",
        "common.metal",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  return simd_sum",
        "  return simd_sum",
    ),
    ("add_rms_norm", "common.metal", "lane < simdgroups ? partial[lane] : 0.0f", "partial[lane]"),
    (
        "rms_norm",
        "common.metal",
        "if (lane == 0) partial[simdgroup] = value;",
        "if (lane == 1) partial[simdgroup] = value;",
    ),
    ("silu_mul", "common.metal", "if (i + 3 < size) row[i + 3] = T(v.w);", "row[i + 3] = T(v.w);"),
    ("rms_norm", "common.metal", "if (i + 2 < size) v.z = row[i + 2];", "if (i + 3 < size) v.z = row[i + 2];"),
    ("silu_mul", "common.metal", "uint(int(n) + 127) << 23", "uint(int(n) + 126) << 23"),
    ("add_shared_expert", "common.metal", "(x >= 0.0f ? 1.0f : e)", "(x >= 0.0f ? e : 1.0f)"),
    (
        "topk_softmax",
        "common.metal",
        "return (bits & 0x80000000u) != 0 ? max(~bits, 1u)",
        "return false ? max(~bits, 1u)",
    ),
    ("rope", "common.metal", "return fma(x, c, -(y * s));", "return fma(x, c, y * s);"),
    ("rope", "common.metal", "return fma(y, c, x * s);", "return fma(y, c, y * s);"),
    // rms_norm
    ("rms_norm", "rms_norm.metal", "sum / float(HIDDEN) + eps", "sum / float(HIDDEN)"),
    ("rms_norm", "rms_norm.metal", "x += ulong(row) * HIDDEN;", "x += ulong(row) * HIDDEN / 2;"),
    ("rms_norm", "rms_norm.metal", "THREADS / 32);", "1);"),
    ("rms_norm", "rms_norm.metal", "if (quad < quads) store_quad", "store_quad"),
    // add_rms_norm
    ("add_rms_norm", "add_rms_norm.metal", "      store_quad(residual, quad, HIDDEN, kept[c]);\n", ""),
    ("add_rms_norm", "add_rms_norm.metal", "+ load_quad(delta, quad, HIDDEN)", "- load_quad(delta, quad, HIDDEN)"),
    ("add_rms_norm", "add_rms_norm.metal", "  out += ulong(row) * HIDDEN;\n", ""),
    // qk_norm
    ("qk_norm", "qk_norm.metal", "head < NUM_HEADS ? q_weight : k_weight", "q_weight"),
    (
        "qk_norm",
        "qk_norm.metal",
        "if (head >= NUM_HEADS + NUM_KV_HEADS) return;",
        "if (head >= NUM_HEADS + 2 * NUM_KV_HEADS) return;",
    ),
    ("qk_norm", "qk_norm.metal", "uint quad = c * 32 + lane;\n    kept[c]", "uint quad = c * 31 + lane;\n    kept[c]"),
    (
        "qk_norm",
        "qk_norm.metal",
        "(squares.x + squares.y) + (squares.z + squares.w)",
        "(squares.x + squares.y) + (squares.z + squares.z)",
    ),
    // silu_mul
    ("silu_mul", "silu_mul.metal", "gates + INTERMEDIATE, quad", "gates, quad"),
    ("silu_mul", "silu_mul.metal", "if (quad >= (INTERMEDIATE + 3) / 4) return;", ""),
    ("silu_mul", "silu_mul.metal", "sigmoid(gate.z), sigmoid(gate.w)", "sigmoid(gate.w), sigmoid(gate.z)"),
    // topk_softmax
    ("topk_softmax", "topk_softmax.metal", "RENORMALIZE ? chosen : total", "chosen"),
    ("topk_softmax", "topk_softmax.metal", "last_id = simd_min(", "last_id = simd_max("),
    (
        "topk_softmax",
        "topk_softmax.metal",
        "kept[c] < last_key || (kept[c] == last_key && expert > last_id)",
        "kept[c] < last_key",
    ),
    ("topk_softmax", "topk_softmax.metal", "total = simd_sum(total);", ""),
    (
        "topk_softmax",
        "topk_softmax.metal",
        "for (uint c = KEPT; c < chunks; c++) {",
        "for (uint c = KEPT; c + 1 < chunks; c++) {",
    ),
    // moe_combine
    ("moe_combine", "moe_combine.metal", "for (uint j = 0; j < TOP_K; j++)", "for (uint j = 1; j < TOP_K; j++)"),
    ("moe_combine", "moe_combine.metal", "weights[first + j]", "weights[j]"),
    // add_shared_expert
    ("add_shared_expert", "add_shared_expert.metal", "sigmoid(gate[position.x])", "gate[position.x]"),
    ("add_shared_expert", "add_shared_expert.metal", "load_quad(out + row, quad, HIDDEN));", "float4(0.0f));"),
    // gather_rows
    (
        "gather_rows",
        "gather_rows.metal",
        "x[ulong(indices[position.x]) * WORDS + word]",
        "x[ulong(position.x) * WORDS + word]",
    ),
    ("gather_rows", "gather_rows.metal", "  if (word >= WORDS) return;\n", ""),
];

#[test]
fn every_mutation_is_caught() {
    assert!(MUTATIONS.len() >= 30);
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut missed = Vec::new();
        while let Some(mutation) = MUTATIONS.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !is_caught(mutation) {
                missed.push(mutation);
            }
        }
        missed
    };
    let missed: Vec<&Mutation> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no case may panic")).collect()
    });
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}

/// Whether a case fails: the first few of the op, and only if they pass, all of them.
fn is_caught(&(op, file, find, replace): &Mutation) -> bool {
    let edit = Edit { file, find, replace };
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    [2, usize::MAX].into_iter().any(|cases| {
        let gpu = SoftwareGpu::checked().unwrap().with_edit(edit);
        let mut backend = MetalBackend::new(gpu, options.clone()).unwrap();
        let verdicts = run_selected(&mut backend, Selection { op: Some(op), cases });
        assert!(!verdicts.is_empty(), "{op} has no cases");
        verdicts.iter().any(|verdict| !verdict.pass())
    })
}

//! Do the checks notice? Each row breaks one kernel in one place: a barrier, an index, a bound, a scale, an order. The conformance
//! cases of its op, run on the software device with its checker, must fail.

use std::sync::atomic::{AtomicUsize, Ordering};

use vllm_apple_metal::gpu::software::{Edit, SoftwareGpu};
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::conformance::{Selection, run_selected};

/// The op whose cases must fail, the text that occurs once in its kernels, what replaces it.
type Mutation = (&'static str, &'static str, &'static str);

const MUTATIONS: &[Mutation] = &[
    // What several kernels share.
    ("rms_norm", "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  return simd_sum", "  return simd_sum"),
    ("add_rms_norm", "lane < simdgroups ? partial[lane] : 0.0f", "partial[lane]"),
    ("rms_norm", "if (lane == 0) partial[simdgroup] = value;", "if (lane == 0) partial[lane] = value;"),
    ("silu_mul", "if (i + 3 < size) row[i + 3] = T(v.w);", "row[i + 3] = T(v.w);"),
    ("rms_norm", "if (i + 2 < size) v.z = row[i + 2];", "if (i + 3 < size) v.z = row[i + 2];"),
    ("silu_mul", "uint(int(n) + 127) << 23", "uint(int(n) + 126) << 23"),
    ("add_shared_expert", "(x >= 0.0f ? 1.0f : e)", "(x >= 0.0f ? e : 1.0f)"),
    ("topk_softmax", "return (bits & 0x80000000u) != 0 ? max(~bits, 1u)", "return false ? max(~bits, 1u)"),
    ("rope", "return fma(x, c, -(y * s));", "return fma(x, c, y * s);"),
    ("rope", "return fma(y, c, x * s);", "return fma(y, c, y * s);"),
    // rms_norm
    ("rms_norm", "sum / float(HIDDEN) + eps", "sum / float(HIDDEN)"),
    ("rms_norm", "x += ulong(row) * HIDDEN;", "x += ulong(row) * HIDDEN / 2;"),
    ("rms_norm", "THREADS / 32);", "1);"),
    ("rms_norm", "if (c * THREADS < quads && quad < quads) store_quad", "store_quad"),
    // add_rms_norm
    ("add_rms_norm", "      store_quad(residual, quad, HIDDEN, kept[c]);\n", ""),
    ("add_rms_norm", "+ load_quad(delta, quad, HIDDEN)", "- load_quad(delta, quad, HIDDEN)"),
    ("add_rms_norm", "  out += ulong(row) * HIDDEN;\n", ""),
    // qk_norm
    ("qk_norm", "head < NUM_HEADS ? q_weight : k_weight", "q_weight"),
    ("qk_norm", "if (head >= NUM_HEADS + NUM_KV_HEADS) return;", "if (head >= NUM_HEADS + 2 * NUM_KV_HEADS) return;"),
    ("qk_norm", "uint quad = c * 32 + lane;\n    kept[c]", "uint quad = c * 31 + lane;\n    kept[c]"),
    (
        "qk_norm",
        "(squares.x + squares.y) + (squares.z + squares.w)",
        "(squares.x + squares.y) + (squares.z + squares.z)",
    ),
    // silu_mul
    ("silu_mul", "gates + INTERMEDIATE, quad", "gates, quad"),
    ("silu_mul", "if (quad >= (INTERMEDIATE + 3) / 4) return;", ""),
    ("silu_mul", "sigmoid(gate.z), sigmoid(gate.w)", "sigmoid(gate.w), sigmoid(gate.z)"),
    // topk_softmax
    ("topk_softmax", "RENORMALIZE ? chosen : total", "chosen"),
    ("topk_softmax", "last_id = simd_min(", "last_id = simd_max("),
    ("topk_softmax", "kept[c] < last_key || (kept[c] == last_key && expert > last_id)", "kept[c] < last_key"),
    ("topk_softmax", "total = simd_sum(total);", ""),
    ("topk_softmax", "for (uint c = KEPT; c < chunks; c++) {", "for (uint c = KEPT; c + 1 < chunks; c++) {"),
    // moe_combine
    ("moe_combine", "for (uint j = 0; j < TOP_K; j++)", "for (uint j = 1; j < TOP_K; j++)"),
    ("moe_combine", "weights[first + j]", "weights[j]"),
    // add_shared_expert
    ("add_shared_expert", "sigmoid(gate[position.x])", "gate[position.x]"),
    ("add_shared_expert", "load_quad(out + row, quad, HIDDEN));", "float4(0.0f));"),
    // gather_rows
    ("gather_rows", "x[ulong(indices[position.x]) * WORDS + word]", "x[ulong(position.x) * WORDS + word]"),
    ("gather_rows", "  if (word >= WORDS) return;\n", ""),
    // copy_blocks
    ("copy_blocks", "values[to] = value;", "values[to] = key;"),
    ("copy_blocks", "ulong(pairs[2 * position.x]) * BLOCK_WORDS", "ulong(pairs[position.x]) * BLOCK_WORDS"),
    // rope
    ("rope", "uint quad = item % quads;\n  ulong angle", "uint quad = item / quads;\n  ulong angle"),
    // sample
    ("sample", "if (g.lane == 0) *result = token;", "if (g.lane == 0) *result = token + 1;"),
    ("sample", "logits[j] == own && id + j < token", "logits[j] == own && id + j <= token"),
    ("sample", "sum >= weight_goal ? i + 1", "sum >= weight_goal ? i + 2"),
    ("sample", "length = min(count_goal - above, inside)", "length = min(count_goal - above + 1, inside)"),
    ("sample", "k0 += 0x9E3779B9u;", "k0 += 0x9E3779B8u;"),
    ("sample", "      row[adjustment[0]] = as_type<float>(adjustment[2]);\n", ""),
    ("sample", "threadgroup_barrier(mem_flags::mem_device);\n    source.max", "source.max"),
    ("sample", "if (g.thread_index == 0) atomic_store_explicit(cursor, 0u, memory_order_relaxed);", ""),
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
fn is_caught(&(op, find, replace): &Mutation) -> bool {
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    [2, usize::MAX].into_iter().any(|cases| {
        let gpu = SoftwareGpu::checked().unwrap().with_edit(Edit { find, replace });
        let mut backend = MetalBackend::new(gpu, options.clone()).unwrap();
        let verdicts = run_selected(&mut backend, Selection { op: Some(op), cases });
        assert!(!verdicts.is_empty(), "{op} has no cases");
        verdicts.iter().any(|verdict| !verdict.pass())
    })
}

/// So that no row tests nothing.
#[test]
fn every_mutation_changes_a_kernel() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let files: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    for (op, find, replace) in MUTATIONS {
        assert!(files.iter().any(|text| text.contains(find)), "{op}: no kernel contains {find:?}");
        assert_ne!(find, replace);
    }
}

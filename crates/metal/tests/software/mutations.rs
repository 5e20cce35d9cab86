//! Do the checks notice? Each row breaks one kernel in one place: a barrier, an index, a bound, a scale, an order. The conformance
//! cases of its op, run on the software device with its checker, must fail.

use std::sync::atomic::{AtomicUsize, Ordering};

use vllm_apple_metal::gpu::software::{Edit, SoftwareGpu};
use vllm_apple_metal::{MetalBackend, MetalOptions};
use vllm_apple_ops::conformance::{Selection, run_selected};
use vllm_apple_ops::{DType, Kind};

use crate::conformance::{SMALLEST_PIECES, kinds};

/// The op whose cases must fail, the text that occurs once in its kernels, what replaces it.
type Mutation = (&'static str, &'static str, &'static str);

const MUTATIONS: &[Mutation] = &[
    // What several kernels share.
    ("rms_norm", "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  return simd_sum", "  return simd_sum"),
    ("add_rms_norm", "lane < simdgroups ? partial[lane] : 0.0f", "partial[lane]"),
    ("gated_activation", "if (i + 3 < size) row[i + 3] = T(v.w);", "row[i + 3] = T(v.w);"),
    ("add_shared_expert", "(x >= 0.0f ? 1.0f : e)", "(x >= 0.0f ? e : 1.0f)"),
    ("rope", "return fma(x, c, -(y * s));", "return fma(x, c, y * s);"),
    ("embedding", "uint4 bits = load16(from, k,", "uint4 bits = load16(from, k + 1,"),
    ("rms_norm", "sum / float(HIDDEN) + eps", "sum / float(HIDDEN)"),
    ("rms_norm", "if (c * THREADS < quads && quad < quads) store_quad", "store_quad"),
    ("add_rms_norm", "      store_quad(residual, quad, HIDDEN, kept[c]);\n", ""),
    ("qk_norm", "head < NUM_HEADS ? q_weight : k_weight", "q_weight"),
    ("qk_norm", "if (head >= NUM_HEADS + NUM_KV_HEADS) return;", "if (head >= NUM_HEADS + 2 * NUM_KV_HEADS) return;"),
    ("gated_activation", "gates + INTERMEDIATE, quad", "gates, quad"),
    ("gated_activation", "if (activation == GELU_TANH) y =", "y ="),
    ("gated_activation", "gate = gate > 7.0f ? 7.0f : gate;", ""),
    ("gated_activation", "up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up", "up > 7.0f ? 7.0f : up"),
    ("gated_activation", "y = 1.702f * gate;", "y = gate;"),
    ("gated_matmul", "r * (GATED != 0 ? N / 2 : 8)", "r * (GATED != 0 ? N / 2 - 1 : 8)"),
    ("gated_matmul", "if (n >= N / 2) continue;", ""),
    ("gated_matmul", "T(gated(gate, up, GATED));", "T(gated(gate, up, 1));"),
    ("gated_activation", "fma(gate * gate,", "fma(gate,"),
    ("embedding", "Quad<T>::of(bits, quad) * scale", "Quad<T>::of(bits, quad)"),
    ("topk_softmax", "RENORMALIZE ? chosen : total", "chosen"),
    ("topk_softmax", "last_id = simd_min(", "last_id = simd_max("),
    ("topk_softmax", "total = simd_sum(total);", ""),
    ("moe_combine", "for (uint j = 0; j < TOP_K; j++)", "for (uint j = 1; j < TOP_K; j++)"),
    ("add_shared_expert", "sigmoid(gate[position.x])", "gate[position.x]"),
    ("gather_rows", "x[ulong(indices[position.x]) * WORDS + word]", "x[ulong(position.x) * WORDS + word]"),
    ("gather_rows", "  if (word >= WORDS) return;\n", ""),
    ("permute_columns", "order[of_expert + column]", "column"),
    ("permute_columns", "ulong(ids[position.x * TOP_K + element / COLS])", "ulong(ids[position.x * TOP_K])"),
    ("permute_columns", "element % COLS", "element"),
    ("permute_columns", "  if (element >= TOP_K * COLS) return;\n", ""),
    ("rope", "* NUM_HEADS + head) * (2 * HALF)", "* NUM_HEADS + head) * HALF"),
    ("rope_kv_write", "if (item >= heads * quads) return;", ""),
    ("rope_kv_write", "ulong(positions[token])", "ulong(token)"),
    ("rope_kv_write", "uint offset = slot % BLOCK_SIZE;", "uint offset = 0;"),
    // The slices' sums are read before they are written; a slice is left out; the bias is.
    (
        "matmul",
        "to[1] = elements.y;\n  }\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
        "to[1] = elements.y;\n  }",
    ),
    ("matmul", "for (uint slice = 1; slice < slices; slice++)", "for (uint slice = 2; slice < slices; slice++)"),
    ("matmul", "if (HAS_BIAS) sum += bias[n];", ""),
    ("matmul", "min(params.rows - first, uint(TILE))", "uint(TILE)"),
    ("matmul", "min(params.rows - first, uint(8 * C))", "uint(8 * C)"),
    ("matmul", "uint first = tile.x * 8 * C;", "uint first = 0;"),
    ("matmul", "params.first_output + tile.y * TILE, thread_index", "tile.y * TILE, thread_index"),
    ("matmul", "params.first_output + tile.y * (GATED", "tile.y * (GATED"),
    ("matmul", "  if (n < PART2) return weights.part1 + ulong(n - PART1) * K;\n", ""),
    ("matmul", "  n = min(n, N - 1);\n", ""),
    ("matmul", "if (k % SLICE == 0) {", "if (k == 0) {"),
    ("matmul", "be used again.\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n", "be used again.\n"),
    ("matmul", "(k / STEP + 1) % 2 * STAGE", "k / STEP % 2 * STAGE"),
    ("matmul", "bool few = rows.count <= row_matrix * 8 + 16;", "bool few = true;"),
    ("matmul", "weights[i * 128 + STAGE_HALF] = w.zw;", "weights[i * 128 + STAGE_HALF] = w.xy;"),
    ("matmul", "ulong(rows.first + m) * rows.out_cols", "ulong(rows.first + m) * N"),
    ("grouped_matmul", "ulong(out_row(rows, m)) * rows.out_cols", "ulong(out_row(rows, m)) * N"),
    ("grouped_matmul", "out_row(rows, m) / PAIRS_PER_ROW : NO_ROW", "out_row(rows, m) : NO_ROW"),
    ("grouped_matmul", "if (mine != 0) order[at + before] = pair;", "if (mine != 0) order[at] = pair;"),
    ("grouped_matmul", "bias + ulong(tile.x) * N, out, rows, partial", "bias, out, rows, partial"),
    ("grouped_matmul", "bias + ulong(tile.x) * N, out, rows, staged", "bias, out, rows, staged"),
    ("paged_attention", "cache.blocks[position / BLOCK_SIZE]", "(position / BLOCK_SIZE)"),
    ("paged_attention", "all || positions[o].y - j < window", "true"),
    ("paged_attention", "params.first_tile + position.x", "position.x"),
    ("paged_attention", "get_elements(of_octet) * factors[o]", "get_elements(of_octet)"),
    ("paged_attention", "thread_index);\n      threadgroup_barrier(mem_flags::mem_threadgroup);\n", "thread_index);\n"),
    ("paged_attention", "if (SHARED) threadgroup_barrier(mem_flags::mem_threadgroup);", ""),
    ("paged_attention", "if (SHARED || split == first_split) {", "if (split == first_split) {"),
    ("paged_attention", "((o * GROUPS + group + g) * 4 + i) * 64", "((group + g) * 4 + i) * 64"),
    ("paged_attention", "OCTETS > 1 && tile.num_pairs > OCTET", "false"),
    ("paged_attention", "    // The memory is used again.\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n", ""),
    ("paged_attention", "total[o] = *from.state;", ""),
    ("paged_attention", "exp_nonpositive(part.x - largest)", "exp_nonpositive(total.x - largest)"),
    ("paged_attention", "if (SINKS) factor = take_sink(", "if (false) factor = take_sink("),
    ("paged_attention", "kv_head * GROUP + (tile.first_pair", "(tile.first_pair"),
    ("paged_attention", "if (SINKS) value = value * factor;", ""),
    ("paged_attention", "take_sink(total, sinks[item / quads])", "take_sink(total, sinks[0])"),
    ("paged_attention", "fma(total.y, factor, weight)", "total.y * factor"),
    ("paged_attention", "part[i] = parts[split + i];", "part[i] = parts[split];"),
    (
        "paged_attention",
        "uint split = first_split, end = last_split + 1;",
        "uint split = first_split, end = last_split;",
    ),
    ("sample", "if (g.lane == 0) *result = token;", "if (g.lane == 0) *result = token + 1;"),
    ("sample", "sum >= units_goal ? i + 1", "sum >= units_goal ? i + 2"),
    ("sample", "((part * (total & 0xffffffff) + 0xffffffff) >> 32)", "(part * (total & 0xffffffff) >> 32)"),
    ("sample", "if ((allowed >> j & 1) == 0)", "if ((allowed >> j & 1) > 1)"),
    ("sample", "if ((seen >> j & 1) != 0)", "if ((seen >> j & 1) == 0)"),
    ("sample", "uint token = scores ? p->score : best;", "uint token = best;"),
    ("sample", "high = simd_sum(uint(units >> 48));", "high = 0;"),
    ("sample", "k0 += 0x9E3779B9u;", "k0 += 0x9E3779B8u;"),
    ("sample", "threadgroup_barrier(mem_flags::mem_device);\n  }\n  if (p->num", "}\n  if (p->num"),
    // Log-probabilities leave the mask out: their sum, then ranks and the most likely tokens; and a scored token that it forbids.
    (
        "sample",
        "if (wants_logprobs) own_total = row_sum(own,",
        "Source all = own;\n  all.masked = false;\n  if (wants_logprobs) own_total = row_sum(all,",
    ),
    ("sample", "  uint rank = 0;\n", "  uint rank = 0;\n  own.masked = false;\n"),
    ("sample", "token % 32 & 1) == 0) logit = -INFINITY;", "token % 32 & 1) > 1) logit = -INFINITY;"),
];

/// Of weights of codes, which have most of the kernels' forms.
const CODES: &[Mutation] = &[
    // The layout, what codes mean, what is next in a piece, and how far loads may go.
    ("matmul", "tile_bytes(), known % 8};", "tile_bytes(), 0};"),
    ("matmul", "uint known = min(n, N - 1);", "uint known = n;"),
    (
        "grouped_matmul",
        "weights + ulong(expert) * ((N + 7) / 8) * tile_bytes()",
        "weights + ulong(expert) * (N / 8) * tile_bytes()",
    ),
    ("grouped_matmul", "bias + ulong(tile.x) * N, out, rows, partial", "bias, out, rows, partial"),
    ("grouped_matmul", "bias + ulong(tile.x) * N, out, rows, staged", "bias, out, rows, staged"),
    ("matmul", "8 * row_scales() + biases_bytes()", "8 * row_scales()"),
    ("matmul", "max(8 * row_biases(), 16u)", "8 * row_biases()"),
    ("matmul", "BIASES == 2 ? 1 : scale_bytes()", "scale_bytes()"),
    ("matmul", "at + half_chunk * 512 + lane * 16", "at + lane * 16"),
    ("matmul", "first += pair / max(GROUP / 8, 1u) * 4;", "first += pair * 4;"),
    ("matmul", "if (GROUP < 8) first *= 8 / GROUP;", ""),
    ("matmul", "uint first = half_chunk * (GROUP", "uint first = 0 * (GROUP"),
    ("matmul", "at + 8 * row_scales() + from.row * row_biases()", "at + from.row * row_biases()"),
    ("matmul", "-float(piece.biases.x & 255u) * scale", "-float(piece.biases.x) * scale"),
    ("matmul", "GROUP == 64 && done % 2 == 0", "GROUP == 64 && done % 2 != 0"),
    ("matmul", "scales.x >> 16 | scales.y << 16", "scales.x >> 16"),
    ("matmul", "return scales.yzwx;", "return scales;"),
    ("matmul", "return uint4(scales.x >> 8, 0u, 0u, 0u);", "return scales;"),
    ("matmul", "float(int(bits << 24) >> 24)", "float(bits & 255u)"),
    ("matmul", "max((bits & 255u) << 23, 1u << 22)", "max(bits << 23, 1u << 22)"),
    ("matmul", "uint4(found.scales.x >> 4, 0u, 0u, 0u)", "found.scales"),
    ("matmul", "return float(bits & 15u) * factor;", "return float(bits & 255u) * factor;"),
    ("matmul", "e4m3(bits & 255u) * factor", "e4m3(bits & 127u) * factor"),
    ("matmul", "BIASES != 0 || SCALE_TYPE == 6 ? 32 : 16", "BIASES != 0 ? 32 : 16"),
    ("matmul", "((device const float*)factors)[from.row]", "((device const float*)factors)[0]"),
    ("matmul", "((device const half*)factors)[8 + from.row]", "((device const half*)factors)[from.row]"),
    ("matmul", "(chunk / 2 + 1) * factors_bytes()", "(chunk + 1) * factors_bytes()"),
    ("matmul", "at - chunk % 2 * chunk_bytes() - factors_bytes()", "at - factors_bytes()"),
    ("matmul", "(chunks + 1) / 2 * factors_bytes()", "chunks / 2 * factors_bytes()"),
    ("matmul", "piece.low = piece.low.zwxy;", "piece.low = piece.low.yzwx;"),
    ("matmul", "piece.low = piece.low.yzwx;", ""),
    ("matmul", "uint4(piece.low.y, piece.low.x >> 8, 0u, 0u)", "uint4(piece.low.y, piece.low.x, 0u, 0u)"),
    ("matmul", "uint2(piece.high.y, piece.high.x >> 8)", "uint2(piece.high.y, piece.high.x)"),
    ("matmul", "piece.high.x >>= 4;", ""),
    ("matmul", "(piece.high.x >> t * 2 & 0x00030003u) << 4", "(piece.high.x >> t * 2 & 0x00010001u) << 4"),
    ("matmul", "(piece.high.x >> t & 0x00010001u) << 2", "0u"),
    ("matmul", "0x0f0e0d0cu", "0x0f0e0c0du"),
    ("matmul", "0xf0d8c4b4u", "0xf0d8c4b5u"),
    ("matmul", "(small ? 0.015625f : 0.0f)", "0.0f"),
    ("matmul", "| code >> 7 << 31", ""),
    ("matmul", "if (book_factor() != 1.0f) scale = scale * book_factor();", ""),
    ("matmul", "BOOK >= 6 ? 0.125f", "BOOK >= 6 ? 0.25f"),
    ("matmul", "if (BOOK == 4) return code << 1;", "if (BOOK == 4) return code;"),
    ("matmul", "0x3e393531u", "0x3c393531u"),
    ("matmul", "0x2b564433u", "0x2b554433u"),
    ("matmul", "0x09120a02u", "0x09110a02u"),
    ("matmul", "fma(value, scale, -zero * scale)", "fma(value, scale, -1024.0f * scale)"),
    ("matmul", "return BIASES != 0 ? fma(value, scale, bias) : value * scale;", "return value * scale;"),
    ("matmul", "to[j * STAGE_HALF + i * 16] = zipped[j];", "to[j * STAGE_HALF + i * 8] = zipped[j];"),
    ("matmul", "multiply_block<T, 4>(", "multiply_block<T, 2>("),
    ("matmul", "next_block(pieces[r], k % piece_size() / BLOCK);", "next_block(pieces[r], 0);"),
    (
        "gated_matmul",
        "uint code_first = first_output + r * (GATED != 0 ? N / 2",
        "uint code_first = first_output + r * (GATED != 0 ? N / 2 - 1",
    ),
    ("embedding", "if (k + 4 < K) store_quad(to, k / 4 + 1, K, high);", "store_quad(to, k / 4 + 1, K, high);"),
    ("embedding", "weight_pair(piece, t) * scale", "weight_pair(piece, t)"),
    (
        "embedding",
        "i / 4 * piece_size() + block * BLOCK + i % 4 * 8",
        "i / 4 * piece_size() + block * BLOCK + i % 4 * 4",
    ),
];

/// Minutes of compiling are left to the tests that are run by hand: here the first of each op.
#[test]
fn a_mutation_of_each_op_is_caught() {
    let mut of_each: Vec<Mutation> = MUTATIONS.to_vec();
    of_each.sort_by_key(|(op, ..)| *op);
    of_each.dedup_by_key(|(op, ..)| *op);
    assert!(of_each.len() >= 17, "{of_each:?}");
    check(&of_each, false);
}

#[test]
#[ignore = "takes minutes: cargo test -p vllm-apple-metal --test software -- --ignored"]
fn every_mutation_is_caught() {
    assert!(MUTATIONS.len() >= 77);
    check(MUTATIONS, false);
}

#[test]
#[ignore = "takes minutes: cargo test -p vllm-apple-metal --test software -- --ignored"]
fn every_mutation_of_codes_is_caught() {
    check(CODES, true);
}

fn check(mutations: &[Mutation], of_codes: bool) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut missed = Vec::new();
        while let Some(mutation) = mutations.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !is_caught(mutation, of_codes) {
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

/// Whether a case fails: of the short selection for one type, only if they pass, for all, only if they pass, of all cases, and only if they pass,
/// of all in pieces. Compiling takes most of the time.
fn is_caught(&(op, find, replace): &Mutation, of_codes: bool) -> bool {
    let few = [Kind { quantised: of_codes, ..Kind::new(op, DType::BF16) }, Kind::of_heads(op, DType::BF16, 64)];
    let all = kinds(op, of_codes);
    let selection = |kinds, short| Selection { op: Some(op), kinds: Some(kinds), short, until_failure: true };
    let passes = [
        (Some("_bf16"), selection(&few[..], true), false),
        (None, selection(&all, true), false),
        (None, selection(&all, false), false),
        (None, selection(&all, false), true),
    ];
    let options = MetalOptions { strict: true, ..MetalOptions::default() };
    passes.into_iter().any(|(only, selection, in_pieces)| {
        let gpu = SoftwareGpu::checked().unwrap().with_edit(Edit { find, replace, only });
        let mut backend = MetalBackend::new(gpu, options.clone()).unwrap();
        if in_pieces {
            backend.set_limits(SMALLEST_PIECES);
        }
        let verdicts = run_selected(&mut backend, selection);
        assert!(only.is_some() || !verdicts.is_empty(), "{op:?} has no cases");
        let failures = || verdicts.iter().filter_map(|verdict| verdict.failure.as_ref());
        let is_foul = |text: &&String| text.contains("does not compile") || text.contains("no kernel");
        assert!(!failures().any(|text| is_foul(&text)), "{replace:?}: {:?}", failures().find(is_foul));
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
    for (op, find, replace) in MUTATIONS.iter().chain(CODES) {
        assert!(files.iter().any(|text| text.contains(find)), "{op}: no kernel contains {find:?}");
        assert_ne!(find, replace);
    }
}

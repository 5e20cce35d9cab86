//! A request's logits are bitwise the same however it is run: order and company in a batch, chunks, cached prefix,
//! preemption, blocks, threads, prefill or decode. Random workloads against each sequence run alone, whole, on one thread.

use crate::common::{Sequence, load_on, metal, metal_in_pieces, models, options, step};
use proptest::prelude::*;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_executor::Executor;
use vllm_apple_model::{LoadOptions, ModelExecutor, Quantization};
use vllm_apple_ops::{Activations, Backend, DType};

/// Longest sequence of a workload: more than a window and several blocks.
const MAX_LEN: usize = 72;

#[derive(Debug, Clone)]
struct Workload {
    model: String,
    dtype: DType,
    kv_cache_dtype: DType,
    quantization: Option<(Quantization, Activations)>,
    threads: usize,
    /// Tokens of each sequence.
    sequences: Vec<Vec<u32>>,
    /// How many first tokens each sequence has from the first one.
    shared: Vec<usize>,
    /// The pool's blocks in the order in which they are given out.
    blocks: Vec<u32>,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
struct Step {
    /// Sequences in the batch, in this order, and their most tokens.
    chunks: Vec<(usize, usize)>,
    /// A sequence that loses its blocks first.
    preempt: Option<usize>,
}

fn workload() -> impl Strategy<Value = Workload> {
    let models = prop::sample::select(models());
    let dtypes = [(); 2].map(|()| prop::sample::select(DType::FLOATS.to_vec()));
    let ways = [Quantization::Int8, Quantization::Int4]
        .map(|to| [Activations::Exact, Activations::Int8].map(|x| Some((to, x))));
    let quantizations = prop::sample::select([&[None], ways.as_flattened()].concat());
    let sequence = prop::collection::vec(0u32..440, 1..=MAX_LEN);
    let sequences = prop::collection::vec((sequence, 0..=MAX_LEN), 1..=5);
    let blocks = Just((0..256u32).collect::<Vec<_>>()).prop_shuffle();
    (models, dtypes, quantizations, 1usize..=4, sequences, blocks).prop_flat_map(
        |(model, [dtype, kv_cache_dtype], quantization, threads, drawn, blocks)| {
            let first = drawn[0].0.clone();
            let (mut sequences, mut shared) = (Vec::new(), Vec::new());
            for (mut tokens, prefix) in drawn {
                let prefix = prefix.min(first.len()).min(tokens.len());
                tokens[..prefix].copy_from_slice(&first[..prefix]);
                sequences.push(tokens);
                shared.push(prefix);
            }
            let order = Just((0..sequences.len()).collect::<Vec<_>>()).prop_shuffle();
            let len = prop_oneof![Just(1usize), 2usize..9, 9usize..=MAX_LEN];
            let chunks = (order, prop::collection::vec(len, sequences.len()), 1..=sequences.len());
            let chunks = chunks.prop_map(|(order, lens, take)| order.into_iter().zip(lens).take(take).collect());
            let preempt = prop::option::weighted(0.15, 0..sequences.len());
            let steps =
                prop::collection::vec((chunks, preempt).prop_map(|(chunks, preempt)| Step { chunks, preempt }), 1..24);
            steps.prop_map(move |steps| Workload {
                model: model.clone(),
                dtype,
                kv_cache_dtype,
                quantization,
                threads,
                sequences: sequences.clone(),
                shared: shared.clone(),
                blocks: blocks.clone(),
                steps,
            })
        },
    )
}

/// A backend of so many threads.
type Make<B> = fn(usize) -> B;

fn model<B: Backend>(w: &Workload, make: Make<B>, threads: usize) -> ModelExecutor<B> {
    let backend = make(threads);
    let activations = w.quantization.map_or(Activations::Exact, |(_, activations)| activations);
    let options = LoadOptions {
        max_num_seqs: 32,
        kv_cache_dtype: Some(w.kv_cache_dtype),
        quantization: w.quantization.map(|(quantization, _)| quantization.into()),
        // Only CPUs round them.
        activation_dtype: if backend.device().backend == "cpu" { activations } else { Activations::Exact },
        ..options(w.dtype, 128)
    };
    load_on(backend, &w.model, &options)
}

/// All logits of each sequence, run alone in one step.
fn alone<B: Backend>(w: &Workload, make: Make<B>) -> Vec<Vec<Vec<f32>>> {
    let run = |tokens: &Vec<u32>| {
        let mut model = model(w, make, 1);
        let mut sequences = [Sequence { tokens: tokens.clone(), computed: 0, blocks: (0..8).collect() }];
        step(&mut model, &mut sequences, &[(0, tokens.len())]).remove(0)
    };
    w.sequences.iter().map(run).collect()
}

/// The sequences as the workload schedules them.
struct Schedule<'a> {
    workload: &'a Workload,
    block_size: usize,
    sequences: Vec<Sequence>,
    free: Vec<u32>,
}

impl Schedule<'_> {
    /// Takes blocks for the next `len` tokens; a sequence that begins takes the first one's computed full blocks of its prefix.
    fn reserve(&mut self, i: usize, len: usize) {
        if self.sequences[i].computed == 0 && i > 0 {
            let usable =
                self.workload.shared[i].min(self.sequences[0].computed).min(self.sequences[i].tokens.len() - 1);
            let cached = usable / self.block_size;
            self.sequences[i].blocks = self.sequences[0].blocks[..cached].to_vec();
            self.sequences[i].computed = cached * self.block_size;
        }
        let needed = (self.sequences[i].computed + len).div_ceil(self.block_size);
        while self.sequences[i].blocks.len() < needed {
            let block = self.free.pop().expect("the pool is larger than any workload");
            self.sequences[i].blocks.push(block);
        }
    }

    /// Its blocks may be shared, so nobody else gets them: the pool is larger than any workload.
    fn preempt(&mut self, i: usize) {
        self.sequences[i].computed = 0;
        self.sequences[i].blocks.clear();
    }
}

/// Fails unless every logit has the bits that it has alone.
fn check<B: Backend>(w: &Workload, make: Make<B>) -> Result<(), TestCaseError> {
    let expected = alone(w, make);
    let mut model = model(w, make, w.threads);
    prop_assert!(model.info().num_blocks >= w.blocks.len());
    let sequence = |tokens: &Vec<u32>| Sequence { tokens: tokens.clone(), ..Sequence::default() };
    let mut s = Schedule {
        workload: w,
        block_size: model.info().block_size,
        sequences: w.sequences.iter().map(sequence).collect(),
        free: w.blocks.clone(),
    };
    // At the end, everything that is left.
    let rest = Step { chunks: (0..w.sequences.len()).map(|i| (i, MAX_LEN)).collect(), preempt: None };
    for planned in w.steps.iter().chain([&rest, &rest, &rest]) {
        if let Some(i) = planned.preempt {
            s.preempt(i);
        }
        let mut chunks = Vec::new();
        let mut budget = model.info().max_num_batched_tokens;
        for &(i, len) in &planned.chunks {
            s.reserve(i, 0);
            let len = len.min(s.sequences[i].tokens.len() - s.sequences[i].computed).min(budget);
            if len > 0 {
                s.reserve(i, len);
                budget -= len;
                chunks.push((i, len));
            }
        }
        let from: Vec<usize> = chunks.iter().map(|&(i, _)| s.sequences[i].computed).collect();
        let got = step(&mut model, &mut s.sequences, &chunks);
        for ((&(i, _), from), rows) in chunks.iter().zip(from).zip(got) {
            for (position, row) in (from..).zip(rows) {
                let same = row.iter().zip(&expected[i][position]).all(|(a, b)| a.to_bits() == b.to_bits());
                prop_assert!(same, "sequence {} differs at position {}", i, position);
            }
        }
    }
    prop_assert!(s.sequences.iter().all(|q| q.computed == q.tokens.len()));
    Ok(())
}

/// The test of a backend: so many random workloads.
macro_rules! invariance_on {
    ($name:ident, $cases:literal, $make:expr) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: $cases, ..ProptestConfig::default() })]

            #[test]
            fn $name(w in workload()) {
                check(&w, $make)?;
            }
        }
    };
}

invariance_on!(logits_do_not_depend_on_the_schedule_on_the_cpu, 128, |threads| CpuBackend::new(Some(threads)));
// Kernels take their time here; each run draws other workloads.
invariance_on!(logits_do_not_depend_on_the_schedule_on_software_metal, 12, |_threads| metal());
// One thread is what the others are compared with.
invariance_on!(logits_do_not_depend_on_how_ops_are_divided, 6, |threads| match threads {
    1 => metal(),
    _ => metal_in_pieces(),
});

//! Prints what a step costs on the host: scheduling, batching and taking in, without any computing. It knows no model.
//!
//! `cargo run --release -p vllm-apple-engine --example step_overhead`

use std::time::Instant;

use vllm_apple_engine::{Engine, EngineConfig, EngineRequest};
use vllm_apple_executor::{
    Batch, Executor, ExecutorError, ExecutorInfo, RowResult, Sample, SamplingParams, SamplingRow,
};

const PROMPT_LEN: u32 = 500;
const NUM_STEPS: usize = 2000;

/// Answers every row with the same token.
struct NullExecutor(ExecutorInfo);

impl Executor for NullExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.0
    }

    fn forward(&mut self, _batch: &Batch) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn sample(&mut self, rows: &[SamplingRow<'_>], out: &mut Vec<RowResult>) -> Result<(), ExecutorError> {
        out.clear();
        out.extend(rows.iter().map(|_| Ok(Sample { token_id: 7, logprobs: None })));
        Ok(())
    }
}

fn main() {
    println!("decode steps of requests of {PROMPT_LEN} to {} tokens, blocks of 16", PROMPT_LEN as usize + NUM_STEPS);
    println!("{:>8} {:>12} {:>12} {:>12}", "requests", "mean µs", "median µs", "99% µs");
    for num_requests in [1, 16, 64, 256] {
        let mut times = decode_times(num_requests);
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let (median, high) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        println!("{num_requests:>8} {mean:>12.1} {median:>12.1} {high:>12.1}");
    }
}

/// Microseconds of each step while `num_requests` decode. Blocks fill and are hashed on the way.
fn decode_times(num_requests: u32) -> Vec<f64> {
    let info = ExecutorInfo {
        vocab_size: 100_000,
        max_model_len: 4096,
        max_num_batched_tokens: 8192,
        costly_context: None,
        embedding_size: None,
        max_num_seqs: 256,
        max_logit_rows: 256,
        block_size: 16,
        num_blocks: 256 * 256,
    };
    let mut engine = Engine::new(NullExecutor(info), EngineConfig::default()).expect("the limits are consistent");
    for i in 0..num_requests {
        // Lengths differ, so that the requests do not all fill a block in the same step.
        let prompt = (0..PROMPT_LEN + i % 16).map(|t| t + i * 100).collect::<Vec<u32>>();
        let request = EngineRequest::new(prompt, SamplingParams::default());
        engine.submit(request).expect("the request fits");
    }
    let mut outputs = Vec::with_capacity(num_requests as usize);
    while engine.stats().last_step_tokens != num_requests as usize {
        engine.step(&mut outputs).expect("the null executor does not fail");
    }
    let time = |_| {
        let start = Instant::now();
        engine.step(&mut outputs).expect("the null executor does not fail");
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..NUM_STEPS).map(time).collect()
}

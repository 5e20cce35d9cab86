//! What a device prepares at first use, such as its kernels and its view of the weights, is there before the first request: kernels are
//! compiled for steps of many sizes, the weights' files are read, what computes is tested, and some steps run. It knows no device.

use crate::load::error::LoadError;
use crate::run::model_executor::{Failure, ModelExecutor};
use vllm_apple_executor::Batch;
use vllm_apple_executor::{Executor, ExecutorError, RowTask, SamplingRow};
use vllm_apple_ops::{Backend, MappedFile};

/// How far the preparation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmUp {
    /// What is going on.
    pub phase: Phase,
    /// Layers, bytes, kernels or steps that are done, and all of them.
    pub done: u64,
    /// See `done`.
    pub total: u64,
}

/// A part of the preparation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Weights are quantised: layers and tables.
    Quantise,
    /// Weights are laid out for the device as their files hold them: layers and tables.
    LayOut,
    /// Weights that the device uses in place are read from their files: bytes.
    Read,
    /// Kernels are compiled for steps of all sizes.
    Compile,
    /// Steps are run.
    Run,
}

/// A step of the preparation: each of so many requests has so many computed and new tokens.
#[derive(Debug, Clone, Copy)]
struct Step {
    requests: usize,
    computed: usize,
    tokens: usize,
}

impl<B: Backend> ModelExecutor<B> {
    /// Lets the backend prepare for steps of every kind, if it is one that records them: prompts and decodes of few and of many
    /// tokens, with short and with long sequences. To be called once, after loading.
    ///
    /// # Errors
    /// What an op or the device says.
    pub fn warm_up(&mut self, on_progress: &mut dyn FnMut(WarmUp)) -> Result<(), LoadError> {
        if !self.backend.can_note() {
            return Ok(());
        }
        let mut batch = Batch::with_room_for(&self.plan.info);
        let steps = self.all_steps();
        self.backend.note();
        for step in &steps {
            self.fill(&mut batch, step);
            self.decoder.forward(&mut self.backend, &batch)?;
        }
        self.note_sampling()?;
        self.backend.prepare_noted(&mut |done, total| {
            on_progress(WarmUp { phase: Phase::Compile, done: done as u64, total: total as u64 });
        })?;
        // The first commands may want all of it.
        self.read_weights(on_progress);
        self.backend.test_noted()?;
        if !self.backend.gains_from_warm_up() {
            return Ok(());
        }
        let steps = self.steps_to_run(&steps);
        for (i, step) in steps.iter().enumerate() {
            self.fill(&mut batch, step);
            self.forward(&batch).map_err(|error| self.failed(&error))?;
            on_progress(WarmUp { phase: Phase::Run, done: i as u64 + 1, total: steps.len() as u64 });
        }
        if self.sampler.is_none() {
            return Ok(());
        }
        let row = SamplingRow { logit_row: 0, task: RowTask::Score { token_id: 0 }, num_logprobs: None };
        self.sample(&[row], &mut Vec::with_capacity(1)).map_err(|error| self.failed(&error))
    }

    /// What a step that fails means for the start.
    fn failed(&self, error: &ExecutorError) -> LoadError {
        let of_device = matches!(self.failure, Some(Failure::Ended | Failure::OfDevice));
        LoadError::WarmUp { reason: error.to_string(), of_device }
    }

    /// Prompts and decodes of few and of many tokens, with short and with long sequences.
    fn all_steps(&self) -> Vec<Step> {
        let info = &self.plan.info;
        let longest = info.max_model_len;
        let prompts = sizes(info.max_num_batched_tokens.min(longest))
            .flat_map(|tokens| [0, longest - tokens].map(|computed| Step { requests: 1, computed, tokens }));
        let decodes = sizes(info.max_num_seqs)
            .flat_map(|requests| [0, longest - 1].map(|computed| Step { requests, computed, tokens: 1 }));
        prompts.chain(decodes).collect()
    }

    /// Those that are also run: of one request, and none that takes longer than a step should; on a device of unknown speed only a few
    /// small ones.
    fn steps_to_run(&self, steps: &[Step]) -> Vec<Step> {
        const SMALL: usize = 64;
        let tokens = self.plan.info.max_num_batched_tokens as u64;
        let largest = self.plan.step_millis.map_or(0, |millis| tokens * STEP_MILLIS / millis.max(1)).max(SMALL as u64);
        let mut run: Vec<Step> =
            steps.iter().filter(|step| step.requests == 1 && step.tokens as u64 <= largest).copied().collect();
        // A prompt's long sequence is a decode's, too.
        run.retain(|step| step.computed == 0 || step.tokens == 1);
        run
    }

    /// Reads the files that the device uses in place: it would wait for each page in the first step.
    fn read_weights(&self, on_progress: &mut dyn FnMut(WarmUp)) {
        let total = self.weights_files.iter().map(|file| file.bytes().len() as u64).sum();
        let mut done = 0;
        for file in &self.weights_files {
            for bytes in file.bytes().chunks(READ) {
                std::hint::black_box(bytes.iter().step_by(SMALLEST_PAGE).fold(0, |all, byte| all ^ byte));
                done += bytes.len() as u64;
                on_progress(WarmUp { phase: Phase::Read, done, total });
            }
        }
    }

    /// Makes the batch that step's, all requests in the same blocks.
    fn fill(&self, batch: &mut Batch, &Step { requests, computed, tokens }: &Step) {
        let info = &self.plan.info;
        let blocks: Vec<u32> = (0..(computed + tokens).div_ceil(info.block_size) as u32).collect();
        batch.clear(blocks.len());
        let rows = tokens.min(info.max_logit_rows / requests);
        for _ in 0..requests {
            batch.push_request(&vec![0; tokens], computed, &blocks, info.block_size, rows);
        }
    }

    /// Notes what the picking of a token needs, of a model that has an output head.
    fn note_sampling(&mut self) -> Result<(), LoadError> {
        let (Some(sampler), Some(logits)) = (&mut self.sampler, &mut self.decoder.scratch.logits) else {
            return Ok(());
        };
        let task = RowTask::Score { token_id: 0 };
        let row = SamplingRow { logit_row: 0, task, num_logprobs: None };
        sampler.prepare(&self.backend, &[row], 1).expect("there is a row and a token");
        Ok(sampler.record(&mut self.backend, logits)?)
    }
}

/// Longest that a step of the preparation takes, by estimate.
const STEP_MILLIS: u64 = 500;
/// Bytes of a file between two reports.
const READ: usize = 64 << 20;
/// Of any machine's pages.
const SMALLEST_PAGE: usize = 4096;

/// Powers of two up to `largest`, and `largest`.
fn sizes(largest: usize) -> impl Iterator<Item = usize> {
    let powers = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(move |&n| n < largest);
    powers.chain([largest])
}

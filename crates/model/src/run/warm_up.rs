//! Steps of many sizes, recorded and not run, so that what a device prepares at first use, such as its kernels, is there before the
//! first request. It knows no device.

use crate::load::error::LoadError;
use crate::run::model_executor::ModelExecutor;
use vllm_apple_executor::Batch;
use vllm_apple_executor::{RowTask, SamplingRow};
use vllm_apple_ops::Backend;

impl<B: Backend> ModelExecutor<B> {
    /// Lets the backend prepare for steps of every kind, if it is one that records them: prompts and decodes of few and of many
    /// tokens, with short and with long sequences. To be called once, after loading.
    ///
    /// # Errors
    /// What an op says.
    pub fn warm_up(&mut self) -> Result<(), LoadError> {
        if !self.backend.prepares_by_recording() {
            return Ok(());
        }
        let info = self.plan.info.clone();
        let longest = info.max_model_len;
        let mut batch = Batch::with_room_for(&info);
        for tokens in sizes(info.max_num_batched_tokens.min(longest)) {
            for computed in [0, longest - tokens] {
                self.record_and_forget(&mut batch, 1, computed, tokens)?;
                // The first step may have shown that the device refuses an op: what the host computes needs no preparation.
                if !self.backend.prepares_by_recording() {
                    return Ok(());
                }
            }
        }
        for requests in sizes(info.max_num_seqs) {
            for computed in [0, longest - 1] {
                self.record_and_forget(&mut batch, requests, computed, 1)?;
            }
        }
        self.record_sampling_and_forget()
    }

    /// Records a step of so many requests, each of so many computed and new tokens, all in the same blocks: it is never run.
    fn record_and_forget(
        &mut self,
        batch: &mut Batch,
        requests: usize,
        computed: usize,
        tokens: usize,
    ) -> Result<(), LoadError> {
        let info = &self.plan.info;
        let blocks: Vec<u32> = (0..(computed + tokens).div_ceil(info.block_size) as u32).collect();
        batch.clear(blocks.len());
        let rows = tokens.min(info.max_logit_rows / requests);
        for _ in 0..requests {
            batch.push_request(&vec![0; tokens], computed, &blocks, info.block_size, rows);
        }
        let result = self.decoder.forward(&mut self.backend, batch);
        self.backend.discard();
        Ok(result?)
    }

    /// Records the picking of a token.
    fn record_sampling_and_forget(&mut self) -> Result<(), LoadError> {
        let task = RowTask::Score { token_id: 0 };
        let row = SamplingRow { logit_row: 0, task, num_logprobs: None };
        self.sampler.prepare(&self.backend, &[row], 1).expect("there is a row and a token");
        let result = self.sampler.record(&mut self.backend, &mut self.decoder.scratch.logits);
        self.backend.discard();
        Ok(result?)
    }
}

/// Powers of two up to `largest`, and `largest`.
fn sizes(largest: usize) -> impl Iterator<Item = usize> {
    let powers = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(move |&n| n < largest);
    powers.chain([largest])
}

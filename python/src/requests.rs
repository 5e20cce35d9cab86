//! All requests that vLLM has told of, by its ids, kept up to date by what its scheduler says before a step.

use std::collections::{HashMap, HashSet};

use pyo3::prelude::*;

use crate::load::EngineError;
use crate::params::Params;
use crate::request::Request;

/// A request that is scheduled for the first time.
#[derive(FromPyObject)]
pub struct NewRequest(String, Vec<u32>, usize, Vec<u32>, Params);

/// What changed of requests that are known: lists of one entry per request.
#[derive(FromPyObject)]
pub struct Changes {
    req_ids: Vec<String>,
    num_computed_tokens: Vec<usize>,
    num_output_tokens: Vec<usize>,
    /// One list of blocks per group of layers, and there is one group.
    new_block_ids: Vec<Option<Vec<Vec<u32>>>>,
    /// Their blocks replace those before.
    resumed_req_ids: HashSet<String>,
    all_token_ids: HashMap<String, Vec<u32>>,
}

#[derive(Default)]
pub struct Requests {
    by_id: HashMap<String, Request>,
}

impl Requests {
    pub fn get(&self, id: &str) -> Result<&Request, EngineError> {
        self.by_id.get(id).ok_or_else(|| unknown(id))
    }

    pub fn get_mut(&mut self, id: &str) -> Result<&mut Request, EngineError> {
        self.by_id.get_mut(id).ok_or_else(|| unknown(id))
    }

    pub fn remove(&mut self, ids: &[String]) {
        for id in ids {
            self.by_id.remove(id);
        }
    }

    pub fn add(&mut self, new: NewRequest, vocab_size: usize) {
        let NewRequest(id, mut prompt, num_computed, blocks, params) = new;
        let outside = |token: &u32| *token as usize >= vocab_size;
        let bad_prompt = prompt.iter().any(outside);
        if bad_prompt {
            // It should have been refused before. Nobody else may notice, so it is computed with other tokens and then ended.
            tracing::error!("request {id} ends: its prompt has tokens outside the vocabulary of {vocab_size}");
            prompt.iter_mut().filter(|token| outside(token)).for_each(|token| *token = 0);
        }
        let mut request = Request::new(prompt, num_computed, blocks, &params, vocab_size);
        request.failed = bad_prompt;
        self.by_id.insert(id, request);
    }

    /// The KV cache is gone. vLLM computes anew what it interrupts, but 0.12 interrupts nothing.
    pub fn lose_blocks(&mut self) {
        self.by_id.values_mut().for_each(|request| request.lost = true);
    }

    pub fn change(&mut self, changes: Changes) -> Result<(), EngineError> {
        let Changes { req_ids, num_computed_tokens, num_output_tokens, new_block_ids, .. } = changes;
        let (resumed, mut all_tokens) = (changes.resumed_req_ids, changes.all_token_ids);
        let lists = num_computed_tokens.into_iter().zip(num_output_tokens).zip(new_block_ids);
        for (id, ((num_computed, num_output), blocks)) in req_ids.iter().zip(lists) {
            let request = self.get_mut(id)?;
            request.num_computed = num_computed;
            if resumed.contains(id) {
                request.lost = false;
                request.blocks.clear();
                if let Some(tokens) = all_tokens.remove(id) {
                    request.tokens = tokens;
                }
            }
            request.blocks.extend(blocks.into_iter().flatten().flatten());
            // What vLLM has dropped of a step's outcome is sampled again.
            request.tokens.truncate(request.prompt_len + num_output);
        }
        Ok(())
    }
}

fn unknown(id: &str) -> EngineError {
    EngineError::Use(format!("request {id} is scheduled, but was never begun"))
}

//! A form that holds after the model's reasoning, as in vLLM: what it thinks is free.

use std::sync::Arc;

use vllm_apple_engine::{Grammar, Matcher};

/// A form, and the tokens around what comes before it.
#[derive(Debug)]
pub struct Reasoned {
    /// The form.
    pub grammar: Arc<dyn Grammar>,
    /// The token that begins reasoning, unless the prompt has.
    pub start: Option<u32>,
    /// The token that ends it.
    pub end: u32,
    /// Tokens that would end the answer before it has begun.
    pub eos_token_ids: Arc<[u32]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing has come: reasoning may begin, or the form.
    Begin,
    Reasoning,
    Answer,
}

struct Answer {
    state: State,
    start: Option<u32>,
    end: u32,
    eos_token_ids: Arc<[u32]>,
    inner: Box<dyn Matcher>,
}

impl Grammar for Reasoned {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(Answer {
            state: if self.start.is_some() { State::Begin } else { State::Reasoning },
            start: self.start,
            end: self.end,
            eos_token_ids: Arc::clone(&self.eos_token_ids),
            inner: self.grammar.start(),
        })
    }
}

impl Matcher for Answer {
    fn accept(&mut self, token: u32) -> Result<(), String> {
        match self.state {
            State::Begin if self.start == Some(token) => self.state = State::Reasoning,
            State::Reasoning if token == self.end => self.state = State::Answer,
            State::Reasoning => {}
            State::Begin | State::Answer => {
                self.state = State::Answer;
                self.inner.accept(token)?;
            }
        }
        Ok(())
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        if self.state == State::Reasoning {
            mask.fill(u32::MAX);
            for &token in &*self.eos_token_ids {
                if let Some(word) = mask.get_mut(token as usize / 32) {
                    *word &= !(1 << (token % 32));
                }
            }
            return Ok(());
        }
        self.inner.allowed(mask)?;
        if let (State::Begin, Some(start)) = (self.state, self.start)
            && let Some(word) = mask.get_mut(start as usize / 32)
        {
            *word |= 1 << (start % 32);
        }
        Ok(())
    }
}

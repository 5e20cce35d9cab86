//! A form that holds after the model's reasoning, as in vLLM: what it thinks is free.

use std::sync::Arc;

use vllm_apple_engine::{Grammar, GrammarError, Matcher};

use super::mask;

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
    fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
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

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        if self.state == State::Reasoning {
            mask.fill(u32::MAX);
            self.eos_token_ids.iter().for_each(|&token| mask::clear(mask, token));
            return Ok(());
        }
        self.inner.allowed(mask)?;
        if let (State::Begin, Some(start)) = (self.state, self.start) {
            mask::set(mask, start);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u32 = 1;
    const END: u32 = 2;
    const EOS: u32 = 3;

    /// Token 7, and then the end.
    #[derive(Debug)]
    struct Seven;

    struct SevenAnswer(bool);

    impl Grammar for Seven {
        fn start(&self) -> Box<dyn Matcher> {
            Box::new(SevenAnswer(false))
        }
    }

    impl Matcher for SevenAnswer {
        fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
            self.0 = true;
            if token == 7 { Ok(()) } else { Err(GrammarError::Internal(format!("{token} is not 7"))) }
        }

        fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
            mask[0] |= 1 << if self.0 { EOS } else { 7 };
            Ok(())
        }
    }

    /// The masks before each of the tokens, and after the last.
    fn masks(start: Option<u32>, tokens: &[u32]) -> Vec<u32> {
        let grammar = Reasoned { grammar: Arc::new(Seven), start, end: END, eos_token_ids: [EOS, 400].into() };
        super::super::either::tests::masks(&grammar, tokens)
    }

    #[test]
    fn reasoning_is_free_and_the_answer_is_not() {
        let free = !(1 << EOS);
        let (seven, end) = (1 << 7, 1 << EOS);
        assert_eq!(masks(None, &[5, 7, START, END, 7]), [free, free, free, free, seven, end]);
        assert_eq!(masks(Some(START), &[START, 9, END, 7]), [seven | 1 << START, free, free, seven, end]);
        // A model that does not reason is held to the form from the beginning.
        assert_eq!(masks(Some(START), &[7]), [seven | 1 << START, end]);
    }
}

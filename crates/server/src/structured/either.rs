//! One of several forms, whichever the answer takes: its text, or calls. Knows masks, no forms.

use std::sync::Arc;

use vllm_apple_engine::{Grammar, GrammarError, Matcher};

use super::mask;

/// Forms of which an answer has one.
#[derive(Debug)]
pub struct Either(pub Vec<Arc<dyn Grammar>>);

/// How an answer may go on, and what came next last.
pub(super) struct Way {
    matcher: Box<dyn Matcher>,
    allowed: Vec<u32>,
}

struct Answer(Vec<Way>);

impl Way {
    /// From the beginning of a form.
    pub fn new(grammar: &Arc<dyn Grammar>) -> Self {
        Self { matcher: grammar.start(), allowed: Vec::new() }
    }

    /// Adds what may come next.
    pub fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        self.allowed.clear();
        self.allowed.resize(mask.len(), 0);
        self.matcher.allowed(&mut self.allowed)?;
        mask.iter_mut().zip(&self.allowed).for_each(|(all, own)| *all |= own);
        Ok(())
    }

    /// Behind the next token, of which it has been asked before. `None`: it does not come on this way.
    pub fn take(mut self, token: u32) -> Result<Option<Self>, GrammarError> {
        if !mask::has(&self.allowed, token) {
            return Ok(None);
        }
        self.matcher.accept(token)?;
        Ok(Some(self))
    }

    /// The way alone.
    pub fn into_matcher(self) -> Box<dyn Matcher> {
        self.matcher
    }
}

/// A token that no mask has allowed.
pub(super) fn stray(token: u32) -> GrammarError {
    GrammarError::Internal(format!("token {token} came, which the form does not allow"))
}

impl Grammar for Either {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(Answer(self.0.iter().map(Way::new).collect()))
    }
}

impl Matcher for Answer {
    fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        let ways = std::mem::take(&mut self.0).into_iter().filter_map(|way| way.take(token).transpose());
        self.0 = ways.collect::<Result<_, _>>()?;
        if self.0.is_empty() { Err(stray(token)) } else { Ok(()) }
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        self.0.iter_mut().try_for_each(|way| way.allowed(mask))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// These tokens, one after the other.
    #[derive(Debug)]
    pub struct Tokens(pub &'static [u32]);

    struct Rest(&'static [u32]);

    impl Grammar for Tokens {
        fn start(&self) -> Box<dyn Matcher> {
            Box::new(Rest(self.0))
        }
    }

    impl Matcher for Rest {
        fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
            match self.0.split_first() {
                Some((&first, rest)) if first == token => self.0 = rest,
                _ => return Err(stray(token)),
            }
            Ok(())
        }

        fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
            if let Some(first) = self.0.first() {
                mask[0] |= 1 << first;
            }
            Ok(())
        }
    }

    /// The masks before each of the tokens, and after the last.
    pub fn masks(grammar: &dyn Grammar, tokens: &[u32]) -> Vec<u32> {
        let mut matcher = grammar.start();
        let mut next = |token: Option<u32>| {
            token.map_or(Ok(()), |token| matcher.accept(token)).unwrap();
            let mut mask = [0];
            matcher.allowed(&mut mask).unwrap();
            mask[0]
        };
        std::iter::once(None).chain(tokens.iter().copied().map(Some)).map(&mut next).collect()
    }

    #[test]
    fn an_answer_takes_one_of_several_forms() {
        let either = Either(vec![Arc::new(Tokens(&[1, 2, 3])), Arc::new(Tokens(&[1, 4])), Arc::new(Tokens(&[5]))]);
        assert_eq!(masks(&either, &[1, 2, 3]), [1 << 1 | 1 << 5, 1 << 2 | 1 << 4, 1 << 3, 0]);
        assert_eq!(masks(&either, &[1, 4]), [1 << 1 | 1 << 5, 1 << 2 | 1 << 4, 0]);
        let mut matcher = either.start();
        matcher.allowed(&mut [0]).unwrap();
        assert!(matches!(matcher.accept(2), Err(GrammarError::Internal(_))));
    }
}

//! Answers on their way through a form, with tables that grow as they go on. Knows llguidance and bytes, not what a form was.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::SimpleVob;
use llguidance::{ParserFactory, TokenParser};
use vllm_apple_engine::{Grammar, GrammarError, Matcher};

/// Tokens of an answer that are taken in anew at once: what tables may grow by is bounded, and renewed with each mask.
const TAKEN_AT_ONCE: usize = 500;

/// Tokens that must come before tables are made anew again, which takes 80 ms for 50,000 states: others wait for it in their steps. Tables that are
/// full again sooner are nearly full of what has come, and would be again after less and less.
const BETWEEN_RENEWALS: usize = 128;

/// Bytes that tables are counted in: a step of an answer seldom needs more of them.
const COUNTED_AT_ONCE: usize = 1 << 20;

/// Why an answer ends whose tables are not included.
const NO_MEMORY: &str = "the form takes more memory to follow than requests leave (--max-request-memory): try again in a while, or \
                         give its texts lower bounds, or none";

/// The same, where no other request has a part in it.
const TOO_MUCH_MEMORY: &str = "the form takes more memory to follow than all requests may hold together (--max-request-memory): give its \
                               texts lower bounds, or none, or start the server with more";

/// Where the memory of tables is counted.
pub trait Memory: fmt::Debug + Send + Sync {
    /// Takes so many bytes if there are as many.
    fn take(&self, bytes: usize) -> bool;

    /// Gives them back.
    fn give_back(&self, bytes: usize);

    /// Whether there would be so many more if nobody else had taken any.
    fn could_take(&self, _bytes: usize) -> bool {
        true
    }
}

/// llguidance's parser, which is where an answer is, and its tables.
pub struct Tables(TokenParser);

impl Tables {
    /// Those of an answer without a token. An error of the form shows here, or with the first mask, which is made here, too.
    pub fn new(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Self, String> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let mut parser = factory.create_parser(grammar)?;
            if parser.is_fresh() {
                parser.start_without_prompt();
            }
            Ok(parser)
        }));
        let mut tables = Self(made.map_err(|error| in_words(&error.to_string()))?);
        tables.mask().map_err(|error| error.to_string())?;
        Ok(tables)
    }

    fn accept(&mut self, tokens: &[u32]) -> Result<(), GrammarError> {
        let accepted = catch_unwind(AssertUnwindSafe(|| {
            for &token in tokens {
                self.0.consume_token(token)?;
            }
            self.0.check_stop()
        }));
        accepted.map(drop).map_err(|error| failure(&error.to_string(), self.0.stop_reason()))
    }

    /// What may come next, or the end alone.
    fn mask(&mut self) -> Result<SimpleVob, GrammarError> {
        let mask = catch_unwind(AssertUnwindSafe(|| match self.0.stop_reason() {
            StopReason::NotStopped => self.0.compute_mask(),
            _ => Ok(self.0.token_env.tok_trie().eos_token_set()),
        }));
        mask.map_err(|error| failure(&error.to_string(), self.0.stop_reason()))
    }

    fn bytes(&self) -> usize {
        self.0.parser.lexer_stats().num_bytes
    }
}

/// What llguidance says of an answer, by whose fault it is.
fn failure(error: &str, stop: StopReason) -> GrammarError {
    let words = in_words(error);
    match is_panic(error) || stop == StopReason::InternalError {
        true => GrammarError::Internal(words),
        false => GrammarError::Form(words),
    }
}

/// Whether llguidance did not mean to say it.
fn is_panic(error: &str) -> bool {
    error.starts_with("panic: ") || error.contains("<backtrace>")
}

/// What llguidance says, for clients.
fn in_words(error: &str) -> String {
    let error = error.trim_end_matches("\n<non-verbose/>");
    match error {
        // Where it failed is for nobody who sends forms.
        _ if is_panic(error) => "llguidance failed at it".to_owned(),
        "NoExtensionBias" => "there is no text of this form".to_owned(),
        _ if error.contains("too many states") => {
            "its texts of bounded length have become longer than can be followed: give them lower bounds, or none"
                .to_owned()
        }
        _ => error.to_owned(),
    }
}

/// A compiled form. Its tables are copied for each answer, so that what one answer has met changes nothing for others.
pub struct Form {
    first: Mutex<Tables>,
    bytes: usize,
}

impl Form {
    /// Of the tables of an answer without a token.
    pub fn new(first: Tables) -> Self {
        Self { bytes: first.bytes(), first: Mutex::new(first) }
    }

    /// Of its tables.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same, for answers whose tables are counted, but for `included` bytes of each.
    pub fn counted(self: &Arc<Self>, memory: Arc<dyn Memory>, included: usize) -> Arc<dyn Grammar> {
        Arc::new(Counted { form: Arc::clone(self), memory, included })
    }

    fn copy(&self) -> Tables {
        Tables(self.first.lock().unwrap_or_else(PoisonError::into_inner).0.deep_clone())
    }
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Form")
    }
}

#[derive(Debug)]
struct Counted {
    form: Arc<Form>,
    memory: Arc<dyn Memory>,
    included: usize,
}

impl Grammar for Counted {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(Answer {
            form: Arc::clone(&self.form),
            tables: self.form.copy(),
            taken: Vec::new(),
            renewed: None,
            memory: Arc::clone(&self.memory),
            included: self.included,
            counted: 0,
        })
    }
}

struct Answer {
    form: Arc<Form>,
    tables: Tables,
    taken: Vec<u32>,
    /// Of these, those that had come when tables were made anew.
    renewed: Option<usize>,
    memory: Arc<dyn Memory>,
    included: usize,
    /// Bytes that were taken beside these.
    counted: usize,
}

impl Answer {
    /// Tables of what has come alone, after an error: the others may be full of what could have.
    fn renew(&mut self, error: GrammarError) -> Result<(), GrammarError> {
        if self.renewed.is_some_and(|renewed| self.taken.len() < renewed + BETWEEN_RENEWALS) {
            return Err(error);
        }
        self.renewed = Some(self.taken.len());
        self.tables = self.form.copy();
        for tokens in self.taken.chunks(TAKEN_AT_ONCE) {
            self.tables.accept(tokens)?;
            self.tables.mask()?;
        }
        Ok(())
    }

    /// Takes memory for what tables have become. Where there is none, what could have come is forgotten first.
    fn count(&mut self) -> Result<(), GrammarError> {
        if self.take_more() {
            return Ok(());
        }
        self.renew(self.no_memory())?;
        if self.take_more() { Ok(()) } else { Err(self.no_memory()) }
    }

    fn no_memory(&self) -> GrammarError {
        match self.memory.could_take(self.missing()) {
            true => GrammarError::OutOfMemory(NO_MEMORY.to_owned()),
            false => GrammarError::Form(TOO_MUCH_MEMORY.to_owned()),
        }
    }

    /// Bytes that tables have and that are not taken.
    fn missing(&self) -> usize {
        let missing = self.tables.bytes().saturating_sub(self.included + self.counted);
        missing.next_multiple_of(COUNTED_AT_ONCE)
    }

    fn take_more(&mut self) -> bool {
        let bytes = self.missing();
        if bytes > 0 && !self.memory.take(bytes) {
            return false;
        }
        self.counted += bytes;
        true
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.memory.give_back(self.counted);
    }
}

impl Matcher for Answer {
    fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        self.taken.push(token);
        self.tables.accept(&[token]).or_else(|error| self.renew(error))
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        let allowed = self.tables.mask().or_else(|error| {
            self.renew(error)?;
            self.tables.mask()
        })?;
        self.count()?;
        // The model's vocabulary may be longer than the tokenizer's, never shorter.
        let words = allowed.as_slice();
        let both = words.len().min(mask.len());
        mask[..both].copy_from_slice(&words[..both]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_not_the_forms_fault() {
        for error in ["panic: index out of bounds", "panic: oh\n<backtrace>\n0: f\n</backtrace>\n<non-verbose/>"] {
            let failure = failure(error, StopReason::NotStopped);
            assert_eq!(failure, GrammarError::Internal("llguidance failed at it".to_owned()));
        }
        assert!(matches!(failure("a bug", StopReason::InternalError), GrammarError::Internal(_)));
        let full = failure("lexer error: too many states: 50000 >= 50000\n<non-verbose/>", StopReason::LexerTooComplex);
        assert!(matches!(full, GrammarError::Form(reason) if reason.contains("lower bounds")));
    }
}

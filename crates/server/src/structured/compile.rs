//! From a form to what the engine asks for masks, with a bounded cache: agents send the same tools with every turn.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{fmt, io};

use llguidance::ParserFactory;
use llguidance::api::TopLevelGrammar;

use super::follow::{Form, Tables};
use super::{Kind, Structure, numbers, regex, tree, vocabulary};
use crate::text::Tokenizer;

/// Forms that stay compiled, and bytes of their tables.
const MAX_CACHED: usize = 64;
const MAX_CACHED_BYTES: usize = 64 << 20;

/// States that the tables of one answer may have, at 600 to 800 bytes each: forms of clients' own must not fill the memory. A text of bounded
/// length takes one for each of its bytes, and several more for what could have followed there until the tables are made anew.
const MAX_STATES: usize = 50_000;

/// States that a part of a structural tag may be expected to take.
pub const MAX_OF_PART: usize = 24_000;

/// States that the text of a regular expression may take: some are left for what could follow its last byte.
const MAX_OF_TEXT: usize = MAX_STATES - 5_000;

/// Ways to go on at once: four for each property that may come next.
const MAX_ITEMS: usize = 20_000;

/// Of the thread that reads a form: rules may name each other in a long chain, and who follows it takes stack for each.
const STACK: usize = 256 << 20;

/// Why a form is not compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// What is wrong with the form.
    #[error("{0}")]
    Form(String),
    /// It may be right.
    #[error("the system gives no thread to read it: {0}; try again in a while")]
    NoThread(io::Error),
}

impl From<String> for CompileError {
    fn from(reason: String) -> Self {
        Self::Form(reason)
    }
}

/// Compiles forms for one vocabulary.
pub struct Structures {
    tokenizer: Arc<Tokenizer>,
    eos_token_ids: Arc<[u32]>,
    /// Made with the first form: most servers never see one.
    factory: OnceLock<Result<ParserFactory, String>>,
    /// The latest last.
    cache: Mutex<VecDeque<(Structure, Arc<Form>)>>,
}

impl Structures {
    /// For the tokens of a model.
    pub fn new(tokenizer: Arc<Tokenizer>, eos_token_ids: Arc<[u32]>) -> Self {
        Self { tokenizer, eos_token_ids, factory: OnceLock::new(), cache: Mutex::default() }
    }

    /// What holds an output to the form. May take a while: it is for a thread that nobody waits for.
    ///
    /// # Errors
    /// What llguidance says of the form, or that nobody could read it.
    pub fn compile(&self, structure: &Structure) -> Result<Arc<Form>, CompileError> {
        structure.check()?;
        if let Some(form) = self.cached(structure) {
            return Ok(form);
        }
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(String::clone)?;
        let form = with_stack(STACK, || Ok(Form::new(Tables::new(factory, structure.top_level()?)?)))?;
        let form = Arc::new(form);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.push_back((structure.clone(), Arc::clone(&form)));
        let bytes =
            |cache: &VecDeque<(Structure, Arc<Form>)>| cache.iter().map(|(_, form)| form.bytes()).sum::<usize>();
        while cache.len() > MAX_CACHED || bytes(&cache) > MAX_CACHED_BYTES {
            cache.pop_front();
        }
        Ok(form)
    }

    fn cached(&self, structure: &Structure) -> Option<Arc<Form>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.iter().position(|(cached, _)| cached == structure)?;
        let entry = cache.remove(at)?;
        let form = Arc::clone(&entry.1);
        cache.push_back(entry);
        Some(form)
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let tokens = vocabulary::read(&self.tokenizer, &self.eos_token_ids)?;
        let mut factory = ParserFactory::new_simple(&tokens).map_err(|error| error.to_string())?;
        factory.quiet();
        // Errors go to clients, who do not know the parser's state.
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_lexer_states = MAX_STATES;
        factory.limits_mut().max_items_in_row = MAX_ITEMS;
        Ok(factory)
    }
}

/// Runs work on a thread with so much stack, of which only what is used takes memory.
fn with_stack<T: Send>(bytes: usize, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, CompileError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("form".to_owned()).stack_size(bytes).spawn_scoped(scope, work);
        let result = thread.map_err(CompileError::NoThread)?.join();
        Ok(result.unwrap_or_else(|_| Err("llguidance failed at it".to_owned()))?)
    })
}

impl Structure {
    fn top_level(&self) -> Result<TopLevelGrammar, String> {
        Ok(match self.kind {
            Kind::Schema => {
                let mut schema = tree::parse(&self.source).map_err(|error| error.to_string())?;
                numbers::check(&mut schema)?;
                TopLevelGrammar::from_json_schema(schema)
            }
            Kind::Regex => {
                let read = regex::read(&self.source)?;
                if regex::states_of_text(&read) > MAX_OF_TEXT {
                    return Err(format!(
                        "its repetitions take more than can be followed: texts may have {MAX_OF_TEXT} bytes, or any number without a bound"
                    ));
                }
                TopLevelGrammar::from_lark(format!("start: {}", regex::lark(&self.source)))
            }
            Kind::Lark => {
                numbers::check_grammar(&self.source)?;
                check_rules(&self.source)?;
                TopLevelGrammar::from_lark(self.source.clone())
            }
        })
    }
}

/// A rule may set a temperature, which nothing here heeds: it is the request's.
fn check_rules(lark: &str) -> Result<(), String> {
    let is_of_name = |letter: char| letter.is_alphanumeric() || "_?!".contains(letter);
    let options = |line: &str| {
        Some(line.trim_start().trim_start_matches(is_of_name).strip_prefix('[')?.split_once(']')?.0.to_owned())
    };
    match lark.lines().filter_map(options).any(|options| options.contains("temperature")) {
        true => Err("a rule sets a `temperature`, which is not heeded: it is a field of the request".to_owned()),
        false => Ok(()),
    }
}

impl fmt::Debug for Structures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Structures")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_without_a_thread_is_not_a_wrong_one() {
        assert!(matches!(with_stack(1 << 20, || Err::<(), _>("wrong".to_owned())), Err(CompileError::Form(_))));
        // More than there are addresses.
        assert!(matches!(with_stack(1 << 60, || Ok(())), Err(CompileError::NoThread(_))));
        assert_eq!(with_stack(1 << 20, || Ok(5)).unwrap(), 5);
    }
}

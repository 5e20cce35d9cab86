//! From a form to what the engine asks for masks, with a bounded cache: agents send the same tools with every turn.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use vllm_apple_engine as engine;
use vllm_apple_engine::Grammar;

use super::{Kind, Structure, numbers, regex, tree, vocabulary};
use crate::text::Tokenizer;

/// Forms that stay compiled.
const MAX_CACHED: usize = 64;

/// States that the tables of one answer may have, at 600 to 800 bytes each: forms of clients' own must not fill the memory. A text of bounded
/// length takes one for each of its bytes, and several more for what could have followed there until the tables are made anew.
const MAX_STATES: usize = 50_000;

/// States that a part of a structural tag may be expected to take.
pub const MAX_OF_PART: usize = 24_000;

/// States that the text of a regular expression may take: some are left for what could follow its last byte.
const MAX_OF_TEXT: usize = MAX_STATES - 5_000;

/// Ways to go on at once: four for each property that may come next.
const MAX_ITEMS: usize = 20_000;

/// Tokens of an answer that are taken in anew at once: what tables may grow by is bounded, and renewed with each mask.
const TAKEN_AT_ONCE: usize = 500;

/// Of the thread that reads a form: rules may name each other in a long chain, and who follows it takes stack for each.
const STACK: usize = 256 << 20;

/// Compiles forms for one vocabulary.
pub struct Structures {
    tokenizer: Arc<Tokenizer>,
    eos_token_ids: Arc<[u32]>,
    /// Made with the first form: most servers never see one.
    factory: OnceLock<Result<ParserFactory, String>>,
    /// The latest last.
    cache: Mutex<VecDeque<(Structure, Arc<Compiled>)>>,
}

impl Structures {
    /// For the tokens of a model.
    pub fn new(tokenizer: Arc<Tokenizer>, eos_token_ids: Arc<[u32]>) -> Self {
        Self { tokenizer, eos_token_ids, factory: OnceLock::new(), cache: Mutex::default() }
    }

    /// What holds an output to the form. May take a while: it is for a thread that nobody waits for.
    ///
    /// # Errors
    /// What llguidance says of the form.
    pub fn compile(&self, structure: &Structure) -> Result<Arc<dyn Grammar>, String> {
        structure.check()?;
        if let Some(compiled) = self.cached(structure) {
            return Ok(compiled);
        }
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(String::clone)?;
        let matcher = with_stack(|| first_matcher(factory, structure))?;
        let compiled = Arc::new(Compiled { matcher: Arc::new(Mutex::new(matcher)) });
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() == MAX_CACHED {
            cache.pop_front();
        }
        cache.push_back((structure.clone(), Arc::clone(&compiled)));
        Ok(compiled)
    }

    fn cached(&self, structure: &Structure) -> Option<Arc<Compiled>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.iter().position(|(cached, _)| cached == structure)?;
        let entry = cache.remove(at)?;
        let compiled = Arc::clone(&entry.1);
        cache.push_back(entry);
        Some(compiled)
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

/// The matcher of an answer without a token. An error of the form shows in it, or with its first mask.
fn first_matcher(factory: &ParserFactory, structure: &Structure) -> Result<Matcher, String> {
    let mut matcher = Matcher::new(factory.create_parser(structure.top_level()?));
    matcher.compute_mask().map_err(|error| in_words(&error.to_string()))?;
    Ok(matcher)
}

/// What llguidance says, for clients.
fn in_words(error: &str) -> String {
    let error = error.trim_end_matches("\n<non-verbose/>");
    match error {
        // Where it failed is for nobody who sends forms.
        _ if error.contains("<backtrace>") => "llguidance failed at it".to_owned(),
        "NoExtensionBias" => "there is no text of this form".to_owned(),
        _ if error.contains("too many states") => {
            "its texts of bounded length have become longer than can be followed: give them lower bounds, or none"
                .to_owned()
        }
        _ => error.to_owned(),
    }
}

/// Runs work on a thread with much stack, of which only what is used takes memory.
fn with_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("form".to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("there is no thread to read it: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("llguidance failed at it".to_owned()))
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

/// A compiled form. Its parser is copied for each answer with all its tables, so that what one answer has met changes nothing for others.
struct Compiled {
    matcher: Arc<Mutex<Matcher>>,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compiled")
    }
}

impl Grammar for Compiled {
    fn start(&self) -> Box<dyn engine::Matcher> {
        Box::new(Answer { first: Arc::clone(&self.matcher), matcher: copy(&self.matcher), taken: Vec::new() })
    }
}

fn copy(first: &Mutex<Matcher>) -> Matcher {
    first.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
}

struct Answer {
    /// Without a token.
    first: Arc<Mutex<Matcher>>,
    matcher: Matcher,
    taken: Vec<u32>,
}

impl Answer {
    /// The matcher with tables of what has come alone: they are full of what could have.
    fn renew(&mut self) -> Result<(), String> {
        self.matcher = copy(&self.first);
        for tokens in self.taken.chunks(TAKEN_AT_ONCE) {
            let taken = self.matcher.consume_tokens(tokens);
            let taken = taken.and_then(|()| self.matcher.compute_mask_or_eos());
            taken.map_err(|error| in_words(&error.to_string()))?;
        }
        Ok(())
    }
}

impl engine::Matcher for Answer {
    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.taken.push(token);
        self.matcher.consume_token(token).or_else(|_| self.renew())
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        let allowed = self.matcher.compute_mask_or_eos().or_else(|_| {
            self.renew()?;
            self.matcher.compute_mask_or_eos().map_err(|error| in_words(&error.to_string()))
        })?;
        // The model's vocabulary may be longer than the tokenizer's, never shorter.
        let words = allowed.as_slice();
        let both = words.len().min(mask.len());
        mask[..both].copy_from_slice(&words[..both]);
        Ok(())
    }
}

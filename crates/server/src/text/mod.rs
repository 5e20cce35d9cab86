//! Text in and out of the model: tokenizers, chat templates, streaming detokenisation and stop strings. Knows files and
//! token ids, but no HTTP, no requests and no engine.
//!
//! ```no_run
//! use std::{path::Path, sync::Arc};
//! use vllm_apple::text::{ChatInput, ChatTemplate, DetokenizeOptions, Detokenizer, Tokenizer};
//!
//! let dir = Path::new("models/demo");
//! let tokenizer = Arc::new(Tokenizer::from_dir(dir)?);
//! let template = ChatTemplate::from_dir(dir, &tokenizer, None)?;
//! let messages = vec![serde_json::json!({"role": "user", "content": "Hello!"})];
//! let prompt = template.prompt(&tokenizer, &ChatInput::new(&messages))?;
//!
//! let mut detokenizer = Detokenizer::new(tokenizer, &prompt, DetokenizeOptions::default());
//! for id in [1, 2, 3] {
//!     print!("{}", detokenizer.push(id)?);
//! }
//! println!("{}", detokenizer.finish());
//! # Ok::<(), vllm_apple::text::TextError>(())
//! ```

use std::path::PathBuf;

mod chat_template;
mod detokenizer;
mod gate;
mod growth;
mod hugging_face;
mod jinja;
mod length;
mod mistral_chat;
mod python;
mod python_json;
mod special;
mod stop;
mod system_messages;
mod tekken;
mod template_limits;
mod template_names;
mod template_process;
mod template_protocol;
mod template_renderer;
mod template_source;
pub(crate) mod template_worker;
mod text_parts;
mod tokenizer;
mod truncation;

pub use chat_template::{ChatInput, ChatTemplate, ContentFormat};
pub use detokenizer::{DetokenizeOptions, Detokenizer};
pub use special::SpecialTokens;
pub use stop::{StopChecker, StopOutput};
pub use tekken::Tekken;
pub use template_limits::{MAX_WORKERS as MAX_TEMPLATE_WORKERS, TemplateLimit};
pub use template_names::TemplateNames;
pub use template_renderer::{ChatRequest, Rendered, TemplateRenderer};
pub use template_source::has_chat_template;
pub use tokenizer::Tokenizer;
pub use truncation::{Side, Truncation};

/// What can go wrong between text and token ids.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file exists but cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file was read, but its content is not what it should be.
    #[error("{path} is not valid: {reason}; download the file again or repair it")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// The directory holds no tokenizer that can be read.
    #[error("no tokenizer in {dir}: expected tokenizer.json or tekken.json there{hint}")]
    NoTokenizer {
        /// The checkpoint directory.
        dir: PathBuf,
        /// What was found instead, or nothing.
        hint: &'static str,
    },
    /// A text cannot be turned into token ids, or token ids into text.
    #[error("the tokenizer failed: {0}")]
    Tokenize(String),
    /// A text that is known, without tokenizing it, to have more tokens than the model can take.
    #[error(
        "This model's maximum context length is {max} tokens. However, the text has {bytes} bytes, which are at least {least} tokens: shorten it"
    )]
    TooLong {
        /// Length of the text.
        bytes: usize,
        /// The least number of tokens that it can have.
        least: usize,
        /// The most that are taken.
        max: usize,
    },
    /// A text that is only to be counted, and that is known to have more tokens than are counted at once.
    #[error(
        "the text has {bytes} bytes, which are at least {least} tokens: {max} are counted at once, {times} times the model's length; send it \
         in parts"
    )]
    TooLongToCount {
        /// Length of the text.
        bytes: usize,
        /// The least number of tokens that it can have.
        least: usize,
        /// The most that are counted.
        max: usize,
        /// Of the model's length.
        times: usize,
    },
    /// A text that might have few enough tokens, but could take more memory to tokenize than there is for it.
    #[error(
        "the text has {bytes} bytes and could take {needs} bytes of memory while it is tokenized, more than the {memory} of \
         `max_request_memory`: shorten it, or start the server with more"
    )]
    TooLarge {
        /// Length of the text.
        bytes: usize,
        /// What it could take.
        needs: usize,
        /// What it may take.
        memory: usize,
    },
    /// The checkpoint has no chat template, and none was given.
    #[error(
        "this model has no chat template: {dir} has neither chat_template.jinja nor a chat_template in \
         tokenizer_config.json; pass one with --chat-template, or use the completions API"
    )]
    NoChatTemplate {
        /// The checkpoint directory.
        dir: PathBuf,
    },
    /// The chat template cannot be compiled.
    #[error("the chat template from {origin} does not compile: {reason}{}", template_source::remedy(origin))]
    TemplateSyntax {
        /// The file, or how else the template was given.
        origin: String,
        /// The template engine's words.
        reason: String,
    },
    /// The chat template refused the conversation, or failed on it.
    #[error("the chat template rejected the request: {0}")]
    Template(String),
    /// The chat template takes more than a template may.
    #[error(
        "the chat template {0}; the template is at fault, or the conversation is too large for it: correct the template, or \
         give another one"
    )]
    TemplateLimit(TemplateLimit),
    /// There is no process that could render a chat template.
    #[error("the process that renders chat templates failed: {0}")]
    TemplateProcess(String),
}

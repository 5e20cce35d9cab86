//! The model that is being served, as text and tokens see it: names, tokenizer, template, limits and the engine behind
//! them. Knows no tensors, no HTTP and no command line.

use std::sync::Arc;

use vllm_apple_engine::EngineHandle;
use vllm_apple_model::GenerationConfig;

use crate::metrics::Metrics;
use crate::structured::Structures;
use crate::text::{TemplateRenderer, Tokenizer};

/// Everything that a request needs besides its own fields.
#[derive(Debug)]
pub struct ServedModel {
    /// Names that requests may use; the first one stands in answers.
    pub names: Vec<String>,
    /// The checkpoint: a directory or a hub id.
    pub root: String,
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_len: usize,
    /// Tokens that end a generation.
    pub eos_token_ids: Arc<[u32]>,
    /// The model's own sampling defaults.
    pub defaults: GenerationConfig,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Forms that answers are held to.
    pub structures: Structures,
    /// Conversations to prompts.
    pub chat_template: TemplateRenderer,
    /// Where requests go.
    pub engine: EngineHandle,
    /// What is counted about them.
    pub metrics: Arc<Metrics>,
    /// When serving began, in seconds since 1970.
    pub created: u64,
}

impl ServedModel {
    /// The name in answers.
    pub fn name(&self) -> &str {
        &self.names[0]
    }
}

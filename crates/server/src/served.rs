//! The model that is being served, as text and tokens see it: names, tokenizer, template, limits and the engine behind
//! them. Knows no tensors, no HTTP and no command line.

use std::sync::Arc;

use vllm_apple_engine::EngineHandle;
use vllm_apple_model::{GenerationConfig, Pooler};
use vllm_apple_parsers::{ReasoningFormat, ToolFormat};

use crate::metrics::Metrics;
use crate::structured::Structures;
use crate::text::{TemplateRenderer, Tokenizer};

/// How the model writes what is not its answer. `None`: nobody knows, or it does not.
#[derive(Debug, Clone, Default)]
pub struct OutputFormats {
    /// Calls of tools.
    pub tools: Option<ToolFormat>,
    /// What it thinks.
    pub reasoning: Option<ReasoningFormat>,
}

impl OutputFormats {
    /// These, and what they leave open from `others`.
    pub fn or(self, others: Self) -> Self {
        Self { tools: self.tools.or(others.tools), reasoning: self.reasoning.or(others.reasoning) }
    }

    /// What the chat template shows.
    pub fn of_template(template: &TemplateRenderer) -> Self {
        match template.text() {
            Some(text) => Self { tools: ToolFormat::of_template(text), reasoning: ReasoningFormat::of_template(text) },
            None => Self { tools: template.is_mistral().then_some(ToolFormat::Mistral), reasoning: None },
        }
    }
}

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
    /// What answers hold besides text.
    pub formats: OutputFormats,
    /// How texts become vectors, in a server that makes embeddings; `None` in one that generates text.
    pub pooler: Option<Pooler>,
    /// Conversations to prompts.
    pub chat_template: TemplateRenderer,
    /// Where requests go.
    pub engine: EngineHandle,
    /// What is counted about them.
    pub metrics: Arc<Metrics>,
    /// When serving began, in seconds since 1970.
    pub created: u64,
}

/// What a model does for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// It goes on with a prompt.
    Generate,
    /// It makes vectors of texts.
    Embed,
}

impl ServedModel {
    /// What it does.
    pub fn task(&self) -> Task {
        if self.pooler.is_some() { Task::Embed } else { Task::Generate }
    }

    /// The name in answers.
    pub fn name(&self) -> &str {
        &self.names[0]
    }
}

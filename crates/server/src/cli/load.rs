//! From the command line's model to a served one: the only place that names the backend and how a checkpoint is loaded.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use vllm_apple_engine::{Engine, EngineConfig, EngineHandle};
use vllm_apple_model::{Batch, Executor, ExecutorError, ExecutorInfo, Sample, SamplingRow};

use super::CliError;
use super::args::ModelArgs;
use crate::generation::SamplingDefaults;
use crate::metrics::Metrics;
use crate::served::ServedModel;
use crate::text::{ChatTemplate, Tokenizer};

/// The checkpoint that is served when none is named.
const DEFAULT_MODEL: &str = "tests/golden/models/llama";

/// A checkpoint whose files have been checked; no weight has been read.
#[derive(Debug)]
pub struct OpenedModel {
    args: ModelArgs,
    name: String,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate,
}

/// Finds the checkpoint and checks its files.
pub fn open(args: &ModelArgs) -> Result<OpenedModel, CliError> {
    let name = args.model.clone().unwrap_or_else(|| DEFAULT_MODEL.to_owned());
    let directory = PathBuf::from(&name);
    let tokenizer = Tokenizer::from_dir(args.tokenizer.as_deref().unwrap_or(&directory))?;
    let template = args.chat_template.as_deref().map(read_template).transpose()?;
    let chat_template = ChatTemplate::from_dir(&directory, &tokenizer, template.as_deref())?;
    Ok(OpenedModel { args: args.clone(), name, tokenizer, chat_template })
}

/// `--chat-template` is a file, or, as in vLLM, the template itself.
fn read_template(argument: &str) -> Result<String, CliError> {
    if argument.contains(['{', '}', '\n']) {
        return Ok(argument.to_owned());
    }
    std::fs::read_to_string(argument).map_err(|source| CliError::Input { path: argument.to_owned(), source })
}

impl OpenedModel {
    /// Reads the weights and starts the engine. `names` are what requests may call the model; without any, the name given
    /// on the command line.
    pub fn load(self, names: Vec<String>, max_waiting: usize) -> Result<Arc<ServedModel>, CliError> {
        let executor = self.executor()?;
        let engine = &self.args.engine;
        let enable_prefix_caching = !engine.no_enable_prefix_caching;
        let config = EngineConfig { enable_prefix_caching, max_waiting, seed: engine.seed };
        let engine = Engine::new(executor, config).map_err(|error| CliError::Load(error.to_string()))?;
        let engine = EngineHandle::spawn(engine);
        let names = if names.is_empty() { vec![self.name.clone()] } else { names };
        Ok(Arc::new(ServedModel {
            metrics: Arc::new(Metrics::new(&names[0], engine.clone())),
            names,
            root: self.name,
            max_model_len: engine.info().max_model_len,
            eos_token_ids: self.tokenizer.eos_token_ids().into(),
            defaults: SamplingDefaults::default(),
            tokenizer: Arc::new(self.tokenizer),
            chat_template: self.chat_template,
            engine,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        }))
    }

    fn executor(&self) -> Result<NoExecutor, CliError> {
        Err(CliError::Load(format!("{}: this build has no backend to run a model on", self.name)))
    }
}

/// Stands where the model's executor will.
struct NoExecutor(Infallible);

impl Executor for NoExecutor {
    fn info(&self) -> &ExecutorInfo {
        match self.0 {}
    }

    fn forward(&mut self, _batch: &Batch) -> Result<(), ExecutorError> {
        match self.0 {}
    }

    fn sample(&mut self, _rows: &[SamplingRow<'_>]) -> Result<Vec<Sample>, ExecutorError> {
        match self.0 {}
    }
}

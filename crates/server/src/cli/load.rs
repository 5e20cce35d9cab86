//! From the command line's model to a served one: how a checkpoint is found and loaded.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vllm_apple_engine::{Engine, EngineConfig, EngineHandle};
use vllm_apple_model::file;
use vllm_apple_model::hub::{self, DownloadProgress, HubOptions};
use vllm_apple_model::{Checkpoint, GenerationConfig, LoadOptions, LoadedModel, Phase, Pooler, WarmUp};

use super::CliError;
use super::args::variable;
use super::args::{GenerationConfigSource, ModelArgs};
use super::demo_model;
use super::progress::{LongWork, Unit};
use crate::metrics::Metrics;
use crate::served::{OutputFormats, ServedModel};
use crate::structured::Structures;
use crate::text::{TemplateRenderer, Tokenizer, has_chat_template};
use vllm_apple_device::{Device, with_backend};
use vllm_apple_verify::Failure;

/// A server that the machine has no room for says nothing of the model that it was to serve.
impl Failure for CliError {
    fn is_want_of_memory(&self) -> bool {
        match self {
            Self::Checkpoint(error) => error.is_want_of_memory(),
            Self::Device(error) => error.is_want_of_memory(),
            Self::Op(error) => error.is_want_of_memory(),
            _ => false,
        }
    }
}

/// A checkpoint whose files have been checked; no weight has been read.
pub struct OpenedModel {
    args: ModelArgs,
    name: String,
    checkpoint: Checkpoint,
    generation_config: GenerationConfig,
    options: LoadOptions,
    device: Device,
    tokenizer: Tokenizer,
    chat_template: TemplateRenderer,
    pooler: Option<Pooler>,
}

/// Finds the checkpoint and checks its files. It generates text.
pub fn open(args: &ModelArgs) -> Result<OpenedModel, CliError> {
    open_to(args, |_| Ok(None))
}

/// The same for a user who reads what the model writes, which of one that is meant for embeddings is nothing to read.
pub fn open_generator(args: &ModelArgs) -> Result<OpenedModel, CliError> {
    open_to(args, |checkpoint| {
        if checkpoint.is_embedder()? {
            tracing::warn!(
                "the model makes embeddings: do not expect sense of what it writes; `vllm-apple serve` answers with embeddings"
            );
        }
        Ok(None)
    })
}

/// The same; `pooler` says how it makes embeddings, if it does not generate text.
pub fn open_to(
    args: &ModelArgs,
    pooler: impl FnOnce(&Checkpoint) -> Result<Option<Pooler>, CliError>,
) -> Result<OpenedModel, CliError> {
    let name = args.model.clone().unwrap_or_else(|| demo_model::NAME.to_owned());
    let directory = resolve(args.model.as_deref(), args.revision.as_deref())?;
    match args.model {
        None => tracing::info!("loading the bundled model, {name}"),
        Some(_) if directory.as_os_str() == name.as_str() => tracing::info!("loading {name}"),
        // Of the hub, or one of several files.
        Some(_) => tracing::info!("loading {name} from {}", directory.display()),
    }
    let mut checkpoint = Checkpoint::open(&directory)?;
    let generation_config = checkpoint.generation_config()?;
    let pooler = pooler(&checkpoint)?;
    let mut options = args.engine.load_options();
    if let Some(pooler) = &pooler {
        if args.speculative_config.is_some() {
            let advice = "leave out --speculative-config: the model makes embeddings, of which there are no drafts";
            return Err(CliError::Load(advice.to_owned()));
        }
        checkpoint = checkpoint.without_head();
        options.longest_of_use = pooler.max_tokens;
    }
    let device_options = args.engine.device_options()?;
    let device = Device::open(&device_options, &checkpoint.kinds(&options)?)?;
    let device = device.start(&device_options, CliError::is_refusal, |device| {
        with_backend!(&device, backend => checkpoint.check(backend, &options))?;
        Ok(device)
    })?;
    let tokenizer = Tokenizer::from_dir(args.tokenizer.as_deref().unwrap_or(&directory))?;
    let (tokens, vocab_size) = (tokenizer.vocab_size(), checkpoint.config().vocab_size);
    if tokens > vocab_size {
        tracing::warn!(
            "the tokenizer has {tokens} tokens, the model {vocab_size}: prompts with the others are refused"
        );
    }
    let template = args.chat_template.as_deref().map(read_template).transpose()?;
    let program = std::env::current_exe().map_err(|error| {
        CliError::Load(format!(
            "the system does not say where this program's file is, which renders chat templates: {error}"
        ))
    })?;
    // As the tokenizer's files have it, if they do.
    let beside_tokenizer = match args.tokenizer.as_deref() {
        Some(own) if has_chat_template(own)? => own,
        _ => &directory,
    };
    let chat_template = TemplateRenderer::start(program, beside_tokenizer, &tokenizer, template.as_deref())?;
    Ok(OpenedModel {
        args: args.clone(),
        name,
        checkpoint,
        generation_config,
        options,
        device,
        tokenizer,
        chat_template,
        pooler,
    })
}

/// `--chat-template` is a file, or, as in vLLM, the template itself.
fn read_template(argument: &str) -> Result<String, CliError> {
    if argument.contains(['{', '}', '\n']) {
        return Ok(argument.to_owned());
    }
    let text = file::read(argument.as_ref(), file::MAX_TEMPLATE)
        .and_then(|text| String::from_utf8(text).map_err(io::Error::other));
    text.map_err(|source| CliError::Input { path: argument.to_owned(), source })
}

impl OpenedModel {
    /// Reads the weights and starts the engine. `names` are what requests may call the model; without any, the name given
    /// on the command line. `text_memory` is what a text may take while it is tokenized.
    /// What `formats` leaves open is what the chat template shows.
    pub fn load(
        self,
        names: Vec<String>,
        max_waiting: usize,
        text_memory: usize,
        formats: OutputFormats,
    ) -> Result<Arc<ServedModel>, CliError> {
        let engine = &self.args.engine;
        let defaults = match self.args.generation_config {
            GenerationConfigSource::Auto => self.generation_config.clone(),
            GenerationConfigSource::Vllm => GenerationConfig::default(),
        };
        let enable_prefix_caching = !self.args.no_enable_prefix_caching;
        let config = EngineConfig {
            enable_prefix_caching,
            max_waiting,
            seed: self.args.seed,
            speculation: self.args.speculative_config,
        };
        let (checkpoint, options) = (&self.checkpoint, &self.options);
        let engine = self.device.start(&engine.device_options()?, CliError::is_refusal, |device| {
            with_backend!(device, backend => {
                let mut bars = WarmUpBars::default();
                let show = &mut |progress| bars.show(progress);
                let loaded = LoadedModel::load_with_progress(backend, checkpoint, options, show)?;
                let num_blocks = loaded.num_blocks()?;
                let mut executor = loaded.allocate(num_blocks)?;
                executor.warm_up(&mut |progress| bars.show(progress))?;
                let engine = Engine::new(executor, config.clone());
                Ok(EngineHandle::spawn(engine.map_err(|error| CliError::Load(error.to_string()))?))
            })
        })?;
        let names = if names.is_empty() { vec![self.name.clone()] } else { names };
        let max_model_len = engine.info().max_model_len;
        let tokenizer = Arc::new(self.tokenizer.bounded(max_model_len).within_memory(text_memory));
        // A tokenizer of another directory does not say which tokens end the model's answers.
        let ends = tokenizer.eos_token_ids().iter().chain(&self.generation_config.eos_token_ids).copied();
        let eos_token_ids: Arc<[u32]> = ends.collect::<BTreeSet<u32>>().into_iter().collect();
        Ok(Arc::new(ServedModel {
            structures: Structures::new(Arc::clone(&tokenizer), Arc::clone(&eos_token_ids)),
            metrics: Arc::new(Metrics::new(&names[0], engine.clone())),
            names,
            root: self.name,
            max_model_len,
            eos_token_ids,
            defaults,
            tokenizer,
            formats: formats.or(OutputFormats::of_template(&self.chat_template)),
            pooler: self.pooler,
            chat_template: self.chat_template,
            engine,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        }))
    }
}

/// The directory of a model: the one named, that of a hub id, downloaded if need be, or the bundled model's.
pub fn resolve(model: Option<&str>, revision: Option<&str>) -> Result<PathBuf, CliError> {
    resolve_by(model, HubOptions::from_variables(revision.map(str::to_owned), variable))
}

/// The same without weights.
pub fn resolve_without_weights(model: Option<&str>, revision: Option<&str>) -> Result<PathBuf, CliError> {
    resolve_by(
        model,
        HubOptions { weights: false, ..HubOptions::from_variables(revision.map(str::to_owned), variable) },
    )
}

fn resolve_by(model: Option<&str>, options: HubOptions) -> Result<PathBuf, CliError> {
    let Some(model) = model else {
        return Ok(demo_model::directory()?);
    };
    let mut work = None;
    Ok(hub::resolve(model, &options, &mut |DownloadProgress { file, done, total }| {
        let new = || LongWork::new(format!("downloading {model}"), Unit::Bytes, Duration::ZERO);
        work.get_or_insert_with(new).show_part(file, done, total);
    })?)
}

/// What loading and the device's preparation take less than, mostly: then a log need not say how far they are.
const SHORT: Duration = Duration::from_secs(2);

/// Shows how far loading and the device's preparation are, one phase after the other.
#[derive(Default)]
pub struct WarmUpBars {
    current: Option<(Phase, LongWork)>,
}

impl WarmUpBars {
    /// Moves the bar of the phase, which goes at its end.
    pub fn show(&mut self, WarmUp { phase, done, total }: WarmUp) {
        if self.current.as_ref().is_none_or(|(current, _)| *current != phase) {
            let (name, unit) = match phase {
                Phase::Quantise => ("quantising weights", Unit::Pieces),
                Phase::LayOut => ("laying out weights", Unit::Pieces),
                Phase::Read => ("reading weights", Unit::Bytes),
                Phase::Compile => ("compiling kernels", Unit::Pieces),
                Phase::Run => ("running first steps", Unit::Pieces),
            };
            // The one before ends first.
            self.current = None;
            self.current = Some((phase, LongWork::new(name, unit, SHORT)));
        }
        if let Some((_, work)) = &mut self.current {
            work.show(done, total);
        }
        // The log goes on in a line of its own.
        if done == total {
            self.current = None;
        }
    }
}

//! How a checkpoint makes one vector of a text, as the files of sentence-transformers beside it say: `modules.json`, and what each module's
//! directory holds. It knows no step.

use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::families::is_decoder_alone;
use crate::load::fields::{Fields, shorten};
use crate::load::{file, json};
use serde_json::Value;
use std::path::{Component, Path, PathBuf};
use vllm_apple_executor::Pooling;

/// How a text's hidden states become its embedding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pooler {
    /// Which of them count.
    pub pooling: Pooling,
    /// Whether the vector is made one of length 1.
    pub normalize: bool,
    /// Whether its first elements are an embedding, too.
    pub matryoshka: Matryoshka,
    /// How long a text it was made for, where that is said.
    pub max_tokens: Option<usize>,
}

/// Of how many first elements an embedding may be (`dimensions`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matryoshka {
    /// Of all alone.
    No,
    /// Of any number.
    Any,
    /// Of these numbers.
    Of(Vec<usize>),
}

const CONFIG: &str = "config.json";
const MODULES: &str = "modules.json";
/// What sentence-transformers does with texts before the model.
pub(crate) const TEXTS: &str = "sentence_bert_config.json";
const POOLING: &str = "Pooling";
const POOLING_MODES: [(&str, Pooling); 3] =
    [("lasttoken", Pooling::Last), ("mean", Pooling::Mean), ("cls", Pooling::First)];
/// Before the names of modes in files that have a switch for each.
const SWITCH: &str = "pooling_mode_";
/// The only one that is on where the file does not have it.
const MEAN: &str = "pooling_mode_mean_tokens";

impl Checkpoint {
    /// Whether the checkpoint is meant to make embeddings: sentence-transformers' files say how, or it is a decoder that was saved without an
    /// output head.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn is_embedder(&self) -> Result<bool, LoadError> {
        let config = self.directory().join(CONFIG);
        if !config.exists() {
            // A GGUF file.
            return Ok(false);
        }
        let architectures = Fields::read(&config)?.strings("architectures")?.unwrap_or_default();
        let modules = Modules::read(self.directory())?;
        Ok(modules.is_some_and(|modules| modules.pool()) || architectures.first().is_some_and(|a| is_decoder_alone(a)))
    }

    /// How it makes embeddings; where no file says it, of the last token and of length 1, as vLLM does.
    ///
    /// # Errors
    /// A file that cannot be read, or that asks for what is not computed here: a module, a mode, attention to later tokens.
    pub fn pooler(&self) -> Result<Pooler, LoadError> {
        let path = self.directory().join(CONFIG);
        if !path.exists() {
            return Ok(Pooler {
                pooling: Pooling::Last,
                normalize: true,
                matryoshka: Matryoshka::No,
                max_tokens: None,
            });
        }
        let config = Fields::read(&path)?;
        const BIDIRECTIONAL: &str = "use_bidirectional_attention";
        if config.boolean(BIDIRECTIONAL)? == Some(true) {
            return Err(config.error(BIDIRECTIONAL, "false: attention to later tokens is not computed"));
        }
        let matryoshka = Matryoshka::read(&config)?;
        match Modules::read(self.directory())?.filter(Modules::pool) {
            None => Ok(Pooler { pooling: Pooling::Last, normalize: true, matryoshka, max_tokens: None }),
            Some(modules) => {
                let (pooling, normalize) = modules.behind_the_model(self.directory())?;
                let max_tokens = read_texts(&self.directory().join(TEXTS))?;
                Ok(Pooler { pooling, normalize, matryoshka, max_tokens })
            }
        }
    }
}

impl Matryoshka {
    /// What config.json says, by vLLM's names.
    fn read(config: &Fields) -> Result<Self, LoadError> {
        const DIMENSIONS: &str = "matryoshka_dimensions";
        if let Some(list) = config.integers(DIMENSIONS)?.filter(|list| !list.is_empty()) {
            let most = config.size("hidden_size")?.unwrap_or(usize::MAX);
            let size = |size| usize::try_from(size).ok().filter(|size| (1..=most).contains(size));
            let sizes = list.into_iter().map(size).collect::<Option<_>>();
            return sizes.map(Self::Of).ok_or_else(|| config.error(DIMENSIONS, "sizes from 1 to hidden_size"));
        }
        Ok(if config.boolean("is_matryoshka")?.unwrap_or(false) { Self::Any } else { Self::No })
    }
}

/// What `modules.json` lists, the model itself first.
struct Modules {
    path: PathBuf,
    list: Vec<Module>,
}

struct Module {
    /// The last part of its class's name.
    kind: String,
    /// Its directory.
    path: String,
}

impl Modules {
    fn read(directory: &Path) -> Result<Option<Self>, LoadError> {
        let path = directory.join(MODULES);
        if !path.exists() {
            return Ok(None);
        }
        let text = file::read(&path, file::MAX_JSON).map_err(|e| LoadError::unreadable(&path, e))?;
        let value = json::parse(&text).map_err(|e| LoadError::Json { path: path.clone(), reason: e.to_string() })?;
        let wrong = |what: String, expected: &str, got: &Value| LoadError::Field {
            path: path.clone(),
            field: what,
            expected: expected.to_owned(),
            got: shorten(got),
        };
        let Value::Array(modules) = &value else {
            return Err(wrong("the file".to_owned(), "a list of modules", &value));
        };
        let field = |module: &Value, name: &str| module.get(name)?.as_str().map(str::to_owned);
        let read = |(at, module): (usize, &Value)| match (field(module, "type"), field(module, "path")) {
            (Some(class), Some(path)) => {
                let kind = class.rsplit('.').next().unwrap_or_default().to_owned();
                Ok(Module { kind, path })
            }
            _ => Err(wrong(format!("[{at}]"), "an object with the strings `type` and `path`", module)),
        };
        let list = modules.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        Ok(Some(Self { path, list }))
    }

    /// Whether one of them makes one vector of many.
    fn pool(&self) -> bool {
        self.list.iter().any(|module| module.kind == POOLING)
    }

    /// The mode, and whether vectors are made ones of length 1.
    fn behind_the_model(&self, directory: &Path) -> Result<(Pooling, bool), LoadError> {
        let kinds: Vec<&str> = self.list.iter().map(|module| module.kind.as_str()).collect();
        let normalize = match kinds[..] {
            ["Transformer", POOLING] => false,
            ["Transformer", POOLING, "Normalize"] => true,
            _ => {
                let expected = "Transformer, Pooling and perhaps Normalize, the modules that are computed";
                return Err(self.error("type", expected, &kinds));
            }
        };
        let paths: Vec<&str> = self.list.iter().map(|module| module.path.as_str()).collect();
        let pooling = paths[1];
        if !paths[0].is_empty() || !is_inside(Path::new(pooling)) {
            let expected =
                "empty for the model, which stands beside this file, and directories beside it for the others";
            return Err(self.error("path", expected, &paths));
        }
        Ok((read_pooling(&directory.join(pooling))?, normalize))
    }

    /// A field of all modules that cannot be what it is.
    fn error(&self, field: &str, expected: &str, got: &[&str]) -> LoadError {
        LoadError::Field {
            path: self.path.clone(),
            field: field.to_owned(),
            expected: expected.to_owned(),
            got: got.join(", "),
        }
    }
}

/// The directories of the modules that a checkpoint has, within its own.
pub(crate) fn module_directories(directory: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let modules = Modules::read(directory)?.map(|modules| modules.list).unwrap_or_default();
    let inside = modules.into_iter().map(|module| PathBuf::from(module.path)).filter(|path| is_inside(path));
    Ok(inside.filter(|path| !path.as_os_str().is_empty()).collect())
}

/// Whether a path does not leave the directory that it is relative to.
fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// The longest text, if the file is there and says it.
fn read_texts(path: &Path) -> Result<Option<usize>, LoadError> {
    if !path.exists() {
        return Ok(None);
    }
    let f = Fields::read(path)?;
    if f.boolean("do_lower_case")? == Some(true) {
        return Err(f.error("do_lower_case", "false: texts are tokenized as they are"));
    }
    f.size("max_seq_length")
}

/// The one mode that a Pooling's own file asks for, in either of its spellings.
fn read_pooling(directory: &Path) -> Result<Pooling, LoadError> {
    let f = Fields::read(&directory.join(CONFIG))?;
    if f.boolean("include_prompt")? == Some(false) {
        return Err(f.error("include_prompt", "true: all of a text is pooled"));
    }
    let expected = "one of lasttoken, mean and cls, and no other mode";
    let named = |name: &str| POOLING_MODES.iter().find(|(mode, _)| *mode == name).map(|(_, pooling)| *pooling);
    if let Some(name) = f.string("pooling_mode")? {
        return named(name).ok_or_else(|| f.error("pooling_mode", expected));
    }
    let mut modes = Vec::new();
    for field in f.names().filter(|name| name.starts_with(SWITCH)) {
        if f.boolean(field)? == Some(true) {
            let mode = field[SWITCH.len()..].trim_end_matches("_token").trim_end_matches("_tokens");
            modes.push(named(mode).ok_or_else(|| f.error(field, "false: this mode is not computed"))?);
        }
    }
    let is_mean_unsaid = !f.names().any(|name| name == MEAN);
    match modes[..] {
        [] if is_mean_unsaid => Ok(Pooling::Mean),
        _ if is_mean_unsaid => Err(f.error(MEAN, "false beside another mode: where it is absent it is true")),
        [only] => Ok(only),
        _ => Err(f.error("pooling_mode", expected)),
    }
}

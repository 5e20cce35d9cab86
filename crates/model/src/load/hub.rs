//! From a model's name to a local directory: a path that exists, or a Hugging Face repository, downloaded to the usual cache.
//! It knows which files a model needs, and nothing of their content. It prints nothing: progress goes to a callback.

mod gguf_files;
mod misplaced;

use crate::load::checkpoint::Checkpoint;
use crate::load::checkpoint::index::{INDEX, SINGLE, weights_among};
use crate::load::error::LoadError;
use crate::load::packed::beside;
use crate::load::pooler::TEXTS;
use crate::load::{file, gguf, json};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where and how to look. See [`HubOptions::from_variables`].
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Branch, tag or commit.
    pub revision: String,
    /// Use only what has been downloaded.
    pub offline: bool,
    /// Address of the hub.
    pub endpoint: String,
    /// The directory of `models--owner--name`.
    pub cache: PathBuf,
    /// Sent with each request, for gated and private models.
    pub token: Option<String>,
    /// Whether weights are downloaded, too. A model of random ones needs none.
    pub weights: bool,
}

/// How far the download of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadProgress<'a> {
    /// Its name in the repository.
    pub file: &'a str,
    /// Bytes that are on disk.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// A model that cannot be found or downloaded.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// It looks like a path, but there is nothing.
    #[error(
        "{0}: no such directory or file; give a checkpoint's directory, a GGUF file, or the name of a Hugging Face model like owner/name or \
         owner/name:Q4_K_M"
    )]
    NoSuchPath(String),
    /// A file instead of a directory.
    #[error(
        "{0}: is a file that does not end in .gguf; give that one, or the directory that holds config.json and the weights"
    )]
    NotADirectory(PathBuf),
    /// A directory that is no checkpoint, or one of files that are not.
    #[error("{path}: {reason}")]
    Misplaced {
        /// The directory, or its file.
        path: PathBuf,
        /// What it is, and what to do.
        reason: &'static str,
    },
    /// Its config.json asks for what is not supported.
    #[error(transparent)]
    Unusable(Box<LoadError>),
    /// The hub has no address.
    #[error("HF_ENDPOINT is {0:?}, which is no address: it must be like https://huggingface.co")]
    Endpoint(String),
    /// A directory or a repository of GGUF files, of which not one model is meant.
    #[error("{path}: {reason}")]
    Gguf {
        /// The directory, or the repository's name.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Offline, and the model has not been downloaded.
    #[error(
        "{model} (revision {revision}) is not in the cache {cache}, and HF_HUB_OFFLINE forbids to download it; \
         unset HF_HUB_OFFLINE or give a directory"
    )]
    NotCached {
        /// The model.
        model: String,
        /// The revision asked for.
        revision: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// The hub has no such model, or does not show it.
    #[error(
        "{}{endpoint} has no model {model} (revision {revision}), or it is private or gated: then set HF_TOKEN",
        nothing_here(model)
    )]
    NoSuchModel {
        /// The model.
        model: String,
        /// The revision asked for.
        revision: String,
        /// Address of the hub.
        endpoint: String,
    },
    /// The repository has neither safetensors weights nor GGUF models.
    #[error("{model} has no {file}; only checkpoints of safetensors and GGUF models are supported")]
    NoFile {
        /// The model.
        model: String,
        /// What is missing.
        file: String,
    },
    /// The download failed. What has arrived is kept.
    #[error(
        "{}{model}: {file} cannot be downloaded from {endpoint}: {reason}{}",
        nothing_here(model),
        if *has_begun { "; start again to resume" } else { "" }
    )]
    Download {
        /// The model.
        model: String,
        /// The file.
        file: String,
        /// Address of the hub.
        endpoint: String,
        /// What went wrong.
        reason: String,
        /// Whether something has arrived.
        has_begun: bool,
    },
}

/// Of a name without an owner, which few models of the hub have: it may have been a path.
fn nothing_here(model: &str) -> String {
    if model.contains('/') { String::new() } else { format!("there is no file or directory {model} here, and ") }
}

/// Small files that a model may have. `config.json` it must have.
const SMALL_FILES: [&str; 13] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    TEXTS,
    INDEX,
];

/// The directory of chat templates of names of their own.
pub(crate) const TEMPLATES: &str = "additional_chat_templates/";

/// Between looks for a file that another process downloads.
const PATIENCE: Duration = Duration::from_secs(1);

impl HubOptions {
    /// From HF_HUB_CACHE or HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, and HF_TOKEN or the token file of `hf auth login`. `get` gives the
    /// value of a variable of the environment; one that is empty counts as unset.
    pub fn from_variables(revision: Option<String>, get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        // The token is beside the cache that there is without HF_HUB_CACHE.
        let of_home = get("HF_HOME").map_or_else(Cache::default, |home| Cache::new(Path::new(&home).join("hub")));
        let token = get("HF_TOKEN").or_else(|| of_home.token());
        let is_true = |value: String| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str());
        Self {
            revision: revision.unwrap_or_else(|| "main".to_owned()),
            offline: get("HF_HUB_OFFLINE").is_some_and(is_true),
            endpoint: get("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned()),
            token,
            weights: true,
            cache: get("HF_HUB_CACHE").map_or_else(|| of_home.path().clone(), PathBuf::from),
        }
    }
}

/// The directory of `model`: itself if there is such a path, else its snapshot in the cache, downloaded if need be. Of `owner/name:tag` and
/// `directory:tag` it is the GGUF file whose name ends in the tag, or the first of its files.
///
/// # Errors
/// Nothing there, nothing cached while offline, or a failed download.
pub fn resolve(
    model: &str,
    options: &HubOptions,
    on_progress: &mut dyn FnMut(DownloadProgress<'_>),
) -> Result<PathBuf, HubError> {
    let path = Path::new(model);
    if path.is_dir() {
        if options.weights
            && let Some((path, reason)) = misplaced::find(path)
        {
            return Err(HubError::Misplaced { path, reason });
        }
        if path.join("config.json").exists() {
            return Ok(path.to_owned());
        }
        let found = gguf::find(path).map_err(|reason| HubError::Gguf { path: path.to_owned(), reason })?;
        return Ok(found.unwrap_or_else(|| path.to_owned()));
    }
    if gguf::is_file(path) {
        return Ok(path.to_owned());
    }
    if gguf::has_ending(path)
        && let Err(error) = file::regular(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(HubError::Gguf { path: path.to_owned(), reason: error.to_string() });
    }
    if path.exists() {
        return Err(HubError::NotADirectory(path.to_owned()));
    }
    let (repository, tag) = model.split_once(':').map_or((model, None), |(name, tag)| (name, Some(tag)));
    let tag = tag.filter(|tag| !tag.is_empty());
    let local = Path::new(repository);
    if local.is_dir() {
        // As of the hub, no tag behind the colon chooses none.
        let Some(tag) = tag else { return resolve(repository, options, on_progress) };
        let names = file::names_below(local);
        let files = gguf_files::of_tag(&names, tag);
        let files = files.map_err(|reason| HubError::Gguf { path: local.to_owned(), reason })?;
        return Ok(local.join(files[0]));
    }
    // A file that is not there, and an address.
    let is_path = gguf::has_ending(path) || tag.is_some_and(|tag| tag.contains('/'));
    if is_path || !is_hub_id(repository) {
        return Err(HubError::NoSuchPath(model.to_owned()));
    }
    let hub = Hub { model: repository, tag, options, has_begun: Cell::new(false) };
    let cached = hub.cached();
    if options.offline {
        return cached.ok_or_else(|| HubError::NotCached {
            model: model.to_owned(),
            revision: options.revision.clone(),
            cache: options.cache.clone(),
        });
    }
    let is_address = ["http://", "https://"].iter().any(|scheme| options.endpoint.starts_with(scheme));
    let downloaded =
        if is_address { hub.download(on_progress) } else { Err(HubError::Endpoint(options.endpoint.clone())) };
    match (downloaded, cached) {
        (Err(error @ (HubError::Download { .. } | HubError::Endpoint(_))), Some(cached))
            if !options.weights || is_complete(&cached) =>
        {
            let reason = if let HubError::Download { reason, .. } = error { reason } else { error.to_string() };
            tracing::warn!("{model}: the hub cannot be reached ({reason}); using the cached snapshot");
            Ok(cached)
        }
        (result, _) => result,
    }
}

/// Whether a word is more likely a model than a name for something: a path that exists, or `owner/name`, perhaps with a tag.
pub fn looks_like_model(word: &str) -> bool {
    let repository = word.split_once(':').map_or(word, |(repository, _tag)| repository);
    !word.is_empty() && Path::new(word).exists() || repository.contains('/') && is_hub_id(repository)
}

/// Whether it has the form `name` or `owner/name`.
fn is_hub_id(model: &str) -> bool {
    let is_part = |part: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_allowed)
    };
    let parts: Vec<&str> = model.split('/').collect();
    parts.len() <= 2 && parts.into_iter().all(is_part)
}

/// Whether a snapshot has its configuration and all weight files. What is cached of a GGUF model is all of it.
fn is_complete(snapshot: &Path) -> bool {
    if gguf::is_file(snapshot) {
        return true;
    }
    let names = file::names_below(snapshot);
    let weights = match file::read(&snapshot.join(INDEX), file::MAX_JSON) {
        Ok(index) => weights_beside(&index, |name| snapshot.join(name).exists()),
        Err(_) => weights_among(&names).into_iter().map(str::to_owned).collect(),
    };
    !weights.is_empty() && snapshot.join("config.json").exists() && weights.iter().all(|w| snapshot.join(w).exists())
}

/// The weight files beside an index: those that it names, unless none of them is there and the single one is. Then it is another model's,
/// as in some uploads of what was made of that.
fn weights_beside(index: &[u8], is_there: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let named = shards(index).unwrap_or_default();
    if named.is_empty() || !is_there(SINGLE) || named.iter().any(|name| is_there(name)) {
        return named;
    }
    tracing::warn!("{INDEX} names files of which none is there; {SINGLE} is taken instead");
    BTreeSet::from([SINGLE.to_owned()])
}

/// The weight files that an index names.
fn shards(index: &[u8]) -> Option<BTreeSet<String>> {
    json::object(index).ok()?.get("weight_map")?.as_object()?.values().map(|v| v.as_str().map(str::to_owned)).collect()
}

/// One model on the hub and in the cache.
struct Hub<'a> {
    model: &'a str,
    /// Which of its GGUF models.
    tag: Option<&'a str>,
    options: &'a HubOptions,
    /// Whether bytes of a file have arrived.
    has_begun: Cell<bool>,
}

impl Hub<'_> {
    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.model.to_owned(), RepoType::Model, revision.to_owned())
    }

    /// The snapshot of the revision, if it has been downloaded.
    fn cached(&self) -> Option<PathBuf> {
        if let Some(tag) = self.tag {
            return self.cached_gguf(tag);
        }
        let cache = Cache::new(self.options.cache.clone()).repo(self.repo(&self.options.revision));
        let by_name = cache.get("config.json").and_then(|path| Some(path.parent()?.to_owned()));
        // A commit has no reference of its own.
        by_name.or_else(|| Some(cache.pointer_path(&self.options.revision)).filter(|p| p.join("config.json").exists()))
    }

    /// The first file of a GGUF model, if all of them have been downloaded.
    fn cached_gguf(&self, tag: &str) -> Option<PathBuf> {
        let cache = Cache::new(self.options.cache.clone()).repo(self.repo(&self.options.revision));
        let by_commit = cache.pointer_path(&self.options.revision);
        let of_repository = by_commit.parent()?.parent()?;
        let commit = fs::read_to_string(of_repository.join("refs").join(&self.options.revision));
        let snapshot = commit.map_or(by_commit.clone(), |commit| cache.pointer_path(commit.trim()));
        let names = file::names_below(&snapshot);
        let files = gguf_files::of_tag(&names, tag).ok()?;
        let first = snapshot.join(files[0]);
        gguf::parts(&first).ok()?.iter().all(|part| part.exists()).then_some(first)
    }

    fn download(&self, on_progress: &mut dyn FnMut(DownloadProgress<'_>)) -> Result<PathBuf, HubError> {
        let api = self.api().map_err(|e| self.failed("the repository", &e))?;
        let info =
            api.repo(self.repo(&self.options.revision)).info().map_err(|e| self.failed("the list of files", &e))?;
        let names: BTreeSet<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
        let repo = api.repo(self.repo(&info.sha));
        let cache = Cache::new(self.options.cache.clone());
        let snapshot = cache.repo(self.repo(&info.sha)).pointer_path(&info.sha);
        let mut fetch = |name: &str| -> Result<(), HubError> {
            match snapshot.join(name).exists() {
                true => Ok(()),
                false => self.fetch(&repo, &snapshot, name, on_progress),
            }
        };
        let required = |name: &str| match names.contains(name) {
            true => Ok(()),
            false => Err(HubError::NoFile { model: self.model.to_owned(), file: name.to_owned() }),
        };
        if let Some(tag) = self.tag {
            let files = gguf_files::of_tag(&names, tag).map_err(|reason| self.not_one(reason))?;
            files.iter().try_for_each(|name| fetch(name))?;
            self.note_revision(&cache, &info.sha);
            return Ok(snapshot.join(files[0]));
        }
        let has_index = names.contains(INDEX);
        let alone = weights_among(&names);
        let is_whole = names.contains("config.json") && (has_index || !alone.is_empty());
        if let Some(question) = gguf_files::question(self.model, &names).filter(|_| !is_whole) {
            return Err(self.not_one(question));
        }
        required("config.json")?;
        if !has_index && alone.is_empty() && self.options.weights {
            required(SINGLE)?;
        }
        let is_template = |name: &&str| name.starts_with(TEMPLATES) && name.ends_with(".jinja");
        let small = SMALL_FILES.into_iter().chain(beside::FILES).filter(|name| names.contains(*name));
        for name in small.chain(names.iter().map(String::as_str).filter(is_template)) {
            fetch(name)?;
        }
        if self.options.weights {
            // What cannot be computed is not downloaded.
            Checkpoint::describe(&snapshot).map_err(|error| HubError::Unusable(Box::new(error)))?;
        }
        // Only what the index names: repositories may hold the weights a second time in another form.
        let weights = match has_index {
            _ if !self.options.weights => BTreeSet::new(),
            true => file::read(&snapshot.join(INDEX), file::MAX_JSON)
                .map(|index| weights_beside(&index, |name| names.contains(name)))
                .unwrap_or_default(),
            false => alone.into_iter().map(str::to_owned).collect(),
        };
        for name in &weights {
            required(name)?;
            fetch(name)?;
        }
        self.note_revision(&cache, &info.sha);
        Ok(snapshot)
    }

    /// Which commit the revision is, for those who are offline.
    fn note_revision(&self, cache: &Cache, commit: &str) {
        if let Err(e) = cache.repo(self.repo(&self.options.revision)).create_ref(commit) {
            tracing::warn!("{}: the revision cannot be noted in the cache: {e}", self.model);
        }
    }

    fn not_one(&self, reason: String) -> HubError {
        HubError::Gguf { path: self.model.into(), reason }
    }

    fn fetch(
        &self,
        repo: &ApiRepo,
        snapshot: &Path,
        name: &str,
        on_progress: &mut dyn FnMut(DownloadProgress<'_>),
    ) -> Result<(), HubError> {
        let mut waits = false;
        loop {
            let report = Report { file: name.to_owned(), done: 0, total: 0, has_begun: &self.has_begun, on_progress };
            match repo.download_with_progress(name, report) {
                // Another process downloads it, and gives the lock back when it ends, however it does.
                Err(ApiError::LockAcquisition(_)) => {
                    if !waits {
                        tracing::info!("{}: {name} is being downloaded by another process", self.model);
                    }
                    waits = true;
                    std::thread::sleep(PATIENCE);
                    if snapshot.join(name).exists() {
                        return Ok(());
                    }
                }
                result => return result.map(drop).map_err(|e| self.failed(name, &e)),
            }
        }
    }

    fn api(&self) -> Result<Api, ApiError> {
        ApiBuilder::new()
            .with_endpoint(self.options.endpoint.clone())
            .with_cache_dir(self.options.cache.clone())
            .with_token(self.options.token.clone())
            .with_user_agent("vllm-apple", env!("CARGO_PKG_VERSION"))
            .build()
    }

    fn failed(&self, file: &str, error: &ApiError) -> HubError {
        let (model, endpoint) = (self.model.to_owned(), self.options.endpoint.clone());
        let status = match error {
            ApiError::RequestError(e) => match **e {
                ureq::Error::StatusCode(status) => Some(status),
                _ => None,
            },
            _ => None,
        };
        match status {
            Some(401 | 403 | 404) => HubError::NoSuchModel { model, revision: self.options.revision.clone(), endpoint },
            _ => HubError::Download {
                model,
                file: file.to_owned(),
                endpoint,
                reason: error.to_string(),
                has_begun: self.has_begun.get(),
            },
        }
    }
}

/// Passes a file's progress on.
struct Report<'a> {
    file: String,
    done: u64,
    total: u64,
    has_begun: &'a Cell<bool>,
    on_progress: &'a mut dyn FnMut(DownloadProgress<'_>),
}

impl Progress for Report<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        (self.done, self.total) = (0, size as u64);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        self.has_begun.set(true);
        (self.on_progress)(DownloadProgress { file: &self.file, done: self.done, total: self.total });
    }

    fn finish(&mut self) {}
}

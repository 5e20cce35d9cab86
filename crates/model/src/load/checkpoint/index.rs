//! Which weight files a checkpoint has, and which of them each tensor is in. It reads no weights.

use super::Checkpoint;
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use crate::load::file;
use std::collections::BTreeSet;
use std::path::Path;

pub(crate) const SINGLE: &str = "model.safetensors";
/// Names the file of each tensor where there are several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The index of a checkpoint in several files.
pub(super) struct Index {
    map: Fields,
}

impl Index {
    /// The index; `None` if there is none, or another checkpoint's: none of its files is there, and the single one is. Some uploads have
    /// that of the model that they were made of.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, LoadError> {
        let path = directory.join(INDEX);
        if !path.exists() {
            return Ok(None);
        }
        let index = Fields::read(&path)?;
        let map = index.object("weight_map")?.ok_or_else(|| index.error("weight_map", "an object"))?;
        if map.names().next().is_none() {
            return Err(index.error("weight_map", "not empty"));
        }
        let index = Self { map };
        let is_there = |name: &str| directory.join(name).exists();
        if is_there(SINGLE) && !index.shards()?.into_iter().any(is_there) {
            tracing::warn!("{}: none of the files that it names is there; {SINGLE} is read instead", path.display());
            return Ok(None);
        }
        Ok(Some(index))
    }

    fn file(&self, tensor: &str) -> Result<&str, LoadError> {
        self.map.string(tensor)?.ok_or_else(|| self.map.error(tensor, "a file name"))
    }

    fn shards(&self) -> Result<BTreeSet<&str>, LoadError> {
        let mut names = BTreeSet::new();
        for tensor in self.map.names() {
            let name = self.file(tensor)?;
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(self.map.error(tensor, "a file name without a directory"));
            }
            names.insert(name);
        }
        Ok(names)
    }

    fn files(&self, directory: &Path) -> Result<Vec<String>, LoadError> {
        let shards = self.shards()?;
        match shards.iter().find(|name| !directory.join(name).exists()) {
            Some(&missing) => {
                Err(LoadError::MissingShard { index: self.map.path().to_owned(), shard: missing.to_owned() })
            }
            None => Ok(shards.into_iter().map(str::to_owned).collect()),
        }
    }

    /// Checks that it and the files agree which tensors there are.
    pub(super) fn check(&self, checkpoint: &Checkpoint) -> Result<(), LoadError> {
        for tensor in self.map.names().filter(|tensor| !checkpoint.may_be_unused(tensor)) {
            let file = self.file(tensor)?;
            let found = checkpoint.tensors.get(tensor).map(|entry| checkpoint.path_of(entry));
            if found.and_then(Path::file_name) != Some(file.as_ref()) {
                return Err(self.map.error(tensor, "the file which has this tensor"));
            }
        }
        let unlisted = |name: &&String| self.map.get(name).is_none() && !checkpoint.may_be_unused(name);
        match checkpoint.tensors.keys().filter(unlisted).min() {
            None => Ok(()),
            Some(name) => Err(self.map.error(name, "the name of the file which has this tensor")),
        }
    }
}

/// The weight files: those that the index names, else the single one, else all that there are, as vLLM has it. Quantising tools had names of
/// their own.
pub(super) fn files(index: Option<&Index>, directory: &Path) -> Result<Vec<String>, LoadError> {
    if let Some(index) = index {
        return index.files(directory);
    }
    let all = file::names_below(directory);
    let found = weights_among(&all);
    match found.is_empty() {
        true => Err(LoadError::NoWeights { path: directory.to_owned() }),
        false => Ok(found.into_iter().map(str::to_owned).collect()),
    }
}

/// Those of a directory's files that are its weights where there is no index.
pub(crate) fn weights_among(names: &BTreeSet<String>) -> Vec<&str> {
    if names.contains(SINGLE) {
        return vec![SINGLE];
    }
    names.iter().map(String::as_str).filter(|name| !name.contains('/') && name.ends_with(".safetensors")).collect()
}

//! Which weight files a checkpoint has, and which of them each tensor is in. It reads no weights.

use super::Checkpoint;
use crate::load::error::LoadError;
use crate::load::fields::Fields;
use std::collections::BTreeSet;
use std::path::Path;

const SINGLE: &str = "model.safetensors";
/// Names the file of each tensor where there are several.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The index of a checkpoint in several files.
pub(super) struct Index {
    map: Fields,
}

impl Index {
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
        Ok(Some(Self { map }))
    }

    fn file(&self, tensor: &str) -> Result<&str, LoadError> {
        self.map.string(tensor)?.ok_or_else(|| self.map.error(tensor, "a file name"))
    }

    fn files(&self, directory: &Path) -> Result<Vec<String>, LoadError> {
        let mut names = BTreeSet::new();
        for tensor in self.map.names() {
            let name = self.file(tensor)?;
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(self.map.error(tensor, "a file name without a directory"));
            }
            if !directory.join(name).exists() {
                return Err(LoadError::MissingShard { index: self.map.path().to_owned(), shard: name.to_owned() });
            }
            names.insert(name.to_owned());
        }
        Ok(names.into_iter().collect())
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

/// The weight files: those that the index names, else the single one.
pub(super) fn files(index: Option<&Index>, directory: &Path) -> Result<Vec<String>, LoadError> {
    match index {
        Some(index) => index.files(directory),
        None if directory.join(SINGLE).exists() => Ok(vec![SINGLE.to_owned()]),
        None => Err(LoadError::NoWeights { path: directory.to_owned() }),
    }
}

//! Directories that are taken for checkpoints and are none, as far as the names and first bytes of their files tell.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::load::{file, gguf};

/// What a directory of the hub's cache is called, before the model's owner.
const OF_CACHE: &str = "models--";
/// What stands in place of a file that git lfs has not fetched.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// The directory or a file of it, and why it is not what was meant.
pub fn find(directory: &Path) -> Option<(PathBuf, &'static str)> {
    if !directory.join("config.json").exists() {
        if directory.join("adapter_config.json").exists() {
            return Some((
                directory.to_owned(),
                "is an adapter (LoRA), which is not loaded: merge it into its model and give that",
            ));
        }
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(OF_CACHE) && directory.join("snapshots").is_dir() {
            let reason = "is a model's place in the hub's cache: give the model's name like owner/name, or a directory below its snapshots/";
            return Some((directory.to_owned(), reason));
        }
    }
    let files: Vec<PathBuf> = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path()).collect();
    // A checkpoint may have its weights a second time under other names.
    let is_model = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"model"));
    let has_end = |path: &PathBuf| path.extension().is_some_and(|end| end == "safetensors");
    let has_models = files.iter().any(|path| has_end(path) && is_model(path));
    let is_read = |path: &PathBuf| match path.extension().and_then(|end| end.to_str()) {
        Some("safetensors") => is_model(path) || !has_models,
        Some("gguf") => !directory.join("config.json").exists() && !gguf::is_projector(path),
        _ => false,
    };
    let weights = files.into_iter().filter(is_read);
    let pointer = weights.filter(|path| is_pointer(path)).min()?;
    Some((pointer, "is a pointer of git lfs in place of the file: run `git lfs pull` in its directory"))
}

fn is_pointer(path: &Path) -> bool {
    let mut beginning = Vec::new();
    let open = file::regular(path).and_then(|_| File::open(path));
    let read = open.and_then(|file| file.take(POINTER.len() as u64).read_to_end(&mut beginning));
    read.is_ok() && beginning == POINTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_are_no_checkpoints_are_told() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join([OF_CACHE, "owner"].concat());
        fs::create_dir_all(directory.join("snapshots")).unwrap();
        assert!(find(&directory).unwrap().1.contains("snapshots/"));
        fs::write(directory.join("adapter_config.json"), "{}").unwrap();
        assert!(find(&directory).unwrap().1.contains("adapter"));
        // With a configuration of its own it is a checkpoint.
        fs::write(directory.join("config.json"), "{}").unwrap();
        fs::write(directory.join("model.safetensors"), "\0").unwrap();
        let pointer = [POINTER, b"v1\noid sha256:0\nsize 5\n"].concat();
        fs::write(directory.join("consolidated.safetensors"), &pointer).unwrap();
        assert_eq!(find(&directory), None);
        // Without those, all are weights.
        fs::rename(directory.join("model.safetensors"), directory.join("gptq_model-4bit.safetensors")).unwrap();
        assert!(find(&directory).unwrap().0.ends_with("consolidated.safetensors"));
        fs::write(directory.join("model-2.safetensors"), pointer).unwrap();
        let (path, reason) = find(&directory).unwrap();
        assert!(path.ends_with("model-2.safetensors") && reason.contains("git lfs pull"));
    }
}

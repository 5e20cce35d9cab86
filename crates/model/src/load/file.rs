//! Reads whole files of a checkpoint: regular ones of a size that they may have. A pipe would never end, and a file of gigabytes would
//! take as much memory before anything could be said about it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use crate::load::gguf;

/// Most bytes of a model's configuration, and of an index of weights files.
pub const MAX_JSON: u64 = 64 << 20;

/// Most bytes of a tokenizer's settings.
pub const MAX_SETTINGS: u64 = 16 << 20;

/// Most bytes of a chat template.
pub const MAX_TEMPLATE: u64 = 4 << 20;

/// Most bytes of a tokenizer.
pub const MAX_TOKENIZER: u64 = 256 << 20;

/// The content of a regular file of at most `most` bytes.
///
/// # Errors
/// It is something else or larger, or cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let check = |len: u64| match len > most {
        true => Err(io::Error::other(format!("it has {len} bytes, expected at most {most}"))),
        false => Ok(()),
    };
    if let Some(member) = member(path) {
        let bytes = member?;
        check(bytes.len() as u64)?;
        return Ok(bytes);
    }
    check(regular(path)?)?;
    fs::read(path)
}

/// Whether there is a file to read.
pub fn exists(path: &Path) -> bool {
    path.is_file() || member(path).is_some()
}

/// The names of all files in a directory and in its directories, relative to it.
pub(crate) fn names_below(directory: &Path) -> BTreeSet<String> {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let deeper = entries(directory).filter(|path| path.is_dir()).flat_map(|path| entries(&path).collect::<Vec<_>>());
    let all = entries(directory).chain(deeper);
    all.filter_map(|path| path.strip_prefix(directory).ok()?.to_str().map(str::to_owned)).collect()
}

/// What is within a GGUF file, which is a directory of what it stands for.
fn member(path: &Path) -> Option<io::Result<Vec<u8>>> {
    let (directory, name) = (path.parent()?, path.file_name()?.to_str()?);
    if !gguf::is_file(directory) {
        return None;
    }
    Some(gguf::member(directory, name).unwrap_or_else(|| Err(io::ErrorKind::NotFound.into())))
}

/// The size of a regular file.
///
/// # Errors
/// It is something else, or cannot be looked at.
pub(crate) fn regular(path: &Path) -> io::Result<u64> {
    let metadata = fs::metadata(path)?;
    match metadata.is_file() {
        true => Ok(metadata.len()),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_fitting_size_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert!(read(&path, 4).unwrap_err().to_string().contains("5 bytes, expected at most 4"));
        assert!(read(directory.path(), 4).unwrap_err().to_string().contains("not a regular file"));
        assert_eq!(read(&directory.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(read(&path, 4).unwrap_err().to_string().contains("not a regular file"));
    }
}

//! Compiled libraries on disk, named by a hash of all that they depend on. It knows nothing of compilers.

use super::error::CompileError;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// `$MSL_SIM_CACHE`, or `msl-sim` in the user's cache directory; created if it is not there.
pub(super) fn directory() -> Result<PathBuf, CompileError> {
    let path = match std::env::var_os("MSL_SIM_CACHE") {
        Some(path) => PathBuf::from(path),
        None => dirs::cache_dir().unwrap_or_else(std::env::temp_dir).join("msl-sim"),
    };
    std::fs::create_dir_all(&path).map_err(|source| CompileError::Io { path: path.clone(), source })?;
    Ok(path)
}

/// SHA-256 of the parts, in hexadecimal; where one part ends and the next begins counts.
pub(super) fn hash<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.as_ref().len() as u64).to_le_bytes());
        hasher.update(part.as_ref());
    }
    hasher.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    })
}

/// Moves a finished file to its place, so that no process ever reads half of it.
pub(super) fn publish(from: &Path, to: &Path) -> Result<(), CompileError> {
    std::fs::rename(from, to).map_err(|source| CompileError::Io { path: to.to_owned(), source })
}

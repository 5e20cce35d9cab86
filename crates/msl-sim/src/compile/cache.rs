//! Compiled libraries and their warnings on disk, named by a hash of all that they depend on. It knows nothing of compilers.

use super::error::CompileError;
use super::lint::{Lint, Severity};
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

/// Writes warnings, each on a line.
pub(super) fn write_lints(path: &Path, lints: &[Lint]) -> Result<(), CompileError> {
    let failed = |source| CompileError::Io { path: path.to_owned(), source };
    let line = |Lint { file, line, column, message, .. }: &Lint| format!("{line}\t{column}\t{file}\t{message}\n");
    let temporary = tempfile::NamedTempFile::new_in(directory()?).map_err(failed)?;
    std::fs::write(temporary.path(), lints.iter().map(line).collect::<String>()).map_err(failed)?;
    temporary.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Reads them; none if they are not there, or not whole.
pub(super) fn read_lints(path: &Path) -> Option<Vec<Lint>> {
    let text = std::fs::read_to_string(path).ok()?;
    let lint = |line: &str| {
        let mut parts = line.splitn(4, '\t');
        let (line, column) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let (file, message) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        Some(Lint { file, line, column, severity: Severity::Warning, message })
    };
    text.lines().map(lint).collect()
}

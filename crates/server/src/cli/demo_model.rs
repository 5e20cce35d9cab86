//! The model in the box: the files of `models/demo`, embedded in the binary and unpacked once to the user's cache. It knows no
//! loader: what comes out is a checkpoint directory like any other.
//!
//! What is there is compared with what is embedded at every start, and repaired. Programs that run may have the files mapped, and others
//! may start at the same time: a file is never written where they look for it, but beside, and then renamed. So a file that is right
//! stays right, whoever else repairs it.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/", $name)).as_slice())),*]
    };
}

/// As Hugging Face saves a checkpoint.
const FILES: [(&str, &[u8]); 6] = files![
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// What requests call it.
pub const NAME: &str = "demo";

/// Where the user's cache is taken from.
const CACHE_VARIABLE: &str = if cfg!(target_os = "macos") { "HOME" } else { "XDG_CACHE_HOME" };

/// The bundled model is not there as it should be, and cannot be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "the bundled model cannot be unpacked: {path}: {source}; it needs 12 MB that can be written: free them, remove what is in the way, \
     set {CACHE_VARIABLE} to another directory, or name a model"
)]
pub struct UnpackError {
    path: PathBuf,
    source: io::Error,
}

/// The directory of the unpacked model: in the user's cache or, where there is none, among the temporary files.
pub fn directory() -> Result<PathBuf, UnpackError> {
    let cache = dirs::cache_dir().unwrap_or_else(std::env::temp_dir).join("vllm-apple");
    unpack(&cache)
}

/// The name of the directory is a digest of the content, so that another version of the program unpacks its own model.
fn unpack(cache: &Path) -> Result<PathBuf, UnpackError> {
    let mut digest = Sha256::new();
    for (name, content) in FILES {
        digest.update(name);
        digest.update(content);
    }
    let digest: String = digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let directory = cache.join(format!("{NAME}-{digest}"));
    remove_abandoned(cache);
    let damaged: Vec<_> = FILES.into_iter().filter(|(name, content)| !is(&directory.join(name), content)).collect();
    let strangers = strangers(&directory);
    if damaged.is_empty() && strangers.is_empty() {
        return Ok(directory);
    }
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| UnpackError { path, source }
    };
    if directory.exists() {
        tracing::warn!("{}: the bundled model is not as it was unpacked: repairing it", directory.display());
    }
    let partial = Partial::new(cache, &directory).map_err(at(cache))?;
    for (name, content) in &damaged {
        write(&partial.path.join(name), content).map_err(at(&partial.path))?;
    }
    if !directory.exists() && fs::rename(&partial.path, &directory).is_ok() {
        return Ok(directory);
    }
    // It was there, or another process was faster, which leaves nothing to do but does not forbid it.
    for path in strangers {
        move_aside(&path, &directory).map_err(at(&path))?;
    }
    for (name, _) in &damaged {
        let path = directory.join(name);
        fs::rename(partial.path.join(name), &path).map_err(at(&path))?;
    }
    Ok(directory)
}

/// Whether the file has this content.
fn is(path: &Path, content: &[u8]) -> bool {
    let len = fs::metadata(path).map(|metadata| metadata.len());
    len.is_ok_and(|len| len == content.len() as u64) && fs::read(path).is_ok_and(|found| found == content)
}

/// What is not a file of the model and might be taken for one, such as an index of other weights. Hidden files are not: file managers
/// leave them everywhere.
fn strangers(directory: &Path) -> Vec<PathBuf> {
    let ours = |name: &OsStr| FILES.iter().any(|(ours, _)| name == *ours);
    let hidden = |name: &OsStr| name.as_encoded_bytes().starts_with(b".");
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let strangers = entries.filter(|entry| !ours(&entry.file_name()) && !hidden(&entry.file_name()));
    strangers.map(|entry| entry.path()).collect()
}

/// Keeps what somebody has put there, under a name beside the directory.
fn move_aside(path: &Path, directory: &Path) -> io::Result<()> {
    let mut aside = directory.as_os_str().to_owned();
    aside.push(".found-");
    aside.push(path.file_name().unwrap_or_default());
    match fs::rename(path, &aside) {
        // Another process was faster.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => {
            let (path, aside) = (path.display(), aside.display());
            result.inspect(|()| tracing::warn!("{path} is not part of the bundled model: moved to {aside}"))
        }
    }
}

/// Writes a new file. Waits for the disk, which may be full only then.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// A directory for files that are being written. It goes with its owner: at the latest, another process removes it when it finds that
/// nobody holds its lock any more.
struct Partial {
    path: PathBuf,
    _lock: File,
}

impl Partial {
    /// An empty one beside `directory`.
    fn new(cache: &Path, directory: &Path) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(cache)?;
        loop {
            let mut path = directory.as_os_str().to_owned();
            path.push(format!(".{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
            let path = PathBuf::from(path);
            match fs::create_dir(&path) {
                // Of a process that had this number before, or has it on another machine.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                result => result?,
            }
            // Until it is locked, others may take it for abandoned and remove it.
            match File::open(&path) {
                Ok(lock) => match lock.try_lock() {
                    Err(TryLockError::WouldBlock) => {}
                    // A file system without locks: nobody will find that it is free.
                    Ok(()) | Err(TryLockError::Error(_)) if path.exists() => return Ok(Self { path, _lock: lock }),
                    Ok(()) | Err(TryLockError::Error(_)) => {}
                },
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    let _ = fs::remove_dir(&path);
                    return Err(error);
                }
            }
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // If it cannot be, or has been renamed: nothing depends on it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what processes that were stopped have left. Whether that works or not does not matter to this one.
fn remove_abandoned(cache: &Path) {
    let is_partial = |name: &OsStr| {
        let name = name.to_str().and_then(|name| name.strip_prefix(NAME)?.strip_prefix('-')?.split_once('.'));
        name.is_some_and(|(_, owner)| owner.chars().all(|c| c.is_ascii_digit() || c == '-'))
    };
    for entry in fs::read_dir(cache).into_iter().flatten().flatten().filter(|entry| is_partial(&entry.file_name())) {
        let Ok(lock) = File::open(entry.path()) else { continue };
        // Held until it is gone: whoever has just made it must not have it in between.
        if lock.try_lock().is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;

//! The model in the box: the files of `models/demo`, embedded in the binary and unpacked once to the user's cache. It knows no
//! loader: what comes out is a checkpoint directory like any other.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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

/// The directory of the unpacked model: in the user's cache or, where there is none, among the temporary files.
pub fn directory() -> io::Result<PathBuf> {
    let cache = dirs::cache_dir().unwrap_or_else(std::env::temp_dir).join("vllm-apple");
    unpack(&cache)
}

/// The name of the directory is a digest of the content, so that another version of the program unpacks its own model.
fn unpack(cache: &Path) -> io::Result<PathBuf> {
    let mut digest = Sha256::new();
    for (name, content) in FILES {
        digest.update(name);
        digest.update(content);
    }
    let digest: String = digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let directory = cache.join(format!("{NAME}-{digest}"));
    if directory.is_dir() {
        return Ok(directory);
    }
    // Renamed when it is whole: a program that is stopped, or another one that starts, never sees half a model.
    let partial = cache.join(format!("{NAME}-{digest}.{}", std::process::id()));
    fs::create_dir_all(&partial)?;
    for (name, content) in FILES {
        fs::write(partial.join(name), content)?;
    }
    match fs::rename(&partial, &directory) {
        // Another process was faster.
        Err(_) if directory.is_dir() => fs::remove_dir_all(&partial)?,
        renamed => renamed?,
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacks_once_and_whole() {
        let cache = tempfile::tempdir().unwrap();
        let first = unpack(cache.path()).unwrap();
        for (name, content) in FILES {
            assert!(fs::read(first.join(name)).unwrap() == content, "{name}");
        }
        fs::write(first.join("config.json"), "kept").unwrap();
        assert_eq!(unpack(cache.path()).unwrap(), first);
        assert_eq!(fs::read(first.join("config.json")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
    }
}

//! Where compiled kernels are kept for the next start: a file per system build, device and program version. It knows no kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const PREFIX: &str = "kernels-";
const SUFFIX: &str = ".archive";
/// Of a file that is being written, behind the number of the process.
const NEW: &str = ".new";
/// A file that is being written for longer is of a process that has ended.
const LONGEST_WRITE: Duration = Duration::from_secs(600);

/// The file of what was compiled for this device by this build of the system for this version of the program: machine code fits no other.
pub(crate) fn path(directory: &Path, system: &str, device: &str) -> PathBuf {
    let plain = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
    let version = env!("CARGO_PKG_VERSION");
    directory.join(format!("{PREFIX}{}-{}-{version}{SUFFIX}", plain(device), plain(system)))
}

/// Longest file that is used: of the pipelines of dozens of models. It would grow with every other model, and is read at each start.
const LONGEST: u64 = 256 << 20;

/// Whether there is a file to begin with: one that has grown too long is made anew, of what is in use now.
pub(crate) fn is_there(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.len() <= LONGEST)
}

/// Makes `path` what `write` writes, at once: whoever reads meanwhile finds the old or the new one. Files of other builds go.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    let directory = path.parent().ok_or("it has no directory")?;
    fs::create_dir_all(directory).map_err(|error| error.to_string())?;
    let new = path.with_extension(format!("{}{NEW}", std::process::id()));
    let result = write(&new).and_then(|()| fs::rename(&new, path).map_err(|error| error.to_string()));
    if result.is_err() {
        // It may never have been there.
        let _ = fs::remove_file(&new);
        return result;
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let stale = name.ends_with(SUFFIX) && entry.path() != path || name.ends_with(NEW) && is_abandoned(&entry);
        if name.starts_with(PREFIX) && stale {
            // Another process may be faster.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Whether nobody writes a file any more.
fn is_abandoned(entry: &fs::DirEntry) -> bool {
    let written = entry.metadata().and_then(|metadata| metadata.modified());
    written.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > LONGEST_WRITE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_grown_too_long_is_not_used() {
        let path = std::env::temp_dir().join(format!("vllm-apple-long-file-{}.archive", std::process::id()));
        assert!(!is_there(&path));
        let file = fs::File::create(&path).unwrap();
        // Of holes, which take no room.
        file.set_len(LONGEST).unwrap();
        assert!(is_there(&path));
        file.set_len(LONGEST + 1).unwrap();
        assert!(!is_there(&path));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_is_of_one_build_and_replaces_those_of_others() {
        let directory = std::env::temp_dir().join(format!("vllm-apple-cache-file-{}", std::process::id()));
        let old = path(&directory, "Version 14.5 (Build 23F79)", "Apple M1");
        let new = path(&directory, "Version 15.0 (Build 24A335)", "Apple M1");
        assert_ne!(old, new);
        assert!(!new.file_name().unwrap().to_str().unwrap().contains([' ', '(', '/']), "{new:?}");
        let write = |text: &'static str| move |path: &Path| fs::write(path, text).map_err(|e| e.to_string());
        replace(&old, write("old")).unwrap();
        fs::write(directory.join("other"), "stays").unwrap();
        assert_eq!(replace(&new, |_| Err("no space".to_owned())), Err("no space".to_owned()));
        assert!(old.exists() && !new.exists(), "nothing has happened");
        // Of a process that ended while it wrote, and of one that writes.
        let [abandoned, current] = [1, 2].map(|process| old.with_extension(format!("{process}.new")));
        let long_ago = SystemTime::now() - 2 * LONGEST_WRITE;
        fs::File::create(&abandoned).unwrap().set_modified(long_ago).unwrap();
        fs::File::create(&current).unwrap();
        replace(&new, write("new")).unwrap();
        replace(&new, write("newer")).unwrap();
        assert_eq!(fs::read_to_string(&new).unwrap(), "newer");
        assert!(!abandoned.exists() && current.exists());
        assert_eq!(
            fs::read_dir(&directory).unwrap().count(),
            3,
            "the new file, the one that is written, and the other"
        );
        fs::remove_dir_all(directory).unwrap();
    }
}

//! A weights file in memory, and whether it is still the file that was opened. It knows no tensors.

use crate::load::error::LoadError;
use crate::load::file;
use crate::load::map_fault::Mapping;
use memmap2::{Mmap, MmapOptions};
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vllm_apple_ops::MappedFile;

/// A file that is mapped to be read. Whoever changes it changes the weights, or takes them away: [`WeightsFile::check`] tells.
///
/// The file is held open, so that all questions are about it and not about another that has its name by now: replacing a file by
/// renaming a new one over it leaves the mapped one as it was, and is no fault.
#[derive(Debug)]
pub(crate) struct WeightsFile {
    path: PathBuf,
    file: File,
    opened: Stamp,
    map: Mmap,
    /// For the signal of a read of what the file no longer has.
    mapping: &'static Mapping,
}

/// What changes with a file's content. Not the time of its last change of status: renaming and linking change that, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Bytes.
    pub(crate) len: i64,
    /// Time of the last modification, in seconds.
    pub(crate) seconds: i64,
    /// And nanoseconds.
    pub(crate) nanoseconds: i64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { len: metadata.size() as i64, seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() }
    }
}

impl WeightsFile {
    /// Maps all of the file. Nothing is read yet.
    pub(crate) fn open(path: PathBuf) -> Result<Self, LoadError> {
        let unreadable = |e| LoadError::unreadable(&path, e);
        file::regular(&path).map_err(unreadable)?;
        let file = File::open(&path).map_err(unreadable)?;
        let opened = Stamp::of(&file.metadata().map_err(unreadable)?);
        // SAFETY: the bytes stay as they are as long as nobody writes to the file. If somebody does, what is read is numbers of
        // whatever value, which `check` then keeps from being used; and what is no longer there ends the process by `map_fault`.
        let map = unsafe { MmapOptions::new().len(opened.len as usize).map(&file) }.map_err(unreadable)?;
        let mapping = Mapping::register(&path, &map, file.as_raw_fd(), opened);
        Ok(Self { path, file, opened, map, mapping })
    }

    /// Where it was when it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Advice about its pages goes here.
    pub(crate) fn map(&self) -> &Mmap {
        &self.map
    }

    /// Whether everything that was read until now was what the file held when it was opened. A writer changes the time before the
    /// content, so asking after reading is asking in time. Costs a system call; allocates nothing unless it fails.
    ///
    /// # Errors
    /// [`LoadError::Changed`], or the file cannot be asked any more.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let now = Stamp::of(&self.file.metadata().map_err(|e| LoadError::unreadable(&self.path, e))?);
        if now == self.opened {
            return Ok(());
        }
        let change = match now.len == self.opened.len {
            true => "it was written to".to_owned(),
            false => format!("it had {} bytes and has {}", self.opened.len, now.len),
        };
        Err(LoadError::Changed { path: self.path.clone(), change })
    }
}

impl MappedFile for WeightsFile {
    fn bytes(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for WeightsFile {
    fn drop(&mut self) {
        // Before its memory may become another's.
        self.mapping.unregister();
    }
}

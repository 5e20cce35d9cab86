//! From an address in a loaded library to a line of Metal. It knows debug information, and nothing of what happened there.

use std::ffi::c_void;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use addr2line::Loader;
use object::{Object, ObjectSegment};

use crate::compile;
use crate::finding::Location;

/// Where a library is loaded, and its debug information.
#[derive(Debug, Clone)]
pub struct Symbols {
    library: Arc<[u8]>,
    image: Range<usize>,
}

impl Symbols {
    /// Of a library that is loaded, one of whose functions is at `function`.
    pub fn new(library: &[u8], function: *const c_void) -> Self {
        // SAFETY: plain data, for which zeros are valid.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is there to be written to, any address may be asked for.
        let found = unsafe { libc::dladdr(function, &mut info) } != 0;
        let base = if found { info.dli_fbase as usize } else { 0 };
        let file = object::File::parse(library).ok();
        let end = file.and_then(|file| file.segments().map(|segment| segment.address() + segment.size()).max());
        Self { library: library.into(), image: base..base + end.unwrap_or(0) as usize }
    }

    /// The addresses that the library itself takes up: its code and its variables.
    pub fn image(&self) -> Range<usize> {
        self.image.clone()
    }

    /// Reads the debug information.
    pub fn load(&self) -> Lines {
        let load = || {
            let mut file = tempfile::NamedTempFile::new().ok()?;
            file.write_all(&self.library).ok()?;
            Loader::new(file.path()).ok()
        };
        Lines(load())
    }
}

/// A library's debug information, read.
pub struct Lines(Option<Loader>);

impl Lines {
    /// Where the call is that returns to `pc`, an offset in the image. Of functions that were inlined into each other, the innermost
    /// that is not part of Metal's own headers.
    pub fn locate(&self, pc: u32) -> Option<Location> {
        let mut frames = self.0.as_ref()?.find_frames(u64::from(pc).checked_sub(1)?).ok()?;
        while let Some(frame) = frames.next().ok()? {
            let Some((file, line)) = frame.location.and_then(|at| Some((at.file?, at.line?))) else { continue };
            if !Path::new(file).starts_with(compile::SHIM) {
                return Some(Location { file: named(file), line, column: 0 });
            }
        }
        None
    }
}

/// A file as the source names it.
fn named(file: &str) -> String {
    let relative = Path::new(file).strip_prefix(compile::RELATIVE);
    relative.map_or_else(|_| file.to_owned(), |path| path.display().to_string())
}

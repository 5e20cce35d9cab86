//! Machine code of kernels that an earlier start of the program compiled. It knows no kernel.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use objc2::Message;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSProcessInfo, NSString, NSURL};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDevice,
    MTLPipelineOption,
};

use super::Device;
use crate::gpu::cache_file;

type State = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// An archive that is in use, and its file.
pub(super) struct Archive {
    device: Retained<Device>,
    /// Only looked into. What is to be kept is added to another, of the same file, so that nobody waits for that.
    archive: Opened,
    path: PathBuf,
    /// What it did not have.
    missed: Mutex<Vec<Missed>>,
}

struct Opened(Retained<ProtocolObject<dyn MTLBinaryArchive>>);

// SAFETY: nothing ties it to the thread that made it, and its reference count is atomic.
unsafe impl Send for Opened {}
// SAFETY: shared, it is only named in descriptors of pipelines, which Metal makes on any thread.
unsafe impl Sync for Opened {}

struct Missed(Retained<MTLComputePipelineDescriptor>);

// SAFETY: a plain object that nobody but the archive uses any more, and that one thread at a time, under the mutex.
unsafe impl Send for Missed {}

impl Archive {
    /// The archive of this system and device in a directory; an empty one if there is none, or it is damaged or too long. `None` if there can be none:
    /// then kernels are compiled at every start.
    pub fn open(device: &Device, directory: &Path) -> Option<Self> {
        let system = NSProcessInfo::processInfo().operatingSystemVersionString().to_string();
        let path = cache_file::path(directory, &system, &device.name().to_string());
        let archive = open(device, &path).ok()?;
        Some(Self { device: device.retain(), archive, path, missed: Mutex::default() })
    }

    /// The pipeline, if the archive has it.
    pub fn find(&self, descriptor: &MTLComputePipelineDescriptor) -> Option<State> {
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*self.archive.0])));
        let option = MTLPipelineOption::FailOnBinaryArchiveMiss;
        let made = self.device.newComputePipelineStateWithDescriptor_options_reflection_error(descriptor, option, None);
        descriptor.setBinaryArchives(None);
        made.ok()
    }

    /// Takes in a pipeline that was made because the archive did not have it. One that cannot be made would fail to be added, and with it all
    /// others.
    pub fn remember(&self, descriptor: Retained<MTLComputePipelineDescriptor>) {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner).push(Missed(descriptor));
    }

    /// Adds what was missed and writes the file, on a thread of its own, behind the one `before`: the next start is to be faster, not this
    /// one slower.
    pub fn keep(self: &Arc<Self>, before: Option<JoinHandle<()>>) -> Option<JoinHandle<()>> {
        let archive = Arc::clone(self);
        let write = move || {
            // A panic there has been reported.
            let _ = before.map(JoinHandle::join);
            if let Err(reason) = autoreleasepool(|_| archive.write()) {
                tracing::info!("{}: compiled kernels are not kept: {reason}", archive.path.display());
            }
        };
        // Without a thread the next start compiles again.
        std::thread::Builder::new().name("kernel-cache".to_owned()).spawn(write).ok()
    }

    fn write(&self) -> Result<(), String> {
        // Not held while the archive is written: pipelines are made and remembered meanwhile.
        let missed = std::mem::take(&mut *self.missed.lock().unwrap_or_else(PoisonError::into_inner));
        if missed.is_empty() {
            return Ok(());
        }
        // With what others have kept meanwhile.
        let Opened(archive) = open(&self.device, &self.path)?;
        for Missed(descriptor) in missed {
            archive.addComputePipelineFunctionsWithDescriptor_error(&descriptor).map_err(|error| words(&error))?;
        }
        cache_file::replace(&self.path, |path| archive.serializeToURL_error(&url(path)).map_err(|error| words(&error)))
    }
}

/// The archive in a file; an empty one if there is none that can be used.
fn open(device: &Device, path: &Path) -> Result<Opened, String> {
    let open = |url: Option<&NSURL>| {
        let descriptor = MTLBinaryArchiveDescriptor::new();
        descriptor.setUrl(url);
        device.newBinaryArchiveWithDescriptor_error(&descriptor).map(Opened).map_err(|error| words(&error))
    };
    match cache_file::is_there(path).then(|| open(Some(&url(path)))) {
        Some(Ok(archive)) => return Ok(archive),
        Some(Err(reason)) => tracing::info!("{}: compiled kernels are made anew: {reason}", path.display()),
        None => {}
    }
    open(None)
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}

fn words(error: &NSError) -> String {
    error.localizedDescription().to_string()
}

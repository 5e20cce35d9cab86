//! `MTLBinaryArchive`: which pipelines were compiled. It keeps their names, not their code.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, define_class, msg_send};

use super::descriptors::ComputePipelineDescriptor;
use super::machine::machine;
use super::wants_pool;
use crate::foundation::{Error, Url, say};

const DOMAIN: &str = "MTLBinaryArchiveDomain";
const MAGIC: &str = "a simulated binary archive";

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimBinaryArchive"]
    #[ivars = Mutex<BTreeSet<String>>]
    pub(crate) struct Archive;

    impl Archive {
        #[unsafe(method(addComputePipelineFunctionsWithDescriptor:error:))]
        fn add(&self, descriptor: &ComputePipelineDescriptor, error: *mut *mut Error) -> bool {
            wants_pool("addComputePipelineFunctionsWithDescriptor:error:");
            let key = key(descriptor).ok_or_else(|| "a pipeline without a function".to_owned());
            let added = key.map(|key| self.lock().insert(key));
            say(added, DOMAIN, 3, error).is_some()
        }

        #[unsafe(method(serializeToURL:error:))]
        fn serialize(&self, url: &Url, error: *mut *mut Error) -> bool {
            wants_pool("serializeToURL:error:");
            let time = machine().archive_time;
            std::thread::sleep(time);
            let keys: Vec<String> = self.lock().iter().cloned().collect();
            // An archive without pipelines cannot be written.
            let written = match keys.is_empty() {
                true => Err("nothing to serialize".to_owned()),
                false => std::fs::write(url.path(), format!("{MAGIC}\n{}\n", keys.join("\n"))).map_err(|e| e.to_string()),
            };
            say(written, DOMAIN, 4, error).is_some()
        }
    }
);

impl Archive {
    /// An empty one without a file.
    pub fn open(file: Option<PathBuf>) -> Result<Retained<Self>, String> {
        let mut keys = BTreeSet::new();
        if let Some(file) = file {
            let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
            let lines = text.strip_prefix(MAGIC).ok_or("Invalid file")?.lines();
            keys.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
        }
        // SAFETY: NSObject's init takes nothing.
        Ok(unsafe { msg_send![super(Self::alloc().set_ivars(Mutex::new(keys))), init] })
    }

    pub fn has(&self, descriptor: &ComputePipelineDescriptor) -> bool {
        key(descriptor).is_some_and(|key| self.lock().contains(&key))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.ivars().lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What tells pipelines apart: the code, the function, the constants, the number of threads.
fn key(descriptor: &ComputePipelineDescriptor) -> Option<String> {
    let settings = descriptor.ivars();
    let function = settings.function.borrow();
    let function = function.as_ref()?.ivars();
    let code = function.binary.path.file_name()?.to_string_lossy().into_owned();
    Some(format!("{code} {} {:?} {}", function.name, function.constants, settings.threads.get()))
}

//! Metal, as far as gpu/apple uses it, computed by msl-sim. What Metal's API validation (`MTL_DEBUG_LAYER=1`) ends a program for is a
//! [`crate::runtime::violation`] here. It knows no caller.

mod archive;
mod buffer;
mod command_buffer;
mod descriptors;
mod device;
mod encoder;
mod execution;
mod fence;
mod library;
pub mod machine;
mod pipeline;
mod queue;
mod residency;

use std::sync::atomic::{AtomicPtr, Ordering};

use objc2::ClassType;
use objc2::rc::Retained;

use crate::foundation::Text;
use crate::runtime::{pool_depth, violation};

pub(crate) use archive::Archive;
pub(crate) use buffer::Buffer;
pub(crate) use command_buffer::CommandBuffer;
pub(crate) use encoder::Encoder;
pub(crate) use execution::{Bound, Dispatch, Item};
pub(crate) use fence::Fence;
pub(crate) use library::{Function, Library};
pub(crate) use pipeline::PipelineState;
pub(crate) use queue::Queue;
pub(crate) use residency::ResidencySet;

pub(crate) const COMMAND_BUFFER_ERRORS: &str = "MTLCommandBufferErrorDomain";

#[unsafe(no_mangle)]
static MTLCommandBufferErrorDomain: AtomicPtr<Text> = AtomicPtr::new(std::ptr::null_mut());

/// Fills in the classes that are named, and the constant strings.
pub(crate) fn load() {
    descriptors::BinaryArchiveDescriptor::class();
    descriptors::CompileOptions::class();
    descriptors::ComputePipelineDescriptor::class();
    descriptors::FunctionConstantValues::class();
    descriptors::ResidencySetDescriptor::class();
    let domain = Retained::into_raw(Text::new(COMMAND_BUFFER_ERRORS));
    MTLCommandBufferErrorDomain.store(domain, Ordering::Release);
}

/// Metal's methods put objects of their own into the innermost pool whenever they like.
#[track_caller]
pub(crate) fn wants_pool(method: &str) {
    if pool_depth() == 0 {
        violation(format!("{method} with no autorelease pool in place: what it autoreleases leaks"));
    }
}

/// Checks what Metal asserts.
#[track_caller]
pub(crate) fn require(holds: bool, otherwise: impl FnOnce() -> String) {
    if !holds {
        violation(otherwise());
    }
}

/// A reference that other threads may use: the simulated objects are made for that, as Metal's are.
pub(crate) struct Shared<T>(pub Retained<T>);

// SAFETY: counts are atomic, and the objects that are shared guard their state by mutexes.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

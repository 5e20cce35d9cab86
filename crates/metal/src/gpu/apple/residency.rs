//! Keeps the buffers in memory that the GPU can reach between steps, so that no step waits for it. It knows no command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use objc2::available;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLBuffer, MTLCommandQueue, MTLDevice, MTLGPUFamily, MTLResidencySet, MTLResidencySetDescriptor};

use super::Device;
use crate::gpu::heartbeat::Heartbeat;

/// Metal Feature Set Tables. Metal's own checks end a program that asks another for a set.
const NEEDED: MTLGPUFamily = MTLGPUFamily::Apple6;

/// The residency set of a device's buffers.
pub(super) struct Residency {
    members: Arc<Mutex<Members>>,
    /// Bytes that the device recommends to keep resident at most.
    limit: u64,
    /// Asks for the members again and again while the device idles.
    heartbeat: Option<Heartbeat>,
}

struct Members {
    set: Retained<ProtocolObject<dyn MTLResidencySet>>,
    bytes: u64,
    /// Buffers were added that the set does not keep resident yet.
    staged: bool,
}

// SAFETY: the set is used under the mutex only, and its reference count is atomic. Nothing ties it to the thread that made it.
unsafe impl Send for Members {}

impl Residency {
    /// `None` before macOS 15, which has no residency sets, and on GPUs of virtual machines: buffers are made resident by each step that binds
    /// them.
    pub fn new(device: &Device, limit: u64) -> Option<Arc<Self>> {
        if !available!(macos = 15.0, ..) || !device.supportsFamily(NEEDED) {
            return None;
        }
        let descriptor = MTLResidencySetDescriptor::new();
        descriptor.setLabel(Some(&NSString::from_str("vllm-apple")));
        match device.newResidencySetWithDescriptor_error(&descriptor) {
            Ok(set) => {
                let members = Arc::new(Mutex::new(Members { set, bytes: 0, staged: false }));
                let kept = Arc::clone(&members);
                let heartbeat = Heartbeat::start(move || autoreleasepool(|_| lock(&kept).set.requestResidency()));
                Some(Arc::new(Self { members, limit, heartbeat }))
            }
            Err(error) => {
                tracing::warn!("no residency set, steps may wait for memory: {}", error.localizedDescription());
                None
            }
        }
    }

    /// Makes the members resident for all commands of the queue.
    pub fn attach(&self, queue: &ProtocolObject<dyn MTLCommandQueue>) {
        queue.addResidencySet(&self.members().set);
    }

    /// Adds a buffer, from the next [`Residency::commit`] on. False: with it there would be more than the device recommends.
    pub fn add(&self, buffer: &ProtocolObject<dyn MTLBuffer>) -> bool {
        let mut members = self.members();
        let bytes = buffer.length() as u64;
        if members.bytes + bytes > self.limit {
            let gib = bytes as f64 / (1u64 << 30) as f64;
            tracing::debug!("a buffer of {gib:.2} GiB is not kept resident: beyond the recommended working set");
            return false;
        }
        members.set.addAllocation(ProtocolObject::from_ref(buffer));
        members.bytes += bytes;
        members.staged = true;
        true
    }

    /// Removes a buffer at once: the set would keep its memory allocated.
    pub fn remove(&self, buffer: &ProtocolObject<dyn MTLBuffer>) {
        let mut members = self.members();
        autoreleasepool(|_| {
            members.set.removeAllocation(ProtocolObject::from_ref(buffer));
            members.set.commit();
        });
        members.bytes -= buffer.length() as u64;
    }

    /// Makes buffers resident that were added, which steps of a running engine do not, and takes in that all are in use.
    pub fn commit(&self) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.used();
        }
        let mut members = self.members();
        if std::mem::take(&mut members.staged) {
            members.set.commit();
            members.set.requestResidency();
        }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }
}

fn lock(members: &Mutex<Members>) -> MutexGuard<'_, Members> {
    // A panic cannot have left the counts half changed in a way that matters: they only limit what is added.
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

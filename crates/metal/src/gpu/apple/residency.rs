//! Keeps the buffers in memory that the GPU can reach between steps, so that no step waits for it. It knows no command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use objc2::available;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{MTLBuffer, MTLCommandQueue, MTLDevice, MTLGPUFamily, MTLResidencySet, MTLResidencySetDescriptor};

use super::Device;
use crate::gpu::heartbeat::Heartbeat;
use crate::gpu::{Facts, residency_plan};

/// Metal Feature Set Tables. Metal's own checks end a program that asks another for a set.
const NEEDED: MTLGPUFamily = MTLGPUFamily::Apple6;

/// Sets of a device: the most that a queue takes.
const SETS: usize = 32;

/// The residency sets of a device's buffers. From macOS 27 on, the system keeps a set as a whole or not at all (mlx #4211): what does not fit
/// should be a small one.
pub(super) struct Residency {
    members: Arc<Mutex<Members>>,
    /// Bytes that the device recommends to keep resident at most.
    limit: u64,
    most_in_a_set: u64,
    /// Asks for the members again and again while the device idles.
    heartbeat: Option<Heartbeat>,
}

struct Members {
    sets: Vec<Set>,
    /// Of all.
    bytes: u64,
}

struct Set {
    set: Retained<ProtocolObject<dyn MTLResidencySet>>,
    bytes: u64,
    /// Buffers were added that the set does not keep resident yet.
    staged: bool,
}

// SAFETY: the sets are used under the mutex only, and their reference counts are atomic. Nothing ties them to the thread that made them.
unsafe impl Send for Members {}

impl Residency {
    /// `None` before macOS 15, which has no residency sets, and on GPUs of virtual machines: buffers are made resident by each step that binds
    /// them.
    pub fn new(device: &Device, facts: &Facts) -> Option<Arc<Self>> {
        if !available!(macos = 15.0, ..) || !device.supportsFamily(NEEDED) {
            return None;
        }
        let descriptor = MTLResidencySetDescriptor::new();
        descriptor.setLabel(Some(&NSString::from_str("vllm-apple")));
        let new = |_| {
            let set = device.newResidencySetWithDescriptor_error(&descriptor);
            set.map(|set| Set { set, bytes: 0, staged: false })
        };
        let sets: Result<Vec<Set>, Retained<NSError>> = (0..SETS).map(new).collect();
        match sets {
            Ok(sets) => {
                let members = Arc::new(Mutex::new(Members { sets, bytes: 0 }));
                let kept = Arc::clone(&members);
                let heartbeat = Heartbeat::start(move || autoreleasepool(|_| lock(&kept).request()));
                let (limit, most_in_a_set) = (facts.max_working_set, facts.most_in_a_set());
                Some(Arc::new(Self { members, limit, most_in_a_set, heartbeat }))
            }
            Err(error) => {
                tracing::warn!("no residency set, steps may wait for memory: {}", error.localizedDescription());
                None
            }
        }
    }

    /// Makes the members resident for all commands of the queue.
    pub fn attach(&self, queue: &ProtocolObject<dyn MTLCommandQueue>) {
        self.members().sets.iter().for_each(|set| queue.addResidencySet(&set.set));
    }

    /// Adds a buffer, from the next [`Residency::commit`] on, and says to which set. `None`: with it there would be more than the device
    /// recommends.
    pub fn add(&self, buffer: &ProtocolObject<dyn MTLBuffer>) -> Option<usize> {
        let mut members = self.members();
        let bytes = buffer.length() as u64;
        if members.bytes + bytes > self.limit {
            let gib = bytes as f64 / (1u64 << 30) as f64;
            tracing::debug!("a buffer of {gib:.2} GiB is not kept resident: beyond the recommended working set");
            return None;
        }
        members.bytes += bytes;
        let (at, set) = members.with_room_for(bytes, self.most_in_a_set)?;
        set.set.addAllocation(ProtocolObject::from_ref(buffer));
        set.bytes += bytes;
        set.staged = true;
        Some(at)
    }

    /// Removes a buffer of a set at once: the set would keep its memory allocated.
    pub fn remove(&self, buffer: &ProtocolObject<dyn MTLBuffer>, at: usize) {
        let mut members = self.members();
        let bytes = buffer.length() as u64;
        members.bytes -= bytes;
        let set = &mut members.sets[at];
        autoreleasepool(|_| {
            set.set.removeAllocation(ProtocolObject::from_ref(buffer));
            set.set.commit();
        });
        set.bytes -= bytes;
    }

    /// Makes buffers resident that were added, which steps of a running engine do not, and takes in that all are in use.
    pub fn commit(&self) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.used();
        }
        let mut members = self.members();
        for set in members.sets.iter_mut().filter(|set| set.staged) {
            set.staged = false;
            set.set.commit();
            set.set.requestResidency();
        }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        lock(&self.members)
    }
}

impl Members {
    /// The set for a buffer: one that has room, an empty one, or the smallest.
    fn with_room_for(&mut self, bytes: u64, most: u64) -> Option<(usize, &mut Set)> {
        let sizes = self.sets.iter().map(|set| set.bytes);
        let at = residency_plan::set_for(sizes, bytes, most)?;
        Some((at, &mut self.sets[at]))
    }

    /// Asks for all that are not empty.
    fn request(&self) {
        self.sets.iter().filter(|set| set.bytes > 0).for_each(|set| set.set.requestResidency());
    }
}

fn lock(members: &Mutex<Members>) -> MutexGuard<'_, Members> {
    // A panic cannot have left the counts half changed in a way that matters: they only limit what is added.
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

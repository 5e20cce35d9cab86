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

/// Sets of a device: some more than [`Facts::most_in_a_set`] makes of its memory. A queue takes 32; what Metal's own checks and captures put there
/// is to have room, too.
const SETS: usize = 28;

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
    metal: Shared,
    bytes: u64,
    /// Buffers were added that the set does not keep resident yet.
    staged: bool,
    /// The queue has it: from the first member on.
    attached: bool,
}

/// Metal does not say that several threads may use a set at the same time. A request may take as long as a disk does, so each set has a mutex of
/// its own, which is never awaited under that of the members.
type Shared = Arc<Mutex<MetalSet>>;

struct MetalSet(Retained<ProtocolObject<dyn MTLResidencySet>>);

// SAFETY: it is used under its mutex only, and its reference count is atomic. Nothing ties it to the thread that made it.
unsafe impl Send for MetalSet {}

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
            let shared = |set| Arc::new(Mutex::new(MetalSet(set)));
            set.map(|set| Set { metal: shared(set), bytes: 0, staged: false, attached: false })
        };
        let sets: Result<Vec<Set>, Retained<NSError>> = (0..SETS).map(new).collect();
        match sets {
            Ok(sets) => {
                let members = Arc::new(Mutex::new(Members { sets, bytes: 0 }));
                let kept = Arc::clone(&members);
                let heartbeat = Heartbeat::start(move || autoreleasepool(|_| request(&kept)));
                let (limit, most_in_a_set) = (facts.max_working_set, facts.most_in_a_set());
                Some(Arc::new(Self { members, limit, most_in_a_set, heartbeat }))
            }
            Err(error) => {
                tracing::warn!("no residency set, steps may wait for memory: {}", error.localizedDescription());
                None
            }
        }
    }

    /// Makes the members resident for all commands of a queue that replaces another.
    pub fn attach(&self, queue: &ProtocolObject<dyn MTLCommandQueue>) {
        self.sets(|set| set.attached).iter().for_each(|set| queue.addResidencySet(&lock(set).0));
    }

    /// Adds a buffer, from the next [`Residency::commit`] on, and says to which set. `None`: with it there would be more than the device
    /// recommends.
    pub fn add(&self, buffer: &ProtocolObject<dyn MTLBuffer>) -> Option<usize> {
        let mut members = lock(&self.members);
        let bytes = buffer.length() as u64;
        if members.bytes + bytes > self.limit {
            let gib = bytes as f64 / (1u64 << 30) as f64;
            tracing::debug!("a buffer of {gib:.2} GiB is not kept resident: beyond the recommended working set");
            return None;
        }
        members.bytes += bytes;
        let (at, set) = members.with_room_for(bytes, self.most_in_a_set)?;
        set.bytes += bytes;
        // Whoever adds commits, too, and that later.
        set.staged = true;
        let metal = set.metal.clone();
        drop(members);
        lock(&metal).0.addAllocation(ProtocolObject::from_ref(buffer));
        Some(at)
    }

    /// Removes a buffer of a set at once: the set would keep its memory allocated.
    pub fn remove(&self, buffer: &ProtocolObject<dyn MTLBuffer>, at: usize) {
        let mut members = lock(&self.members);
        let bytes = buffer.length() as u64;
        members.bytes -= bytes;
        members.sets[at].bytes -= bytes;
        let metal = members.sets[at].metal.clone();
        drop(members);
        autoreleasepool(|_| {
            let set = &lock(&metal).0;
            set.removeAllocation(ProtocolObject::from_ref(buffer));
            set.commit();
        });
    }

    /// Makes buffers resident that were added, which steps of a running engine do not, for all commands of the queue, and takes in that all are
    /// in use.
    pub fn commit(&self, queue: &ProtocolObject<dyn MTLCommandQueue>) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.used();
        }
        let new = self.sets(|set| set.staged && !std::mem::replace(&mut set.attached, true));
        new.iter().for_each(|set| queue.addResidencySet(&lock(set).0));
        for set in self.sets(|set| std::mem::take(&mut set.staged)) {
            let set = &lock(&set).0;
            set.commit();
            set.requestResidency();
        }
    }

    /// Asks for all members.
    pub fn request(&self) {
        request(&self.members);
    }

    fn sets(&self, which: impl FnMut(&mut Set) -> bool) -> Vec<Shared> {
        sets(&self.members, which)
    }
}

impl Members {
    /// The set for a buffer: one that has room, an empty one, or the smallest.
    fn with_room_for(&mut self, bytes: u64, most: u64) -> Option<(usize, &mut Set)> {
        let sizes = self.sets.iter().map(|set| set.bytes);
        let at = residency_plan::set_for(sizes, bytes, most)?;
        Some((at, &mut self.sets[at]))
    }
}

/// Asks for all sets that are not empty.
fn request(members: &Mutex<Members>) {
    sets(members, |set| set.bytes > 0).iter().for_each(|set| lock(set).0.requestResidency());
}

/// Some of the sets, to be used when the members are no longer locked.
fn sets(members: &Mutex<Members>, mut which: impl FnMut(&mut Set) -> bool) -> Vec<Shared> {
    let mut members = lock(members);
    members.sets.iter_mut().filter_map(|set| which(set).then(|| set.metal.clone())).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot have left the counts half changed in a way that matters: they only limit what is added.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

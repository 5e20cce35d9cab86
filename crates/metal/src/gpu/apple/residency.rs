//! Keeps the buffers in memory that the GPU can reach between steps, so that no step waits for it. It knows no command.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use objc2::available;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{MTLBuffer, MTLCommandQueue, MTLDevice, MTLGPUFamily, MTLResidencySet, MTLResidencySetDescriptor};

use super::Device;
use crate::gpu::{Facts, residency_plan};

/// Metal Feature Set Tables. Metal's own checks end a program that asks another for a set.
const NEEDED: MTLGPUFamily = MTLGPUFamily::Apple6;

/// Sets of a device: some more than [`Facts::most_in_a_set`] makes of its memory. A queue takes 32; what Metal's own checks and captures put there
/// is to have room, too.
const SETS: usize = 28;

/// The residency sets of a device's buffers. From macOS 27 on, the system keeps a set as a whole or not at all (mlx #4211): what does not fit
/// should be a small one.
pub(super) struct Residency {
    members: Mutex<Members>,
    /// Bytes that the device recommends to keep resident at most.
    limit: u64,
    most_in_a_set: u64,
}

struct Members {
    sets: Vec<Set>,
    /// Of all.
    bytes: u64,
}

struct Set {
    metal: Shared,
    members: usize,
    bytes: u64,
    /// Buffers were added or removed that the set does not keep resident yet, or still does.
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
            set.map(|set| Set { metal: shared(set), members: 0, bytes: 0, staged: false, attached: false })
        };
        let sets: Result<Vec<Set>, Retained<NSError>> = (0..SETS).map(new).collect();
        match sets {
            Ok(sets) => {
                let members = Mutex::new(Members { sets, bytes: 0 });
                let (limit, most_in_a_set) = (facts.max_working_set, facts.most_in_a_set());
                Some(Arc::new(Self { members, limit, most_in_a_set }))
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
        set.members += 1;
        // Whoever adds commits, too, and that later.
        set.staged = true;
        let metal = set.metal.clone();
        drop(members);
        lock(&metal).0.addAllocation(ProtocolObject::from_ref(buffer));
        Some(at)
    }

    /// Removes a buffer of a set. The set keeps its memory allocated until it is committed: with its last member, else at the next
    /// [`Residency::commit`]. A model goes in as many commits as it has sets, not buffers: Macs were seen to restart of many.
    pub fn remove(&self, buffer: &ProtocolObject<dyn MTLBuffer>, at: usize) {
        let mut members = lock(&self.members);
        let bytes = buffer.length() as u64;
        members.bytes -= bytes;
        let set = &mut members.sets[at];
        set.bytes -= bytes;
        set.members -= 1;
        let is_empty = set.members == 0;
        set.staged &= !is_empty;
        let metal = set.metal.clone();
        drop(members);
        autoreleasepool(|_| {
            let set = &lock(&metal).0;
            set.removeAllocation(ProtocolObject::from_ref(buffer));
            if is_empty {
                set.commit();
            }
        });
        if !is_empty {
            // Not before: a commit on another thread would have come too early for it.
            lock(&self.members).sets[at].staged = true;
        }
    }

    /// Makes buffers resident that were added, and lets go of those that were removed, neither of which steps of a running engine do, for all
    /// commands of the queue.
    pub fn commit(&self, queue: &ProtocolObject<dyn MTLCommandQueue>) {
        let new = self.sets(|set| set.staged && !std::mem::replace(&mut set.attached, true));
        new.iter().for_each(|set| queue.addResidencySet(&lock(set).0));
        for set in self.sets(|set| std::mem::take(&mut set.staged)) {
            let set = &lock(&set).0;
            set.commit();
            set.requestResidency();
        }
    }

    /// Asks for all sets that are not empty.
    pub fn request(&self) {
        self.sets(|set| set.members > 0).iter().for_each(|set| lock(set).0.requestResidency());
    }

    /// Some of the sets, to be used when the members are no longer locked.
    fn sets(&self, mut which: impl FnMut(&mut Set) -> bool) -> Vec<Shared> {
        lock(&self.members).sets.iter_mut().filter_map(|set| which(set).then(|| set.metal.clone())).collect()
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot have left the counts half changed in a way that matters: they only limit what is added.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A step on the queue: command buffers with a concurrent encoder each, one after the other, then one wait that ends. It knows no kernel.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use objc2::Message;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandBufferError, MTLCommandBufferErrorDomain, MTLCommandBufferStatus,
    MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder, MTLDevice, MTLDispatchType, MTLFence, MTLSize,
};

use super::completion::Completion;
use super::residency::Residency;
use super::{AppleGpu, Device};
use crate::gpu::health::{Failure, Health, code};
use crate::gpu::{Binding, Command, GpuError};

/// Command buffers that wait or run at most. A queue has 64, and who asks it for another waits without end where none ends.
const MOST_IN_FLIGHT: usize = 32;

/// Time until macOS may have stopped ignoring a process, or another program may have given memory back (an estimate).
const PAUSE: Duration = Duration::from_secs(1);

/// Longest argument that Metal copies into a command: see `setBytes:length:atIndex:`.
const MAX_BYTES: usize = 4096;

const _: () = {
    assert!(code::TIMEOUT == MTLCommandBufferError::Timeout.0 as isize);
    assert!(code::PAGE_FAULT == MTLCommandBufferError::PageFault.0 as isize);
    assert!(code::ACCESS_REVOKED == MTLCommandBufferError::AccessRevoked.0 as isize);
    assert!(code::NOT_PERMITTED == MTLCommandBufferError::NotPermitted.0 as isize);
    assert!(code::OUT_OF_MEMORY == MTLCommandBufferError::OutOfMemory.0 as isize);
    assert!(code::INVALID_RESOURCE == MTLCommandBufferError::InvalidResource.0 as isize);
    assert!(code::DEVICE_REMOVED == MTLCommandBufferError::DeviceRemoved.0 as isize);
    assert!(code::STACK_OVERFLOW == MTLCommandBufferError::StackOverflow.0 as isize);
};

/// The queue and the step that is being recorded.
pub(super) struct Commands {
    device: Retained<Device>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    residency: Option<Arc<Residency>>,
    completion: Completion,
    health: Health,
    /// Makes a command buffer wait for the one before it: hazards of the buffers' memory are not tracked, so that they might overlap.
    fence: Retained<ProtocolObject<dyn MTLFence>>,
    /// Those of the step that are committed.
    committed: Vec<Committed>,
    recorded: Option<Recorded>,
    /// Why the step cannot be submitted.
    fault: Option<GpuError>,
}

/// Commands that are recorded and not committed. Its encoder is to end before its buffer goes.
struct Recorded {
    encoder: Encoder,
    buffer: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
}

// SAFETY: Metal lets one thread at a time record commands, whichever it is. They are reached through `&mut Commands` only, and the
// reference counts are atomic.
unsafe impl Send for Recorded {}

/// Commands that the device may run.
struct Committed(Retained<ProtocolObject<dyn MTLCommandBuffer>>);

// SAFETY: as above; what is asked of it, any thread may ask.
unsafe impl Send for Committed {}

/// Metal demands the end of an encoder before it is freed, also where its commands are not submitted.
struct Encoder(Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>);

impl Drop for Encoder {
    fn drop(&mut self) {
        // Also where the device goes with commands that were never committed, and nobody has made a pool.
        autoreleasepool(|_| self.0.endEncoding());
    }
}

impl Commands {
    pub fn new(device: &Device, residency: Option<Arc<Residency>>) -> Result<Self, GpuError> {
        let queue = new_queue(device, residency.as_deref())
            .ok_or_else(|| GpuError::Unavailable(format!("{} gives no command queue", device.name())))?;
        let fence =
            device.newFence().ok_or_else(|| GpuError::Unavailable(format!("{} gives no fence", device.name())))?;
        let (completion, health, committed) = (Completion::new(), Health::default(), Vec::new());
        let device = device.retain();
        Ok(Self { device, queue, residency, completion, health, fence, committed, recorded: None, fault: None })
    }

    /// Waits for no command buffer longer than `patience`.
    pub fn encode(&mut self, command: &Command<'_, AppleGpu>, patience: Duration) {
        if self.fault.is_none() {
            self.fault = self.record(command, patience).err();
        }
    }

    pub fn barrier(&mut self) {
        if let Some(recorded) = &self.recorded {
            recorded.encoder.0.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }

    /// Lets the device begin with what is recorded.
    pub fn commit(&mut self) {
        let Some(Recorded { encoder, buffer }) = self.recorded.take() else { return };
        encoder.0.updateFence(&self.fence);
        drop(encoder);
        if let Some(residency) = &self.residency {
            residency.commit(&self.queue);
        }
        self.completion.commit(&buffer);
        self.committed.push(Committed(buffer));
    }

    pub fn discard(&mut self, patience: Duration) {
        self.recorded = None;
        self.fault = None;
        if self.health.check().is_err() {
            // The command buffers keep what they use alive.
            self.committed.clear();
            return;
        }
        // What it does not say now it says of the next step.
        let _ = self.wait(patience);
    }

    /// Commits what is recorded and waits, for no command buffer longer than `patience`.
    pub fn submit(&mut self, patience: Duration) -> Result<(), GpuError> {
        if let Some(fault) = self.fault.take() {
            self.discard(patience);
            return Err(fault);
        }
        self.commit();
        self.health.check()?;
        self.wait(patience)
    }

    fn record(&mut self, command: &Command<'_, AppleGpu>, patience: Duration) -> Result<(), GpuError> {
        check(command)?;
        let encoder = &self.begun(patience)?.encoder.0;
        encoder.setComputePipelineState(&command.pipeline.state);
        for (index, binding) in command.bindings.iter().enumerate() {
            match *binding {
                // SAFETY: `check` has seen that the range is within the buffer, which the command buffer retains. Its memory is used as the
                // kernel's contract with its op says, in the order of the barriers.
                Binding::Buffer { buffer, offset, .. } => unsafe {
                    encoder.setBuffer_offset_atIndex(Some(buffer.metal()), offset, index);
                },
                // SAFETY: the pointer is to that many bytes, not more than Metal copies.
                Binding::Bytes(bytes) => unsafe {
                    encoder.setBytes_length_atIndex(NonNull::from(bytes).cast(), bytes.len(), index);
                },
            }
        }
        let [width, height, depth] = command.threadgroups;
        encoder.dispatchThreadgroups_threadsPerThreadgroup(
            MTLSize { width, height, depth },
            MTLSize { width: command.threads, height: 1, depth: 1 },
        );
        Ok(())
    }

    /// The commands that are being recorded, begun if there are none.
    fn begun(&mut self, patience: Duration) -> Result<&Recorded, GpuError> {
        if self.recorded.is_none() {
            self.health.check()?;
            if !self.completion.wait(MOST_IN_FLIGHT - 1, patience) {
                return Err(self.health.silent(patience));
            }
            let recorded = begin(&self.queue)?;
            if !self.committed.is_empty() {
                recorded.encoder.0.waitForFence(&self.fence);
            }
            self.recorded = Some(recorded);
        }
        Ok(self.recorded.as_ref().expect("begun above"))
    }

    /// Waits until what is committed has run, failed, or one command buffer has taken longer than anybody would wait. The error is the
    /// first command buffer's: what follows a failed one often fails because of it.
    fn wait(&mut self, patience: Duration) -> Result<(), GpuError> {
        if self.committed.is_empty() {
            return Ok(());
        }
        if !self.completion.wait(0, patience) {
            // The command buffers keep what they use alive.
            self.committed.clear();
            return Err(self.health.silent(patience));
        }
        let mut failed = None;
        for Committed(buffer) in self.committed.drain(..) {
            // The handler may run before the status is final.
            buffer.waitUntilCompleted();
            if failed.is_none() && buffer.status() != MTLCommandBufferStatus::Completed {
                failed = Some(failure(&buffer));
            }
        }
        match failed {
            None => {
                self.health.completed();
                Ok(())
            }
            Some(failure) => {
                // macOS was seen to ignore whatever comes on a queue after two command buffers that it had to end, and to run what comes
                // on a new one. If it gives none, the old one says what is wrong.
                if let Some(queue) = new_queue(&self.device, self.residency.as_deref()) {
                    self.queue = queue;
                }
                let error = self.health.failed(&failure);
                if matches!(error, GpuError::Discarded(_)) {
                    self.wait_for_better_times(&failure);
                }
                Err(error)
            }
        }
    }

    /// Commands of this failure come once more: at once, if it was not for what lasts a while.
    fn wait_for_better_times(&self, failure: &Failure) {
        let is_want = failure.is_want_of_memory();
        if let Some(residency) = self.residency.as_ref().filter(|_| is_want) {
            // The system makes room meanwhile, if it can.
            residency.request();
        }
        if is_want || failure.is_ignored() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// A queue whose commands find the members of `residency` resident.
fn new_queue(device: &Device, residency: Option<&Residency>) -> Option<Retained<ProtocolObject<dyn MTLCommandQueue>>> {
    let queue = device.newCommandQueue()?;
    queue.setLabel(Some(&NSString::from_str("vllm-apple")));
    if let Some(residency) = residency {
        residency.attach(&queue);
    }
    Some(queue)
}

/// A new command buffer with an encoder whose commands may run at the same time.
fn begin(queue: &ProtocolObject<dyn MTLCommandQueue>) -> Result<Recorded, GpuError> {
    let refused = |what: &str| GpuError::Commands(format!("Metal gives no {what}"));
    let buffer = queue.commandBuffer().ok_or_else(|| refused("command buffer"))?;
    let encoder = buffer
        .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
        .ok_or_else(|| refused("command encoder"))?;
    Ok(Recorded { encoder: Encoder(encoder), buffer })
}

/// What Metal would not check: it drops such commands silently, or reads beyond buffers.
fn check(command: &Command<'_, AppleGpu>) -> Result<(), GpuError> {
    let refused = |reason: String| Err(GpuError::Commands(format!("not dispatched: {reason}")));
    let limit = command.pipeline.max_threads;
    if command.threads == 0 || command.threads > limit || command.threadgroups.contains(&0) {
        let Command { threads, threadgroups, .. } = command;
        return refused(format!("{threadgroups:?} threadgroups of {threads} threads, of at most {limit}"));
    }
    for (index, binding) in command.bindings.iter().enumerate() {
        match *binding {
            Binding::Buffer { buffer, offset, len } if offset.checked_add(len).is_none_or(|end| end > buffer.len()) => {
                let size = buffer.len();
                return refused(format!("argument {index} is {len} bytes from {offset} of a buffer of {size}"));
            }
            Binding::Bytes(bytes) if bytes.is_empty() || bytes.len() > MAX_BYTES => {
                let size = bytes.len();
                return refused(format!("argument {index} is a copy of {size} bytes, of at most {MAX_BYTES}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Why commands did not complete.
fn failure(buffer: &ProtocolObject<dyn MTLCommandBuffer>) -> Failure {
    let Some(error) = buffer.error() else {
        let description = format!("the commands ended with status {} and no error", buffer.status().0);
        return Failure { domain: "none".to_owned(), code: 0, description, of_commands: false };
    };
    let domain = error.domain();
    // SAFETY: a constant string of the framework.
    let of_commands = *domain == *unsafe { MTLCommandBufferErrorDomain };
    Failure {
        domain: domain.to_string(),
        code: error.code(),
        description: error.localizedDescription().to_string(),
        of_commands,
    }
}

//! `MTLComputeCommandEncoder`: records dispatches with what is bound when they are. It knows no thread.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::NonNull;

use msl_sim::ParameterKind;
use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, Message, define_class, msg_send};
use objc2_metal::{MTLBarrierScope, MTLDispatchType, MTLSize};

use super::{Bound, Buffer, CommandBuffer, Dispatch, Fence, Item, PipelineState, Shared, require, wants_pool};
use crate::runtime::violation;

/// Arguments of a kernel (Metal Feature Set Tables).
const ARGUMENTS: usize = 31;
/// Longest `setBytes`, by its documentation.
const MAX_BYTES: usize = 4096;
/// Alignment of an offset into a buffer in the constant address space, on GPUs of Apple (Metal Feature Set Tables).
const OFFSETS: usize = 4;
/// The longest element of a vector or scalar, and so the largest alignment of one.
const LONGEST_ELEMENT: usize = 16;

pub(crate) struct State {
    commands: Retained<CommandBuffer>,
    concurrent: bool,
    ended: bool,
    pipeline: Option<Retained<PipelineState>>,
    arguments: [Option<Bound>; ARGUMENTS],
    items: Vec<Item>,
    awaited: Vec<usize>,
    updated: Vec<usize>,
}

impl Drop for State {
    fn drop(&mut self) {
        require(self.ended, || "Command encoder released without endEncoding".to_owned());
    }
}

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimComputeCommandEncoder"]
    #[ivars = RefCell<State>]
    pub(crate) struct Encoder;

    impl Encoder {
        #[unsafe(method(setComputePipelineState:))]
        fn set_pipeline(&self, state: &PipelineState) {
            self.change("setComputePipelineState:", |encoder| encoder.pipeline = Some(state.retain()));
        }

        #[unsafe(method(setBuffer:offset:atIndex:))]
        fn set_buffer(&self, buffer: Option<&Buffer>, offset: usize, index: usize) {
            let length = buffer.map_or(0, |buffer| buffer.memory().len());
            require(buffer.is_none() || offset < length, || format!("offset({offset}) must be < [buffer length]({length})."));
            require(offset.is_multiple_of(OFFSETS), || format!("offset({offset}) is not {OFFSETS} byte aligned"));
            self.bind(index, buffer.map(|buffer| Bound::Buffer { buffer: Shared(buffer.retain()), offset }));
        }

        #[unsafe(method(setBytes:length:atIndex:))]
        fn set_bytes(&self, bytes: NonNull<c_void>, length: usize, index: usize) {
            require(length > 0, || "length must be > 0".to_owned());
            require(length <= MAX_BYTES, || format!("length({length}) must be <= {MAX_BYTES}"));
            // SAFETY: the method's contract.
            let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>().as_ptr(), length) };
            self.bind(index, Some(Bound::Bytes(bytes.to_vec())));
        }

        #[unsafe(method(dispatchThreadgroups:threadsPerThreadgroup:))]
        fn dispatch(&self, threadgroups: MTLSize, threads: MTLSize) {
            self.change("dispatchThreadgroups:threadsPerThreadgroup:", |encoder| encoder.dispatch(threadgroups, threads));
        }

        #[unsafe(method(memoryBarrierWithScope:))]
        fn barrier(&self, scope: MTLBarrierScope) {
            self.change("memoryBarrierWithScope:", |encoder| {
                require(scope == MTLBarrierScope::Buffers, || format!("{scope:?}: only buffers are simulated"));
                require(encoder.concurrent, || "a serial encoder needs no barriers".to_owned());
                encoder.items.push(Item::Barrier);
            });
        }

        #[unsafe(method(updateFence:))]
        fn update_fence(&self, fence: &Fence) {
            self.change("updateFence:", |encoder| encoder.updated.push(fence.id()));
        }

        #[unsafe(method(waitForFence:))]
        fn wait_for_fence(&self, fence: &Fence) {
            self.change("waitForFence:", |encoder| {
                // Within an encoder a fence is awaited before anything else, and updated after everything.
                require(!encoder.updated.contains(&fence.id()), || "a fence is awaited by the encoder that updates it".to_owned());
                require(encoder.items.is_empty(), || "a fence is awaited after commands that would not wait".to_owned());
                encoder.awaited.push(fence.id());
            });
        }

        #[unsafe(method(endEncoding))]
        fn end(&self) {
            self.change("endEncoding", |encoder| {
                encoder.ended = true;
                let items = std::mem::take(&mut encoder.items);
                encoder.commands.take(items, &encoder.awaited, &encoder.updated);
            });
        }
    }
);

impl Encoder {
    pub fn new(commands: Retained<CommandBuffer>, kind: MTLDispatchType) -> Retained<Self> {
        let state = State {
            commands,
            concurrent: kind == MTLDispatchType::Concurrent,
            ended: false,
            pipeline: None,
            arguments: [const { None }; ARGUMENTS],
            items: Vec::new(),
            awaited: Vec::new(),
            updated: Vec::new(),
        };
        // SAFETY: NSObject's init takes nothing.
        unsafe { msg_send![super(Self::alloc().set_ivars(RefCell::new(state))), init] }
    }

    fn change(&self, method: &str, change: impl FnOnce(&mut State)) {
        wants_pool(method);
        let mut state = self.ivars().borrow_mut();
        require(!state.ended, || format!("{method}: encoding has ended"));
        change(&mut state);
    }

    fn bind(&self, index: usize, bound: Option<Bound>) {
        require(index < ARGUMENTS, || format!("index({index}) must be < {ARGUMENTS}"));
        self.change("an argument", |encoder| encoder.arguments[index] = bound);
    }
}

impl State {
    fn dispatch(&mut self, threadgroups: MTLSize, threads: MTLSize) {
        let Some(state) = self.pipeline.clone() else {
            return violation("dispatch without a compute pipeline state");
        };
        let pipeline = state.pipeline();
        let limit = pipeline.max_total_threads_per_threadgroup() as usize;
        let (groups, threads) = (sides(threadgroups), sides(threads));
        require(!groups.contains(&0), || format!("threadgroupsPerGrid {groups:?}: none may be 0"));
        require(!threads.contains(&0), || format!("threadsPerThreadgroup {threads:?}: none may be 0"));
        let total: usize = threads.iter().map(|side| *side as usize).product();
        require(total <= limit, || {
            format!("(threadsPerThreadgroup {total}) must be <= {limit}. ({} {threads:?})", pipeline.name())
        });
        let mut arguments = Vec::new();
        for parameter in pipeline.parameters() {
            if !matches!(parameter.kind, ParameterKind::Buffer { .. }) {
                continue;
            }
            match &self.arguments[parameter.index] {
                Some(bound) => {
                    let (index, name, size, space) = (parameter.index, &parameter.name, parameter.size, bound.space());
                    require(space >= size, || {
                        format!(
                            "argument {name}[0] from Buffer({index}) has space for {space} bytes, but argument has a length({size})."
                        )
                    });
                    // In the device address space, "align the offset to the data type": of vectors and scalars, to its size.
                    let aligned = if size.is_power_of_two() { size.min(LONGEST_ELEMENT) } else { OFFSETS };
                    require(bound.offset().is_multiple_of(aligned), || {
                        format!(
                            "the offset into the buffer {name} that is bound at buffer index {index} must be a multiple of {aligned} but was set to {}.",
                            bound.offset()
                        )
                    });
                    arguments.push((index, bound.clone()));
                }
                None => {
                    violation(format!("missing Buffer binding at index {} for {}[0].", parameter.index, parameter.name))
                }
            }
        }
        self.items.push(Item::Dispatch(Dispatch { state: Shared(state), arguments, threadgroups: groups, threads }));
        if !self.concurrent {
            self.items.push(Item::Barrier);
        }
    }
}

fn sides(size: MTLSize) -> [u32; 3] {
    [size.width, size.height, size.depth].map(|side| u32::try_from(side).unwrap_or(u32::MAX))
}

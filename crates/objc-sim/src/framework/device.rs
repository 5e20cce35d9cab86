//! `MTLDevice`: what makes everything else. It knows no command.

use std::ffi::c_void;
use std::ptr::NonNull;

use block2::{Block, RcBlock};
use objc2::rc::Retained;
use objc2::runtime::{AnyObject, NSObject};
use objc2::{AnyThread, define_class, msg_send};
use objc2_metal::{MTLGPUFamily, MTLPipelineOption, MTLResourceOptions};

use super::descriptors::{BinaryArchiveDescriptor, CompileOptions, ComputePipelineDescriptor, ResidencySetDescriptor};
use super::machine::machine;
use super::{Archive, Buffer, Fence, Library, PipelineState, Queue, ResidencySet, require, wants_pool};
use crate::foundation::{Error, Text, say};

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimDevice"]
    #[ivars = ()]
    pub(crate) struct Device;

    impl Device {
        #[unsafe(method_id(name))]
        fn name(&self) -> Retained<Text> {
            Text::new("Simulated M2")
        }

        #[unsafe(method(supportsFamily:))]
        fn supports_family(&self, family: MTLGPUFamily) -> bool {
            // Of Apple are 1001 to 2000; every Mac is of Mac2 and Metal3.
            match family.0 {
                1001..2000 => family <= machine().family,
                _ => family == MTLGPUFamily::Mac2 || family == MTLGPUFamily::Metal3,
            }
        }

        #[unsafe(method(recommendedMaxWorkingSetSize))]
        fn working_set(&self) -> u64 {
            machine().working_set
        }

        #[unsafe(method(setShouldMaximizeConcurrentCompilation:))]
        fn set_concurrent_compilation(&self, should: bool) {
            machine().compiles_concurrently = should;
        }

        #[unsafe(method(maxBufferLength))]
        fn max_buffer(&self) -> usize {
            machine().max_buffer
        }

        #[unsafe(method_id(newBufferWithLength:options:))]
        fn new_buffer(&self, length: usize, options: MTLResourceOptions) -> Option<Retained<Buffer>> {
            wants_pool("newBufferWithLength:options:");
            Buffer::zeroed(length, options)
        }

        #[unsafe(method_id(newBufferWithBytesNoCopy:length:options:deallocator:))]
        fn new_buffer_in_place(
            &self,
            pointer: NonNull<c_void>,
            length: usize,
            options: MTLResourceOptions,
            deallocator: Option<&Block<dyn Fn(NonNull<c_void>, usize)>>,
        ) -> Option<Retained<Buffer>> {
            wants_pool("newBufferWithBytesNoCopy:length:options:deallocator:");
            // SAFETY: blocks that are arguments are alive; a method that keeps one copies it.
            let deallocator = deallocator.and_then(|block| unsafe { RcBlock::copy(std::ptr::from_ref(block).cast_mut()) });
            Buffer::in_place(pointer, length, options, deallocator)
        }

        #[unsafe(method_id(newCommandQueue))]
        fn new_queue(&self) -> Option<Retained<Queue>> {
            wants_pool("newCommandQueue");
            Some(Queue::new())
        }

        #[unsafe(method_id(newFence))]
        fn new_fence(&self) -> Option<Retained<Fence>> {
            wants_pool("newFence");
            Some(Fence::new())
        }

        #[unsafe(method_id(newLibraryWithSource:options:error:))]
        fn new_library(&self, source: &Text, options: Option<&CompileOptions>, error: *mut *mut Error) -> Option<Retained<Library>> {
            wants_pool("newLibraryWithSource:options:error:");
            Library::compile(source.as_str(), options, error)
        }

        #[unsafe(method_id(newComputePipelineStateWithDescriptor:options:reflection:error:))]
        fn new_pipeline(
            &self,
            descriptor: &ComputePipelineDescriptor,
            options: MTLPipelineOption,
            reflection: *mut *mut AnyObject,
            error: *mut *mut Error,
        ) -> Option<Retained<PipelineState>> {
            wants_pool("newComputePipelineStateWithDescriptor:options:reflection:error:");
            require(reflection.is_null(), || "reflection is not simulated".to_owned());
            PipelineState::new(descriptor, options, error)
        }

        #[unsafe(method_id(newBinaryArchiveWithDescriptor:error:))]
        fn new_archive(&self, descriptor: &BinaryArchiveDescriptor, error: *mut *mut Error) -> Option<Retained<Archive>> {
            wants_pool("newBinaryArchiveWithDescriptor:error:");
            say(Archive::open(descriptor.path()), "MTLBinaryArchiveDomain", 1, error)
        }

        #[unsafe(method_id(newResidencySetWithDescriptor:error:))]
        fn new_residency_set(&self, _: &ResidencySetDescriptor, error: *mut *mut Error) -> Option<Retained<ResidencySet>> {
            wants_pool("newResidencySetWithDescriptor:error:");
            let family = machine().family;
            require(family >= MTLGPUFamily::Apple6, || "device does not support residency sets.".to_owned());
            let can = machine().residency_sets;
            let set = can.then(ResidencySet::new).ok_or_else(|| "this machine has no residency sets".to_owned());
            say(set, "MTLResidencySetErrorDomain", 1, error)
        }
    }
);

#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> *mut Device {
    wants_pool("MTLCreateSystemDefaultDevice");
    // SAFETY: NSObject's init takes nothing.
    let device: Retained<Device> = unsafe { msg_send![super(Device::alloc().set_ivars(())), init] };
    Retained::into_raw(device)
}

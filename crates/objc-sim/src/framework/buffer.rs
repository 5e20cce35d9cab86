//! `MTLBuffer`: memory, or somebody's. It knows no command.

use std::ffi::c_void;
use std::ptr::NonNull;

use block2::RcBlock;
use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_metal::MTLResourceOptions;

use super::machine::machine;
use super::require;
use crate::foundation::Text;

/// Pages of macOS on Apple silicon.
const PAGE: usize = 16384;

type Deallocator = RcBlock<dyn Fn(NonNull<c_void>, usize)>;

pub(crate) struct Memory {
    memory: msl_sim::Buffer,
    deallocator: Option<Deallocator>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(deallocator) = self.deallocator.take() {
            let start = NonNull::new(self.memory.as_ptr()).expect("not null").cast();
            deallocator.call((start, self.memory.len()));
        }
    }
}

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimBuffer"]
    #[ivars = Memory]
    pub(crate) struct Buffer;

    impl Buffer {
        #[unsafe(method(contents))]
        fn contents(&self) -> NonNull<c_void> {
            NonNull::new(self.ivars().memory.as_ptr()).expect("not null").cast()
        }

        #[unsafe(method(length))]
        fn length(&self) -> usize {
            self.ivars().memory.len()
        }

        #[unsafe(method(setLabel:))]
        fn set_label(&self, _: Option<&Text>) {}
    }
);

impl Buffer {
    pub fn zeroed(length: usize, options: MTLResourceOptions) -> Option<Retained<Self>> {
        check(length, options);
        let memory = msl_sim::Buffer::new(length).ok()?;
        Some(Self::new(Memory { memory, deallocator: None }))
    }

    pub fn in_place(
        pointer: NonNull<c_void>,
        length: usize,
        options: MTLResourceOptions,
        deallocator: Option<Deallocator>,
    ) -> Option<Retained<Self>> {
        check(length, options);
        require(pointer.addr().get().is_multiple_of(PAGE), || {
            format!("newBufferWithBytesNoCopy:pointer {pointer:p} is not {PAGE} byte aligned.")
        });
        require(length.is_multiple_of(PAGE), || {
            format!("newBufferWithBytesNoCopy:length 0x{length:x} is not {PAGE} byte aligned.")
        });
        // Kernels that write to it are wrong: what gpu/apple maps is read only.
        // SAFETY: the method's contract: the memory is there until the deallocator is called.
        let memory = unsafe { msl_sim::Buffer::from_raw(pointer.as_ptr().cast(), length, false) };
        Some(Self::new(Memory { memory, deallocator }))
    }

    fn new(memory: Memory) -> Retained<Self> {
        // SAFETY: NSObject's init takes nothing.
        unsafe { msg_send![super(Self::alloc().set_ivars(memory)), init] }
    }

    pub fn memory(&self) -> &msl_sim::Buffer {
        &self.ivars().memory
    }
}

fn check(length: usize, options: MTLResourceOptions) {
    let limit = machine().max_buffer;
    require(length > 0, || "Buffer Validation newBufferWith*:length 0x0 must not be zero.".to_owned());
    require(length <= limit, || {
        format!("Buffer Validation newBufferWith*:length 0x{length:x} must not exceed {limit}.")
    });
    let shared = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    require(options == shared, || format!("options {options:?}: the simulation has shared and untracked buffers only"));
}

//! What the simulated Metal minds: each check fires when its rule is broken. These use Metal directly, as gpu/apple does not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use block2::RcBlock;
use objc_sim::machine::machine;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2::{AnyThread, Message, msg_send};
use objc2_foundation::{NSActivityOptions, NSArray, NSProcessInfo, NSString};
use objc2_metal::*;

type Device = Retained<ProtocolObject<dyn MTLDevice>>;
type Buffer = Retained<ProtocolObject<dyn MTLBuffer>>;
type Commands = Retained<ProtocolObject<dyn MTLCommandBuffer>>;
type Encoder = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;

const SHARED: MTLResourceOptions = MTLResourceOptions::from_bits_retain(
    MTLResourceOptions::StorageModeShared.bits() | MTLResourceOptions::HazardTrackingModeUntracked.bits(),
);

/// `body` breaks a rule, which is said with `words`.
#[track_caller]
fn forbidden(words: &str, body: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(|| autoreleasepool(|_| body()))).expect_err(words);
    let said = panic.downcast_ref::<String>().map_or("nothing that can be read", |said| said);
    assert!(said.starts_with("validation: ") && said.contains(words), "{said}, not {words}");
}

fn device() -> Device {
    MTLCreateSystemDefaultDevice().expect("simulated")
}

fn options() -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_1);
    options.setMathMode(MTLMathMode::Safe);
    options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    options
}

const SOURCE: &str =
    "kernel void copy(device uint* out [[buffer(0)]], constant uint& in [[buffer(1)]]) { out[0] = in; }";

fn descriptor(device: &Device) -> Retained<MTLComputePipelineDescriptor> {
    descriptor_of(device, SOURCE)
}

fn descriptor_of(device: &Device, source: &str) -> Retained<MTLComputePipelineDescriptor> {
    let library = device.newLibraryWithSource_options_error(&NSString::from_str(source), Some(&options())).unwrap();
    let constants = MTLFunctionConstantValues::new();
    let function = library.newFunctionWithName_constantValues_error(&NSString::from_str("copy"), &constants).unwrap();
    let descriptor = MTLComputePipelineDescriptor::new();
    descriptor.setComputeFunction(Some(&function));
    descriptor.setMaxTotalThreadsPerThreadgroup(64);
    descriptor
}

fn pipeline(device: &Device) -> Retained<ProtocolObject<dyn MTLComputePipelineState>> {
    pipeline_of(device, SOURCE)
}

fn pipeline_of(device: &Device, source: &str) -> Retained<ProtocolObject<dyn MTLComputePipelineState>> {
    let descriptor = descriptor_of(device, source);
    let none = MTLPipelineOption::None;
    device.newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, none, None).unwrap()
}

fn buffer(device: &Device) -> Buffer {
    device.newBufferWithLength_options(64, SHARED).unwrap()
}

fn begin(device: &Device) -> (Commands, Encoder) {
    let queue = device.newCommandQueue().unwrap();
    begin_on(&queue)
}

fn begin_on(queue: &ProtocolObject<dyn MTLCommandQueue>) -> (Commands, Encoder) {
    let commands = queue.commandBuffer().unwrap();
    let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent).unwrap();
    (commands, encoder)
}

fn size(width: usize) -> MTLSize {
    MTLSize { width, height: 1, depth: 1 }
}

/// Breaks a rule with an encoder that is ready to dispatch, and ends it as is proper.
#[track_caller]
fn forbidden_to_encode(words: &str, body: impl FnOnce(&Encoder, &Buffer)) {
    let (device, result) = autoreleasepool(|_| {
        let device = device();
        let (_commands, encoder) = begin(&device);
        let (buffer, value) = (buffer(&device), 7u32);
        encoder.setComputePipelineState(&pipeline(&device));
        // SAFETY: the arguments of the kernel.
        unsafe {
            encoder.setBuffer_offset_atIndex(Some(&buffer), 0, 0);
            encoder.setBytes_length_atIndex(NonNull::from(&value).cast(), 4, 1);
        }
        let result = catch_unwind(AssertUnwindSafe(|| forbidden(words, || body(&encoder, &buffer))));
        encoder.endEncoding();
        (device, result)
    });
    drop(device);
    result.unwrap();
}

#[test]
fn arguments() {
    let bytes = [0u8; 5000];
    let pointer = NonNull::from(&bytes).cast();
    // SAFETY: the pointers are to as many bytes; what is wrong is noticed before they are used.
    unsafe {
        forbidden_to_encode("length(4097) must be <= 4096", |e, _| e.setBytes_length_atIndex(pointer, 4097, 0));
        forbidden_to_encode("length must be > 0", |e, _| e.setBytes_length_atIndex(pointer, 0, 0));
        forbidden_to_encode("index(31) must be < 31", |e, _| e.setBytes_length_atIndex(pointer, 4, 31));
        forbidden_to_encode("offset(64) must be < [buffer length](64)", |e, b| {
            e.setBuffer_offset_atIndex(Some(b), 64, 0)
        });
        forbidden_to_encode("offset(2) is not 4 byte aligned", |e, b| e.setBuffer_offset_atIndex(Some(b), 2, 0));
        forbidden_to_encode("missing Buffer binding at index 0 for out", |e, _| {
            e.setBuffer_offset_atIndex(None, 0, 0);
            e.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(1));
        });
        forbidden_to_encode("in[0] from Buffer(1) has space for 2 bytes, but argument has a length(4)", |e, _| {
            e.setBytes_length_atIndex(pointer, 2, 1);
            e.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(1));
        });
        let of_vectors = autoreleasepool(|_| pipeline_of(&device(), &SOURCE.replace("device uint*", "device uint4*")));
        forbidden_to_encode("out that is bound at buffer index 0 must be a multiple of 16 but was set to 8", |e, b| {
            e.setComputePipelineState(&of_vectors);
            e.setBuffer_offset_atIndex(Some(b), 8, 0);
            e.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(1));
        });
        let tiny = autoreleasepool(|_| device().newBufferWithLength_options(1, SHARED).unwrap());
        forbidden_to_encode("out[0] from Buffer(0) has space for 1 bytes, but argument has a length(4)", |e, _| {
            e.setBuffer_offset_atIndex(Some(&tiny), 0, 0);
            e.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(1));
        });
    }
}

#[test]
fn grids() {
    let dispatch = |e: &Encoder, groups, threads| e.dispatchThreadgroups_threadsPerThreadgroup(groups, threads);
    forbidden_to_encode("(threadsPerThreadgroup 65) must be <= 64", |e, _| dispatch(e, size(1), size(65)));
    forbidden_to_encode("threadsPerThreadgroup [0, 1, 1]", |e, _| dispatch(e, size(1), size(0)));
    forbidden_to_encode("threadgroupsPerGrid [0, 1, 1]", |e, _| dispatch(e, size(0), size(1)));
}

#[test]
fn encoders() {
    let device = autoreleasepool(|_| device());
    forbidden("dispatch without a compute pipeline state", || {
        let (_commands, encoder) = begin(&device);
        let result = catch_unwind(AssertUnwindSafe(|| {
            encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(1));
        }));
        encoder.endEncoding();
        std::panic::resume_unwind(result.unwrap_err());
    });
    forbidden("endEncoding: encoding has ended", || {
        let (_commands, encoder) = begin(&device);
        encoder.endEncoding();
        encoder.endEncoding();
    });
    forbidden("updateFence:: encoding has ended", || {
        let (_commands, encoder) = begin(&device);
        encoder.endEncoding();
        encoder.updateFence(&device.newFence().unwrap());
    });
    forbidden("released without endEncoding", || drop(autoreleasepool(|_| begin(&device))));
    forbidden("already encoding to this command buffer", || {
        let (commands, encoder) = begin(&device);
        let result = catch_unwind(AssertUnwindSafe(|| {
            commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
        }));
        encoder.endEncoding();
        std::panic::resume_unwind(result.unwrap_err());
    });
    forbidden_to_encode("awaited after commands that would not wait", |encoder, _| {
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(1));
        encoder.waitForFence(&device.newFence().unwrap());
    });
    forbidden_to_encode("awaited by the encoder that updates it", |encoder, _| {
        let fence = device.newFence().unwrap();
        encoder.updateFence(&fence);
        encoder.waitForFence(&fence);
    });
}

#[test]
fn command_buffers() {
    let device = autoreleasepool(|_| device());
    let handler = RcBlock::new(|_: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {});
    forbidden("commit command buffer with uncommitted encoder", || {
        let (commands, encoder) = begin(&device);
        let result = catch_unwind(AssertUnwindSafe(|| commands.commit()));
        encoder.endEncoding();
        std::panic::resume_unwind(result.unwrap_err());
    });
    let committed = || {
        let (commands, encoder) = begin(&device);
        encoder.endEncoding();
        commands.commit();
        commands
    };
    forbidden("commit an already committed command buffer", || committed().commit());
    forbidden("Completed handler provided after commit call", || {
        // SAFETY: a block of the right signature.
        unsafe { committed().addCompletedHandler(RcBlock::as_ptr(&handler)) }
    });
    forbidden("Command buffer has been committed already", || {
        committed().computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
    });
    forbidden("waitUntilCompleted is called on a command buffer that is not committed", || {
        let (commands, encoder) = begin(&device);
        encoder.endEncoding();
        commands.waitUntilCompleted();
    });
}

#[test]
fn command_buffers_that_overlap() {
    let device = autoreleasepool(|_| device());
    let commit_two = |order: &dyn Fn(&Encoder, usize), wait: bool| {
        let queue = device.newCommandQueue().unwrap();
        for i in 0..2 {
            let (commands, encoder) = begin_on(&queue);
            order(&encoder, i);
            encoder.endEncoding();
            commands.commit();
            if wait {
                commands.waitUntilCompleted();
            }
        }
    };
    let fences: [_; 2] = std::array::from_fn(|_| autoreleasepool(|_| device.newFence().unwrap()));
    let chain = |awaited: usize| {
        let fences = &fences;
        move |encoder: &Encoder, i: usize| match i {
            0 => encoder.updateFence(&fences[0]),
            _ => encoder.waitForFence(&fences[awaited]),
        }
    };
    autoreleasepool(|_| commit_two(&|_, _| {}, true));
    autoreleasepool(|_| commit_two(&chain(0), false));
    forbidden("may overlap with the one before it", || commit_two(&|_, _| {}, false));
    forbidden("may overlap with the one before it", || commit_two(&chain(1), false));
}

#[test]
fn memory() {
    let device = autoreleasepool(|_| device());
    let device = &device;
    forbidden("length 0x0 must not be zero", || drop(device.newBufferWithLength_options(0, SHARED)));
    forbidden("must not exceed", || drop(device.newBufferWithLength_options(1 << 60, SHARED)));
    forbidden("shared and untracked buffers only", || {
        drop(device.newBufferWithLength_options(64, MTLResourceOptions::StorageModePrivate));
    });
    let pages = vec![0u8; 4 * 16384];
    let start = NonNull::from(&pages[0]);
    // SAFETY: within the vector; no buffer is made.
    let in_place = |offset: usize, length: usize| unsafe {
        let aligned = start.add(start.align_offset(16384));
        drop(device.newBufferWithBytesNoCopy_length_options_deallocator(
            aligned.add(offset).cast(),
            length,
            SHARED,
            None,
        ));
    };
    autoreleasepool(|_| in_place(16384, 16384));
    forbidden("is not 16384 byte aligned", || in_place(64, 16384));
    forbidden("is not 16384 byte aligned", || in_place(0, 16000));

    let family = std::mem::replace(&mut machine().family, MTLGPUFamily::Apple5);
    forbidden("device does not support residency sets", || {
        drop(device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()));
    });
    machine().family = family;
    let set =
        autoreleasepool(|_| device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new()).unwrap());
    let buffer = autoreleasepool(|_| buffer(device));
    let buffer: &ProtocolObject<dyn MTLAllocation> = ProtocolObject::from_ref(&*buffer);
    forbidden("removed that is no member", || set.removeAllocation(buffer));
    autoreleasepool(|_| set.addAllocation(buffer));
    forbidden("added twice", || set.addAllocation(buffer));
    let queue = autoreleasepool(|_| device.newCommandQueue().unwrap());
    autoreleasepool(|_| (0..32).for_each(|_| queue.addResidencySet(&set)));
    forbidden("takes 32 residency sets", || queue.addResidencySet(&set));
}

#[test]
fn compilation() {
    let device = autoreleasepool(|_| device());
    let source = NSString::from_str(SOURCE);
    let compile =
        |options: Option<&MTLCompileOptions>| drop(device.newLibraryWithSource_options_error(&source, options));
    forbidden("compiled without options", || compile(None));
    forbidden("has no bfloat", || compile(Some(&MTLCompileOptions::new())));
    forbidden("is not as written", || {
        let options = options();
        options.setMathMode(MTLMathMode::Fast);
        compile(Some(&options));
    });
    forbidden("are not precise", || {
        let options = options();
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Fast);
        compile(Some(&options));
    });
    forbidden("barriers may be dropped", || descriptor(&device).setMaxTotalThreadsPerThreadgroup(32));
    forbidden("computeFunction must not be nil", || {
        let (descriptor, none) = (MTLComputePipelineDescriptor::new(), MTLPipelineOption::None);
        drop(device.newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, none, None));
    });
    autoreleasepool(|_| {
        let descriptor = descriptor(&device);
        let archive = device.newBinaryArchiveWithDescriptor_error(&MTLBinaryArchiveDescriptor::new()).unwrap();
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*archive])));
        let option = MTLPipelineOption::FailOnBinaryArchiveMiss;
        let find = || device.newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, option, None);
        assert!(find().is_err());
        archive.addComputePipelineFunctionsWithDescriptor_error(&descriptor).unwrap();
        assert!(find().is_ok());
    });
}

#[test]
fn activities() {
    let process = autoreleasepool(|_| NSProcessInfo::processInfo());
    let begin = |options, reason| process.beginActivityWithOptions_reason(options, &NSString::from_str(reason));
    let user_initiated = NSActivityOptions::UserInitiated;
    forbidden("an activity must have a reason", || drop(begin(user_initiated, "")));
    forbidden("the Mac goes to sleep nevertheless", || drop(begin(NSActivityOptions::Background, "a test")));
    forbidden("it has ended already", || {
        let activity = begin(user_initiated, "a test");
        assert_eq!(machine().activities, 1);
        // SAFETY: what the same object has begun; twice is noticed.
        unsafe { process.endActivity(&activity) };
        assert_eq!(machine().activities, 0);
        // SAFETY: as above.
        unsafe { process.endActivity(&activity) };
    });
    forbidden("released that has not ended", || drop(autoreleasepool(|_| begin(user_initiated, "a test"))));
}

#[test]
fn references_and_pools() {
    let device = autoreleasepool(|_| device());
    let queue = autoreleasepool(|_| device.newCommandQueue().unwrap());
    let without_pool = catch_unwind(AssertUnwindSafe(|| drop(queue.commandBuffer()))).unwrap_err();
    assert!(without_pool.downcast_ref::<String>().unwrap().contains("no pool in place"));
    let without_pool = catch_unwind(AssertUnwindSafe(|| drop(NSString::from_str("text").to_string()))).unwrap_err();
    assert!(without_pool.downcast_ref::<String>().unwrap().contains("no pool in place"));
    forbidden("deallocated instance", || {
        let buffer = buffer(&device);
        let pointer = Retained::as_ptr(&buffer);
        drop(buffer);
        // SAFETY: dead memory is kept, so that this is noticed.
        let _: usize = unsafe { msg_send![&*pointer, length] };
    });
    forbidden("deallocated instance", || {
        let text = NSString::from_str("text");
        let pointer: *mut AnyObject = Retained::into_raw(text).cast();
        // SAFETY: it is the one reference.
        drop(unsafe { Retained::from_raw(pointer) });
        // SAFETY: dead memory is kept, so that this is noticed.
        drop(unsafe { Retained::from_raw(pointer) });
    });
    let count = |text: &NSString| objc_sim::runtime::retain_count(text);
    let text = autoreleasepool(|_| NSString::from_str("text"));
    assert_eq!(count(&text), 1);
    let second = text.retain();
    assert_eq!(count(&text), 2);
    drop(second);
    assert_eq!(count(&text), 1);
    let _ = NSString::alloc();
}

#[test]
fn room_of_a_queue() {
    let queue = autoreleasepool(|_| device().newCommandQueue().unwrap());
    autoreleasepool(|_| {
        let _kept: Vec<Commands> = (0..64).map(|_| queue.commandBuffer().unwrap()).collect();
        forbidden("64 command buffers that have not ended", || drop(queue.commandBuffer()));
    });
    autoreleasepool(|_| assert!(queue.commandBuffer().is_some(), "those are gone"));
}

//! From kernel text to pipelines, by the compiler in macOS. It knows no op.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::JoinHandle;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::{available, msg_send, sel};
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDataType, MTLDevice, MTLFunction,
    MTLFunctionConstantValues, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode,
    MTLPipelineOption,
};

use super::Device;
use super::archive::Archive;
use crate::gpu::once_map::OnceMap;
use crate::gpu::{Compiler, Constant, GpuError, Kernel, Value, diagnostics};

/// Threads of a simdgroup, on every GPU of Apple; the kernels are written for it.
const SIMDGROUP: usize = 32;

/// Fewest threads that the compiler is told of: with 32 or fewer it was seen to drop what a `threadgroup_barrier` orders in threadgroup memory
/// (MoltenVK #2711).
const LEAST_THREADS: usize = 2 * SIMDGROUP;

/// No contraction of `a * b + c` but where a kernel says `fma`: one text, one rounding, in every function that it is inlined into. The second is for
/// compilers that may not know the first, as macOS 14's.
const NO_CONTRACTION: &str = "#pragma METAL fp contract(off)\n#pragma STDC FP_CONTRACT OFF\n";

type Library = Retained<ProtocolObject<dyn MTLLibrary>>;

/// A kernel that can be dispatched.
pub struct ApplePipeline {
    pub(super) state: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    pub(super) max_threads: usize,
}

/// macOS's compiler, and the files that it has compiled. A clone is another handle of both.
#[derive(Clone)]
pub struct AppleCompiler(Arc<Shared>);

struct Shared {
    device: Retained<Device>,
    /// By their text.
    libraries: OnceMap<&'static str, Result<Library, GpuError>>,
    archive: Option<Arc<Archive>>,
    /// Writes the archive's file.
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A file half written is of no use to the next start, and a panic there has been reported.
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.take().map(JoinHandle::join);
    }
}

impl AppleCompiler {
    /// With what an earlier start left in `cache`.
    pub(super) fn new(device: Retained<Device>, cache: Option<&Path>) -> Self {
        // Not every device has it, whatever the version of macOS.
        if device.respondsToSelector(sel!(setShouldMaximizeConcurrentCompilation:)) {
            device.setShouldMaximizeConcurrentCompilation(true);
        }
        let archive = cache.and_then(|directory| Archive::open(&device, directory)).map(Arc::new);
        Self(Arc::new(Shared { device, libraries: OnceMap::default(), archive, writer: Mutex::default() }))
    }
}

impl Compiler for AppleCompiler {
    type Pipeline = ApplePipeline;

    fn pipeline(&self, kernel: &Kernel, constants: &[Constant], threads: usize) -> Result<ApplePipeline, GpuError> {
        autoreleasepool(|_| {
            let Shared { device, libraries, archive, .. } = &*self.0;
            let is_kept = |library: &Result<Library, GpuError>| !matches!(library, Err(GpuError::NotCompiled { .. }));
            let function = libraries
                .get(kernel.source, is_kept, || compile_library(device, kernel))?
                .newFunctionWithName_constantValues_error(&NSString::from_str(kernel.function), &values(constants))
                .map_err(|error| failed(kernel, &error))?;
            let state = compile_pipeline(device, archive.as_deref(), kernel, &function, threads)?;
            let width = state.threadExecutionWidth();
            if width != SIMDGROUP {
                return Err(refused(kernel, format!("its simdgroups would have {width} threads, not {SIMDGROUP}")));
            }
            let max_threads = state.maxTotalThreadsPerThreadgroup();
            if max_threads < threads {
                return Err(refused(
                    kernel,
                    format!(
                        "its threadgroups may have {max_threads} threads, not {threads}. Metal's own checks lower that: it may be more \
                         without MTL_SHADER_VALIDATION"
                    ),
                ));
            }
            Ok(ApplePipeline { state, max_threads })
        })
    }

    fn keep(&self) {
        if let Some(archive) = &self.0.archive {
            let mut writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner);
            *writer = archive.keep(writer.take());
        }
    }
}

fn compile_library(device: &Device, kernel: &Kernel) -> Result<Library, GpuError> {
    let source = NSString::from_str(&format!("{NO_CONTRACTION}{}", kernel.text()));
    let options = options();
    let mut diagnostics: Option<Retained<NSError>> = None;
    // Not `newLibraryWithSource_options_error`: that drops the warnings of a compilation that succeeds.
    // SAFETY: the selector takes an NSString, MTLCompileOptions and an NSError out-parameter, and returns a new MTLLibrary or nil.
    let library: Option<Library> =
        unsafe { msg_send![device, newLibraryWithSource: &*source, options: &*options, error: &mut diagnostics] };
    let words = diagnostics.as_deref().map(|error| error.localizedDescription().to_string());
    match (library, words) {
        (Some(library), words) => {
            if let Some(warnings) = words {
                log(kernel, &warnings);
            }
            library.setLabel(Some(&NSString::from_str(kernel.file)));
            Ok(library)
        }
        (None, words) => Err(refused(kernel, words.unwrap_or_else(|| "the compiler does not say why".to_owned()))),
    }
}

/// Warnings are the kernel's, or of a pragma that the compiler does not know, which every library has.
fn log(kernel: &Kernel, warnings: &str) {
    static PRAGMAS: Once = Once::new();
    let (own, of_pragmas) = diagnostics::split(warnings, NO_CONTRACTION);
    if !own.is_empty() {
        tracing::warn!("{} compiles with warnings: {own}", kernel.file);
    }
    if !of_pragmas.is_empty() {
        PRAGMAS.call_once(|| tracing::debug!("this compiler warns of what all kernels begin with: {of_pragmas}"));
    }
}

/// Arithmetic as written: no fast math, functions of full precision.
fn options() -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    // The first with bfloat.
    options.setLanguageVersion(MTLLanguageVersion::Version3_1);
    if available!(macos = 15.0, ..) {
        options.setMathMode(MTLMathMode::Safe);
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    } else {
        #[allow(deprecated)] // What macOS 14 has.
        options.setFastMathEnabled(false);
    }
    options
}

fn values(constants: &[Constant]) -> Retained<MTLFunctionConstantValues> {
    let values = MTLFunctionConstantValues::new();
    for constant in constants {
        let (pointer, data_type): (NonNull<c_void>, _) = match &constant.value {
            Value::U32(value) => (NonNull::from(value).cast(), MTLDataType::UInt),
            Value::Bool(value) => (NonNull::from(value).cast(), MTLDataType::Bool),
            Value::F32(value) => (NonNull::from(value).cast(), MTLDataType::Float),
        };
        // SAFETY: the pointer is to a value of that type, which Metal copies.
        unsafe { values.setConstantValue_type_atIndex(pointer, data_type, constant.index as usize) };
    }
    values
}

fn compile_pipeline(
    device: &Device,
    archive: Option<&Archive>,
    kernel: &Kernel,
    function: &ProtocolObject<dyn MTLFunction>,
    threads: usize,
) -> Result<Retained<ProtocolObject<dyn MTLComputePipelineState>>, GpuError> {
    let descriptor = MTLComputePipelineDescriptor::new();
    // What debuggers and profilers show.
    descriptor.setLabel(Some(&NSString::from_str(kernel.function)));
    descriptor.setComputeFunction(Some(function));
    // What the compiler is told to find registers for.
    descriptor.setMaxTotalThreadsPerThreadgroup(threads.max(LEAST_THREADS));
    if let Some(state) = archive.and_then(|archive| archive.find(&descriptor)) {
        return Ok(state);
    }
    let state = device
        .newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, MTLPipelineOption::None, None)
        .map_err(|error| failed(kernel, &error))?;
    if let Some(archive) = archive {
        archive.remember(descriptor);
    }
    Ok(state)
}

fn failed(kernel: &Kernel, error: &NSError) -> GpuError {
    refused(kernel, error.localizedDescription().to_string())
}

fn refused(kernel: &Kernel, reason: String) -> GpuError {
    let (file, function) = (kernel.file.to_owned(), kernel.function.to_owned());
    match diagnostics::are_of_no_compiler(&reason) {
        true => GpuError::NotCompiled { file, function, reason },
        false => GpuError::Compile { file, function, reason },
    }
}

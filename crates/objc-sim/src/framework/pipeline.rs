//! `MTLComputePipelineState`. It knows no command.

use objc2::rc::Retained;
use objc2::runtime::NSObject;
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_metal::MTLPipelineOption;

use super::descriptors::ComputePipelineDescriptor;
use super::machine::machine;
use super::require;
use crate::foundation::{Error, say};

define_class!(
    // SAFETY: NSObject demands nothing of subclasses, and there is no Drop.
    #[unsafe(super(NSObject))]
    #[name = "SimComputePipelineState"]
    #[ivars = msl_sim::Pipeline]
    pub(crate) struct PipelineState;

    impl PipelineState {
        #[unsafe(method(threadExecutionWidth))]
        fn width(&self) -> usize {
            32
        }

        #[unsafe(method(maxTotalThreadsPerThreadgroup))]
        fn max_threads(&self) -> usize {
            machine().most_threads.min(self.pipeline().max_total_threads_per_threadgroup() as usize)
        }
    }
);

impl PipelineState {
    pub fn new(
        descriptor: &ComputePipelineDescriptor,
        options: MTLPipelineOption,
        error: *mut *mut Error,
    ) -> Option<Retained<Self>> {
        let must_be_kept = options == MTLPipelineOption::FailOnBinaryArchiveMiss;
        require(must_be_kept || options == MTLPipelineOption::None, || format!("{options:?} is not simulated"));
        say(Self::make(descriptor, must_be_kept), "CompilerError", 1, error)
    }

    fn make(descriptor: &ComputePipelineDescriptor, must_be_kept: bool) -> Result<Retained<Self>, String> {
        let settings = descriptor.ivars();
        let function = settings.function.borrow();
        require(function.is_some(), || "computeFunction must not be nil.".to_owned());
        let function = function.as_ref().ok_or("no function")?.ivars();
        if must_be_kept && !descriptor.archives().iter().any(|archive| archive.has(descriptor)) {
            return Err("the binary archives do not have it".to_owned());
        }
        if !must_be_kept {
            let mut machine = machine();
            if let Some(words) = machine.compiler_faults.pop_front() {
                return Err(words);
            }
            machine.compiled += 1;
            if machine.refused.is_some_and(|refused| function.name.starts_with(refused)) {
                return Err("Compute function exceeds available temporary registers".to_owned());
            }
        }
        let pipeline = msl_sim::Pipeline::new(&function.binary, &function.name, &function.constants);
        let mut pipeline = pipeline.map_err(|error| error.to_string())?;
        if settings.threads.get() > 0 {
            pipeline.set_max_total_threads_per_threadgroup(settings.threads.get() as u32);
        }
        // SAFETY: NSObject's init takes nothing.
        Ok(unsafe { msg_send![super(Self::alloc().set_ivars(pipeline)), init] })
    }

    pub fn pipeline(&self) -> &msl_sim::Pipeline {
        self.ivars()
    }
}

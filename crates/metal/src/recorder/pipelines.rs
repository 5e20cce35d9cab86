//! Compiled kernels by function, constants and threads. It knows no op.

use std::collections::HashMap;
use std::sync::Arc;

use crate::gpu::{Constant, Gpu, GpuError, Kernel, Value};

/// Most constants of a kernel.
pub(crate) const MAX_CONSTANTS: usize = 12;

type Key = (&'static str, [u32; MAX_CONSTANTS], usize);

/// The pipelines in use.
pub(crate) struct Pipelines<G: Gpu> {
    /// Those that do not compile are not tried again.
    compiled: HashMap<Key, Result<Arc<G::Pipeline>, GpuError>>,
}

impl<G: Gpu> Pipelines<G> {
    pub fn new() -> Self {
        Self { compiled: HashMap::new() }
    }

    /// The pipeline of `kernel` whose `[[function_constant(i)]]` is `constants[i]`, in threadgroups of so many threads, compiled if it is
    /// new.
    pub fn get(
        &mut self,
        gpu: &G,
        kernel: Kernel,
        constants: &[Value],
        threads: usize,
    ) -> Result<Arc<G::Pipeline>, GpuError> {
        let mut bits = [0; MAX_CONSTANTS];
        for (bits, value) in bits.iter_mut().zip(constants) {
            *bits = match *value {
                Value::U32(v) => v,
                Value::Bool(v) => v.into(),
                Value::F32(v) => v.to_bits(),
            };
        }
        let key = (kernel.function, bits, threads);
        if let Some(pipeline) = self.compiled.get(&key) {
            return pipeline.clone();
        }
        let constants: Vec<Constant> =
            constants.iter().zip(0..).map(|(&value, index)| Constant { index, value }).collect();
        let pipeline = gpu.pipeline(&kernel, &constants, threads).map(Arc::new);
        if matches!(pipeline, Ok(_) | Err(GpuError::Compile { .. })) {
            self.compiled.insert(key, pipeline.clone());
        }
        pipeline
    }

    /// Pipelines that are compiled, and functions that they are of.
    pub fn count(&self) -> (usize, usize) {
        (self.compiled.values().filter(|pipeline| pipeline.is_ok()).count(), self.functions().len())
    }

    /// The functions that there are pipelines of.
    pub fn functions(&self) -> std::collections::BTreeSet<&'static str> {
        self.compiled.keys().map(|(function, ..)| *function).collect()
    }
}

/// `fn $name(dtype) -> Kernel`: the instantiations `…_f32`, `…_f16` and `…_bf16` of a function of the last file, whose text comes
/// after that of the files before it.
macro_rules! kernels_by_dtype {
    ($name:ident, [$($shared:literal),*], $file:literal, $function:expr) => {
        fn $name(dtype: vllm_apple_ops::DType) -> $crate::gpu::Kernel {
            use vllm_apple_ops::DType;
            let function = match dtype {
                DType::F32 => concat!($function, "_f32"),
                DType::F16 => concat!($function, "_f16"),
                DType::BF16 => concat!($function, "_bf16"),
                DType::U32 => unreachable!("ops check that it is a float type"),
            };
            // Messages name the file that a line is from.
            let source = concat!(
                $("#line 1 \"", $shared, "\"\n", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $shared)),)*
                "#line 1 \"", $file, "\"\n", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $file)),
            );
            $crate::gpu::Kernel { file: $file, source, function }
        }
    };
    ($name:ident, $file:literal, $function:expr) => {
        $crate::recorder::pipelines::kernels_by_dtype!($name, [], $file, $function);
    };
}
pub(crate) use kernels_by_dtype;

//! Compiled kernels by function, constants and threads. It knows no op.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use vllm_apple_ops::pool::Pool;

use super::variants::Variant;
use crate::gpu::{Compiler, Constant, Gpu, GpuError, Kernel, Value};

/// Most constants of a kernel.
pub(crate) const MAX_CONSTANTS: usize = 17;

/// A function, its constants, and threads.
pub(super) type Key = (&'static str, [u32; MAX_CONSTANTS], usize);

/// The pipelines in use.
pub(crate) struct Pipelines<G: Gpu> {
    compiler: G::Compiler,
    /// Those that do not compile are not tried again.
    compiled: HashMap<Key, Result<Arc<G::Pipeline>, GpuError>>,
    /// How often the system's compiler did not answer.
    unanswered: HashMap<Key, usize>,
}

/// Pipelines are wanted so often from a compiler that does not answer: one that a kernel ends each time would be asked in every step.
const MOST_UNANSWERED: usize = 3;

/// What a pipeline is made of, and the op that needs it.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub op: &'static str,
    pub kernel: Kernel,
    constants: Vec<Constant>,
    pub threads: usize,
    /// What is in its place if the device refuses it, the first that it does not.
    others: Vec<Variant>,
}

impl Wanted {
    /// `[[function_constant(i)]]` is `constants[i]`, threadgroups have so many threads.
    pub fn new(op: &'static str, kernel: Kernel, constants: &[Value], threads: usize) -> Self {
        let constants = constants.iter().zip(0..).map(|(&value, index)| Constant { index, value }).collect();
        Self { op, kernel, constants, threads, others: Vec::new() }
    }

    /// Takes in what is in its place if the device refuses it, if it is the first of these.
    pub fn note_others(&mut self, variants: &[Variant]) {
        if let [(kernel, threads), others @ ..] = variants
            && (*kernel, *threads) == (self.kernel, self.threads)
        {
            self.others = others.to_vec();
        }
    }

    /// What is in its place.
    pub fn instead(&self) -> Option<Self> {
        let (&(kernel, threads), others) = self.others.split_first()?;
        Some(Self { op: self.op, kernel, constants: self.constants.clone(), threads, others: others.to_vec() })
    }

    pub fn values(&self) -> Vec<Value> {
        self.constants.iter().map(|constant| constant.value).collect()
    }

    pub(super) fn key(&self) -> Key {
        key(&self.kernel, self.constants.iter().map(|constant| constant.value), self.threads)
    }

    fn compile<C: Compiler>(&self, compiler: &C) -> Result<Arc<C::Pipeline>, GpuError> {
        let once = || compiler.pipeline(&self.kernel, &self.constants, self.threads).map(Arc::new);
        match once() {
            // The system starts its compiler again for who asks.
            Err(GpuError::NotCompiled { .. }) => once(),
            result => result,
        }
    }
}

fn key(kernel: &Kernel, constants: impl Iterator<Item = Value>, threads: usize) -> Key {
    let mut bits = [0; MAX_CONSTANTS];
    for (bits, value) in bits.iter_mut().zip(constants) {
        *bits = match value {
            Value::U32(v) => v,
            Value::Bool(v) => v.into(),
            Value::F32(v) => v.to_bits(),
        };
    }
    (kernel.function, bits, threads)
}

impl<G: Gpu> Pipelines<G> {
    pub fn new(compiler: G::Compiler) -> Self {
        Self { compiler, compiled: HashMap::new(), unanswered: HashMap::new() }
    }

    /// The pipeline of `kernel` whose `[[function_constant(i)]]` is `constants[i]`, in threadgroups of so many threads, compiled if it is
    /// new.
    pub fn get(
        &mut self,
        op: &'static str,
        kernel: Kernel,
        constants: &[Value],
        threads: usize,
    ) -> Result<Arc<G::Pipeline>, GpuError> {
        let key = key(&kernel, constants.iter().copied(), threads);
        if let Some(pipeline) = self.compiled.get(&key) {
            return pipeline.clone();
        }
        let pipeline = Wanted::new(op, kernel, constants, threads).compile(&self.compiler);
        self.take_in(key, pipeline.clone());
        pipeline
    }

    /// Compiles what is new among these, on all threads. Errors come when it is used.
    pub fn compile(&mut self, wanted: &[Wanted], pool: &Pool, on_progress: &mut dyn FnMut(usize, usize)) {
        let new: BTreeMap<Key, &Wanted> = wanted
            .iter()
            .map(|wanted| (wanted.key(), wanted))
            .filter(|(key, _)| !self.compiled.contains_key(key))
            .collect();
        let new: Vec<_> = new.into_iter().collect();
        let mut done = 0;
        for some in new.chunks(4 * pool.threads()) {
            let results: Vec<OnceLock<_>> = some.iter().map(|_| OnceLock::new()).collect();
            pool.run(some.len(), &|i, _| {
                // Every number comes once.
                let _ = results[i].set(some[i].1.compile(&self.compiler));
            });
            for ((key, _), result) in some.iter().zip(results) {
                self.take_in(*key, result.into_inner().expect("every number came"));
            }
            done += some.len();
            on_progress(done, new.len());
        }
        self.compiler.keep();
    }

    fn take_in(&mut self, key: Key, pipeline: Result<Arc<G::Pipeline>, GpuError>) {
        let is_kept = match &pipeline {
            Ok(_) | Err(GpuError::Compile { .. }) => true,
            Err(GpuError::NotCompiled { .. }) => {
                let times = self.unanswered.entry(key).or_default();
                *times += 1;
                *times == MOST_UNANSWERED
            }
            Err(_) => false,
        };
        if is_kept {
            self.compiled.insert(key, pipeline);
        }
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
    ($visibility:vis $name:ident, [$($shared:literal),*], $file:literal, $function:expr) => {
        $visibility fn $name(dtype: vllm_apple_ops::DType) -> $crate::gpu::Kernel {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::fake::FakeGpu;
    use crate::gpu::faulty::{Faults, FaultyGpu, Request};

    #[test]
    fn a_compiler_that_does_not_answer_is_asked_again_but_not_for_ever() {
        let faults = Faults::default();
        let no_answer = |times| {
            for _ in 0..times {
                let (file, function, reason) = ("x.metal".to_owned(), "x".to_owned(), "Broken pipe".to_owned());
                faults.fail(Request::Compile, 0, GpuError::NotCompiled { file, function, reason });
            }
        };
        let gpu = FaultyGpu::new(FakeGpu::recording(), faults.clone());
        let mut pipelines = Pipelines::<FaultyGpu<FakeGpu>>::new(gpu.compiler());
        let kernel = Kernel { file: "x.metal", source: "", function: "x" };
        let mut get = |threads| pipelines.get("op", kernel, &[], threads).map(drop);
        no_answer(1);
        assert_eq!(get(32), Ok(()), "once more");
        no_answer(2);
        assert!(matches!(get(64), Err(GpuError::NotCompiled { .. })));
        assert_eq!(get(64), Ok(()), "it is not kept");
        no_answer(2 * MOST_UNANSWERED);
        for _ in 0..=MOST_UNANSWERED {
            assert!(matches!(get(96), Err(GpuError::NotCompiled { .. })));
        }
        assert_eq!(faults.left(), 0, "the last was not asked for");
    }
}

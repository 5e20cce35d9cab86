//! What runs before a model is loaded: every kernel on a few small cases of its op. What the device gets wrong is the host's from then on.

use vllm_apple_ops::{Result, conformance};

use super::MetalBackend;
use crate::fallback::{Fallback, Why};
use crate::gpu::Gpu;
use crate::ops;

const SELF_TEST: conformance::Selection<'_> = conformance::Selection { op: None, short: true };

impl<G: Gpu> MetalBackend<G> {
    /// Runs every kernel on a few small cases of its op. Ops that the device gets wrong, or does not compute, are computed on the host
    /// from then on. To be called once, before a model is loaded.
    ///
    /// # Errors
    /// [`vllm_apple_ops::Error::Device`] if the device is lost; with [`MetalOptions::strict`](crate::MetalOptions::strict) also the first op that fails.
    pub fn self_test(&mut self) -> Result<()> {
        // What the user wants on the host is tested too, and a refusal is a failure.
        let fallback = std::mem::replace(&mut self.fallback, Fallback::for_test());
        if let Ok(false) = ops::matmul::matrix_layout_is_known(&mut self.recorder) {
            tracing::warn!("this device keeps simdgroup matrices in an order that the kernels do not know");
        }
        let mut failed = Vec::new();
        loop {
            let known = failed.len();
            for verdict in conformance::run_selected(self, SELF_TEST).into_iter().filter(|verdict| !verdict.pass()) {
                // Once more without it: where one op prepares what another works on, both may have done nothing.
                let reason = format!("the self-test failed: {verdict}");
                if self.fallback.forbid(verdict.op, reason.clone()) {
                    failed.push((verdict.op, reason));
                }
            }
            if failed.len() == known {
                break;
            }
        }
        self.fallback = fallback;
        self.recorder.alive()?;
        for (op, reason) in failed {
            if self.fallback.on_device(op) {
                self.fallback.fall_back(op, Why::Wrong, self.recorder.gpu.facts().backend, reason)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetalOptions;
    use crate::gpu::fake::FakeGpu;

    #[test]
    fn the_self_test_runs_every_kernel_that_conformance_runs() {
        // Its kernels do nothing: with every op wrong, no op is left out.
        let backend = || MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
        let (mut short, mut whole) = (backend(), backend());
        conformance::run_selected(&mut short, SELF_TEST);
        conformance::run(&mut whole);
        let (short, whole) = (short.recorder.pipelines.functions(), whole.recorder.pipelines.functions());
        assert!(whole.len() > 40, "{whole:?}");
        assert_eq!(short, whole);
    }
}

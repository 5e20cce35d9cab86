//! What runs before a model is loaded: the kernels that it needs, on a few small cases of their ops. What the device gets wrong is the
//! host's from then on, unless that would be no use.

use vllm_apple_ops::{Error, Kind, Result, conformance};

use super::MetalBackend;
use crate::fallback::{Fallback, Why, is_heavy};
use crate::gpu::Gpu;
use crate::ops;

/// Every kernel of these kinds of ops, or of all, on a few small cases.
fn selection(kinds: Option<&[Kind]>) -> conformance::Selection<'_> {
    conformance::Selection { kinds, short: true, ..Default::default() }
}

impl<G: Gpu> MetalBackend<G> {
    /// Runs the kernels of these kinds of ops, or of all, on a few small cases. What the device gets wrong, or does not compute, is
    /// computed on the host from then on. To be called once, before a model is loaded.
    ///
    /// # Errors
    /// [`Error::Device`] if the device is lost; [`Error::OutOfMemory`] or [`Error::NoMemory`] if there was too little memory to find out;
    /// [`Error::Unsupported`] if it gets matmul or attention wrong, or, with [`MetalOptions::strict`](crate::MetalOptions::strict), any of
    /// these.
    pub fn self_test(&mut self, kinds: Option<&[Kind]>) -> Result<()> {
        // What the user wants on the host is tested too, and a refusal is a failure.
        let fallback = std::mem::replace(&mut self.fallback, Fallback::for_test());
        drop(self.recorder.take_want_of_memory());
        if let Ok(false) = ops::matmul::matrix_layout_is_known(&mut self.recorder) {
            tracing::warn!("this device keeps simdgroup matrices in an order that the kernels do not know");
        }
        self.recorder.note();
        conformance::run_selected(self, selection(kinds));
        // What is refused fails its cases.
        self.recorder.compile_noted(&self.pool, &mut |_, _| {});
        let mut failed = Vec::new();
        loop {
            let known = failed.len();
            for verdict in
                conformance::run_selected(self, selection(kinds)).into_iter().filter(|verdict| !verdict.pass())
            {
                // Once more without it: where one op prepares what another works on, both may have done nothing.
                let reason = format!("the self-test failed: {verdict}");
                if self.fallback.forbid(verdict.kind, reason.clone()) {
                    failed.push((verdict.kind, reason));
                }
            }
            if failed.len() == known {
                break;
            }
        }
        self.fallback = fallback;
        self.recorder.alive()?;
        if let Some(error) = self.recorder.take_want_of_memory() {
            // Whatever failed is not wrong for that, and the host would want the same memory.
            return Err(error);
        }
        let device = self.recorder.gpu.facts().backend;
        for (kind, reason) in failed {
            if !self.fallback.may_ask(&kind) {
                continue;
            }
            if is_heavy(kind.op) {
                let reason = format!("{reason}; use `device` cpu, and please report this");
                return Err(Error::Unsupported { device: device.to_owned(), op: kind.op, reason });
            }
            self.fallback.fall_back(kind, Why::Wrong, device, reason)?;
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
        conformance::run_selected(&mut short, selection(None));
        conformance::run(&mut whole);
        let (short, whole) = (short.recorder.pipelines.functions(), whole.recorder.pipelines.functions());
        assert!(whole.len() > 40, "{whole:?}");
        assert_eq!(short, whole);
    }
}

//! Which ops the device computes, and which the host, and why. It knows no formula.

use std::collections::BTreeMap;

use vllm_apple_ops::{Error, Result, conformance};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;
use crate::options::MetalOptions;

const SELF_TEST: conformance::Selection<'_> = conformance::Selection { op: None, short: true };

/// Where ops are computed: on the device, unless a reason is known or the device refuses.
pub(crate) struct Routes {
    /// Ops that the user wants on the host.
    chosen: BTreeMap<&'static str, String>,
    /// Ops that the device must not compute: it got them wrong.
    wrong: BTreeMap<&'static str, String>,
    /// Ops that the host has computed though nobody asked for it, each with the first reason.
    fallbacks: BTreeMap<&'static str, String>,
    /// The user wants the whole step on the host.
    host_step: bool,
    /// A fallback is an error.
    strict: bool,
}

impl Routes {
    pub fn new(options: &MetalOptions) -> Self {
        let mut chosen = BTreeMap::new();
        if !options.attention {
            chosen.insert("paged_attention", "VLLM_METAL_ATTENTION=0".to_owned());
        }
        let (wrong, fallbacks) = (BTreeMap::new(), BTreeMap::new());
        Self { chosen, wrong, fallbacks, host_step: false, strict: options.strict }
    }

    /// Says where the user wants the step that begins.
    pub fn begin_step(&mut self, on_host: bool) {
        self.host_step = on_host;
    }

    /// Whether the user wants this op of this step on the host.
    fn is_chosen(&self, op: &'static str) -> bool {
        self.host_step || self.chosen.contains_key(op)
    }

    /// Whether nothing speaks against computing this op on the device.
    pub fn on_device(&self, op: &'static str) -> bool {
        !self.is_chosen(op) && !self.wrong.contains_key(op) && !self.fallbacks.contains_key(op)
    }

    /// Takes in that the host is to compute an op though the user did not ask for it.
    fn fall_back(&mut self, op: &'static str, device: &str, reason: String) -> Result<()> {
        if self.strict {
            let reason = format!("{reason}; VLLM_METAL_STRICT=1 forbids to compute it on the host");
            return Err(Error::Unsupported { device: device.to_owned(), op, reason });
        }
        if !self.fallbacks.contains_key(op) {
            tracing::warn!("{op} is computed on the host, slowly: {reason}");
            self.fallbacks.insert(op, reason);
        }
        Ok(())
    }
}

/// Computes an op: on the device, or, where it cannot or must not, on the host after everything that is recorded. On the device
/// an op that refuses must have changed nothing that it reads.
pub(crate) fn run<G: Gpu, O>(
    backend: &mut MetalBackend<G>,
    name: &'static str,
    op: O,
    device: impl FnOnce(&mut MetalBackend<G>, &O) -> Result<()>,
    host: impl FnOnce(&mut MetalBackend<G>, O) -> Result<()>,
) -> Result<()> {
    if !backend.routes.is_chosen(name) {
        let reason = match backend.routes.wrong.get(name) {
            Some(reason) => reason.clone(),
            None => match device(backend, &op) {
                Err(Error::Unsupported { reason, .. }) => reason,
                result => return result,
            },
        };
        backend.routes.fall_back(name, backend.gpu.facts().backend, reason)?;
    }
    backend.flush()?;
    host(backend, op)
}

impl<G: Gpu> MetalBackend<G> {
    /// Runs every kernel on a few small cases of its op. Those that it gets wrong, or does not compute, are computed on the
    /// host from then on. To be called once, before a model is loaded.
    ///
    /// # Errors
    /// [`Error::Device`] if the device is lost; with `VLLM_METAL_STRICT=1` also the first op that fails.
    pub fn self_test(&mut self) -> Result<()> {
        let routes = Routes { strict: true, ..Routes::new(&MetalOptions::default()) };
        let routes = std::mem::replace(&mut self.routes, routes);
        if let Ok(false) = crate::matmul::matrix_layout_is_known(self) {
            tracing::warn!("this device keeps simdgroup matrices in an order that the kernels do not know");
        }
        let mut verdicts = Vec::new();
        loop {
            let failed = conformance::run_selected(self, SELF_TEST).into_iter().filter(|verdict| !verdict.pass());
            let new: Vec<_> = failed.filter(|verdict| !self.routes.chosen.contains_key(verdict.op)).collect();
            if new.is_empty() {
                break;
            }
            // Once more without them: where one op prepares what another works on, both may have done nothing.
            self.routes.chosen.extend(new.iter().map(|verdict| (verdict.op, "it is wrong".to_owned())));
            verdicts.extend(new);
        }
        self.routes = routes;
        self.alive()?;
        for verdict in verdicts {
            let reason = format!("the self-test failed: {verdict}");
            if !self.routes.chosen.contains_key(verdict.op) {
                self.routes.fall_back(verdict.op, self.gpu.facts().backend, reason.clone())?;
            }
            self.routes.wrong.entry(verdict.op).or_insert(reason);
        }
        Ok(())
    }

    /// Ops that the host computes, or has computed, each with the reason.
    pub fn fallbacks(&self) -> Vec<(&'static str, String)> {
        let Routes { chosen, fallbacks, .. } = &self.routes;
        let others = fallbacks.iter().filter(|(op, _)| !chosen.contains_key(*op));
        chosen.iter().chain(others).map(|(&op, reason)| (op, reason.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::fake::FakeGpu;

    #[test]
    fn the_self_test_runs_every_kernel_that_conformance_runs() {
        // Its kernels do nothing: with every op wrong, no op is left out.
        let backend = || MetalBackend::new(FakeGpu::recording(), MetalOptions::default()).unwrap();
        let (mut short, mut whole) = (backend(), backend());
        conformance::run_selected(&mut short, SELF_TEST);
        conformance::run(&mut whole);
        let (short, whole) = (short.pipelines.functions(), whole.pipelines.functions());
        assert!(whole.len() > 40, "{whole:?}");
        assert_eq!(short, whole);
    }
}

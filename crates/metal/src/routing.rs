//! Which ops the device computes, and which the host, and why. It knows no formula.

use std::collections::BTreeMap;

use vllm_apple_ops::{Error, Result, conformance};

use crate::backend::MetalBackend;
use crate::gpu::Gpu;
use crate::options::MetalOptions;

const SELF_TEST: conformance::Selection<'_> = conformance::Selection { op: None, short: true };

/// Where ops are computed: on the device, unless a reason is known or the device refuses.
pub(crate) struct Routes {
    /// Ops that the host computes, or has computed, each with the first reason.
    host: BTreeMap<&'static str, (Why, String)>,
    /// The user wants the whole step on the host.
    host_step: bool,
    /// What the user did not want on the host is an error there.
    strict: bool,
}

/// Why an op is on the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The user wants it.
    Wanted,
    /// The device must not compute it: it got it wrong.
    Wrong,
    /// The device refused it, which may depend on its arguments.
    Refused,
}

impl Routes {
    pub fn new(options: &MetalOptions) -> Self {
        let mut host = BTreeMap::new();
        if !options.attention {
            host.insert("paged_attention", (Why::Wanted, "VLLM_METAL_ATTENTION=0".to_owned()));
        }
        Self { host, host_step: false, strict: options.strict }
    }

    /// Says where the user wants the step that begins.
    pub fn begin_step(&mut self, on_host: bool) {
        self.host_step = on_host;
    }

    /// Whether nothing speaks against computing this op on the device.
    pub fn on_device(&self, op: &'static str) -> bool {
        !self.host_step && !self.host.contains_key(op)
    }

    /// Whether the device is to be asked.
    fn may_ask(&self, op: &'static str) -> bool {
        !self.host_step && self.host.get(op).is_none_or(|(why, _)| *why == Why::Refused)
    }

    /// Whether the host may compute an op that the device will refuse.
    ///
    /// # Errors
    /// If the user has neither asked for that nor allows it.
    pub fn check_fallback(&self, op: &'static str, device: &str, reason: String) -> Result<()> {
        if !self.strict || self.host.get(op).is_some_and(|(why, _)| *why == Why::Wanted) {
            return Ok(());
        }
        let reason = format!("{reason}; VLLM_METAL_STRICT=1 forbids to compute it on the host");
        Err(Error::Unsupported { device: device.to_owned(), op, reason })
    }

    /// Takes in that the host is to compute an op though the user did not ask for it.
    fn fall_back(&mut self, op: &'static str, why: Why, device: &str, reason: String) -> Result<()> {
        self.check_fallback(op, device, reason.clone())?;
        self.host.entry(op).or_insert_with(|| {
            tracing::warn!("{op} is computed on the host, slowly: {reason}");
            (why, reason)
        });
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
    if backend.routes.may_ask(name) {
        match device(backend, &op) {
            Err(Error::Unsupported { reason, .. }) => {
                backend.routes.fall_back(name, Why::Refused, backend.gpu.facts().backend, reason)?;
            }
            result => return result,
        }
    }
    backend.flush()?;
    host(backend, op)
}

impl<G: Gpu> MetalBackend<G> {
    /// Runs every kernel on a few small cases of its op. Ops that the device gets wrong, or does not compute, are computed on the host
    /// from then on. To be called once, before a model is loaded.
    ///
    /// # Errors
    /// [`Error::Device`] if the device is lost; with `VLLM_METAL_STRICT=1` also the first op that fails.
    pub fn self_test(&mut self) -> Result<()> {
        // What the user wants on the host is tested too, and a refusal is a failure.
        let routes = Routes { strict: true, ..Routes::new(&MetalOptions::default()) };
        let routes = std::mem::replace(&mut self.routes, routes);
        if let Ok(false) = crate::matmul::matrix_layout_is_known(self) {
            tracing::warn!("this device keeps simdgroup matrices in an order that the kernels do not know");
        }
        let mut failed = Vec::new();
        loop {
            let known = failed.len();
            for verdict in conformance::run_selected(self, SELF_TEST).into_iter().filter(|verdict| !verdict.pass()) {
                // Once more without it: where one op prepares what another works on, both may have done nothing.
                let reason = format!("the self-test failed: {verdict}");
                if self.routes.host.insert(verdict.op, (Why::Wrong, reason.clone())).is_none() {
                    failed.push((verdict.op, reason));
                }
            }
            if failed.len() == known {
                break;
            }
        }
        self.routes = routes;
        self.alive()?;
        for (op, reason) in failed {
            if self.routes.on_device(op) {
                self.routes.fall_back(op, Why::Wrong, self.gpu.facts().backend, reason)?;
            }
        }
        Ok(())
    }

    /// Ops that the host computes, or has computed, each with the reason.
    pub fn fallbacks(&self) -> Vec<(&'static str, String)> {
        self.routes.host.iter().map(|(&op, (_, reason))| (op, reason.clone())).collect()
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

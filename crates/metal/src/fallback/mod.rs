//! What the device cannot or must not compute: which ops and why, and the ops on the host, from their own formulas: slow, and right
//! by definition. It knows no kernel.

mod attention;
mod host;
mod linear;
mod sample;
mod small;

pub(crate) use attention::{paged_attention, rope, rope_kv_write};
pub(crate) use host::Host;
pub(crate) use linear::{embedding, grouped_matmul, matmul};
pub(crate) use sample::sample;
pub(crate) use small::{
    add_rms_norm, add_shared_expert, gated_activation, gather_rows, moe_combine, qk_norm, rms_norm, topk_softmax,
};

use std::collections::BTreeMap;

use vllm_apple_ops::{Error, Result};

use crate::options::MetalOptions;

const ATTENTION: &str = vllm_apple_ops::paged_attention::NAME;

/// Where ops are computed: on the device, unless a reason is known or the device refuses.
#[derive(Default)]
pub(crate) struct Fallback {
    /// Ops that the host computes, or has computed, each with the first reason.
    host: BTreeMap<&'static str, (Why, String)>,
    /// The user wants the whole step on the host.
    host_step: bool,
    /// What the user did not want on the host is an error there.
    strict: bool,
}

/// Why an op is on the host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The user wants it.
    Wanted,
    /// The device must not compute it: it got it wrong.
    Wrong,
    /// The device refused it, which may depend on its arguments.
    Refused,
}

impl Fallback {
    pub fn new(options: &MetalOptions) -> Self {
        let mut host = BTreeMap::new();
        if !options.attention {
            host.insert(ATTENTION, (Why::Wanted, "`metal_attention`=0".to_owned()));
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
    pub fn may_ask(&self, op: &'static str) -> bool {
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
        let reason = format!("{reason}; `metal_strict`=1 forbids to compute it on the host");
        Err(Error::Unsupported { device: device.to_owned(), op, reason })
    }

    /// Takes in that the host is to compute an op though the user did not ask for it.
    pub fn fall_back(&mut self, op: &'static str, why: Why, device: &str, reason: String) -> Result<()> {
        self.check_fallback(op, device, reason.clone())?;
        self.host.entry(op).or_insert_with(|| {
            tracing::warn!("{op} is computed on the host, slowly: {reason}");
            (why, reason)
        });
        Ok(())
    }

    /// Takes in that the device got an op wrong. False: that was known.
    pub fn forbid(&mut self, op: &'static str, reason: String) -> bool {
        self.host.insert(op, (Why::Wrong, reason)).is_none()
    }

    /// Ops that the host computes, or has computed, each with the reason.
    pub fn list(&self) -> Vec<(&'static str, String)> {
        self.host.iter().map(|(&op, (_, reason))| (op, reason.clone())).collect()
    }

    /// The same, with everything tested on the device and refusals as errors.
    pub fn for_test() -> Self {
        Self { strict: true, ..Self::default() }
    }
}

//! What the device cannot or must not compute: which kinds of ops and why, and the ops on the host, from their own formulas: slow, and right
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
    add_rms_norm, add_shared_expert, gated_activation, gather_rows, moe_combine, permute_columns, qk_norm, rms_norm,
    topk_softmax,
};

use std::collections::BTreeMap;

use vllm_apple_ops::{Error, Kind, Result, gated_matmul, grouped_matmul, matmul};

use crate::options::MetalOptions;

const ATTENTION: &str = vllm_apple_ops::paged_attention::NAME;

/// Whether an op is no use on the host: a model would take minutes for a token.
pub(crate) fn is_heavy(op: &str) -> bool {
    [matmul::NAME, grouped_matmul::NAME, ATTENTION].contains(&op)
}

/// Whether the device has other kernels for an op: of the two that it is made of.
fn is_made_of_others(op: &str) -> bool {
    op == gated_matmul::NAME
}

/// Where an op is computed if not by its kernel.
pub(crate) fn elsewhere(op: &str) -> &'static str {
    if is_made_of_others(op) { "in two steps" } else { "on the host" }
}

/// Where ops are computed: on the device, unless a reason is known or the device refuses.
#[derive(Default)]
pub(crate) struct Fallback {
    /// What the host computes, or has computed, though the user did not ask for it, each with the first reason.
    host: BTreeMap<Kind, (Why, String)>,
    /// The user wants attention on the host.
    host_attention: bool,
    /// The user wants the whole step on the host.
    host_step: bool,
    /// A test does not mind to wait for anything there.
    patient: bool,
    /// What the user did not want on the host is an error there.
    strict: bool,
    /// Every kernel is to be seen, also of ops that the device can compute by others.
    by_own_kernels: bool,
}

/// Why the host computes what the user did not want there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The device must not compute it: it got it wrong.
    Wrong,
    /// The device refused it, which may depend on its arguments.
    Refused,
}

impl Fallback {
    pub fn new(options: &MetalOptions) -> Self {
        Self { host_attention: !options.attention, strict: options.strict, ..Self::default() }
    }

    /// Says where the user wants the step that begins.
    pub fn begin_step(&mut self, on_host: bool) {
        self.host_step = on_host;
    }

    /// Whatever is refused goes to the host from now on.
    #[cfg(any(test, feature = "fake"))]
    pub fn be_patient(&mut self) {
        self.patient = true;
    }

    /// Whether the user wants this op on the host.
    fn wanted(&self, op: &str) -> bool {
        self.host_attention && op == ATTENTION
    }

    /// Whether the device is to be asked.
    pub fn may_ask(&self, kind: &Kind) -> bool {
        let wrong = || self.host.get(kind).is_some_and(|(why, _)| *why == Why::Wrong);
        !self.host_step && !self.wanted(kind.op) && !wrong()
    }

    /// Whether the host may compute an op that the device will refuse.
    ///
    /// # Errors
    /// If the user has not asked for that, and does not allow it or would wait too long.
    pub fn check_fallback(&self, op: &'static str, device: &str, reason: String) -> Result<()> {
        let why_not = match () {
            () if self.wanted(op) => return Ok(()),
            () if is_heavy(op) && !self.patient => {
                "its formula on the host would take minutes for a token: use `device` cpu"
            }
            () if self.strict && (self.by_own_kernels || !is_made_of_others(op)) => {
                "`metal_strict`=1 forbids to compute it on the host"
            }
            () => return Ok(()),
        };
        Err(Error::Unsupported { device: device.to_owned(), op, reason: format!("{reason}; {why_not}") })
    }

    /// Takes in that the host is to compute what the user did not want there.
    pub fn fall_back(&mut self, kind: Kind, why: Why, device: &str, reason: String) -> Result<()> {
        self.check_fallback(kind.op, device, reason.clone())?;
        // What is wrong must not be asked for again, whatever was refused before.
        let is_known = |(known, _): &(Why, String)| *known == Why::Wrong || why == Why::Refused;
        if !self.host.get(&kind).is_some_and(is_known) {
            tracing::warn!("{kind} is computed {}, slowly: {reason}", elsewhere(kind.op));
            self.host.insert(kind, (why, reason));
        }
        Ok(())
    }

    /// Takes in that the device got something wrong. False: that was known.
    pub fn forbid(&mut self, kind: Kind, reason: String) -> bool {
        self.host.insert(kind, (Why::Wrong, reason)).is_none()
    }

    /// What the host computes, or has computed, though the user did not ask for it, each with the reason.
    pub fn list(&self) -> Vec<(Kind, String)> {
        self.host.iter().map(|(&kind, (_, reason))| (kind, reason.clone())).collect()
    }

    /// The same, with everything tested on the device and refusals as errors.
    pub fn for_test() -> Self {
        Self { strict: true, by_own_kernels: true, ..Self::default() }
    }
}

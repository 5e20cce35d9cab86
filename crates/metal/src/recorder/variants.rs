//! Kernels that are in each other's place: all compute the same, with the same bits, and a device may refuse some, as Apple's compiler does what
//! takes more registers than there are. It knows no op.

use vllm_apple_ops::{Error, Result};

use super::Recorder;
use crate::gpu::{Gpu, Kernel, Value};

/// A kernel, and the threads of its threadgroups.
pub(crate) type Variant = (Kernel, usize);

impl<G: Gpu> Recorder<G> {
    /// Records an op in the first of these ways whose kernel the device does not refuse; each kernel has these constants. What is noted is the
    /// first; the others are noted as what is compiled if it is refused.
    ///
    /// # Errors
    /// Those of `record`, and what the device says of the last kernel.
    pub fn first_of<W: Copy>(
        &mut self,
        op: &'static str,
        constants: &[Value],
        ways: &[W],
        variant: impl Fn(W) -> Variant,
        mut record: impl FnMut(&mut Self, W) -> Result<()>,
    ) -> Result<()> {
        let (&last, others) = ways.split_last().expect("an op has a kernel");
        if let Some(noted) = &self.noted {
            let before = noted.len();
            record(self, ways[0])?;
            let variants: Vec<Variant> = ways.iter().map(|&way| variant(way)).collect();
            let new = self.noted.iter_mut().flat_map(|noted| &mut noted[before..]);
            new.for_each(|wanted| wanted.note_others(&variants));
            return Ok(());
        }
        for &way in others {
            let (kernel, threads) = variant(way);
            match self.pipeline(op, kernel, constants, threads) {
                Ok(_) => return record(self, way),
                Err(Error::Unsupported { reason, .. }) => self.replace(kernel.function, reason),
                Err(error) => return Err(error),
            }
        }
        record(self, last)
    }

    /// Takes in that another kernel is in the place of one that the device refuses.
    pub(super) fn replace(&mut self, function: &'static str, reason: String) {
        if self.replaced.contains_key(function) {
            return;
        }
        tracing::warn!("another kernel, slower and with the same bits, is in the place of {function}: {reason}");
        self.replaced.insert(function, reason);
    }

    /// Functions that others are in the place of, each with the device's words.
    pub fn replaced(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.replaced.iter().map(|(function, reason)| (*function, reason.as_str()))
    }
}

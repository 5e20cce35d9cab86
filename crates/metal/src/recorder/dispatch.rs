//! From an op's arguments to a recorded command: bindings in the order of the kernel's `[[buffer(n)]]`, and a barrier where one is due.

use std::sync::Arc;

use bytemuck::NoUninit;
use vllm_apple_ops::{Result, Tensor};

use super::Recorder;
use super::hazards::Use;
use super::pipelines::Wanted;
use super::region::Region;
use crate::gpu::{Binding, Command, Gpu, GpuError, Kernel, Value, Work};

/// A kernel's argument and what the kernel does with it.
pub(crate) enum Arg<'a, G: Gpu> {
    Read(&'a Region<G>),
    /// Read, and never written by any command: a weight.
    Constant(&'a Region<G>),
    /// Written, and perhaps read.
    Write(&'a Region<G>),
    Bytes(&'a [u8]),
}

impl<'a, G: Gpu> Arg<'a, G> {
    pub fn read(tensor: &'a Tensor<Region<G>>) -> Self {
        Self::Read(tensor.memory())
    }

    pub fn write(tensor: &'a Tensor<Region<G>>) -> Self {
        Self::Write(tensor.memory())
    }

    pub fn bytes<T: NoUninit>(params: &'a T) -> Self {
        Self::Bytes(bytemuck::bytes_of(params))
    }

    fn binding(&self) -> Binding<'a, G> {
        match *self {
            Self::Read(r) | Self::Constant(r) | Self::Write(r) => {
                Binding::Buffer { buffer: &r.buffer, offset: r.offset, len: r.len }
            }
            Self::Bytes(bytes) => Binding::Bytes(bytes),
        }
    }

    fn usage(&self) -> Option<Use> {
        let (region, writes) = match self {
            Self::Read(region) => (region, false),
            Self::Write(region) => (region, true),
            Self::Constant(_) | Self::Bytes(_) => return None,
        };
        Some(Use { buffer: region.id, start: region.offset, end: region.offset + region.len, writes })
    }
}

/// Threadgroups in x, y, z, the threads of each, and what all of them do.
pub(crate) struct Grid {
    pub threadgroups: [usize; 3],
    pub threads: usize,
    pub work: Work,
}

impl Grid {
    /// Rows in x and groups of threads in y, a thread per item of a row, that reads and writes so many bytes; and the number of
    /// threads as a constant of the kernel. It depends on the items of a row alone.
    pub fn of_rows(rows: usize, items: usize, item_bytes: usize) -> (Self, Value) {
        let threads = items.next_multiple_of(32).clamp(32, 256);
        let threadgroups = [rows, items.div_ceil(threads), 1];
        (Self { threadgroups, threads, work: Work::bytes(rows, items * item_bytes) }, Value::U32(threads as u32))
    }
}

impl<G: Gpu> Recorder<G> {
    /// Records one dispatch. `constants[i]` is `[[function_constant(i)]]`, `args[n]` is `[[buffer(n)]]`. An empty grid is no dispatch.
    pub fn dispatch<const N: usize>(
        &mut self,
        op: &'static str,
        kernel: Kernel,
        constants: &[Value],
        args: [Arg<'_, G>; N],
        grid: Grid,
    ) -> Result<()> {
        if grid.threadgroups.contains(&0) {
            return Ok(());
        }
        if let Some(noted) = &mut self.noted {
            noted.push(Wanted::new(op, kernel, constants, grid.threads));
            return Ok(());
        }
        let pipeline = self.pipeline(op, kernel, constants, grid.threads)?;
        let Grid { threadgroups, threads, work } = grid;
        if self.pace.add(work) {
            self.gpu.commit();
            self.hazards.clear();
        }
        if self.hazards.add(args.iter().filter_map(Arg::usage)) {
            self.gpu.barrier();
        }
        self.forget_written(args.iter().filter_map(Arg::usage));
        let bindings = args.each_ref().map(Arg::binding);
        self.gpu.encode(&Command { pipeline: &pipeline, bindings: &bindings, threadgroups, threads, work });
        self.pending = true;
        Ok(())
    }

    /// The pipeline of an op, for threadgroups of so many threads, compiled if it is new.
    ///
    /// # Errors
    /// `Unsupported` if the device refuses it.
    pub fn pipeline(
        &mut self,
        op: &'static str,
        kernel: Kernel,
        constants: &[Value],
        threads: usize,
    ) -> Result<Arc<G::Pipeline>> {
        let pipeline = self.pipelines.get(op, kernel, constants, threads).map_err(|e| match e {
            // Not the device's fault: another way to compute the op will do.
            GpuError::Compile { .. } => self.unsupported(op, e.to_string()),
            e => self.failed(e),
        })?;
        let (limit, function) = (self.gpu.max_threads(&pipeline), kernel.function);
        if threads > limit {
            let reason = format!("{function} needs threadgroups of {threads} threads, this device allows {limit}");
            return Err(self.unsupported(op, reason));
        }
        Ok(pipeline)
    }
}

//! From an op's arguments to a recorded command: bindings in the order of the kernel's `[[buffer(n)]]`, and a barrier where one is due.

use std::ops::Range;
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
    /// As [`Arg::Read`], of a dispatch that may be divided by its threadgroups in x: of each, so many bytes.
    ReadRows(&'a Region<G>, usize),
    /// As [`Arg::Write`], likewise.
    WriteRows(&'a Region<G>, usize),
    Bytes(&'a [u8]),
}

impl<'a, G: Gpu> Arg<'a, G> {
    pub fn read(tensor: &'a Tensor<Region<G>>) -> Self {
        Self::Read(tensor.memory())
    }

    pub fn write(tensor: &'a Tensor<Region<G>>) -> Self {
        Self::Write(tensor.memory())
    }

    /// A row of the tensor for each threadgroup in x.
    pub fn read_rows(tensor: &'a Tensor<Region<G>>) -> Self {
        Self::read_items(tensor, tensor.cols())
    }

    /// As [`Arg::read_rows`], for what is written.
    pub fn write_rows(tensor: &'a Tensor<Region<G>>) -> Self {
        Self::write_items(tensor, tensor.cols())
    }

    /// So many elements of the tensor for each threadgroup in x.
    pub fn read_items(tensor: &'a Tensor<Region<G>>, items: usize) -> Self {
        Self::ReadRows(tensor.memory(), items * tensor.dtype().size())
    }

    /// As [`Arg::read_items`], for what is written.
    pub fn write_items(tensor: &'a Tensor<Region<G>>, items: usize) -> Self {
        Self::WriteRows(tensor.memory(), items * tensor.dtype().size())
    }

    pub fn bytes<T: NoUninit>(params: &'a T) -> Self {
        Self::Bytes(bytemuck::bytes_of(params))
    }

    /// The bytes of a region that these threadgroups in x use.
    fn part(&self, rows: &Range<usize>) -> Option<(&'a Region<G>, Range<usize>)> {
        match *self {
            Self::Read(region) | Self::Constant(region) | Self::Write(region) => Some((region, 0..region.len)),
            Self::ReadRows(region, bytes) | Self::WriteRows(region, bytes) => {
                debug_assert!(rows.end * bytes <= region.len, "an op's check is for that");
                Some((region, rows.start * bytes..rows.end * bytes))
            }
            Self::Bytes(_) => None,
        }
    }

    fn binding(&self, rows: &Range<usize>) -> Binding<'a, G> {
        match (self, self.part(rows)) {
            (Self::Bytes(bytes), _) => Binding::Bytes(bytes),
            (_, Some((region, part))) => {
                Binding::Buffer { buffer: &region.buffer, offset: region.offset + part.start, len: part.len() }
            }
            (_, None) => unreachable!("all others are in a region"),
        }
    }

    fn usage(&self, rows: &Range<usize>) -> Option<Use> {
        let writes = match self {
            Self::Read(_) | Self::ReadRows(..) => false,
            Self::Write(_) | Self::WriteRows(..) => true,
            Self::Constant(_) | Self::Bytes(_) => return None,
        };
        let (region, part) = self.part(rows)?;
        Some(Use { buffer: region.id, start: region.offset + part.start, end: region.offset + part.end, writes })
    }

    fn is_of_rows(&self) -> bool {
        matches!(self, Self::ReadRows(..) | Self::WriteRows(..))
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
    /// Records one dispatch, or, if it has arguments of rows, as many as it takes. `constants[i]` is `[[function_constant(i)]]`, `args[n]` is
    /// `[[buffer(n)]]`. An empty grid is no dispatch.
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
        let Grid { threadgroups: [rows, y, z], threads, work } = grid;
        let most = if args.iter().any(Arg::is_of_rows) { self.pace.rows(rows, work) } else { rows };
        for first in (0..rows).step_by(most) {
            let part = first..rows.min(first + most);
            let threadgroups = [part.len(), y, z];
            let work = work.times(part.len() as f64 / rows as f64);
            if self.pace.add(work) {
                self.gpu.commit();
                self.hazards.clear();
            }
            let uses = || args.iter().filter_map(|arg| arg.usage(&part));
            if self.hazards.add(uses()) {
                self.gpu.barrier();
            }
            self.forget_written(uses());
            let bindings = args.each_ref().map(|arg| arg.binding(&part));
            self.gpu.encode(&Command { pipeline: &pipeline, bindings: &bindings, threadgroups, threads, work });
        }
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
            GpuError::Compile { .. } | GpuError::NotCompiled { .. } => self.unsupported(op, e.to_string()),
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

//! A dispatch: what is bound to a kernel's parameters and how large the grid is, checked before anything runs. It knows what
//! kernels ask for, and not how they are run.

use std::io;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use crate::abi::{MslArguments, SLOTS};
use crate::buffer::Buffer;
use crate::checker::regions::{BYTES_GAP, Region};
use crate::pipeline::{Parameter, ParameterKind, Pipeline};
use crate::runtime::grid::Grid;

/// What a kernel's parameter is bound to.
#[derive(Debug, Clone, Copy)]
pub enum Argument<'a> {
    /// A part of a buffer.
    Buffer {
        /// The buffer.
        buffer: &'a Buffer,
        /// Where the argument begins, in bytes.
        offset: usize,
        /// How long it is; to the buffer's end if not said.
        len: Option<usize>,
    },
    /// Bytes that are copied, at most 4096: Metal's `setBytes`.
    Bytes(&'a [u8]),
    /// Bytes of threadgroup memory for `[[threadgroup(n)]]`.
    Threadgroup(usize),
}

impl<'a> Argument<'a> {
    /// A whole buffer.
    pub fn buffer(buffer: &'a Buffer) -> Self {
        Self::Buffer { buffer, offset: 0, len: None }
    }
}

/// How large a grid is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Full threadgroups.
    Threadgroups([u32; 3]),
    /// Threads; the last threadgroups may be smaller.
    Threads([u32; 3]),
}

/// One dispatch.
#[derive(Debug, Clone, Copy)]
pub struct Dispatch<'a> {
    /// What is bound, by index: `(n, Argument)` for `[[buffer(n)]]` or `[[threadgroup(n)]]`.
    pub arguments: &'a [(usize, Argument<'a>)],
    /// How large the grid is.
    pub size: Size,
    /// Threads of a full threadgroup.
    pub threads_per_threadgroup: [u32; 3],
}

/// Why a dispatch did not run. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// A grid or a threadgroup without threads, or with more than can be counted.
    #[error("kernel {kernel}: {}", without_threads(size, threads_per_threadgroup))]
    EmptyGrid {
        /// The kernel.
        kernel: String,
        /// The grid.
        size: Size,
        /// The threadgroup.
        threads_per_threadgroup: [u32; 3],
    },
    /// More threads per threadgroup than the pipeline allows. Real hardware drops such a dispatch silently.
    #[error("kernel {kernel}: {threads} threads per threadgroup, where the pipeline allows {limit}")]
    TooManyThreads {
        /// The kernel.
        kernel: String,
        /// Threads per threadgroup.
        threads: u64,
        /// `max_total_threads_per_threadgroup`
        limit: u32,
    },
    /// A parameter that nothing is bound to.
    #[error("kernel {kernel}: nothing is bound to {attribute}({index}), parameter `{name}`")]
    MissingArgument {
        /// The kernel.
        kernel: String,
        /// `buffer` or `threadgroup`.
        attribute: &'static str,
        /// The parameter's index.
        index: usize,
        /// The parameter's name.
        name: String,
    },
    /// An argument that cannot be bound.
    #[error("kernel {kernel}: argument {index}: {reason}")]
    Argument {
        /// The kernel.
        kernel: String,
        /// The argument's index.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The device checks, but the pipeline's library was not compiled for that.
    #[error("kernel {kernel} cannot be checked: compile its library with `Instrument::Accesses`")]
    NotInstrumented {
        /// The kernel.
        kernel: String,
    },
    /// The host has no memory for stacks or for shadows.
    #[error("no memory to run kernels: {0}")]
    Host(#[from] io::Error),
}

/// `setBytes` takes no more.
const MAX_BYTES: usize = 4096;
/// The arguments of a dispatch, bound.
pub(crate) struct Bound {
    pub arguments: MslArguments,
    /// `[[threadgroup(n)]]`: slot, name, bytes.
    pub threadgroup: Vec<(usize, String, usize)>,
    pub regions: Vec<Region>,
    /// What [`Argument::Bytes`] were copied into.
    _bytes: Vec<u128>,
}

impl Bound {
    /// Binds a dispatch's arguments; what is not bound points to `zeros`.
    pub fn new(pipeline: &Pipeline, dispatch: &Dispatch<'_>, zeros: *mut u8) -> Result<Self, DispatchError> {
        let zeros = zeros.cast();
        let mut arguments = MslArguments { buffers: [zeros; SLOTS], threadgroup: [zeros; SLOTS] };
        let (mut threadgroup, mut regions) = (Vec::new(), Vec::new());
        let mut copies = Copies::new(dispatch);
        for &(index, argument) in dispatch.arguments {
            check_argument(pipeline, index, &argument)?;
            let is_threadgroup = matches!(argument, Argument::Threadgroup(_));
            let parameter = pipeline.parameters().iter().find(|p| p.index == index && p.binds(is_threadgroup));
            let name = parameter.map_or("?", |parameter| &parameter.name);
            match argument {
                Argument::Buffer { buffer, offset, len } => {
                    let writable = parameter.is_some_and(|p| p.kind == ParameterKind::Buffer { writable: true });
                    regions.push(Region::of_buffer(index, name, writable, buffer, offset, len));
                    arguments.buffers[index] = buffer.as_ptr().wrapping_add(offset).cast();
                }
                Argument::Bytes(bytes) => {
                    let copy = copies.add(bytes);
                    regions.push(Region::of_bytes(index, name, copy as usize, bytes.len()));
                    arguments.buffers[index] = copy.cast();
                }
                Argument::Threadgroup(size) => threadgroup.push((index, name.to_owned(), size)),
            }
        }
        check_complete(pipeline, dispatch)?;
        Ok(Self { arguments, threadgroup, regions, _bytes: copies.memory })
    }
}

/// Room for the bytes that a dispatch copies, aligned as Metal aligns them, with gaps in between.
struct Copies {
    memory: Vec<u128>,
    used: usize,
}

impl Copies {
    const UNIT: usize = size_of::<u128>();
    const GAP: usize = BYTES_GAP / Self::UNIT;

    fn new(dispatch: &Dispatch<'_>) -> Self {
        let units = dispatch.arguments.iter().map(|(_, argument)| match argument {
            Argument::Bytes(bytes) => bytes.len().div_ceil(Self::UNIT) + Self::GAP,
            _ => 0,
        });
        Self { memory: vec![0; units.sum::<usize>() + Self::GAP], used: Self::GAP }
    }

    fn add(&mut self, bytes: &[u8]) -> *mut u8 {
        let copy: &mut [u8] = bytemuck::cast_slice_mut(&mut self.memory[self.used..]);
        copy[..bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len().div_ceil(Self::UNIT) + Self::GAP;
        copy.as_mut_ptr()
    }
}

/// What is wrong with the sizes of a grid that cannot be run.
fn without_threads(size: &Size, threads_per_threadgroup: &[u32; 3]) -> String {
    let [x, y, z] = threads_per_threadgroup;
    let (extent, what) = match size {
        Size::Threadgroups(extent) => (extent, "threadgroups"),
        Size::Threads(extent) => (extent, "threads"),
    };
    let [width, height, depth] = extent;
    let wrong = match extent.contains(&0) || threads_per_threadgroup.contains(&0) {
        true => "has no threads, so that nothing would run: each number must be at least 1",
        false => "has more threads than can be counted in 32 bits",
    };
    format!("a grid of {width} x {height} x {depth} {what}, with {x} x {y} x {z} threads in a threadgroup, {wrong}")
}

pub(crate) fn grid(pipeline: &Pipeline, dispatch: &Dispatch<'_>) -> Result<Grid, DispatchError> {
    let kernel = || pipeline.name().to_owned();
    let &Dispatch { size, threads_per_threadgroup, .. } = dispatch;
    let threads: u64 = threads_per_threadgroup.iter().map(|&n| u64::from(n)).fold(1, u64::saturating_mul);
    let limit = pipeline.max_total_threads_per_threadgroup();
    let (Size::Threadgroups(extent) | Size::Threads(extent)) = size;
    let empty = || DispatchError::EmptyGrid { kernel: kernel(), size, threads_per_threadgroup };
    if threads == 0 || extent.contains(&0) {
        return Err(empty());
    }
    if threads > u64::from(limit) {
        return Err(DispatchError::TooManyThreads { kernel: kernel(), threads, limit });
    }
    match size {
        Size::Threadgroups(n) => Grid::of_threadgroups(n, threads_per_threadgroup).ok_or_else(empty),
        Size::Threads(n) => Ok(Grid::of_threads(n, threads_per_threadgroup)),
    }
}

fn check_argument(pipeline: &Pipeline, index: usize, argument: &Argument<'_>) -> Result<(), DispatchError> {
    let fail = |reason| Err(DispatchError::Argument { kernel: pipeline.name().to_owned(), index, reason });
    if index >= SLOTS {
        return fail(format!("there are {SLOTS} slots"));
    }
    match argument {
        &Argument::Buffer { buffer, offset, len } => {
            let end = offset.checked_add(len.unwrap_or(0));
            if offset > buffer.len() || end.is_none_or(|end| end > buffer.len()) {
                return fail(format!("{len:?} bytes at {offset} of a buffer of {} bytes", buffer.len()));
            }
        }
        Argument::Bytes(bytes) if bytes.len() > MAX_BYTES => {
            return fail(format!("{} bytes are copied, at most {MAX_BYTES} can be: use a buffer", bytes.len()));
        }
        _ => {}
    }
    Ok(())
}

/// Whether something is bound to each parameter.
fn check_complete(pipeline: &Pipeline, dispatch: &Dispatch<'_>) -> Result<(), DispatchError> {
    for parameter in pipeline.parameters() {
        let attribute = match parameter.kind {
            ParameterKind::Buffer { .. } => "buffer",
            ParameterKind::Threadgroup => "threadgroup",
            ParameterKind::Builtin => continue,
        };
        let fits = |(index, argument): &(usize, Argument<'_>)| {
            *index == parameter.index && parameter.binds(matches!(argument, Argument::Threadgroup(_)))
        };
        if !dispatch.arguments.iter().any(fits) {
            return Err(DispatchError::MissingArgument {
                kernel: pipeline.name().to_owned(),
                attribute,
                index: parameter.index,
                name: parameter.name.clone(),
            });
        }
    }
    Ok(())
}

/// The buffers of a dispatch, each once, and whether the kernel may write to it.
pub(crate) fn buffers<'a>(pipeline: &Pipeline, dispatch: &Dispatch<'a>) -> Vec<(&'a Buffer, bool)> {
    let written = |slot: usize| {
        let is_it = |p: &Parameter| p.index == slot && p.kind == ParameterKind::Buffer { writable: true };
        pipeline.parameters().iter().any(is_it)
    };
    let mut buffers: Vec<(&Buffer, bool)> = Vec::new();
    for &(slot, argument) in dispatch.arguments {
        if let Argument::Buffer { buffer, .. } = argument {
            match buffers.iter_mut().find(|(other, _)| other.is(buffer)) {
                Some((_, write)) => *write |= written(slot),
                None => buffers.push((buffer, written(slot))),
            }
        }
    }
    buffers
}

/// Keeps other users of the buffers out: of those that the kernel may write to, all; of the others, those who write.
pub(crate) fn lock<'a>(buffers: &[(&'a Buffer, bool)]) -> Vec<Guard<'a>> {
    let mut buffers = buffers.to_vec();
    // One order for all, so that two dispatches never wait for each other.
    buffers.sort_by_key(|(buffer, _)| buffer.as_ptr() as usize);
    let guard = |(buffer, write): (&'a Buffer, bool)| match write {
        true => Guard::Write(buffer.lock_write()),
        false => Guard::Read(buffer.lock_read()),
    };
    buffers.into_iter().map(guard).collect()
}

#[allow(dead_code)] // Held, not read.
pub(crate) enum Guard<'a> {
    Read(RwLockReadGuard<'a, ()>),
    Write(RwLockWriteGuard<'a, ()>),
}

//! The device: takes dispatches, checks their arguments, and runs them. It knows how kernels are called and nothing of how they
//! were compiled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, thread};

use crate::abi::{MslArguments, SLOTS};
use crate::buffer::Buffer;
use crate::finding::{Finding, Findings};
use crate::pipeline::{Parameter, ParameterKind, Pipeline};
use crate::runtime::executor::{Counts, Executor, Launch};
use crate::runtime::grid::Grid;
use crate::runtime::memory::Mapping;
use crate::runtime::order::Order;

/// How a device works.
#[derive(Debug, Clone)]
pub struct Config {
    /// The order in which lanes, simdgroups and threadgroups run.
    pub order: Order,
    /// Host threads that unchecked dispatches are spread over.
    pub threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { order: Order::Forward, threads: 1 }
    }
}

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
    #[error("kernel {kernel}: a grid of {size:?} with threadgroups of {threads_per_threadgroup:?}")]
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
    /// The host has no memory for stacks.
    #[error("no memory to run kernels: {0}")]
    Host(#[from] io::Error),
}

/// What a dispatch did.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What it did wrong.
    pub findings: Vec<Finding>,
    /// How much of what it did.
    pub counts: Counts,
}

/// A software Metal device. Devices share nothing: each host thread may have its own.
pub struct Device {
    config: Config,
    executors: Vec<Executor>,
    /// What unbound slots point to.
    zeros: Mapping,
}

/// `setBytes` takes no more.
const MAX_BYTES: usize = 4096;
/// Zeros between copied bytes, for who reads too far.
const BYTES_GAP: usize = 64;

/// The arguments of a dispatch, bound.
struct Bound {
    arguments: MslArguments,
    threadgroup: Vec<(usize, String, usize)>,
    /// What `Argument::Bytes` were copied into.
    _bytes: Vec<u128>,
}

impl Device {
    /// A device that works as `config` says.
    ///
    /// # Errors
    /// The operating system's, when there is no memory.
    pub fn new(config: Config) -> io::Result<Self> {
        Ok(Self { config, executors: Vec::new(), zeros: Mapping::new(1 << 16)? })
    }

    /// Runs a dispatch to its end.
    ///
    /// # Errors
    /// [`DispatchError`], before anything ran. What kernels do wrong is in the report.
    pub fn dispatch(&mut self, pipeline: &Pipeline, dispatch: &Dispatch<'_>) -> Result<Report, DispatchError> {
        let grid = grid(pipeline, dispatch)?;
        let bound = self.bind(pipeline, dispatch)?;
        let launch = Launch {
            kernel: pipeline.name(),
            invoke: pipeline.invoke,
            grid,
            arguments: bound.arguments,
            threadgroup_arguments: &bound.threadgroup,
            order: self.config.order,
            constants: &pipeline.constants,
        };
        let _guards = lock(pipeline, dispatch);
        self.run(&launch)
    }

    fn run(&mut self, launch: &Launch<'_>) -> Result<Report, DispatchError> {
        let count = launch.grid.count();
        let workers = (self.config.threads.max(1) as u64).min(count) as usize;
        while self.executors.len() < workers {
            self.executors.push(Executor::new()?);
        }
        let sequence = crate::runtime::order::Picker::new(launch.order).sequence(count);
        let taken = AtomicU64::new(0);
        let next = || {
            let position = taken.fetch_add(1, Ordering::Relaxed);
            (position < count).then(|| sequence.as_ref().map_or(position, |sequence| sequence[position as usize]))
        };
        // SAFETY: pipelines bind their libraries, and `bind` gave each parameter what it needs.
        let run = |executor: &mut Executor| unsafe { executor.run(launch, next) };
        let results: Vec<_> = match &mut self.executors[..workers] {
            [executor] => vec![run(executor)],
            [first, others @ ..] => thread::scope(|scope| {
                let run = &run;
                let others: Vec<_> = others.iter_mut().map(|other| scope.spawn(move || run(other))).collect();
                let first = run(first);
                std::iter::once(first).chain(others.into_iter().map(|other| other.join().expect("no panic"))).collect()
            }),
            [] => Vec::new(),
        };
        let (mut findings, mut counts) = (Findings::default(), Counts::default());
        for result in results {
            let (found, counted) = result?;
            findings.extend(found);
            counts = counts.plus(counted);
        }
        Ok(Report { findings: findings.into_list(), counts })
    }

    fn bind(&self, pipeline: &Pipeline, dispatch: &Dispatch<'_>) -> Result<Bound, DispatchError> {
        let zeros = self.zeros.as_ptr().cast();
        let mut arguments = MslArguments { buffers: [zeros; SLOTS], threadgroup: [zeros; SLOTS] };
        let mut threadgroup = Vec::new();
        let all = dispatch.arguments.iter().map(|(_, argument)| match argument {
            Argument::Bytes(bytes) => bytes.len().next_multiple_of(16) + BYTES_GAP,
            _ => 0,
        });
        let mut copies = vec![0u128; (all.sum::<usize>() + BYTES_GAP) / 16];
        let mut used = BYTES_GAP / 16;
        for &(index, argument) in dispatch.arguments {
            check_argument(pipeline, index, &argument)?;
            match argument {
                Argument::Buffer { buffer, offset, .. } => {
                    arguments.buffers[index] = buffer.as_ptr().wrapping_add(offset).cast();
                }
                Argument::Bytes(bytes) => {
                    let copy: &mut [u8] = bytemuck::cast_slice_mut(&mut copies[used..]);
                    copy[..bytes.len()].copy_from_slice(bytes);
                    arguments.buffers[index] = copy.as_mut_ptr().cast();
                    used += (bytes.len().next_multiple_of(16) + BYTES_GAP) / 16;
                }
                Argument::Threadgroup(size) => {
                    let is_it = |p: &&Parameter| p.kind == ParameterKind::Threadgroup && p.index == index;
                    let name = pipeline.parameters().iter().find(is_it).map_or("?", |p| &p.name);
                    threadgroup.push((index, name.to_owned(), size));
                }
            }
        }
        check_complete(pipeline, dispatch)?;
        Ok(Bound { arguments, threadgroup, _bytes: copies })
    }
}

fn grid(pipeline: &Pipeline, dispatch: &Dispatch<'_>) -> Result<Grid, DispatchError> {
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
        let (attribute, wants_threadgroup) = match parameter.kind {
            ParameterKind::Buffer { .. } => ("buffer", false),
            ParameterKind::Threadgroup => ("threadgroup", true),
            ParameterKind::Builtin => continue,
        };
        let fits = |(index, argument): &(usize, Argument<'_>)| {
            *index == parameter.index && matches!(argument, Argument::Threadgroup(_)) == wants_threadgroup
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

/// Keeps other users of the buffers out: of those that the kernel may write, all; of the others, those who write.
fn lock<'a>(pipeline: &Pipeline, dispatch: &Dispatch<'a>) -> Vec<Guard<'a>> {
    let written = |slot: usize| {
        let is_it = |p: &Parameter| p.index == slot && p.kind == ParameterKind::Buffer { writable: true };
        pipeline.parameters().iter().any(is_it)
    };
    let mut buffers: Vec<(&Buffer, bool)> = Vec::new();
    for &(slot, argument) in dispatch.arguments {
        if let Argument::Buffer { buffer, .. } = argument {
            match buffers.iter_mut().find(|(other, _)| other.as_ptr() == buffer.as_ptr()) {
                Some((_, write)) => *write |= written(slot),
                None => buffers.push((buffer, written(slot))),
            }
        }
    }
    // One order for all, so that two dispatches never wait for each other.
    buffers.sort_by_key(|(buffer, _)| buffer.as_ptr() as usize);
    let guard = |(buffer, write): (&'a Buffer, bool)| match write {
        true => Guard::Write(buffer.lock_write()),
        false => Guard::Read(buffer.lock_read()),
    };
    buffers.into_iter().map(guard).collect()
}

#[allow(dead_code)] // Held, not read.
enum Guard<'a> {
    Read(std::sync::RwLockReadGuard<'a, ()>),
    Write(std::sync::RwLockWriteGuard<'a, ()>),
}

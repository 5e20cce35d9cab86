//! The device: runs dispatches, on one host thread or several, and has them checked. It knows nothing of how kernels were compiled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, thread};

use crate::checker::cache::Traffic;
use crate::checker::{Check, Checked, Checker};
use crate::dispatch::{self, Bound, Dispatch, DispatchError};
use crate::finding::{Finding, Findings};
use crate::pipeline::Pipeline;
use crate::runtime::arena;
use crate::runtime::executor::{Counts, Executor, Launch};
use crate::runtime::memory::Mapping;
use crate::runtime::order::{Order, Picker};

/// How a device works.
#[derive(Debug, Clone)]
pub struct Config {
    /// What is done with each access to memory. Other than [`Check::Off`], it takes libraries compiled with
    /// [`Instrument::Accesses`](crate::Instrument::Accesses), and one host thread.
    pub check: Check,
    /// The order in which lanes, simdgroups and threadgroups run.
    pub order: Order,
    /// Host threads that unchecked dispatches are spread over.
    pub threads: usize,
    /// Size of the cache behind which [`Traffic`] counts what reaches memory.
    pub cache_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { check: Check::Off, order: Order::Forward, threads: 1, cache_bytes: 1 << 20 }
    }
}

/// What a dispatch did.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What it did wrong.
    pub findings: Vec<Finding>,
    /// How often threads met.
    pub counts: Counts,
    /// The bytes that it moved; zeros if the device does not check.
    pub traffic: Traffic,
}

/// A software Metal device. Devices share nothing: each host thread may have its own.
pub struct Device {
    config: Config,
    executors: Vec<Executor>,
    /// Unless [`Check::Off`].
    checker: Option<Checker>,
    /// What unbound slots point to.
    zeros: Mapping,
}

impl Device {
    /// A device that works as `config` says.
    ///
    /// # Errors
    /// The operating system's, when there is no memory.
    pub fn new(config: Config) -> io::Result<Self> {
        let checker = match config.check {
            Check::Off => None,
            mode => Some(Checker::new(mode, config.cache_bytes, arena::CAPACITY)?),
        };
        Ok(Self { config, executors: Vec::new(), checker, zeros: Mapping::new(1 << 16)? })
    }

    /// Runs a dispatch to its end.
    ///
    /// # Errors
    /// [`DispatchError`], before anything ran. What kernels do wrong is in the report.
    pub fn dispatch(&mut self, pipeline: &Pipeline, dispatch: &Dispatch<'_>) -> Result<Report, DispatchError> {
        let grid = dispatch::grid(pipeline, dispatch)?;
        let bound = Bound::new(pipeline, dispatch, self.zeros.as_ptr())?;
        let launch = Launch {
            kernel: pipeline.name(),
            invoke: pipeline.invoke,
            grid,
            arguments: bound.arguments,
            threadgroup_arguments: &bound.threadgroup,
            order: self.config.order,
            constants: &pipeline.constants,
        };
        let buffers = dispatch::buffers(pipeline, dispatch);
        let _guards = dispatch::lock(&buffers);
        if let Some(checker) = &mut self.checker {
            if !pipeline.instrumented {
                return Err(DispatchError::NotInstrumented { kernel: pipeline.name().to_owned() });
            }
            let (kernel, symbols) = (pipeline.name(), &pipeline.symbols);
            checker.begin_dispatch(Checked { kernel, grid, symbols, regions: bound.regions, buffers })?;
        }
        self.run(&launch)
    }

    /// From here to [`Device::end_group`], dispatches may run at the same time, as between two barriers of a concurrent encoder:
    /// accesses of two of them that are not ordered are findings. Within the group, [`Device::barrier`] orders.
    pub fn begin_group(&mut self) {
        self.checker.iter_mut().for_each(Checker::begin_group);
    }

    /// Orders all dispatches before it before all after it, within a group.
    pub fn barrier(&mut self) {
        self.checker.iter_mut().for_each(Checker::barrier);
    }

    /// From here on each dispatch runs after all before it.
    pub fn end_group(&mut self) {
        self.checker.iter_mut().for_each(Checker::end_group);
    }

    fn run(&mut self, launch: &Launch<'_>) -> Result<Report, DispatchError> {
        let count = launch.grid.count();
        let workers = if self.checker.is_some() { 1 } else { self.config.threads.max(1) };
        let workers = (workers as u64).min(count) as usize;
        while self.executors.len() < workers {
            self.executors.push(Executor::new()?);
        }
        let sequence = Picker::new(launch.order).sequence(count);
        let taken = AtomicU64::new(0);
        let next = || {
            let position = taken.fetch_add(1, Ordering::Relaxed);
            (position < count).then(|| sequence.as_ref().map_or(position, |sequence| sequence[position as usize]))
        };
        // SAFETY: pipelines bind their libraries, and `Bound` gave each parameter what it needs.
        let run = |executor: &mut Executor| unsafe { executor.run(launch, None, next) };
        let results: Vec<_> = match (&mut self.executors[..workers], &mut self.checker) {
            // SAFETY: as above.
            ([executor], Some(checker)) => vec![unsafe { executor.run(launch, Some(checker), next) }],
            ([executor], None) => vec![run(executor)],
            (executors, _) => thread::scope(|scope| {
                let run = &run;
                let running: Vec<_> = executors.iter_mut().map(|executor| scope.spawn(move || run(executor))).collect();
                running.into_iter().map(|thread| thread.join().expect("workers do not panic")).collect()
            }),
        };
        let (mut findings, mut counts) = (Findings::default(), Counts::default());
        for result in results {
            let (found, counted) = result?;
            findings.extend(found);
            counts = counts.plus(counted);
        }
        let mut traffic = Traffic::default();
        if let Some(checker) = &mut self.checker {
            let (found, counted) = checker.end_dispatch();
            findings.extend(found);
            traffic = counted;
        }
        Ok(Report { findings: findings.into_list(), counts, traffic })
    }
}

//! What a GPU does with a command buffer: its dispatches, by msl-sim, on a thread of the queue. It knows no encoder.

use msl_sim::{Argument, Check, Config, Device, Order, Size};

use super::machine::{Fault, Speed, machine};
use super::{Buffer, CommandBuffer, PipelineState, Shared};

/// One thing that an encoder recorded.
pub(crate) enum Item {
    Dispatch(Dispatch),
    Barrier,
}

/// A dispatch with all that it uses, which it keeps alive.
pub(crate) struct Dispatch {
    pub state: Shared<PipelineState>,
    /// By index, those that the kernel has.
    pub arguments: Vec<(usize, Bound)>,
    pub threadgroups: [u32; 3],
    pub threads: [u32; 3],
}

/// What an argument is.
#[derive(Clone)]
pub(crate) enum Bound {
    Buffer { buffer: Shared<Buffer>, offset: usize },
    Bytes(Vec<u8>),
}

impl Bound {
    /// Bytes that a kernel may use.
    pub fn space(&self) -> usize {
        match self {
            Self::Buffer { buffer, offset } => buffer.0.memory().len() - offset,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Where it begins in its buffer.
    pub fn offset(&self) -> usize {
        match self {
            Self::Buffer { offset, .. } => *offset,
            Self::Bytes(_) => 0,
        }
    }
}

impl<T: objc2::Message> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The GPU of a queue.
pub(crate) struct Gpu {
    device: Device,
    last_first: bool,
}

impl Gpu {
    pub fn new() -> Self {
        let speed = machine().speed;
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let config = match speed {
            Speed::Checked => Config { check: Check::Full, order: Order::Reverse, ..Config::default() },
            Speed::Fast => Config { threads, ..Config::default() },
        };
        Self { device: Device::new(config).expect("memory for a software device"), last_first: speed == Speed::Checked }
    }

    /// Runs a command buffer to its end; the error is a code of `MTLCommandBufferErrorDomain` and words. `None`: it never ends.
    pub fn run(&mut self, commands: &CommandBuffer, items: &[Item]) -> Option<Result<(), (isize, String)>> {
        match commands.fault() {
            Fault::None => {}
            Fault::Error(code, words) => return Some(Err((code, words))),
            Fault::Silence => return None,
        }
        let groups: Vec<&[Item]> = items.split(|item| matches!(item, Item::Barrier)).collect();
        self.device.begin_group();
        let mut result = Ok(());
        for group in groups {
            if result.is_ok() {
                result = self.run_group(group);
            }
            self.device.barrier();
        }
        self.device.end_group();
        /// `MTLCommandBufferErrorPageFault`
        const PAGE_FAULT: isize = 3;
        Some(result.map_err(|words| (PAGE_FAULT, words)))
    }

    /// What may run at the same time: last to first, where somebody looks.
    fn run_group(&mut self, group: &[Item]) -> Result<(), String> {
        fn dispatches(item: &Item) -> Option<&Dispatch> {
            match item {
                Item::Dispatch(dispatch) => Some(dispatch),
                Item::Barrier => None,
            }
        }
        self.device.begin_group();
        let result = match self.last_first {
            true => group.iter().rev().filter_map(dispatches).try_for_each(|dispatch| dispatch.run(&mut self.device)),
            false => group.iter().filter_map(dispatches).try_for_each(|dispatch| dispatch.run(&mut self.device)),
        };
        self.device.end_group();
        result
    }
}

impl Dispatch {
    fn run(&self, device: &mut Device) -> Result<(), String> {
        let argument = |bound| match bound {
            &Bound::Buffer { ref buffer, offset } => Argument::Buffer { buffer: buffer.0.memory(), offset, len: None },
            Bound::Bytes(bytes) => Argument::Bytes(bytes),
        };
        let arguments: Vec<_> = self.arguments.iter().map(|(index, bound)| (*index, argument(bound))).collect();
        let dispatch = msl_sim::Dispatch {
            arguments: &arguments,
            size: Size::Threadgroups(self.threadgroups),
            threads_per_threadgroup: self.threads,
        };
        let report = device.dispatch(self.state.0.pipeline(), &dispatch).map_err(|error| error.to_string())?;
        match &report.findings[..] {
            [] => Ok(()),
            findings => Err(findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
        }
    }
}

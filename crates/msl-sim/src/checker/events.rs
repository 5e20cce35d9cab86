//! From what the checker noticed to what is reported: threads by their positions, places by their lines. It knows the dispatches that
//! ran, and nothing of memory.

use super::clock::{Access, RaceKind, Record};
use super::symbols::{Lines, Symbols};
use crate::compile;
use crate::finding::{Finding, FindingKind, Findings, Other, Place, ThreadId};
use crate::runtime::grid::Grid;

/// A dispatch of the group that runs.
pub struct DispatchRecord {
    pub first: u32,
    pub kernel: String,
    pub grid: Grid,
    pub symbols: Symbols,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    Race(RaceKind),
    Uninitialised,
    OutOfBounds,
    ReadOnly,
    Misaligned,
    DivisionByZero,
    Index,
}

/// Something wrong, before its places are looked up.
pub struct Event {
    pub what: What,
    pub access: Access,
    pub size: usize,
    pub pc: u32,
    pub thread: usize,
    pub instance: u32,
    pub place: Option<Place>,
    pub other: Option<(Record, Access)>,
    /// Of [`What::Index`]: the index, and the array's type as clang spells it.
    pub element: Option<(i64, String)>,
}

/// The findings that events of these dispatches are.
pub fn findings(dispatches: &[DispatchRecord], events: Vec<Event>) -> Findings {
    let mut findings = Findings::default();
    let mut lines: Vec<Option<Lines>> = dispatches.iter().map(|_| None).collect();
    events.into_iter().for_each(|event| findings.add(finding(dispatches, event, &mut lines)));
    findings
}

fn finding(dispatches: &[DispatchRecord], event: Event, lines: &mut [Option<Lines>]) -> Finding {
    let mut whereabouts = |instance: u32, thread: u32, pc: u32| {
        let number = dispatches.partition_point(|dispatch| dispatch.first <= instance).checked_sub(1)?;
        let dispatch = &dispatches[number];
        let lines = lines[number].get_or_insert_with(|| dispatch.symbols.load());
        let position = dispatch.grid.position(u64::from(instance - dispatch.first));
        let thread = dispatch.grid.thread(position, dispatch.grid.size(position), thread);
        Some((dispatch.kernel.clone(), ThreadId::of(&thread), lines.locate(pc)))
    };
    let here = whereabouts(event.instance, event.thread as u32, event.pc);
    let (kernel, thread, location) = here.expect("the running dispatch is among the dispatches");
    let other = event.other.and_then(|(record, access)| {
        let (kernel, thread, location) = whereabouts(record.instance, record.thread(), record.pc)?;
        Some(Other { kernel, thread, location, access })
    });
    let Event { what, access, size, place, element, .. } = event;
    let kind = match what {
        What::Race(kind) => FindingKind::Race { kind, access, other: other.expect("a race has two sides"), place },
        What::Uninitialised => FindingKind::Uninitialised { size, place },
        What::OutOfBounds => FindingKind::OutOfBounds { access, size, place },
        What::ReadOnly => FindingKind::ReadOnly { size, place },
        What::Misaligned => FindingKind::Misaligned { access, size, place },
        What::DivisionByZero => FindingKind::DivisionByZero,
        What::Index => {
            let (index, array) = element.expect("an index has an array");
            FindingKind::IndexOutOfRange { index, array: compile::type_name(&array) }
        }
    };
    Finding { kernel, kind, thread: Some(thread), location }
}

//! Mapped checkpoints as the device's memory: each file is one buffer, or several where it is longer than a buffer may be;
//! and what had to be copied instead is counted. It knows no names of weights.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vllm_apple_ops::{MappedFile, Result};

use crate::gpu::{Gpu, PAGE};
use crate::recorder::Recorder;
use crate::recorder::region::Region;

/// Why a weight is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    NoFile,
    Converted,
    Alignment,
    Parts,
    Files,
    Device,
    Codes,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoFile => "not from a mapped file",
            Self::Converted => "converted to another type",
            Self::Alignment => "not aligned to 8 bytes in the file",
            Self::Parts => "made of more than three tensors",
            Self::Files => "experts spread over files",
            Self::Device => "the device cannot use the file's memory",
            Self::Codes => "quantised: laid out for the device",
        })
    }
}

/// The files in use.
pub(crate) struct CheckpointMemory<G: Gpu> {
    state: Mutex<State<G>>,
}

struct State<G: Gpu> {
    /// By the file's address, and the part of it.
    buffers: HashMap<(usize, Range<usize>), Mapped<G>>,
    /// Bytes used in place, then bytes copied for each reason, since the last report.
    bytes: BTreeMap<Option<Why>, usize>,
}

struct Mapped<G: Gpu> {
    region: Option<Region<G>>,
    /// Keeps the memory mapped, and its address taken.
    _file: Arc<dyn MappedFile>,
}

impl<G: Gpu> CheckpointMemory<G> {
    pub fn new() -> Self {
        Self { state: Mutex::new(State { buffers: HashMap::new(), bytes: BTreeMap::new() }) }
    }

    /// A part of the file; `None` if this device cannot use it in place.
    pub fn region(
        &self,
        recorder: &Recorder<G>,
        file: &Arc<dyn MappedFile>,
        part: &Range<usize>,
    ) -> Result<Option<Region<G>>> {
        let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let facts = recorder.gpu.facts();
        let (longest, shared) = (bytes(facts.max_buffer), bytes(facts.most_in_a_set()));
        let Some(view) = view(part, file.bytes().len(), longest, shared) else { return Ok(None) };
        let slice = |region: &Region<G>| region.slice(part.start - view.start, part.len());
        let mut state = self.lock();
        let key = (Arc::as_ptr(file).cast::<()>().addr(), view.clone());
        if let Some(mapped) = state.buffers.get(&key) {
            return Ok(mapped.region.as_ref().map(slice));
        }
        let buffer = recorder.gpu.map(file, view.clone()).map_err(|e| recorder.error(e))?;
        let region = buffer.map(|buffer| Region::whole(buffer, view.len()));
        let found = region.as_ref().map(slice);
        state.buffers.insert(key, Mapped { region, _file: file.clone() });
        Ok(found)
    }

    /// Takes in a part of a weight that is used in place, or copied for a reason.
    pub fn count(&self, bytes: usize, copied: Option<Why>) {
        *self.lock().bytes.entry(copied).or_default() += bytes;
    }

    /// Whether weights lie in the files' own memory.
    pub fn in_use(&self) -> bool {
        self.lock().buffers.values().any(|mapped| mapped.region.is_some())
    }

    /// What was loaded since the last call, for people.
    pub fn report(&self) -> Option<String> {
        let bytes = std::mem::take(&mut self.lock().bytes);
        let line = |(why, bytes): (&Option<Why>, &usize)| match why {
            None => format!("{bytes} bytes used in place"),
            Some(why) => format!("{bytes} bytes copied ({why})"),
        };
        (!bytes.is_empty()).then(|| bytes.iter().map(line).collect::<Vec<_>>().join(", "))
    }

    fn lock(&self) -> MutexGuard<'_, State<G>> {
        // Every change is one insertion: a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to map of a file of `len` bytes for `part` of it, if no buffer may be longer than `longest`, and none that many parts share longer than
/// `shared`; `None` if the part itself is longer than a buffer. That is the whole file, or one of the longest views that it is cut into, or, for
/// what lies across a cut, a view of its own: systems count memory once for each buffer that it is in, so that these together are hardly
/// longer than the file, but for weights that are longer than a shared view.
fn view(part: &Range<usize>, len: usize, longest: usize, shared: usize) -> Option<Range<usize>> {
    let longest = longest / PAGE * PAGE;
    let shared = (shared / PAGE * PAGE).max(PAGE).min(longest);
    if len <= shared {
        return Some(0..len);
    }
    let first = part.start / shared.max(1) * shared;
    let around = |grain: usize| part.start / grain * grain..len.min(part.end.next_multiple_of(grain));
    // The experts' gates, ups and downs often take turns in a file: with some room around them these have one view of their own.
    let grain = (shared / 16 / PAGE * PAGE).max(PAGE);
    [first..len.min(first + shared), around(grain), around(PAGE)]
        .into_iter()
        .find(|view| part.end <= view.end && view.len() <= longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_used_in_place_wherever_it_lies_if_its_pages_fit_into_a_buffer() {
        let (longest, len) = (10 * PAGE + 5, 40 * PAGE + 7);
        let (mut across, mut own_pages) = (0, 0);
        for part_len in [8, PAGE, 5 * PAGE, 5 * PAGE + 8, 6 * PAGE, 9 * PAGE, 9 * PAGE + 8, 10 * PAGE - 8, 10 * PAGE] {
            for start in (0..len - part_len).step_by(1000 * 8) {
                let part = start..start + part_len;
                let pages = part.end.div_ceil(PAGE) - part.start / PAGE;
                let view = view(&part, len, longest, longest);
                assert_eq!(view.is_some(), pages <= 10, "{part:?}");
                across += usize::from(pages <= 10 && start / (10 * PAGE) != (part.end - 1) / (10 * PAGE));
                own_pages += usize::from(view.is_some_and(|view| view.len() <= part_len + 2 * PAGE));
            }
        }
        assert!(across > 50 && own_pages >= across, "{across} lie across a cut, {own_pages} have a view of their own");
    }

    #[test]
    fn views_hold_their_parts_and_are_hardly_longer_than_the_file() {
        let (longest, len) = (10 * PAGE + 5, 100 * PAGE + 7);
        assert_eq!(view(&(3..len), len, len + PAGE, len + PAGE), Some(0..len), "a file that fits is one view");
        for tensor in [100, PAGE / 2 + 1, 3 * PAGE - 8, 9 * PAGE] {
            let mut views = std::collections::BTreeSet::new();
            for start in (0..len).step_by(tensor) {
                let part = start..len.min(start + tensor);
                let view = view(&part, len, longest, longest).unwrap();
                assert!(view.start.is_multiple_of(PAGE) && view.len().next_multiple_of(PAGE) <= longest, "{view:?}");
                assert!(view.start <= part.start && part.end <= view.end && view.end <= len, "{part:?} in {view:?}");
                views.insert((view.start, view.end));
            }
            let all: usize = views.iter().map(|(start, end)| end - start).sum();
            assert!(all <= len + 10 * (tensor + 2 * PAGE), "{all} bytes for tensors of {tensor}: one across each cut");
        }
        let interleaved =
            [8, 2 * PAGE, 5 * PAGE].map(|at| view(&(90 * PAGE + at..150 * PAGE + at), 200 * PAGE, len, 96 * PAGE));
        assert_eq!(interleaved, [const { Some(90 * PAGE..156 * PAGE) }; 3], "one view for all");
        let shared = 3 * PAGE + 9;
        assert_eq!(view(&(4 * PAGE + 8..5 * PAGE), len, longest, shared), Some(3 * PAGE..6 * PAGE), "a shared view");
        assert_eq!(view(&(4 * PAGE + 8..9 * PAGE), len, longest, shared), Some(4 * PAGE..9 * PAGE), "a longer weight");
        assert_eq!(view(&(PAGE - 1..11 * PAGE), len, longest, longest), None, "longer than a buffer");
    }
}

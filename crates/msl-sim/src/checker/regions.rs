//! The memory that a dispatch may touch: which argument an address belongs to. It knows bounds, and not who accesses what.

use crate::buffer::{Buffer, WeakBuffer};
use crate::checker::shadow::Shadow;
use crate::finding::Place;
use crate::runtime::memory::SLACK;

/// Zeros around copied bytes, for who reads too far.
pub const BYTES_GAP: usize = 64;

/// What is bound to a parameter.
#[derive(Debug)]
pub struct Region {
    /// Where it begins and ends.
    pub start: usize,
    pub end: usize,
    /// The n of `[[buffer(n)]]`.
    pub index: usize,
    /// The parameter's name.
    pub name: String,
    /// Whether parameter and buffer may be written to.
    pub writable: bool,
    /// Addresses that can be touched without harm to the host, where kernels have no business.
    pub harmless: (usize, usize),
    /// Whether writing does no harm either.
    pub memory_writable: bool,
    /// Its buffer; `None` for copied bytes.
    pub buffer: Option<BufferRegion>,
}

/// The buffer that a region is a part of.
#[derive(Debug)]
pub struct BufferRegion {
    /// Where the buffer begins.
    pub base: usize,
    /// Its shadow among [`Shadows`]; `None` if nothing can race there.
    pub shadow: Option<usize>,
}

impl Region {
    /// A part of a buffer.
    pub fn of_buffer(
        index: usize,
        name: &str,
        writable: bool,
        buffer: &Buffer,
        offset: usize,
        len: Option<usize>,
    ) -> Self {
        let base = buffer.as_ptr() as usize;
        let slack = if buffer.owns_memory() { SLACK } else { 0 };
        let start = base + offset;
        Self {
            start,
            end: len.map_or(base + buffer.len(), |len| start + len),
            index,
            name: name.to_owned(),
            writable: writable && buffer.writable(),
            harmless: (base - slack, base + buffer.len() + slack),
            memory_writable: buffer.writable(),
            buffer: Some(BufferRegion { base, shadow: None }),
        }
    }

    /// Copied bytes.
    pub fn of_bytes(index: usize, name: &str, address: usize, len: usize) -> Self {
        Self {
            start: address,
            end: address + len,
            index,
            name: name.to_owned(),
            writable: false,
            harmless: (address - BYTES_GAP, address + len + BYTES_GAP),
            memory_writable: true,
            buffer: None,
        }
    }

    #[inline]
    fn contains(&self, address: usize, size: usize) -> bool {
        address >= self.start && address.saturating_add(size) <= self.end
    }

    fn distance(&self, address: usize) -> usize {
        self.start.saturating_sub(address).max((address + 1).saturating_sub(self.end))
    }

    /// An address as seen from this argument.
    pub fn place(&self, address: usize) -> Place {
        Place::Buffer {
            index: self.index,
            name: self.name.clone(),
            offset: address.wrapping_sub(self.start) as i64,
            len: self.end - self.start,
        }
    }
}

/// The arguments of a dispatch.
#[derive(Debug, Default)]
pub struct Regions {
    regions: Vec<Region>,
    /// Where the last address was found: most are in the same argument as the one before.
    last: usize,
}

impl Regions {
    pub fn new(regions: Vec<Region>) -> Self {
        Self { regions, last: 0 }
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Region> {
        self.regions.iter_mut()
    }

    /// The argument that holds these bytes; of several, one that may be written to if `writes`.
    #[inline]
    pub fn find(&mut self, address: usize, size: usize, writes: bool) -> Option<&Region> {
        let fits = |region: &Region| region.contains(address, size) && (region.writable || !writes);
        if !self.regions.get(self.last).is_some_and(fits) {
            let contains = |region: &Region| region.contains(address, size);
            self.last = self.regions.iter().position(fits).or_else(|| self.regions.iter().position(contains))?;
        }
        self.regions.get(self.last)
    }

    /// The argument that begins or ends nearest to an address.
    pub fn nearest(&self, address: usize) -> Option<&Region> {
        self.regions.iter().min_by_key(|region| region.distance(address))
    }

    /// Whether bytes that belong to no argument can be touched without harm to the host.
    pub fn harmless(&self, address: usize, size: usize, writes: bool) -> bool {
        self.regions.iter().any(|region| {
            let (low, high) = region.harmless;
            address >= low && address.saturating_add(size) <= high && (region.memory_writable || !writes)
        })
    }
}

/// The shadows of buffers, kept from dispatch to dispatch for as long as the buffer lives.
#[derive(Debug, Default)]
pub struct Shadows(Vec<(WeakBuffer, Shadow)>);

impl Shadows {
    /// Forgets those of buffers that are gone.
    pub fn prune(&mut self) {
        self.0.retain(|(buffer, _)| buffer.is_alive());
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The number of a buffer's shadow, which is made if there is none.
    pub fn index(&mut self, buffer: &Buffer) -> std::io::Result<usize> {
        if let Some(index) = self.0.iter().position(|(other, _)| other.is(buffer)) {
            return Ok(index);
        }
        self.0.push((buffer.downgrade(), Shadow::new(buffer.len())?));
        Ok(self.0.len() - 1)
    }

    #[inline]
    pub fn get(&mut self, index: usize) -> &mut Shadow {
        &mut self.0[index].1
    }
}

//! The memory traffic of a dispatch: what its instructions ask for, and what of that goes past a cache. It knows addresses and
//! lengths, and nothing of who accesses them.

/// Bytes that move between a GPU and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes of device memory that instructions load.
    pub loaded: u64,
    /// Bytes of device memory that instructions store.
    pub stored: u64,
    /// Bytes read from memory, past the cache.
    pub dram_read: u64,
    /// Bytes written to memory, what remains in the cache at the end included.
    pub dram_written: u64,
    /// Bytes of threadgroup memory that instructions load.
    pub threadgroup_loaded: u64,
    /// Bytes of threadgroup memory that instructions store.
    pub threadgroup_stored: u64,
}

impl Traffic {
    /// That of two dispatches.
    pub fn plus(self, other: Self) -> Self {
        Self {
            loaded: self.loaded + other.loaded,
            stored: self.stored + other.stored,
            dram_read: self.dram_read + other.dram_read,
            dram_written: self.dram_written + other.dram_written,
            threadgroup_loaded: self.threadgroup_loaded + other.threadgroup_loaded,
            threadgroup_stored: self.threadgroup_stored + other.threadgroup_stored,
        }
    }
}

const LINE: usize = 128;
const WAYS: usize = 16;
/// Least number of bytes that memory writes.
const SECTOR: u32 = 32;

#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// Address / LINE; 0 is free.
    tag: usize,
    used: u64,
    /// Whether the line was read from memory: without that only its written bytes are known.
    fetched: bool,
    /// Bytes to be written back, one bit each.
    written: u128,
}

/// A set-associative write-back cache that replaces the line that was not used for longest.
#[derive(Debug)]
pub struct Cache {
    lines: Vec<Line>,
    sets: usize,
    clock: u64,
    traffic: Traffic,
    /// Where the last line was found: most accesses go on there.
    last: usize,
    /// The lines that are in use.
    used: Vec<usize>,
}

impl Cache {
    /// A cache of `bytes` bytes, rounded up to whole sets.
    pub fn new(bytes: usize) -> Self {
        let sets = bytes.div_ceil(LINE * WAYS).max(1);
        Self {
            lines: vec![Line::default(); sets * WAYS],
            sets,
            clock: 0,
            traffic: Traffic::default(),
            last: 0,
            used: Vec::new(),
        }
    }

    /// A load or a store of `size` bytes of threadgroup memory, which is not behind the cache.
    #[inline]
    pub fn threadgroup_access(&mut self, size: usize, stores: bool) {
        match stores {
            true => self.traffic.threadgroup_stored += size as u64,
            false => self.traffic.threadgroup_loaded += size as u64,
        }
    }

    /// A load or a store of `size` bytes at `address`.
    #[inline]
    pub fn access(&mut self, address: usize, size: usize, stores: bool) {
        match stores {
            true => self.traffic.stored += size as u64,
            false => self.traffic.loaded += size as u64,
        }
        let end = address + size;
        let mut at = address;
        while at < end {
            let next = (at / LINE * LINE + LINE).min(end);
            self.touch(at / LINE, at % LINE, next - at, stores);
            at = next;
        }
    }

    fn touch(&mut self, tag: usize, start: usize, size: usize, stores: bool) {
        self.clock += 1;
        let index = if self.lines[self.last].tag == tag { self.last } else { self.find(tag) };
        self.last = index;
        let line = &mut self.lines[index];
        line.used = self.clock;
        let bytes = u128::MAX >> (LINE - size) << start;
        if stores {
            line.written |= bytes;
        } else if !line.fetched && line.written & bytes != bytes {
            line.fetched = true;
            self.traffic.dram_read += LINE as u64;
        }
    }

    fn find(&mut self, tag: usize) -> usize {
        let first = tag % self.sets * WAYS;
        let set = &mut self.lines[first..first + WAYS];
        if let Some(way) = set.iter().position(|line| line.tag == tag) {
            return first + way;
        }
        let (way, line) = set.iter_mut().enumerate().min_by_key(|(_, line)| line.used).expect("a set has ways");
        let evicted = std::mem::replace(line, Line { tag, ..Line::default() });
        if evicted.tag == 0 {
            self.used.push(first + way);
        }
        self.write_back(&evicted);
        first + way
    }

    fn write_back(&mut self, line: &Line) {
        for sector in 0..LINE as u32 / SECTOR {
            let bytes = line.written >> (sector * SECTOR) & u128::from(u32::MAX);
            if bytes != 0 {
                self.traffic.dram_written += u64::from(SECTOR);
                // What is not known of a sector has to be read first.
                if !line.fetched && bytes != u128::from(u32::MAX) {
                    self.traffic.dram_read += u64::from(SECTOR);
                }
            }
        }
    }

    /// Writes everything back, empties the cache, and returns what was counted.
    pub fn finish(&mut self) -> Traffic {
        while let Some(index) = self.used.pop() {
            let line = std::mem::take(&mut self.lines[index]);
            self.write_back(&line);
        }
        self.last = 0;
        std::mem::take(&mut self.traffic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_once_while_they_fit() {
        let mut cache = Cache::new(1 << 20);
        for _ in 0..2 {
            (0..512 * 1024).step_by(16).for_each(|at| cache.access(1 << 32 | at, 16, false));
        }
        let traffic = cache.finish();
        assert_eq!(traffic, Traffic { loaded: 1 << 20, dram_read: 512 * 1024, ..Traffic::default() });
        for _ in 0..2 {
            (0..2 << 20).step_by(16).for_each(|at| cache.access(1 << 32 | at, 16, false));
        }
        assert_eq!(cache.finish().dram_read, 4 << 20);
    }

    #[test]
    fn only_partly_written_sectors_are_read() {
        let mut cache = Cache::new(1 << 20);
        (0..64).step_by(4).for_each(|at| cache.access(1 << 32 | at, 4, true));
        assert_eq!(cache.finish(), Traffic { stored: 64, dram_written: 64, ..Traffic::default() });
        cache.access(1 << 32, 4, true);
        cache.access(1 << 32, 4, false);
        let expected = Traffic { loaded: 4, stored: 4, dram_read: 32, dram_written: 32, ..Traffic::default() };
        assert_eq!(cache.finish(), expected);
    }
}

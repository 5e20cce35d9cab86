//! Threadgroup memory: one arena, used by one threadgroup after another. It knows which variable lies where, and not who uses it.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char};
use std::io;

use super::memory::Mapping;

/// Threadgroup memory of Apple's GPUs, in bytes.
pub const LIMIT: usize = 32 * 1024;
/// What the arena really has, so that a kernel that asks for too much can run to its end.
pub const CAPACITY: usize = 1 << 20;
/// Unused bytes between variables, so that who leaves one does not land in the next.
const GAP: usize = 64;
/// What fresh memory holds: as floats, NaN.
const POISON: u8 = 0xFF;

/// A piece of threadgroup memory.
#[derive(Debug, Clone)]
pub struct Variable {
    /// The variable's address within the library; 0 for `[[threadgroup(n)]]` arguments.
    key: usize,
    /// Name of the variable or the argument.
    pub name: String,
    /// Where it begins in the arena.
    pub start: usize,
    /// Its size in bytes.
    pub size: usize,
}

/// The threadgroup memory of one host thread.
pub struct Arena {
    memory: Mapping,
    variables: RefCell<Vec<Variable>>,
    /// End of what is in use, gaps included.
    top: Cell<usize>,
    /// Bytes in use as the hardware counts them.
    used: Cell<usize>,
}

impl Arena {
    pub fn new() -> io::Result<Self> {
        let memory = Mapping::new(CAPACITY)?;
        Ok(Self { memory, variables: RefCell::default(), top: Cell::new(0), used: Cell::new(0) })
    }

    /// Forgets all variables.
    pub fn clear(&mut self) {
        self.variables.get_mut().clear();
        self.top.set(0);
        self.used.set(0);
    }

    /// Poisons what is in use, for a new threadgroup.
    pub fn begin_threadgroup(&self) {
        self.poison(0, self.top.get());
    }

    fn poison(&self, start: usize, size: usize) {
        // SAFETY: the range lies within the arena, where no thread of a kernel runs now.
        unsafe { self.memory.as_ptr().add(start).write_bytes(POISON, size) };
    }

    /// Adds an argument; `None` if the arena is full.
    pub fn argument(&self, name: &str, size: usize) -> Option<*mut u8> {
        self.add(0, name.to_owned(), size, 16)
    }

    /// The variable of this key, added when it is first asked for; `None` if the arena is full.
    ///
    /// # Safety
    /// `name` is null or a string.
    pub unsafe fn variable(&self, key: usize, size: usize, align: usize, name: *const c_char) -> Option<*mut u8> {
        if let Some(variable) = self.variables.borrow().iter().find(|variable| variable.key == key) {
            // SAFETY: variables lie within the arena.
            return Some(unsafe { self.memory.as_ptr().add(variable.start) });
        }
        let name = match name.is_null() {
            true => String::from("?"),
            // SAFETY: the caller's promise.
            false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        };
        self.add(key, name, size, align.max(16))
    }

    fn add(&self, key: usize, name: String, size: usize, align: usize) -> Option<*mut u8> {
        let start = (self.top.get() + GAP).next_multiple_of(align);
        let end = start.checked_add(size).filter(|&end| end <= CAPACITY)?;
        self.top.set(end);
        self.used.set(self.used.get().next_multiple_of(align) + size);
        self.poison(start, size);
        self.variables.borrow_mut().push(Variable { key, name, start, size });
        // SAFETY: checked above to lie within the arena.
        Some(unsafe { self.memory.as_ptr().add(start) })
    }

    /// Bytes in use, as the hardware counts them.
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// The address of the arena, and the bytes that a kernel might reach by mistake.
    pub fn range(&self) -> (usize, usize) {
        (self.memory.as_ptr() as usize, CAPACITY)
    }

    /// Where the variable that `offset` lies in begins and ends.
    pub fn bounds(&self, offset: usize) -> Option<std::ops::Range<usize>> {
        let variables = self.variables.borrow();
        let range = |variable: &Variable| variable.start..variable.start + variable.size;
        variables.iter().map(range).find(|range| range.contains(&offset))
    }

    /// The variable that `offset` lies in, or the one that begins or ends nearest to it.
    pub fn nearest(&self, offset: usize) -> Option<Variable> {
        let distance = |v: &Variable| v.start.saturating_sub(offset).max((offset + 1).saturating_sub(v.start + v.size));
        let variables = self.variables.borrow();
        variables.iter().min_by_key(|variable| distance(variable)).cloned()
    }
}

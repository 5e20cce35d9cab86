//! The sections of a report, a file each.

pub mod determinism;
pub mod equivalence;
pub mod invariance;
pub mod layers;

/// How thorough.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Also what takes long.
    pub full: bool,
}

/// Who wants to know how far a section is.
pub trait Progress {
    /// So much is done, of so much.
    fn at(&mut self, done: usize, total: usize);
}

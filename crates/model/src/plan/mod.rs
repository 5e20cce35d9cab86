//! What a model will take, from sizes alone: memory, and the time of a step. Nothing is allocated here.

mod address_space;
pub(crate) mod available;
pub(crate) mod choices;
pub mod cost;
mod kinds;
pub(crate) mod limits;
pub mod memory;

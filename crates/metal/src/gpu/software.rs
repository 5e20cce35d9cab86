//! The software Metal device as a [`Gpu`](super::Gpu).

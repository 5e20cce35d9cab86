//! The Metal backend: a kernel per op, run on Apple's GPUs or on the software Metal device. It knows no model.

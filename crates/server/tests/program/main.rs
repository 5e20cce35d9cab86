//! The whole program, as users run it. One test binary: some of these tests keep one core busy for minutes, beside which the others run.

mod all_kernels;
mod bench;
mod chat;
mod demo;
mod doctor;
mod drafts;
mod flags;
mod generate;
mod limits;
mod progress;
mod serve;
mod verify;

use std::path::PathBuf;

/// Where all tests keep what they have compiled for the software Metal device, whose homes are others.
fn compiled_kernels() -> PathBuf {
    let kept = std::env::var_os("MSL_SIM_CACHE").map(PathBuf::from);
    kept.unwrap_or_else(|| dirs::cache_dir().expect("a user has a cache").join("msl-sim"))
}

//! Apple's GPU, where there is one. The cases run elsewhere, too: on the Metal of crates/objc-sim.
#![cfg(target_os = "macos")]

mod cases;

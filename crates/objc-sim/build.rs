//! Satisfies the linker where objc2 and block2 ask for libraries of an Objective-C runtime: this crate is that runtime.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    for library in ["objc", "BlocksRuntime"] {
        // An archive without members.
        std::fs::write(directory.join(format!("lib{library}.a")), b"!<arch>\n").expect("OUT_DIR can be written to");
    }
    println!("cargo:rustc-link-search=native={}", directory.display());
}

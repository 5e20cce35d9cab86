//! From a `.metal` file to a shared library that the runtime loads: `clang -E`, a rewrite of the tokens into C++17, clang's
//! type check with Metal's address spaces, and code for this machine. It knows how Metal is written, and nothing of how
//! kernels are run.

mod bfloat;
mod build;
mod cache;
mod calls;
mod clang;
mod copies;
mod declarations;
mod diagnostics;
mod divide;
mod emit;
mod error;
mod expressions;
mod index;
mod ir;
mod kernels;
mod lint;
mod llvm;
mod rules;
mod shim;
mod syntax;
mod token;
mod translate;
mod wide;

pub(crate) use clang::{RELATIVE, SHIM};
pub(crate) use diagnostics::type_name;
pub use error::CompileError;
pub use lint::{Lint, Severity};

use std::path::{Path, PathBuf};

/// A `.metal` file to compile.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The file's name in messages and in findings.
    pub name: &'a str,
    /// What it says.
    pub text: &'a str,
    /// Where `#include` looks, in order.
    pub include_dirs: &'a [&'a Path],
    /// Macros and their values.
    pub defines: &'a [(&'a str, &'a str)],
}

/// What is built into a library besides its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instrument {
    /// Nothing: for speed.
    None,
    /// Each access to memory is reported to the host: for the checker.
    Accesses,
}

/// A compiled library.
#[derive(Clone, Debug)]
pub struct Binary {
    /// The shared library, in the cache: shared with other processes, to be read only.
    pub path: PathBuf,
    /// Warnings about the source.
    pub lints: Vec<Lint>,
}

/// Whether there is a clang to compile with. Without one a test says loudly that it checks nothing, and where the environment
/// variable `CI` is set it fails.
///
/// # Panics
/// If there is none and `CI` is set.
pub fn clang_available() -> bool {
    match clang::find() {
        Ok(_) => true,
        Err(error) if std::env::var_os("CI").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("SKIPPED, NOTHING IS CHECKED: {error}");
            false
        }
    }
}

/// Checks a source's types and rules without generating code, and returns its warnings.
///
/// # Errors
/// As [`compile`].
pub fn check(source: &Source) -> Result<Vec<Lint>, CompileError> {
    let clang = clang::find()?;
    let shim = shim::directory()?;
    let preprocessed = translate::preprocess(clang, source, &shim)?;
    let (_, lints) = translate::lower(clang, translate::translate(source, &preprocessed), &shim, Instrument::None)?;
    Ok(lints)
}

/// Compiles a source, or finds it in the cache.
///
/// # Errors
/// [`CompileError::Rejected`] with what is wrong and where; [`CompileError::ClangMissing`] without a compiler.
pub fn compile(source: &Source, instrument: Instrument) -> Result<Binary, CompileError> {
    let clang = clang::find()?;
    let shim = shim::directory()?;
    // What a source without files of its own expands to, its text and its macros decide.
    let expanded = match source.text.lines().any(reads_a_file) {
        true => Some(translate::preprocess(clang, source, &shim)?),
        false => None,
    };
    let key = cache::hash([
        expanded.as_deref().unwrap_or_default(),
        source.name,
        source.text,
        &clang.version,
        &shim::hash(),
        &format!("{:?} {:?} {:?}", source.defines, instrument, clang::machine()),
        &format!("{:?} {:?} {:?}", clang::PREPROCESS, clang::TO_IR, clang::TO_OBJECT),
        &format!("{:?} {:?} {:?}", clang::MARKED, clang::TO_ACCESSES, clang::INSTRUMENTED),
        &format!("{:?} {}", clang::files(Path::new("")), clang::frames()),
        env!("CARGO_PKG_VERSION"),
        FRONT_END,
    ]);
    let path = cache::directory()?.join(format!("{key}.so"));
    let warnings = path.with_extension("warnings");
    if path.is_file()
        && let Some(lints) = cache::read_lints(&warnings)
    {
        return Ok(Binary { path, lints });
    }
    let expanded = expanded.map_or_else(|| translate::preprocess(clang, source, &shim), Ok)?;
    let (module, lints) = translate::lower(clang, translate::translate(source, &expanded), &shim, instrument)?;
    cache::write_lints(&warnings, &lints)?;
    build::build(clang, &ir::rewrite(&module, instrument), &shim, instrument, &path)?;
    Ok(Binary { path, lints })
}

/// Whether a line may include a file that is not Metal's own.
fn reads_a_file(line: &str) -> bool {
    let Some(directive) = line.trim_start().strip_prefix('#') else { return false };
    let directive = directive.trim_start();
    match directive.strip_prefix("include").or_else(|| directive.strip_prefix("import")) {
        Some(file) => {
            let name = file.trim().strip_prefix('<').and_then(|rest| rest.split('>').next());
            !name.is_some_and(|name| shim::METAL_HEADERS.contains(&name))
        }
        // A directive may go on in the next line.
        None => directive.contains("__has_include") || directive.ends_with('\\'),
    }
}

/// Changes with the front end, whose rewriting the cached libraries depend on.
const FRONT_END: &str = concat!(
    include_str!("bfloat.rs"),
    include_str!("build.rs"),
    include_str!("calls.rs"),
    include_str!("copies.rs"),
    include_str!("declarations.rs"),
    include_str!("diagnostics.rs"),
    include_str!("divide.rs"),
    include_str!("emit.rs"),
    include_str!("expressions.rs"),
    include_str!("index.rs"),
    include_str!("ir.rs"),
    include_str!("kernels.rs"),
    include_str!("llvm.rs"),
    include_str!("rules.rs"),
    include_str!("syntax.rs"),
    include_str!("token.rs"),
    include_str!("translate.rs"),
    include_str!("wide.rs")
);

#[cfg(test)]
mod tests {
    /// A file that is forgotten in [`super::FRONT_END`] would leave libraries in the cache that it would now compile otherwise.
    #[test]
    fn all_of_the_front_end_is_in_the_name_of_a_library() {
        // What these say is in the name itself (clang's flags, the shim), or changes nothing in a library.
        const APART: [&str; 6] = ["cache.rs", "clang.rs", "error.rs", "lint.rs", "mod.rs", "shim.rs"];
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/compile");
        let mut count = 0;
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if !APART.contains(&&*name) {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(super::FRONT_END.contains(&text), "FRONT_END does not include {name}");
                count += 1;
            }
        }
        assert!(count > 10, "only {count} files in src/compile");
    }

    #[test]
    fn only_files_of_others_are_read() {
        for (line, expected) in [
            ("#include <metal_stdlib>", false),
            ("  # include <metal_simdgroup_matrix> // tiles", false),
            ("#include \"common.h\"", true),
            ("#include HEADER", true),
            ("#include <mine.h>", true),
            ("#if __has_include(\"x.h\")", true),
            ("float included = 1;", false),
        ] {
            assert_eq!(super::reads_a_file(line), expected, "{line}");
        }
    }
}

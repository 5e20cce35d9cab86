//! From a `.metal` file to a shared library that the runtime loads: `clang -E`, a rewrite of the tokens into C++17, clang's
//! type check with Metal's address spaces, and code for this machine. It knows how Metal is written, and nothing of how
//! kernels are run.

mod assignments;
mod bfloat;
mod cache;
mod calls;
mod clang;
mod declarations;
mod diagnostics;
mod emit;
mod error;
mod expressions;
mod ir;
mod kernels;
mod lint;
mod rules;
mod shim;
mod syntax;
mod token;

pub use error::CompileError;
pub use lint::{Lint, Severity};

use clang::Clang;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use syntax::Syntax;
use token::Tokens;

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
    let Translation { mut syntax, entries, mut lints } = translate(source, &preprocess(clang, source, &shim)?);
    lower(clang, &mut syntax, &entries, &shim, Instrument::None, &mut lints)?;
    Ok(lints)
}

/// Compiles a source, or finds it in the cache.
///
/// # Errors
/// [`CompileError::Rejected`] with what is wrong and where; [`CompileError::ClangMissing`] without a compiler.
pub fn compile(source: &Source, instrument: Instrument) -> Result<Binary, CompileError> {
    let clang = clang::find()?;
    let shim = shim::directory()?;
    let preprocessed = preprocess(clang, source, &shim)?;
    let key = cache::hash([
        &*preprocessed,
        source.name,
        source.text,
        &clang.version,
        &shim::hash(),
        &format!("{:?} {:?}", instrument, clang::machine()),
        &format!("{:?} {:?} {:?}", clang::TO_IR, clang::TO_OBJECT, clang::INSTRUMENTED),
        env!("CARGO_PKG_VERSION"),
        BUILD,
    ]);
    let path = cache::directory()?.join(format!("{key}.so"));
    let Translation { mut syntax, entries, mut lints } = translate(source, &preprocessed);
    if path.is_file() && !has_errors(&lints) {
        return Ok(Binary { path, lints });
    }
    let module = lower(clang, &mut syntax, &entries, &shim, instrument, &mut lints)?;
    build(clang, &ir::rewrite(&module), &shim, instrument, &path)?;
    Ok(Binary { path, lints })
}

/// Changes with the front end itself, whose rewriting the cached libraries depend on.
const BUILD: &str = concat!(
    include_str!("assignments.rs"),
    include_str!("bfloat.rs"),
    include_str!("declarations.rs"),
    include_str!("emit.rs"),
    include_str!("expressions.rs"),
    include_str!("ir.rs"),
    include_str!("kernels.rs"),
    include_str!("mod.rs"),
    include_str!("syntax.rs"),
    include_str!("token.rs")
);

/// A source as C++, and what the tokens alone show.
struct Translation {
    syntax: Syntax,
    entries: String,
    lints: Vec<Lint>,
}

fn has_errors(lints: &[Lint]) -> bool {
    lints.iter().any(|lint| lint.severity == Severity::Error)
}

/// Expands the source's directives and macros.
fn preprocess(clang: &Clang, source: &Source, shim: &Path) -> Result<String, CompileError> {
    let mut arguments = clang::arguments(clang::PREPROCESS);
    for directory in source.include_dirs {
        arguments.push("-I".into());
        arguments.push(directory.into());
    }
    arguments.push("-isystem".into());
    arguments.push(shim.join("system").into());
    arguments.extend(source.defines.iter().map(|(name, value)| OsString::from(format!("-D{name}={value}"))));
    arguments.push("-".into());
    let text = format!("#line 1 \"{}\"\n{}\n", source.name, source.text);
    let output = clang.run(&arguments, &text)?;
    if !output.success {
        let lints = diagnostics::read(&output.stderr, shim);
        return Err(if lints.is_empty() {
            CompileError::Clang { stage: "preprocessing", output: output.stderr }
        } else {
            CompileError::Rejected(lints)
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Rewrites Metal as C++.
fn translate(source: &Source, preprocessed: &str) -> Translation {
    let mut tokens = Tokens::read(preprocessed);
    for file in 0..tokens.files.len() {
        let name = tokens.files[file].clone();
        let written = source_lines(source, &name);
        if !written.is_empty() {
            tokens.find_columns(file, &written);
        } else if let Ok(text) = std::fs::read_to_string(&*name) {
            let lines = text.lines().enumerate().map(|(i, line)| (i as u32 + 1, line)).collect();
            tokens.find_columns(file, &lines);
        }
    }
    let mut syntax = Syntax::new(tokens);
    let mut lints = Vec::new();
    rules::words(&syntax, &mut lints);
    expressions::rewrite(&mut syntax);
    let kernels = declarations::rewrite(&mut syntax, &mut lints);
    Translation { syntax, entries: kernels.entries(), lints }
}

/// The module of a source without errors.
fn lower(
    clang: &Clang,
    syntax: &mut Syntax,
    entries: &str,
    shim: &Path,
    instrument: Instrument,
    lints: &mut Vec<Lint>,
) -> Result<String, CompileError> {
    let module = to_ir(clang, syntax, entries, shim, instrument, lints)?;
    if let Some(module) = &module {
        lints.extend(calls::check(module, shim));
    }
    lints.sort();
    lints.dedup();
    match module {
        Some(module) if !has_errors(lints) => Ok(module),
        _ => Err(CompileError::Rejected(std::mem::take(lints))),
    }
}

/// The lines of a source that belong to a file: its own name's, and those of the files that `#line` says it was put together from.
fn source_lines<'a>(source: &Source<'a>, file: &str) -> HashMap<u32, &'a str> {
    let (mut name, mut line) = (source.name, 1);
    let mut lines = HashMap::new();
    for text in source.text.lines() {
        if let Some((next, of)) = token::line_marker(text) {
            (line, name) = (next, of);
            continue;
        }
        if name == file {
            lines.insert(line, text);
        }
        line += 1;
    }
    lines
}

/// Type-checks C++ and lowers it; none if clang rejects it, which the lints then say.
fn to_ir(
    clang: &Clang,
    syntax: &mut Syntax,
    entries: &str,
    shim: &Path,
    instrument: Instrument,
    lints: &mut Vec<Lint>,
) -> Result<Option<String>, CompileError> {
    let mut arguments = clang::arguments(clang::TO_IR);
    if instrument == Instrument::Accesses {
        arguments.push("-fsanitize=thread".into());
    }
    for directory in [shim.to_owned(), shim.join("system")] {
        arguments.push("-isystem".into());
        arguments.push(directory.into());
    }
    arguments.extend(clang::arguments(clang::machine().iter().copied()));
    arguments.extend(clang::arguments(["-", "-o", "-"]));
    let output = loop {
        let (text, places) = emit::emit(&syntax.tokens);
        let text = format!("#include \"msl.h\"\n{text}{entries}");
        if std::env::var_os("MSL_SIM_KEEP").is_some() {
            drop(std::fs::write(cache::directory()?.join("last.cpp"), &text));
        }
        let output = clang.run(&arguments, &text)?;
        // Each round rewrites at least one assignment, so that the rounds end.
        if output.success || !assignments::rewrite(syntax, &places, &output.stderr) {
            break output;
        }
    };
    let found = diagnostics::read(&output.stderr, shim);
    if !output.success && found.is_empty() {
        return Err(CompileError::Clang { stage: "checking types", output: output.stderr });
    }
    // The front end's own words for a line are clearer than clang's.
    let said: Vec<(String, u32)> = lints.iter().map(|lint| (lint.file.clone(), lint.line)).collect();
    lints.extend(found.into_iter().filter(|lint| !said.contains(&(lint.file.clone(), lint.line))));
    Ok(output.success.then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Generates code and links it to a shared library at `path`.
fn build(clang: &Clang, module: &str, shim: &Path, instrument: Instrument, path: &Path) -> Result<(), CompileError> {
    let failed = |source| CompileError::Io { path: path.to_owned(), source };
    let temporary = tempfile::tempdir_in(cache::directory()?).map_err(failed)?;
    let (object, library) = (temporary.path().join("kernels.o"), temporary.path().join("kernels.so"));
    let mut arguments = clang::arguments(clang::TO_OBJECT);
    arguments.extend(clang::arguments(clang::machine().iter().copied()));
    if instrument == Instrument::Accesses {
        arguments.extend(clang::arguments(clang::INSTRUMENTED));
    }
    arguments.extend([OsString::from("-"), "-o".into(), object.clone().into()]);
    run(clang, "generating code", &arguments, module)?;
    let mut objects = vec![object, support(clang, shim, "libcalls.cpp")?];
    if instrument == Instrument::Accesses {
        objects.push(support(clang, shim, "hooks.cpp")?);
    }
    let mut arguments = clang::arguments(["-shared", "-o"]);
    arguments.push(library.clone().into());
    arguments.extend(clang::arguments(objects));
    arguments.push("-lm".into());
    run(clang, "linking", &arguments, "")?;
    cache::publish(&library, path)
}

/// The object of a shim source, which is the same for all libraries.
fn support(clang: &Clang, shim: &Path, name: &str) -> Result<PathBuf, CompileError> {
    let flags = ["-c", "-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"];
    let parts = [&shim::hash(), name, &clang.version, &format!("{flags:?} {:?}", clang::machine())];
    let object = cache::directory()?.join(format!("{}.o", cache::hash(parts)));
    if object.is_file() {
        return Ok(object);
    }
    let failed = |source| CompileError::Io { path: object.clone(), source };
    let temporary = tempfile::tempdir_in(cache::directory()?).map_err(failed)?;
    let built = temporary.path().join("support.o");
    let mut arguments = clang::arguments(flags);
    arguments.extend(clang::arguments(clang::machine().iter().copied()));
    arguments.extend([shim.join(name).into(), OsString::from("-o"), built.clone().into()]);
    run(clang, "building its runtime support", &arguments, "")?;
    cache::publish(&built, &object)?;
    Ok(object)
}

fn run(clang: &Clang, stage: &'static str, arguments: &[OsString], input: &str) -> Result<(), CompileError> {
    let output = clang.run(arguments, input)?;
    if output.success { Ok(()) } else { Err(CompileError::Clang { stage, output: output.stderr }) }
}

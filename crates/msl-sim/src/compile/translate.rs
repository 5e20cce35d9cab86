//! From Metal to LLVM's intermediate language, with what is wrong on the way. It knows the order of the steps, and leaves to
//! others what each of them knows.

use super::clang::{self, Clang};
use super::error::CompileError;
use super::lint::{Lint, Severity};
use super::syntax::Syntax;
use super::token::{self, Tokens};
use super::{Instrument, Source, cache, calls, copies, declarations, diagnostics, emit, expressions, rules};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

/// A source as C++, and what its tokens alone show.
pub(super) struct Translation {
    syntax: Syntax,
    entries: String,
    lints: Vec<Lint>,
}

/// Expands the source's directives and macros.
pub(super) fn preprocess(clang: &Clang, source: &Source, shim: &Path) -> Result<String, CompileError> {
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
pub(super) fn translate(source: &Source, preprocessed: &str) -> Translation {
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

/// The module of a source without errors, and its warnings.
pub(super) fn lower(
    clang: &Clang,
    mut translation: Translation,
    shim: &Path,
    instrument: Instrument,
) -> Result<(String, Vec<Lint>), CompileError> {
    let module = to_ir(clang, &mut translation, shim, instrument)?;
    let mut lints = translation.lints;
    if let Some(module) = &module {
        lints.extend(calls::check(module));
    }
    lints.sort();
    lints.dedup();
    match module {
        Some(module) if lints.iter().all(|lint| lint.severity == Severity::Warning) => Ok((module, lints)),
        _ => Err(CompileError::Rejected(lints)),
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
    translation: &mut Translation,
    shim: &Path,
    instrument: Instrument,
) -> Result<Option<String>, CompileError> {
    let Translation { syntax, entries, lints } = translation;
    let mut arguments = clang::arguments(clang::TO_IR);
    if instrument == Instrument::Accesses {
        arguments.extend(clang::arguments(clang::MARKED));
    }
    arguments.push(clang::frames().into());
    arguments.extend(clang::files(shim));
    for directory in [shim.to_owned(), shim.join("system")] {
        arguments.push("-isystem".into());
        arguments.push(directory.into());
    }
    arguments.extend(clang::arguments(clang::machine()));
    arguments.extend(clang::arguments(["-", "-o", "-"]));
    let output = loop {
        let (text, places) = emit::emit(&syntax.tokens);
        let text = format!("#include \"msl.h\"\n{text}{entries}");
        if std::env::var_os("MSL_SIM_KEEP").is_some() {
            drop(std::fs::write(cache::directory()?.join("last.cpp"), &text));
        }
        let output = clang.run(&arguments, &text)?;
        // Each round rewrites at least one copy, so that the rounds end.
        if output.success || !copies::rewrite(syntax, &places, &output.stderr) {
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
    // What is wrong with the table of kernels follows from what is wrong with them.
    if lints.iter().any(|lint| lint.severity == Severity::Error && lint.file != "entries") {
        lints.retain(|lint| lint.file != "entries");
    }
    Ok(output.success.then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is being written ends anywhere; clang then says what is missing.
    #[test]
    fn no_beginning_of_a_file_is_too_short() {
        for text in [
            include_str!("../../tests/fixtures/vocabulary.metal"),
            include_str!("../../tests/fixtures/arithmetic.metal"),
            include_str!("../../tests/fixtures/language.metal"),
        ] {
            let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
            let text = lines.join("\n").replace("// ", "");
            for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)).step_by(11) {
                let source = Source { name: "x.metal", text: &text[..end], include_dirs: &[], defines: &[] };
                let translation = translate(&source, &format!("# 1 \"x.metal\"\n{}", source.text));
                emit::emit(&translation.syntax.tokens);
            }
        }
    }
}

//! Compiles fixtures: the front end and the shim, without running a kernel.

use msl_sim::compile::{self, Binary, CompileError, Instrument, Lint, Severity, Source};
use std::collections::BTreeMap;

fn compile_fixture(name: &str, text: &str, instrument: Instrument) -> Result<Binary, CompileError> {
    compile::compile(&Source { name, text, include_dirs: &[], defines: &[] }, instrument)
}

#[test]
fn the_whole_vocabulary_compiles_without_a_word() {
    if !compile::clang_available() {
        return;
    }
    for instrument in [Instrument::None, Instrument::Accesses] {
        let result = compile_fixture("vocabulary.metal", include_str!("fixtures/vocabulary.metal"), instrument);
        let binary = result.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(binary.lints, []);
        assert!(binary.path.is_file());
    }
}

#[test]
fn a_library_from_the_cache_keeps_its_warnings() {
    if !compile::clang_available() {
        return;
    }
    let compile = || compile_fixture("suspicious.metal", include_str!("fixtures/suspicious.metal"), Instrument::None);
    let (first, second) = (compile().unwrap(), compile().unwrap());
    assert!(!first.lints.is_empty());
    assert_eq!((first.path, first.lints), (second.path, second.lints));
}

/// The lines of a fixture that end in `// severity: text`, and the text.
fn expected(text: &str, severity: &str) -> BTreeMap<u32, String> {
    let marker = format!("// {severity}: ");
    let lines = text.lines().enumerate();
    lines.filter_map(|(i, line)| Some((i as u32 + 1, line.split_once(&marker)?.1.to_owned()))).collect()
}

/// Compiles a fixture and compares what is said of it with what its comments expect, line by line.
fn check_fixture(name: &str, text: &str) {
    if !compile::clang_available() {
        return;
    }
    let lints = match compile_fixture(name, text, Instrument::None) {
        Ok(binary) => binary.lints,
        Err(CompileError::Rejected(lints)) => lints,
        Err(error) => panic!("{error}"),
    };
    let mut complaints = Vec::new();
    for (severity, word) in [(Severity::Error, "error"), (Severity::Warning, "warning")] {
        let expected = expected(text, word);
        for (line, part) in &expected {
            let found = |lint: &&Lint| (lint.severity, lint.line) == (severity, *line) && lint.message.contains(part);
            if !lints.iter().any(|lint| found(&lint)) {
                complaints.push(format!("{name}:{line}: no {word} that says \"{part}\""));
            }
        }
        for lint in lints.iter().filter(|lint| lint.severity == severity && !expected.contains_key(&lint.line)) {
            complaints.push(format!("not expected: {lint}"));
        }
    }
    let said: Vec<String> = lints.iter().map(Lint::to_string).collect();
    assert!(complaints.is_empty(), "{}\n\nall that was said:\n{}", complaints.join("\n"), said.join("\n"));
}

macro_rules! fixtures {
    ($($test:ident: $file:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            check_fixture($file, include_str!(concat!("fixtures/", $file)));
        })*
    };
}

fixtures! {
    what_metal_has_not_is_reported: "language.metal",
    what_metal_has_is_not: "language_right.metal",
    types_that_do_not_fit_are_reported: "types.metal",
    types_that_fit_are_not: "types_right.metal",
    recursion_is_reported: "recursion.metal",
    iteration_is_not: "recursion_right.metal",
    what_is_suspicious_is_a_warning: "suspicious.metal",
    casts_between_address_spaces_are_reported: "casts.metal",
    casts_within_one_and_copies_are_not: "casts_right.metal",
}

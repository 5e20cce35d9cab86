//! `msl-sim check`: what is wrong with sources. It knows how lints are printed.

use std::path::{Path, PathBuf};

use msl_sim::{CompileError, Instrument, Lint, Severity, Source};
use serde_json::json;

use crate::{Failure, SourceOptions, read};

/// The lints of all files as text, and whether there is no error among them. `build`: code is generated too.
pub fn check(
    files: &[PathBuf],
    options: &SourceOptions,
    build: bool,
    as_json: bool,
) -> Result<(String, bool), Failure> {
    let mut lints = Vec::new();
    for file in files {
        lints.extend(lints_of(file, options, build)?);
    }
    let text = match as_json {
        true => serde_json::to_string_pretty(&lints.iter().map(json_of).collect::<Vec<_>>())? + "\n",
        false => lints.iter().map(|lint| format!("{lint}\n")).collect(),
    };
    Ok((text, lints.iter().all(|lint| lint.severity != Severity::Error)))
}

fn lints_of(file: &Path, options: &SourceOptions, build: bool) -> Result<Vec<Lint>, Failure> {
    let text = read(file)?;
    // As for any C compiler, files in quotes are looked for beside the file that includes them.
    let beside = file.parent().map(Path::to_owned).into_iter();
    let include: Vec<_> = beside.filter(|path| path != Path::new("")).chain(options.include.iter().cloned()).collect();
    let source = Source {
        name: &file.display().to_string(),
        text: &text,
        include_dirs: &include.iter().map(PathBuf::as_path).collect::<Vec<_>>(),
        defines: &options.define.iter().map(|text| text.split_once('=').unwrap_or((text, "1"))).collect::<Vec<_>>(),
    };
    let lints = match build {
        true => msl_sim::compile(&source, Instrument::Accesses).map(|binary| binary.lints),
        false => msl_sim::compile::check(&source),
    };
    match lints {
        Ok(lints) | Err(CompileError::Rejected(lints)) => Ok(lints),
        Err(error) => Err(error.into()),
    }
}

/// A lint as JSON.
pub fn json_of(lint: &Lint) -> serde_json::Value {
    let severity = if lint.severity == Severity::Error { "error" } else { "warning" };
    json!({ "file": lint.file, "line": lint.line, "column": lint.column, "severity": severity, "message": lint.message })
}

//! From LLVM's intermediate language to a shared library. It knows clang's code generation and linking, and nothing of Metal.

use super::clang::{self, Clang, Output};
use super::error::CompileError;
use super::{Instrument, cache, shim as headers, wide};
use crate::runtime::MAX_FRAME;
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Generates code and links it to a shared library at `path`.
pub(super) fn build(
    clang: &Clang,
    module: &str,
    shim: &Path,
    instrument: Instrument,
    path: &Path,
) -> Result<(), CompileError> {
    let failed = |source| CompileError::Io { path: path.to_owned(), source };
    let temporary = tempfile::tempdir_in(cache::directory()?).map_err(failed)?;
    let (object, library) = (temporary.path().join("kernels.o"), temporary.path().join("kernels.so"));
    let mut arguments = clang::arguments(clang::TO_OBJECT);
    arguments.extend(clang::arguments(clang::machine()));
    let mut module = Cow::Borrowed(module);
    if instrument == Instrument::Accesses {
        // Which accesses there are is known only when the code is optimised.
        let mut optimise = arguments.clone();
        optimise.extend(clang::arguments(clang::TO_ACCESSES));
        module = wide::announce(&run(clang, "optimising", &optimise, &module)?)?.into();
        arguments.extend(clang::arguments(clang::INSTRUMENTED));
    }
    arguments.extend([OsString::from("-c"), "-".into(), "-o".into(), object.clone().into()]);
    let output = clang.run(&arguments, &module)?;
    let said = succeeded(&output, "generating code")?;
    if let Some(error) = said.lines().find_map(too_large) {
        return Err(error);
    }
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
    let parts = [&headers::hash(), name, &clang.version, &format!("{flags:?} {:?}", clang::machine())];
    let object = cache::directory()?.join(format!("{}.o", cache::hash(parts)));
    if object.is_file() {
        return Ok(object);
    }
    let failed = |source| CompileError::Io { path: object.clone(), source };
    let temporary = tempfile::tempdir_in(cache::directory()?).map_err(failed)?;
    let built = temporary.path().join("support.o");
    let mut arguments = clang::arguments(flags);
    arguments.extend(clang::arguments(clang::machine()));
    arguments.extend([shim.join(name).into(), OsString::from("-o"), built.clone().into()]);
    run(clang, "building its runtime support", &arguments, "")?;
    cache::publish(&built, &object)?;
    Ok(object)
}

fn run(clang: &Clang, stage: &'static str, arguments: &[OsString], input: &str) -> Result<String, CompileError> {
    let output = clang.run(arguments, input)?;
    succeeded(&output, stage)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What clang said besides.
fn succeeded<'a>(output: &'a Output, stage: &'static str) -> Result<&'a str, CompileError> {
    match output.success {
        true => Ok(&output.stderr),
        false => Err(CompileError::Clang { stage, output: output.stderr.clone() }),
    }
}

/// The error in `warning: x.metal:4:0: stack frame size (2400024) exceeds limit (65536) in function '_Z3bigPU3AS1f' […]`.
fn too_large(line: &str) -> Option<CompileError> {
    let (place, rest) = line.split_once("stack frame size (")?;
    let bytes = rest.split(')').next()?.parse().ok()?;
    let symbol = rest.split('\'').nth(1)?;
    let place = place.replace("warning: ", "");
    let mut place = place.trim_end().trim_end_matches(':').rsplitn(2, ':').skip(1);
    let at = place.next().filter(|at| !at.is_empty() && !at.starts_with(clang::SHIM));
    let at = at.map(|at| at.strip_prefix(clang::RELATIVE).map_or(at, |at| at.trim_start_matches('/')).to_owned());
    Some(CompileError::Stack { function: function(symbol).to_owned(), at, bytes, limit: MAX_FRAME })
}

/// The last name of a mangled symbol's first one: `_ZN1a3bigEv` is `big`, and so is what the shim instantiates for it.
fn function(symbol: &str) -> &str {
    let of_kernel = symbol.find("KernelIXadL").and_then(|at| symbol[at..].find("_Z").map(|z| at + z));
    let mut rest = &symbol[of_kernel.unwrap_or(0)..];
    rest = rest.strip_prefix("_Z").unwrap_or(rest);
    rest = rest.trim_start_matches(['N', 'L', 'K']);
    let mut name = symbol;
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let Ok(length) = rest[..digits].parse::<usize>() else { return name };
        let Some(next) = rest.get(digits..digits + length) else { return name };
        (name, rest) = (next, &rest[digits + length..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_need_too_much_stack_are_named() {
        for (line, expected) in [
            (
                "warning: x.metal:4:0: stack frame size (2400024) exceeds limit (65536) in function '_Z3bigPU3AS1f' [-W]",
                "x.metal:4: `big` needs 2400024 bytes of stack",
            ),
            (
                "/.msl-source/a b/x.metal:7:3: warning: stack frame size (70000) exceeds limit (65536) in function \
                 '_ZN4mine5innerIfE3bigEv'",
                "a b/x.metal:7: `inner` needs 70000 bytes",
            ),
            (
                "warning: /.msl-shim/msl_kernel.h:150:0: stack frame size (65544) exceeds limit (65536) in function \
                 '_ZN3msl6KernelIXadL_Z5smallIfEvPU3AS1fjEEXadsoKNS_9AttributeEEE6invokeEPK12MslArguments'",
                "`small` needs 65544 bytes",
            ),
        ] {
            let error = too_large(line).unwrap().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(too_large("warning: something else").is_none());
    }
}

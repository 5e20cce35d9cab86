//! From LLVM's intermediate language to a shared library. It knows clang's code generation and linking, and nothing of Metal.

use super::clang::{self, Clang};
use super::error::CompileError;
use super::{Instrument, cache, shim as headers, wide};
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
    run(clang, "generating code", &arguments, &module)?;
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
    match output.success {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(CompileError::Clang { stage, output: output.stderr }),
    }
}

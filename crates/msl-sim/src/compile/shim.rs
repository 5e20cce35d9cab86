//! The shim headers, carried in the binary and written once to the cache. It knows their names, not what they say.

use super::cache;
use super::error::CompileError;
use std::path::PathBuf;

macro_rules! shim {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("../../shim/", $name)))),*] };
}

const HEADERS: [(&str, &str); 21] = shim![
    "msl.h",
    "msl_abi.h",
    "msl_array.h",
    "msl_atomic.h",
    "msl_constants.h",
    "msl_convert.h",
    "msl_integer.h",
    "msl_kernel.h",
    "msl_keywords.h",
    "msl_math.h",
    "msl_matrix.h",
    "msl_packed.h",
    "msl_simd.h",
    "msl_simdgroup_matrix.h",
    "msl_sync.h",
    "msl_types.h",
    "msl_vector.h",
    "hooks.cpp",
    "libcalls.cpp",
    "system/stddef.h",
    "system/stdint.h",
];

/// What a `.metal` file may include: empty, because `msl.h` has it all.
pub(super) const METAL_HEADERS: [&str; 19] = [
    "metal_stdlib",
    "metal_array",
    "metal_atomic",
    "metal_common",
    "metal_compute",
    "metal_const",
    "metal_extended_vector",
    "metal_geometric",
    "metal_integer",
    "metal_limits",
    "metal_math",
    "metal_matrix",
    "metal_numeric",
    "metal_pack",
    "metal_relational",
    "metal_simdgroup",
    "metal_simdgroup_matrix",
    "metal_types",
    "simd/simd.h",
];

/// What of the shim a compiled library depends on.
pub(super) fn hash() -> String {
    let parts = HEADERS.iter().flat_map(|(name, text)| [*name, *text]);
    cache::hash(parts.chain(METAL_HEADERS))
}

/// The directory that holds the headers; written if it is not there.
pub(super) fn directory() -> Result<PathBuf, CompileError> {
    let directory = cache::directory()?.join(format!("shim-{}", &hash()[..16]));
    if directory.is_dir() {
        return Ok(directory);
    }
    let failed = |path: &std::path::Path| {
        let path = path.to_owned();
        move |source| CompileError::Io { path, source }
    };
    // Several processes may do this at once: the first rename wins, and all have written the same.
    let temporary = tempfile::tempdir_in(cache::directory()?).map_err(failed(&directory))?;
    let empty = METAL_HEADERS.iter().map(|name| (format!("system/{name}"), ""));
    for (name, text) in HEADERS.iter().map(|(name, text)| ((*name).to_owned(), *text)).chain(empty) {
        let path = temporary.path().join(name);
        let parent = path.parent().expect("a file has a directory");
        std::fs::create_dir_all(parent).map_err(failed(parent))?;
        std::fs::write(&path, text).map_err(failed(&path))?;
    }
    match std::fs::rename(temporary.path(), &directory) {
        Err(source) if !directory.is_dir() => Err(CompileError::Io { path: directory, source }),
        _ => Ok(directory),
    }
}

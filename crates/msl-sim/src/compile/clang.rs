//! Finds clang and runs it. It knows which flags make its arithmetic Metal's, and nothing of the source.

use super::error::CompileError;
use crate::runtime::MAX_FRAME;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The oldest clang whose `__bf16` has arithmetic.
const OLDEST: u32 = 17;

/// A clang that is there and new enough.
#[derive(Clone, Debug)]
pub(super) struct Clang {
    pub path: PathBuf,
    /// The first line of `--version`.
    pub version: String,
}

/// `$MSL_SIM_CLANG`, or the first usable clang on the path; looked for once in a process.
pub(super) fn find() -> Result<&'static Clang, CompileError> {
    static FOUND: OnceLock<Result<Clang, String>> = OnceLock::new();
    FOUND.get_or_init(search).as_ref().map_err(|message| CompileError::ClangMissing(message.clone()))
}

fn search() -> Result<Clang, String> {
    if let Some(path) = std::env::var_os("MSL_SIM_CLANG") {
        return usable(Path::new(&path)).map_err(|why| format!("MSL_SIM_CLANG={}: {why}", path.display()));
    }
    let names = ["clang++-19", "clang-19", "clang++-20", "clang++-18", "clang++-17", "clang++"];
    names.iter().find_map(|name| usable(Path::new(name)).ok()).ok_or_else(|| "clang-19 not found".to_owned())
}

fn usable(path: &Path) -> Result<Clang, String> {
    let output = Command::new(path).arg("--version").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().next().unwrap_or_default().to_owned();
    let number = version.split("version ").nth(1).and_then(|v| v.split('.').next()).and_then(|v| v.parse::<u32>().ok());
    match number {
        Some(number) if number >= OLDEST => Ok(Clang { path: path.to_owned(), version }),
        _ => Err(format!("'{version}' is no clang of version {OLDEST} or newer")),
    }
}

/// Flags under which the preprocessor takes clang for Metal's compiler.
pub(super) const PREPROCESS: &[&str] = &[
    "-E",
    "-xc++",
    "-std=c++17",
    "-undef",
    "-nostdinc",
    "-nostdinc++",
    "-D__METAL__=1",
    "-D__METAL_MACOS__=1",
    "-D__METAL_VERSION__=320",
    "-D__HAVE_BFLOAT__=1",
    "-D__HAVE_SIMDGROUP_MATRIX__=1",
    "-D__HAVE_ATOMIC_FETCH_ADD_FLOAT__=1",
    "-DNULL=nullptr",
    "-Wno-everything",
];

/// Flags from C++ to LLVM's intermediate language, which is rewritten before any optimisation. Fast-math is off, and each
/// operation on half and bfloat rounds.
pub(super) const TO_IR: &[&str] = &[
    "-xc++",
    "-std=c++17",
    "-nostdinc",
    "-nostdinc++",
    "-S",
    "-emit-llvm",
    "-O2",
    "-Xclang",
    "-disable-llvm-passes",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-strict-aliasing",
    "-fno-strict-float-cast-overflow",
    "-fsigned-char",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-gline-tables-only",
    "-Wno-everything",
    "-Wc++11-narrowing",
    "-Wreturn-type",
    "-Wuninitialized",
    "-Wsometimes-uninitialized",
    "-Warray-bounds",
    "-Wshift-count-overflow",
    "-Wdivision-by-zero",
    "-fno-caret-diagnostics",
    "-fno-elide-type",
    "-ferror-limit=0",
    "-ftemplate-backtrace-limit=0",
];

/// Flags that name files in debug information, whatever directory clang runs in and wherever the shim is: as the source names
/// them, after one of two prefixes.
pub(super) fn files(shim: &Path) -> Vec<OsString> {
    let map = |directory: &OsStr, prefix: &str| {
        let mut flag = OsString::from("-fdebug-prefix-map=");
        flag.push(directory);
        flag.push("=");
        flag.push(prefix);
        flag
    };
    vec![format!("-fdebug-compilation-dir={RELATIVE}").into(), map(shim.as_os_str(), SHIM)]
}

/// Before the name of a file that the source names by no absolute path.
pub(crate) const RELATIVE: &str = "/.msl-source";
/// The directory of the shim.
pub(crate) const SHIM: &str = "/.msl-shim";

/// The flag that makes clang say which function needs more stack than a thread has.
pub(super) fn frames() -> String {
    format!("-Wframe-larger-than={MAX_FRAME}")
}

/// Flags besides those that make clang call a function where the index of an array is too large, and mark what it instruments.
/// A struct's last array is as long as it says.
pub(super) const MARKED: &[&str] =
    &["-fsanitize=thread,array-bounds", "-fsanitize-recover=array-bounds", "-fstrict-flex-arrays=3"];

/// Flags from LLVM's intermediate language to an object file.
pub(super) const TO_OBJECT: &[&str] = &["-xir", "-O2", "-fPIC", "-Wno-override-module", "-ffp-contract=off"];

/// Flags for this machine. Halves are converted in hardware where it can: both ways round alike.
pub(super) fn machine() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if ["avx2", "fma", "f16c", "bmi2"].iter().all(|f| has(f)) {
        return &["-march=x86-64-v3"];
    }
    &[]
}

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    match feature {
        "avx2" => std::is_x86_feature_detected!("avx2"),
        "fma" => std::is_x86_feature_detected!("fma"),
        "f16c" => std::is_x86_feature_detected!("f16c"),
        _ => std::is_x86_feature_detected!("bmi2"),
    }
}

/// Flags besides those to LLVM's optimised text.
pub(super) const TO_ACCESSES: &[&str] = &["-S", "-emit-llvm", "-fno-vectorize", "-fno-slp-vectorize", "-", "-o", "-"];

/// Flags that make clang call a function before each access, a load that a store follows included. Calls on entry to functions,
/// which nobody reads, stay out.
pub(super) const INSTRUMENTED: &[&str] = &[
    "-fsanitize=thread",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-mllvm",
    "-tsan-instrument-read-before-write=1",
    "-fno-vectorize",
    "-fno-slp-vectorize",
];

/// What a run of clang gave.
pub(super) struct Output {
    pub success: bool,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Clang {
    /// Runs it with `input` as its standard input.
    pub fn run(&self, arguments: &[OsString], input: &str) -> Result<Output, CompileError> {
        let failed = |source| CompileError::Io { path: self.path.clone(), source };
        let mut child = Command::new(&self.path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut stdin = child.stdin.take().expect("piped");
        let output = std::thread::scope(|scope| {
            // clang may stop reading early; what it says then tells why.
            scope.spawn(move || drop(stdin.write_all(input.as_bytes())));
            child.wait_with_output()
        });
        let output = output.map_err(failed)?;
        Ok(Output {
            success: output.status.success(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// Arguments from anything that is one.
pub(super) fn arguments<T: AsRef<OsStr>>(parts: impl IntoIterator<Item = T>) -> Vec<OsString> {
    parts.into_iter().map(|part| part.as_ref().to_owned()).collect()
}

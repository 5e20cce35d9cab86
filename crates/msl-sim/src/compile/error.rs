//! Why a source did not compile. It knows how to say it, not how it came about.

use super::lint::{Lint, Severity};
use std::path::PathBuf;

/// Why there is no [`Binary`](super::Binary).
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// No usable clang.
    #[error(
        "{0}: install clang 19 (apt install clang-19; brew install llvm@19), or name one of version 17 or newer in MSL_SIM_CLANG"
    )]
    ClangMissing(String),
    /// The source is wrong; warnings are among the lints.
    #[error("{}", errors(.0))]
    Rejected(Vec<Lint>),
    /// A function's variables do not fit on a thread's stack.
    #[error(
        "{}`{function}` needs {bytes} bytes of stack for its variables, and a thread has {limit}: keep less in each thread, or \
         use threadgroup or device memory", at.as_ref().map_or_else(String::new, |at| format!("{at}: "))
    )]
    Stack {
        /// The function.
        function: String,
        /// Its file and line, if they are known.
        at: Option<String>,
        /// Bytes that it needs.
        bytes: usize,
        /// Bytes that it may need.
        limit: usize,
    },
    /// clang failed on what the front end wrote: a defect of msl-sim.
    #[error("clang failed while {stage}, which is a defect of msl-sim; it said:\n{output}")]
    Clang {
        /// What it was doing.
        stage: &'static str,
        /// Its standard error.
        output: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The errors among lints, one a line.
fn errors(lints: &[Lint]) -> String {
    let errors = lints.iter().filter(|lint| lint.severity == Severity::Error);
    errors.map(|lint| format!("{lint}\n")).collect::<String>().trim_end().to_owned()
}

//! From a model's name to its directory, downloaded if need be: what it says meanwhile, and how it is interrupted. It reads no file of a model.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use vllm_apple_model::hub::{self, DownloadProgress, HubOptions};

use crate::load::EngineError;

/// Between looks for its end and for signals.
const MOMENT: Duration = Duration::from_millis(20);
/// Between messages of how far it is.
const QUIET: Duration = Duration::from_secs(5);

/// See [`hub::resolve`]. A download may stand still for long, and only this thread may call Python's handlers of signals: another downloads.
///
/// # Errors
/// The hub's, or what a handler of a signal raises.
pub fn directory(py: Python<'_>, model: String, hub: HubOptions) -> PyResult<PathBuf> {
    let waiting = Arc::new(());
    let waiter = Arc::downgrade(&waiting);
    let download = thread::spawn(move || {
        let mut told: Option<Instant> = None;
        hub::resolve(&model, &hub, &mut |progress| {
            if waiter.strong_count() == 0 {
                // The hub's only way out of a file. What has arrived is kept, and its lock given back.
                resume_unwind(Box::new("nobody waits for the download"));
            }
            if told.is_none_or(|at| at.elapsed() >= QUIET) {
                tell(&model, progress);
                told = Some(Instant::now());
            }
        })
    });
    while !download.is_finished() {
        py.detach(|| thread::sleep(MOMENT));
        py.check_signals()?;
    }
    match download.join() {
        Ok(found) => Ok(found.map_err(EngineError::from)?),
        Err(panic) => resume_unwind(panic),
    }
}

fn tell(model: &str, DownloadProgress { file, done, total }: DownloadProgress<'_>) {
    let (share, mib) = (done * 100 / total.max(1), total.div_ceil(1 << 20));
    tracing::info!("downloading {model}: {share}% of {file} ({mib} MiB)");
}

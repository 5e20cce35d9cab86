//! What the crates log goes to Python's `logging`. It knows no message.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Gives every message to `logger`, from now on: once in a process.
#[pyfunction]
pub fn log_to(logger: Py<PyAny>) -> PyResult<()> {
    let layer = ToPython { logger }.with_filter(LevelFilter::INFO);
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))
        .map_err(|e| PyRuntimeError::new_err(e.to_string()))
}

/// What a signal's handler raised while a message was logged (KeyboardInterrupt, SystemExit). Python does not raise it again.
static INTERRUPT: Mutex<Option<PyErr>> = Mutex::new(None);

/// Computes without the interpreter, and then raises what interrupted a message, whatever the result is.
pub fn detached<T: Send>(py: Python<'_>, compute: impl FnOnce() -> T + Send) -> PyResult<T> {
    let result = py.detach(compute);
    match INTERRUPT.lock().unwrap_or_else(PoisonError::into_inner).take() {
        None => Ok(result),
        Some(interrupt) => Err(interrupt),
    }
}

struct ToPython {
    logger: Py<PyAny>,
}

impl<S: Subscriber> Layer<S> for ToPython {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let method = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "info",
        };
        let mut text = Text(String::new());
        event.record(&mut text);
        // Where Python is ending, or its handler fails, nobody can be told.
        let _ = Python::try_attach(|py| match self.logger.call_method1(py, method, ("%s", text.0)) {
            Err(error) if !error.is_instance_of::<PyException>(py) => {
                INTERRUPT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            _ => {}
        });
    }
}

/// The message, and then the fields.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

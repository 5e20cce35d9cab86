//! The life of the server: accepts connections until a signal or the engine's end, then finishes what it has. Knows no
//! requests.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use vllm_apple_engine::EngineHandle;

use super::connection::Connection;
use super::memory::trim_soon;
use super::{App, router};
use crate::served::ServedModel;

/// Time for the last bytes to reach clients once every generation has ended; a client that does not read cannot hold
/// the process longer.
const FLUSH: Duration = Duration::from_secs(5);

/// Time between two calls that end all requests.
const ABORT_AGAIN: Duration = Duration::from_millis(100);

/// A connection is closed after this long without a whole request header: silent connections hold open files, which others need.
const SILENCE: Duration = Duration::from_secs(10);

/// Time between two warnings that there is no place for a connection.
const CROWDED: Duration = Duration::from_secs(10);

/// Most bytes of a request's header, and of what is read ahead: a connection holds them, and they are counted nowhere.
const MAX_HEADER: usize = 32 << 10;

/// After so many connections have been open, memory is given back when the last one is closed.
const MANY: usize = 64;

/// Why a server ended that was not asked to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The task that takes connections is gone.
    #[error("the server takes no more connections: {0}")]
    Connections(String),
    /// The engine's thread is gone.
    #[error("the engine stopped: {0}")]
    EngineDied(String),
    /// The model could not be loaded.
    #[error("{0}")]
    Load(String),
}

/// Serves on `listener` until `shutdown` completes: then takes no more requests, finishes the running ones, or ends them when their time
/// is up, and returns.
/// `load` brings the model; until then requests are told that it is loading.
///
/// # Errors
/// The model cannot be loaded, or the engine dies.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    load: impl Future<Output = Result<Arc<ServedModel>, String>>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let (stop, stopped) = oneshot::channel::<()>();
    let mut connections = tokio::spawn(answer(listener, Arc::clone(&app), stopped));
    let end = tokio::select! {
        end = work(&app, load, shutdown) => end,
        ended = &mut connections => ended.map_err(|panic| ServeError::Connections(panic.to_string())),
    };
    // Fails only if the connections have ended.
    let _ = stop.send(());
    if tokio::time::timeout(FLUSH, &mut connections).await.is_err() {
        tracing::warn!("closing connections that are still open");
        connections.abort();
    }
    end
}

/// Answers on every connection until told to stop, then takes no more and finishes the requests that are being answered.
async fn answer(listener: TcpListener, app: Arc<App>, mut stopped: oneshot::Receiver<()>) {
    let places = Arc::new(Semaphore::new(app.max_connections().min(Semaphore::MAX_PERMITS)));
    let router = router(app);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(SILENCE).max_buf_size(MAX_HEADER);
    let num_open = Arc::new(AtomicUsize::new(0));
    let most_open = Arc::new(AtomicUsize::new(0));
    let open = GracefulShutdown::new();
    let mut told = None;
    loop {
        let (place, stream) = tokio::select! {
            (place, stream) = next(&listener, &places, &mut told) => (place, stream),
            // An error means that the sender is gone, which is the end as well.
            _ = &mut stopped => break,
        };
        let client = Connection::new(stream);
        let connection = http.serve_connection(TokioIo::new(client.clone()), TowerToHyperService::new(router.clone()));
        let connection = open.watch(connection);
        most_open.fetch_max(num_open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let (num_open, most_open) = (Arc::clone(&num_open), Arc::clone(&most_open));
        tokio::spawn(async move {
            // A client that breaks its connection, or its HTTP, concerns nobody else.
            tokio::select! {
                _ = connection => {}
                () = client.closed() => {}
            }
            drop(place);
            if num_open.fetch_sub(1, Ordering::Relaxed) == 1 && most_open.swap(0, Ordering::Relaxed) >= MANY {
                trim_soon();
            }
        });
    }
    drop(listener);
    open.shutdown().await;
}

/// The next connection, once there is a place for it: files are left for the server itself.
async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    told: &mut Option<Instant>,
) -> (OwnedSemaphorePermit, TcpStream) {
    if places.available_permits() == 0 && told.is_none_or(|told| told.elapsed() > CROWDED) {
        tracing::warn!("as many connections are open as there may be (ulimit -n): others wait");
        *told = Some(Instant::now());
    }
    let place = Arc::clone(places).acquire_owned().await.expect("nobody closes it");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A token is sent when it is there, not when the last one has been received. Fails only if the client is gone.
                let _ = stream.set_nodelay(true);
                return (place, stream);
            }
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                tracing::error!("accept error: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Whether the connection broke before it was taken.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// Loads, then serves until told to stop and everything accepted has been generated.
async fn work(
    app: &App,
    load: impl Future<Output = Result<Arc<ServedModel>, String>>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    tokio::pin!(shutdown);
    let model = tokio::select! {
        model = load => model.map_err(ServeError::Load)?,
        () = &mut shutdown => return Ok(()),
    };
    app.set_model(Arc::clone(&model));
    tracing::info!(names = ?model.names, "the model is ready");
    tokio::select! {
        () = &mut shutdown => (),
        reason = model.engine.died() => return Err(ServeError::EngineDied(reason)),
    }
    tracing::info!(running = model.engine.stats().num_running, "finishing the running requests");
    tokio::select! {
        biased;
        // Draining ends with the engine's thread however that ends, so its death is asked for first.
        reason = model.engine.died() => Err(ServeError::EngineDied(reason)),
        () = finish(&model.engine, app.shutdown_timeout()) => Ok(()),
    }
}

/// Finishes the running requests, and ends those that are left after `timeout`: their clients get what there is, and are told.
async fn finish(engine: &EngineHandle, timeout: Option<Duration>) {
    let Some(timeout) = timeout else { return engine.drain().await };
    if tokio::time::timeout(timeout, engine.drain()).await.is_ok() {
        return;
    }
    tracing::warn!(seconds = timeout.as_secs(), "--shutdown-timeout is over: the requests that are left are ended");
    // One that was being queued when the server was asked to stop may come behind the first call.
    while tokio::time::timeout(ABORT_AGAIN, ended(engine)).await.is_err() {}
}

async fn ended(engine: &EngineHandle) {
    engine.abort_all();
    engine.drain().await;
}

/// Completes at the first SIGTERM or SIGINT; the second one ends the process at once.
///
/// # Errors
/// The system gives no signal handler.
pub fn shutdown_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (first, completed) = oneshot::channel();
    tokio::spawn(async move {
        let mut first = Some(first);
        loop {
            // 128 + the signal's number is how shells report a process that a signal ended.
            let status = tokio::select! {
                _ = terminate.recv() => 143,
                _ = interrupt.recv() => 130,
            };
            match first.take() {
                Some(first) => {
                    tracing::info!("asked to stop; a second signal stops at once");
                    // Fails only if nobody waits any more.
                    let _ = first.send(());
                }
                None => std::process::exit(status),
            }
        }
    });
    Ok(async {
        // The sender lives in the task until it has sent.
        let _ = completed.await;
    })
}

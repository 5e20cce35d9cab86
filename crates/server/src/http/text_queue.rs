//! Where requests wait for work on text that takes longer than a network thread should be held: reading a large body, templates, and
//! tokenizing a book.
//! Who waits holds no thread, and a client that leaves takes its request with it. Knows no text.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::memory::Held;
use crate::text::MAX_TEMPLATE_WORKERS;

/// Texts of at least this many bytes wait for each other; shorter ones are tokenized at once.
const LARGE: usize = 64 << 10;

/// Large bodies that are read at once: they leave processors to what is being generated.
const MAX_READ: usize = 1;

/// Large texts that are tokenized at once.
const MAX_LARGE: usize = 4;

/// The places of a server. First come, first served.
#[derive(Debug)]
pub struct TextQueue {
    bodies: Arc<Semaphore>,
    templates: Arc<Semaphore>,
    /// A part of these, so that short conversations find a place beside long ones.
    large_templates: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for TextQueue {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            bodies: places(MAX_READ),
            templates: places(MAX_TEMPLATE_WORKERS),
            large_templates: places(MAX_TEMPLATE_WORKERS.div_ceil(2)),
            large: places(MAX_LARGE),
        }
    }
}

impl TextQueue {
    /// Does work on a body of so many bytes, which keeps its memory counted by itself.
    pub async fn read<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes < LARGE {
            return work();
        }
        let place = place(&self.bodies).await;
        blocking(place, work).await
    }

    /// Does work with a template, on a conversation of so many bytes.
    pub async fn render<T: Send + 'static>(
        &self,
        bytes: usize,
        held: &Held,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let among_large = if bytes >= LARGE { Some(place(&self.large_templates).await) } else { None };
        let place = place(&self.templates).await;
        blocking((among_large, place, held.lease()), work).await
    }

    /// Does work on a text of so many bytes, or on tokens whose text may be as long.
    pub async fn tokenize<T: Send + 'static>(
        &self,
        bytes: usize,
        held: &Held,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = if bytes >= LARGE { Some(place(&self.large).await) } else { None };
        blocking((place, held.lease()), work).await
    }
}

async fn place(places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(places).acquire_owned().await.expect("nobody closes it")
}

/// Runs work on a thread of its own. It goes on when the client leaves, so until it ends it keeps what it `needs`: its place, and its
/// memory counted.
async fn blocking<T: Send + 'static>(
    needs: impl Send + 'static,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let with_needs = move || {
        let _needs = needs;
        work()
    };
    match tokio::task::spawn_blocking(with_needs).await {
        Ok(result) => result,
        Err(error) => Err(ApiError::internal(format!("work on a text failed: {error}"))),
    }
}

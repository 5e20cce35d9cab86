//! Where requests wait for work on text that takes longer than a network thread should be held: reading a large body, templates, and
//! tokenizing a book.
//! Who waits holds no thread, and a client that leaves takes its request with it. Knows no text.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::memory::Held;
use crate::text::MAX_TEMPLATE_WORKERS;

/// Texts of at least this many bytes wait for each other, and large bodies and conversations likewise.
const LARGE: usize = 64 << 10;

/// So do texts of at least this many, among themselves; and shorter ones.
const MEDIUM: usize = 4 << 10;

/// Large bodies that are read at once: they leave processors to what is being generated.
const MAX_READ: usize = 1;

/// Large, medium and short texts that are worked on at once. Medium and short ones never weigh more than what the tokenizer lets through of
/// such, 256 KiB.
const MAX_LARGE: usize = 4;
const MAX_MEDIUM: usize = 3;
const MAX_SHORT: usize = 16;

/// The places of a server. First come, first served.
#[derive(Debug)]
pub struct TextQueue {
    bodies: Arc<Semaphore>,
    templates: Arc<Semaphore>,
    /// A part of these, so that short conversations find a place beside long ones.
    large_templates: Arc<Semaphore>,
    large: Arc<Semaphore>,
    medium: Arc<Semaphore>,
    short: Arc<Semaphore>,
}

impl Default for TextQueue {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            bodies: places(MAX_READ),
            templates: places(MAX_TEMPLATE_WORKERS),
            large_templates: places(MAX_TEMPLATE_WORKERS.div_ceil(2)),
            large: places(MAX_LARGE),
            medium: places(MAX_MEDIUM),
            short: places(MAX_SHORT),
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

    /// Does work on tokens whose text may have so many bytes.
    pub async fn convert<T: Send + 'static>(
        &self,
        bytes: usize,
        held: &Held,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = place(self.places(bytes)).await;
        blocking((place, held.lease()), work).await
    }

    /// Does work on `texts` of so many bytes, in the order of its coming among texts that are about as long when they are tokenized: `weigh`
    /// says how long that is.
    pub async fn tokenize<Texts: Send + 'static, T: Send + 'static>(
        &self,
        bytes: usize,
        held: &Held,
        texts: Texts,
        weigh: impl FnOnce(&Texts) -> usize + Send + 'static,
        work: impl FnOnce(Texts) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let among = self.places(bytes);
        let mut own = place(among).await;
        let mut texts = texts;
        if bytes < LARGE {
            let weight;
            (own, texts, weight) = blocking(held.lease(), move || {
                let weight = weigh(&texts);
                Ok((own, texts, weight))
            })
            .await?;
            let heavier = self.places(weight.max(bytes));
            if !Arc::ptr_eq(among, heavier) {
                drop(own);
                own = place(heavier).await;
            }
        }
        blocking((own, held.lease()), move || work(texts)).await
    }

    /// Where a text of so many bytes waits.
    fn places(&self, bytes: usize) -> &Arc<Semaphore> {
        match bytes {
            LARGE.. => &self.large,
            MEDIUM.. => &self.medium,
            _ => &self.short,
        }
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::http::memory::RequestMemory;

    /// A text that the tokenizer makes long waits with the long ones, and holds no place of others and no thread meanwhile.
    #[tokio::test]
    async fn a_text_waits_among_those_that_weigh_as_much() {
        let queue = Arc::new(TextQueue::default());
        let held = Arc::new(RequestMemory::new(1 << 20).hold());
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        let start = |bytes: usize, weight: usize, waits: bool| {
            let (queue, held, ended) = (Arc::clone(&queue), Arc::clone(&held), Arc::clone(&ended));
            let work = move |()| {
                if waits {
                    let _ = ended.lock().unwrap().recv();
                }
                Ok(())
            };
            tokio::spawn(async move { queue.tokenize(bytes, &held, (), move |()| weight, work).await })
        };
        let long: Vec<_> = (0..MAX_LARGE).map(|_| start(LARGE, LARGE, true)).collect();
        while queue.large.available_permits() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let made_long: Vec<_> = (0..MAX_SHORT + MAX_MEDIUM).map(|_| start(MEDIUM - 1, LARGE, false)).collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(made_long.iter().all(|text| !text.is_finished()));
        assert_eq!((queue.short.available_permits(), queue.medium.available_permits()), (MAX_SHORT, MAX_MEDIUM));
        start(1, 1, false).await.unwrap().unwrap();
        start(1, MEDIUM, false).await.unwrap().unwrap();
        drop(end);
        for text in long.into_iter().chain(made_long) {
            text.await.unwrap().unwrap();
        }
    }
}

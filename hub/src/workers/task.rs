//! The task of a key: makes a worker whenever there is something to read, one after the other.

use std::any::Any;
use std::future::poll_fn;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use tokio::sync::oneshot;

use super::mailbox::{Mailbox, Post};
use super::roster::Departure;

/// Runs the workers of a key until its mailbox has ended and is read.
///
/// `departure` comes first, so that it is dropped last.
pub(super) async fn run<K, T, W, Fut>(
    _departure: Departure<K, T>,
    key: K,
    mut post: Post<K, T>,
    predecessor: Option<oneshot::Receiver<()>>,
    worker: Arc<W>,
) where
    K: Hash + Eq + Clone,
    W: Fn(K, Mailbox<K, T>) -> Fut,
    Fut: Future<Output = ()>,
{
    if let Some(predecessor) = predecessor {
        // It fails when the predecessor is gone.
        let _ = predecessor.await;
    }
    while poll_fn(|cx| post.poll_filled(cx)).await {
        let before = post.taken.load(Relaxed);
        let roster = Arc::clone(&post.roster);
        let (mailbox, returned) = Mailbox::new(post);
        let outcome = catch_panic(async { worker(key.clone(), mailbox).await }).await;
        if let Err(panic) = outcome {
            roster.panicked(&key, message(&*panic));
        }
        // The mailbox may be in another task by now, and comes back when it is dropped.
        let Ok(back) = returned.await else { return };
        post = back;
        if post.taken.load(Relaxed) == before {
            // Otherwise a worker that fails at once would be made for this item over and over
            // again.
            drop(post.inbox.try_recv());
        }
    }
}

/// Runs a future to its end or its panic, and drops it.
async fn catch_panic(future: impl Future<Output = ()>) -> Result<(), Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let answer = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        answer.map_or_else(|panic| Poll::Ready(Err(panic)), |answer| answer.map(Ok))
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

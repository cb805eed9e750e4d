//! The task of a key: makes a worker whenever there is something to read, one after the other.

use std::any::Any;
use std::future::poll_fn;
use std::hash::Hash;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use super::guard::{discard_panic, guarded, message};
use super::mailbox::{Mailbox, Post};
use super::outcome::WorkerOutput;
use super::roster::Departure;

/// Runs the workers of a key until its mailbox has ended and is read.
///
/// `departure` comes first, so that it is dropped last.
pub(super) async fn run<K, T, W, Fut>(
    departure: Departure<K, T>,
    key: K,
    mut post: Post<T>,
    worker: Arc<W>,
) where
    K: Hash + Eq + Clone,
    W: Fn(K, Mailbox<K, T>) -> Fut,
    Fut: Future<Output: WorkerOutput>,
{
    while poll_fn(|cx| post.poll_filled(cx)).await {
        let before = post.taken();
        let (mailbox, returned) = Mailbox::new(post);
        let made = guarded(|| worker(key.clone(), mailbox));
        let outcome = match made {
            Ok(worker) => run_guarded(worker).await,
            Err(panic) => Err(panic),
        };
        report(&departure, &key, outcome);
        // The mailbox may be in another task by now, and comes back when it is dropped.
        let Ok(back) = returned.await else { return };
        post = back;
        if post.taken() == before {
            // Otherwise a worker that fails at once would be made for this item over and over
            // again.
            post.drop_next();
        }
    }
}

/// Runs a future to its end or its panic, and drops it. If that panics, it is the outcome.
async fn run_guarded<Fut: Future>(future: Fut) -> Result<Fut::Output, Box<dyn Any + Send>> {
    let mut future = pin!(Some(future));
    let outcome = poll_fn(|cx| poll_guarded(future.as_mut(), cx)).await;
    match guarded(|| future.set(None)) {
        Ok(()) => outcome,
        Err(panic) => {
            outcome.err().into_iter().for_each(discard_panic);
            Err(panic)
        }
    }
}

fn poll_guarded<Fut: Future>(
    future: Pin<&mut Option<Fut>>,
    cx: &mut Context<'_>,
) -> Poll<Result<Fut::Output, Box<dyn Any + Send>>> {
    let Some(future) = future.as_pin_mut() else { return Poll::Pending };
    match guarded(|| future.poll(cx)) {
        Ok(answer) => answer.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    }
}

/// Counts how a worker has ended, and calls the closures for it. If these panic, it is printed by
/// the panic hook, and that is all.
fn report<K: Hash + Eq + Clone, T, R: WorkerOutput>(
    departure: &Departure<K, T>,
    key: &K,
    outcome: Result<R, Box<dyn Any + Send>>,
) {
    let roster = &departure.roster;
    let told = guarded(|| match outcome {
        Ok(output) => {
            if let Err(error) = output.into_result() {
                roster.failed(key, error);
            }
        }
        Err(panic) => {
            roster.panicked(key, message(&*panic));
            discard_panic(panic);
        }
    });
    if let Err(panic) = told {
        discard_panic(panic);
    }
}

//! Ways from many producers to one consumer, who takes what there is at once.
//!
//! Each is a pair: one that many clone and [`Give`] with, and one that [`Take`]s. When the last
//! giver is gone and all is taken, there is nothing more.

use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crossbeam_queue::SegQueue;
use tokio::sync::{Notify, mpsc};

/// A producer's end.
pub trait Give: Clone + Send + Sync + 'static {
    /// Gives one sample, and may wait until there is room.
    fn give(&self, sample: u64) -> impl Future<Output = ()> + Send;
}

/// The consumer's end.
pub trait Take: Send + 'static {
    /// Waits until there is something, and adds it to `batch`. False: there will be nothing more.
    fn take(&mut self, batch: &mut Vec<u64>) -> impl Future<Output = bool> + Send;
}

impl Give for mpsc::Sender<u64> {
    async fn give(&self, sample: u64) {
        self.send(sample).await.expect("the consumer is here");
    }
}

impl Give for mpsc::UnboundedSender<u64> {
    async fn give(&self, sample: u64) {
        self.send(sample).expect("the consumer is here");
    }
}

/// Takes item by item, as most do.
pub struct OneByOne<T>(pub T);

impl Take for OneByOne<mpsc::Receiver<u64>> {
    async fn take(&mut self, batch: &mut Vec<u64>) -> bool {
        let sample = self.0.recv().await;
        batch.extend(sample);
        sample.is_some()
    }
}

impl Take for OneByOne<mpsc::UnboundedReceiver<u64>> {
    async fn take(&mut self, batch: &mut Vec<u64>) -> bool {
        let sample = self.0.recv().await;
        batch.extend(sample);
        sample.is_some()
    }
}

/// The most that is taken from a channel at once.
const MANY: usize = 4_096;

impl Take for mpsc::Receiver<u64> {
    async fn take(&mut self, batch: &mut Vec<u64>) -> bool {
        self.recv_many(batch, MANY).await > 0
    }
}

impl Take for mpsc::UnboundedReceiver<u64> {
    async fn take(&mut self, batch: &mut Vec<u64>) -> bool {
        self.recv_many(batch, MANY).await > 0
    }
}

/// A buffer behind the standard library's lock, swapped for an empty one by the consumer.
#[must_use]
pub fn swapped() -> (Giver, Taker) {
    let buffer = Arc::new(Mutex::new(Buffer { givers: 1, ..Buffer::default() }));
    (Giver(Arc::clone(&buffer)), Taker(buffer))
}

#[derive(Default)]
struct Buffer {
    samples: Vec<u64>,
    /// The consumer, if it sleeps.
    sleeper: Option<Waker>,
    givers: usize,
}

/// See [`swapped`].
pub struct Giver(Arc<Mutex<Buffer>>);

/// See [`swapped`].
pub struct Taker(Arc<Mutex<Buffer>>);

fn lock(buffer: &Mutex<Buffer>) -> MutexGuard<'_, Buffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Giver {
    /// Changes the buffer, and wakes the consumer once the lock is free again.
    fn change(&self, change: impl FnOnce(&mut Buffer)) {
        let mut buffer = lock(&self.0);
        change(&mut buffer);
        let sleeper = buffer.sleeper.take();
        drop(buffer);
        sleeper.into_iter().for_each(Waker::wake);
    }
}

impl Clone for Giver {
    fn clone(&self) -> Self {
        lock(&self.0).givers += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        self.change(|buffer| buffer.givers -= 1);
    }
}

impl Give for Giver {
    async fn give(&self, sample: u64) {
        self.change(|buffer| buffer.samples.push(sample));
    }
}

impl Taker {
    fn poll_take(&mut self, batch: &mut Vec<u64>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut buffer = lock(&self.0);
        mem::swap(&mut buffer.samples, batch);
        if batch.is_empty() && buffer.givers > 0 {
            buffer.sleeper = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(!batch.is_empty())
    }
}

impl Take for Taker {
    async fn take(&mut self, batch: &mut Vec<u64>) -> bool {
        poll_fn(|cx| self.poll_take(batch, cx)).await
    }
}

/// What [`Notified`] makes a pair of.
pub trait Queue: Default + Send + Sync + 'static {
    /// Adds a sample.
    fn push(&self, sample: u64) -> impl Future<Output = ()> + Send;
    /// Takes all there are.
    fn pop_all(&self, batch: &mut Vec<u64>) -> impl Future<Output = ()> + Send;
}

impl Queue for tokio::sync::Mutex<Vec<u64>> {
    async fn push(&self, sample: u64) {
        self.lock().await.push(sample);
    }

    async fn pop_all(&self, batch: &mut Vec<u64>) {
        mem::swap(&mut *self.lock().await, batch);
    }
}

impl Queue for SegQueue<u64> {
    async fn push(&self, sample: u64) {
        SegQueue::push(self, sample);
    }

    async fn pop_all(&self, batch: &mut Vec<u64>) {
        while batch.len() < MANY
            && let Some(sample) = self.pop()
        {
            batch.push(sample);
        }
    }
}

/// A queue whose consumer is told of news.
#[derive(Default)]
struct Notified<Q> {
    queue: Q,
    news: Notify,
    givers: AtomicUsize,
}

/// A queue of this kind, and somebody who is told when there is something in it.
#[must_use]
pub fn notified<Q: Queue>() -> (impl Give, impl Take) {
    let shared = Arc::new(Notified::<Q>::default());
    (NotifyingGiver::new(&shared), NotifiedTaker(shared))
}

struct NotifyingGiver<Q>(Arc<Notified<Q>>);

struct NotifiedTaker<Q>(Arc<Notified<Q>>);

impl<Q> NotifyingGiver<Q> {
    fn new(shared: &Arc<Notified<Q>>) -> Self {
        shared.givers.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl<Q> Clone for NotifyingGiver<Q> {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl<Q> Drop for NotifyingGiver<Q> {
    fn drop(&mut self) {
        // Release: whoever sees that the last one is gone sees what it has pushed.
        if self.0.givers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.news.notify_one();
        }
    }
}

impl<Q: Queue> Give for NotifyingGiver<Q> {
    async fn give(&self, sample: u64) {
        self.0.queue.push(sample).await;
        self.0.news.notify_one();
    }
}

impl<Q: Queue> Take for NotifiedTaker<Q> {
    async fn take(&mut self, batch: &mut Vec<u64>) -> bool {
        loop {
            let was_last = self.0.givers.load(Ordering::Acquire) == 0;
            self.0.queue.pop_all(batch).await;
            if !batch.is_empty() || was_last {
                return !batch.is_empty();
            }
            self.0.news.notified().await;
        }
    }
}

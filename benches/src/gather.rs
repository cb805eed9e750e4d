//! Queues from many producers to one consumer that takes all samples there are at once.
//!
//! Each is a pair: a [`SampleSender`] that the producers clone, and a [`BatchReceiver`]. The queue
//! is closed when the last sender has been dropped and all samples have been received.

use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crossbeam_queue::SegQueue;
use tokio::sync::{Notify, mpsc};

/// A producer's end.
pub trait SampleSender: Clone + Send + Sync + 'static {
    /// Sends a sample. Waits while the queue is full, if it is bounded.
    fn send_sample(&self, sample: u64) -> impl Future<Output = ()> + Send;
}

/// The consumer's end.
pub trait BatchReceiver: Send + 'static {
    /// Waits for samples and adds them to `batch`. Returns `false` if the queue is closed.
    fn receive_batch(&mut self, batch: &mut Vec<u64>) -> impl Future<Output = bool> + Send;
}

impl SampleSender for mpsc::Sender<u64> {
    async fn send_sample(&self, sample: u64) {
        self.send(sample).await.expect("the receiver is open");
    }
}

impl SampleSender for mpsc::UnboundedSender<u64> {
    async fn send_sample(&self, sample: u64) {
        self.send(sample).expect("the receiver is open");
    }
}

/// Receives one sample at a time.
pub struct OneByOne<T>(pub T);

impl BatchReceiver for OneByOne<mpsc::Receiver<u64>> {
    async fn receive_batch(&mut self, batch: &mut Vec<u64>) -> bool {
        let sample = self.0.recv().await;
        batch.extend(sample);
        sample.is_some()
    }
}

impl BatchReceiver for OneByOne<mpsc::UnboundedReceiver<u64>> {
    async fn receive_batch(&mut self, batch: &mut Vec<u64>) -> bool {
        let sample = self.0.recv().await;
        batch.extend(sample);
        sample.is_some()
    }
}

/// The largest batch that is taken from a channel at once.
const MAX_BATCH: usize = 4_096;

impl BatchReceiver for mpsc::Receiver<u64> {
    async fn receive_batch(&mut self, batch: &mut Vec<u64>) -> bool {
        self.recv_many(batch, MAX_BATCH).await > 0
    }
}

impl BatchReceiver for mpsc::UnboundedReceiver<u64> {
    async fn receive_batch(&mut self, batch: &mut Vec<u64>) -> bool {
        self.recv_many(batch, MAX_BATCH).await > 0
    }
}

/// Returns a buffer in a standard mutex, which the consumer swaps for an empty one.
#[must_use]
pub fn swap_buffer() -> (SwapSender, SwapReceiver) {
    let buffer = Arc::new(Mutex::new(Buffer { senders: 1, ..Buffer::default() }));
    (SwapSender(Arc::clone(&buffer)), SwapReceiver(buffer))
}

#[derive(Default)]
struct Buffer {
    samples: Vec<u64>,
    /// The waker of the consumer, if it waits.
    waker: Option<Waker>,
    senders: usize,
}

/// See [`swap_buffer`].
pub struct SwapSender(Arc<Mutex<Buffer>>);

/// See [`swap_buffer`].
pub struct SwapReceiver(Arc<Mutex<Buffer>>);

fn lock(buffer: &Mutex<Buffer>) -> MutexGuard<'_, Buffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SwapSender {
    /// Updates the buffer, and wakes the consumer after releasing the lock.
    fn update(&self, update: impl FnOnce(&mut Buffer)) {
        let mut buffer = lock(&self.0);
        update(&mut buffer);
        let waker = buffer.waker.take();
        drop(buffer);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Clone for SwapSender {
    fn clone(&self) -> Self {
        lock(&self.0).senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for SwapSender {
    fn drop(&mut self) {
        self.update(|buffer| buffer.senders -= 1);
    }
}

impl SampleSender for SwapSender {
    async fn send_sample(&self, sample: u64) {
        self.update(|buffer| buffer.samples.push(sample));
    }
}

impl SwapReceiver {
    fn poll_receive(&mut self, batch: &mut Vec<u64>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut buffer = lock(&self.0);
        mem::swap(&mut buffer.samples, batch);
        if batch.is_empty() && buffer.senders > 0 {
            buffer.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(!batch.is_empty())
    }
}

impl BatchReceiver for SwapReceiver {
    async fn receive_batch(&mut self, batch: &mut Vec<u64>) -> bool {
        poll_fn(|cx| self.poll_receive(batch, cx)).await
    }
}

/// A queue that [`notify_queue`] makes a pair of ends of.
pub trait Queue: Default + Send + Sync + 'static {
    /// Adds a sample.
    fn push(&self, sample: u64) -> impl Future<Output = ()> + Send;
    /// Moves the samples to `batch`.
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
        while batch.len() < MAX_BATCH
            && let Some(sample) = self.pop()
        {
            batch.push(sample);
        }
    }
}

/// A queue whose consumer is notified of new samples.
#[derive(Default)]
struct NotifyQueue<Q> {
    queue: Q,
    notify: Notify,
    senders: AtomicUsize,
}

/// Returns both ends of a queue whose consumer is notified of new samples.
#[must_use]
pub fn notify_queue<Q: Queue>() -> (impl SampleSender, impl BatchReceiver) {
    let shared = Arc::new(NotifyQueue::<Q>::default());
    (NotifySender::new(&shared), NotifyReceiver(shared))
}

struct NotifySender<Q>(Arc<NotifyQueue<Q>>);

struct NotifyReceiver<Q>(Arc<NotifyQueue<Q>>);

impl<Q> NotifySender<Q> {
    fn new(shared: &Arc<NotifyQueue<Q>>) -> Self {
        shared.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl<Q> Clone for NotifySender<Q> {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl<Q> Drop for NotifySender<Q> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `receive_batch`: a consumer that reads 0 sees all
        // pushes.
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.notify.notify_one();
        }
    }
}

impl<Q: Queue> SampleSender for NotifySender<Q> {
    async fn send_sample(&self, sample: u64) {
        self.0.queue.push(sample).await;
        self.0.notify.notify_one();
    }
}

impl<Q: Queue> BatchReceiver for NotifyReceiver<Q> {
    async fn receive_batch(&mut self, batch: &mut Vec<u64>) -> bool {
        loop {
            let is_closed = self.0.senders.load(Ordering::Acquire) == 0;
            self.0.queue.pop_all(batch).await;
            if !batch.is_empty() || is_closed {
                return !batch.is_empty();
            }
            self.0.notify.notified().await;
        }
    }
}

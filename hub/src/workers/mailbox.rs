//! [`Mailbox`]: what a worker reads.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::sync::oneshot;

use super::mail::Mail;
use super::turns::Turn;

/// The items of a key, for its worker.
///
/// [`for_each_by_key`](super::for_each_by_key) hands it to the worker. It ends when no more items will
/// come: because none came for the [idle time](super::Workers::idle_timeout), because the worker is
/// to make room for another, because the key was [revoked](super::WorkersHandle::revoke), or because
/// the input has ended. A worker should return then; if an item of the key comes later, a new worker
/// is made, which begins when this one has returned.
///
/// A worker may also return earlier. What it has not read is kept for a new worker of the key,
/// which is made as soon as there is something to read and the mailbox of the old one is dropped.
/// So nothing is lost if a worker returns while an item arrives, or after an error.
///
/// # Turns
///
/// With a limit of [`concurrency`](super::Workers::concurrency), a worker gets an item when it is its
/// turn. It keeps the turn until it asks for the next item, returns, or drops the mailbox. So a
/// worker that has handled an item should ask for the next one, not wait for something else.
///
/// In a `select!`, use [`recv`](Self::recv) or [`recv_many`](Self::recv_many): a worker that drops
/// their futures does not take a turn that it cannot use, and keeps its place in line. With
/// [`poll_recv`](Self::poll_recv) or as a [`Stream`], the mailbox stays in line when it is not polled any
/// more, and keeps a turn that it gets in the meantime.
pub struct Mailbox<K, T> {
    post: Option<Post<T>>,
    back: Option<oneshot::Sender<Post<T>>>,
    of: PhantomData<fn() -> K>,
}

impl<K, T> Mailbox<K, T> {
    /// Creates a mailbox that gives the post back when it is dropped.
    pub(super) fn new(post: Post<T>) -> (Self, oneshot::Receiver<Post<T>>) {
        let (back, returned) = oneshot::channel();
        (Self { post: Some(post), back: Some(back), of: PhantomData }, returned)
    }

    /// Waits for the next item. Returns `None` when the worker should return. If it is called
    /// again then, it returns `None` again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken, and the worker
    /// keeps its place in line.
    pub async fn recv(&mut self) -> Option<T> {
        let waiting = Waiting(self.post.as_mut()?);
        poll_fn(|cx| waiting.0.poll_recv(cx)).await
    }

    /// Waits until there is something to read, and appends up to `limit` items to `buffer`.
    ///
    /// Returns how many were appended: 0 if the worker should return, or if `limit` is 0. They are
    /// handled in one turn. Items beyond the mailbox wait in the [backlog](super::Workers::backlog),
    /// so read what can be handled together, for example in one transaction.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken, and the worker
    /// keeps its place in line.
    pub async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
        let Some(post) = self.post.as_mut().filter(|_| limit > 0) else { return 0 };
        let waiting = Waiting(post);
        let before = buffer.len();
        if poll_fn(|cx| waiting.0.poll_filled(cx)).await {
            while buffer.len() - before < limit {
                let Some(item) = waiting.0.take_item() else { break };
                buffer.push(item);
            }
        }
        buffer.len() - before
    }

    /// Returns the next item, if it can be read without waiting for it or for a turn.
    ///
    /// A worker that has a turn keeps it, so that items can be handled together.
    pub fn try_recv(&mut self) -> Option<T> {
        self.post.as_mut()?.try_recv()
    }

    /// The same as [`recv`](Self::recv), for a future that is written by hand.
    ///
    /// If it returns `Pending`, the waker of the last call is woken. See [Turns](Self#turns) if it
    /// may not be called again then.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(post) = &mut self.post else { return Poll::Ready(None) };
        post.poll_recv(cx)
    }

    /// Returns the number of items that wait for the worker: those that can be read without waiting
    /// for another, and those of its key in the [backlog](super::Workers::backlog).
    pub fn len(&self) -> usize {
        self.post.as_ref().map_or(0, |post| post.batch.len() + post.mail.len())
    }

    /// Returns `true` if no item waits for the worker.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K, T> Stream for Mailbox<K, T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.get_mut().poll_recv(cx)
    }
}

impl<K, T> Unpin for Mailbox<K, T> {}

/// Gives what was not read to the next worker.
impl<K, T> Drop for Mailbox<K, T> {
    fn drop(&mut self) {
        if let (Some(mut post), Some(back)) = (self.post.take(), self.back.take()) {
            post.rest();
            // If it fails, the task of the workers of this key is gone.
            drop(back.send(post));
        }
    }
}

impl<K, T> fmt::Debug for Mailbox<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A worker that waits for an item, until this is dropped.
struct Waiting<'a, T>(&'a mut Post<T>);

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.0.step_aside();
    }
}

/// What the workers of a key hand to each other.
#[derive(Debug)]
pub(super) struct Post<T> {
    mail: Arc<Mail<T>>,
    /// Items that were moved here and are still to be read.
    batch: VecDeque<T>,
    /// If their number is limited.
    turn: Option<Turn>,
}

impl<T> Post<T> {
    pub(super) fn new(mail: Arc<Mail<T>>, turn: Option<Turn>) -> Self {
        Self { mail, batch: VecDeque::new(), turn }
    }

    /// How many items were taken.
    pub(super) fn taken(&self) -> u64 {
        self.mail.taken()
    }

    /// Waits until there is something to read and the worker may do so. Completes with `false` if
    /// there will never be anything.
    pub(super) fn poll_filled(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.batch.is_empty() || self.mail.is_over() {
            ready!(self.poll_batch(cx));
            if self.batch.is_empty() {
                return Poll::Ready(false);
            }
        }
        if let Some(turn) = &mut self.turn {
            let answer = turn.poll(cx);
            self.mail.set_in_line(answer.is_pending());
            ready!(answer);
        }
        Poll::Ready(true)
    }

    /// Moves items here. There are none when it completes if there will never be any.
    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.mail.is_over() {
            self.mail.drop_items(self.batch.drain(..));
        }
        let answer = self.mail.poll_take(cx, &mut self.batch);
        if self.batch.is_empty() {
            self.rest();
        }
        answer.map(|_| ())
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let is_filled = ready!(self.poll_filled(cx));
        Poll::Ready(if is_filled { self.take_item() } else { None })
    }

    fn try_recv(&mut self) -> Option<T> {
        if self.mail.is_over() {
            return None;
        }
        if self.batch.is_empty() {
            self.mail.take_now(&mut self.batch);
        }
        if self.batch.is_empty() || !self.turn.as_mut().is_none_or(Turn::try_take) {
            return None;
        }
        self.take_item()
    }

    /// Takes an item that was moved here, for a worker that may do so.
    fn take_item(&mut self) -> Option<T> {
        if self.batch.is_empty() {
            self.mail.take_now(&mut self.batch);
        }
        let item = self.batch.pop_front()?;
        self.mail.count_taken();
        if let Some(turn) = &mut self.turn {
            turn.begin_item();
        }
        Some(item)
    }

    /// Drops the next item, of which a worker could not take anything.
    pub(super) fn drop_next(&mut self) {
        if self.batch.is_empty() {
            self.mail.take_now(&mut self.batch);
        }
        let next = self.batch.pop_front();
        self.mail.drop_items(next);
    }

    /// The worker waits for no item any more.
    fn step_aside(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.step_aside();
            self.mail.set_in_line(false);
        }
    }

    /// The worker needs no turn: it has no item, or is gone.
    fn rest(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.release();
            self.mail.set_in_line(false);
        }
    }
}

/// What was not read is dropped with the task of the key.
impl<T> Drop for Post<T> {
    fn drop(&mut self) {
        self.mail.drop_items(self.batch.drain(..));
    }
}

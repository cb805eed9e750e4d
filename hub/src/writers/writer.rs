//! [`Writer`]: writes the items of a log to a socket or file.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::FusedFuture;
use pin_project_lite::pin_project;
use tokio::io::AsyncWrite;
use tokio::sync::futures::OwnedNotified;
use tokio::task::coop::poll_proceed;

use super::groups::Group;
use super::log::PIECES;
use super::outbox::{OnLost, Outbox};
use super::seat::{Next, Seat, Stop};
use super::shared::SinkEnd;
use super::stall::Stall;
use super::{WriterEnd, Written};

pin_project! {
    /// Writes the items of a log to a socket or file: a future that completes when that has ended.
    /// [`Writers::join`](super::Writers::join) and
    /// [`Hub::attach_writer`](crate::Hub::attach_writer) create it.
    ///
    /// It writes all that has come since its last write with one call, vectored if there are several
    /// pieces. When nothing is left it flushes, and waits until the sink is flushed, or half of the
    /// capacity has come.
    ///
    /// A writer that is too slow loses the oldest items that it has not begun to write, so what is
    /// written are whole items in any case. It can [write a notice](Self::on_lost) in their place.
    /// Of what is not written, it keeps only the item that it is in the middle of, with up to 16 KiB
    /// around it. Everything else is stored once for all writers.
    ///
    /// Nothing is written while the future is not polled. It is the same as a peer that does not
    /// read: the writer loses items, or under [`Wait`](crate::Overflow::Wait) holds up the sink. If
    /// the future is dropped, the writer leaves, and an item may be partly written.
    ///
    /// A writer that waits for items does not notice that its peer is gone: poll it together with
    /// what reads from the peer, and drop it when that ends.
    ///
    /// # Fairness
    ///
    /// On tokio, looking for items counts as one operation of the cooperative budget, so a log that
    /// is never silent lets other tasks run.
    ///
    /// # Panics
    ///
    /// Panics if it is polled after it has completed, or if [`on_lost`](Self::on_lost) panics. With
    /// a [`stall_timeout`](Self::stall_timeout), panics if a write has to wait outside of a tokio
    /// runtime with timers.
    #[must_use = "a writer does nothing unless it is polled, and leaves if it is dropped"]
    pub struct Writer<W> {
        #[pin]
        io: W,
        seat: Seat,
        outbox: Outbox,
        // Wakes the writer when items have come.
        #[pin]
        come: Option<OwnedNotified>,
        // Everything was written, and nothing is until `come` completes.
        is_asleep: bool,
        // Something was written since the last flush.
        is_dirty: bool,
        stall: Stall,
        on_lost: Option<OnLost>,
        // The position at which it ends.
        until: u64,
        lost: u64,
        phase: Phase,
        // Keeps the sink attached to a hub.
        membership: Option<Arc<Group>>,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Writing,
    /// Everything is written, and the I/O object is flushed or shut down.
    Completing(Complete),
    Done,
}

/// Why everything is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Complete {
    Sink(SinkEnd),
    Limit,
}

impl From<Complete> for WriterEnd {
    fn from(complete: Complete) -> Self {
        match complete {
            Complete::Sink(SinkEnd::Closed) => Self::Closed,
            Complete::Sink(SinkEnd::Aborted) => Self::Aborted,
            Complete::Sink(SinkEnd::Unencoded) => Self::Unencoded,
            Complete::Limit => Self::Limit,
        }
    }
}

/// Creation and settings.
impl<W: AsyncWrite> Writer<W> {
    pub(super) fn new(seat: Seat, io: W) -> Self {
        let outbox = Outbox::new(seat.position());
        Self {
            io,
            seat,
            outbox,
            come: None,
            is_asleep: false,
            is_dirty: false,
            stall: Stall::default(),
            on_lost: None,
            until: u64::MAX,
            lost: 0,
            phase: Phase::Writing,
            membership: None,
        }
    }

    /// Makes it a member of a group, which exists while it has members.
    pub(super) fn member(mut self, group: Arc<Group>) -> Self {
        self.membership = Some(group);
        self
    }

    /// Sets what a hub's terms set for each writer.
    pub(crate) fn on_terms(mut self, stall: Option<Duration>, limit: Option<u64>) -> Self {
        if let Some(time) = stall {
            self = self.stall_timeout(time);
        }
        match limit {
            Some(items) => self.limit(items),
            None => self,
        }
    }

    /// Sets what is written in the place of lost items; by default, nothing is.
    ///
    /// `notice` gets the number of items that are missing, and appends what the peer is to read to
    /// the buffer. It is called between two items, when they are about to be written, so further
    /// losses are told by another notice.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::Write;
    /// use futures::{FutureExt, SinkExt};
    /// use stream_demux_hub::writers;
    ///
    /// let (mut sink, writers) = writers(2, |n: u32, bytes: &mut Vec<u8>| writeln!(bytes, "{n}"));
    /// let mut written = Vec::new();
    /// let writer = writers.join(&mut written).on_lost(|lost, bytes| {
    ///     bytes.extend_from_slice(format!("({lost} lines are missing)\n").as_bytes());
    /// });
    /// # let mut sink = futures::SinkExt::<u32>::sink_map_err(sink, drop);
    /// # futures::executor::block_on(async {
    /// for n in 1..=5 {
    ///     sink.send(n).await.unwrap();
    /// }
    /// sink.close().await.unwrap();
    /// writer.await; // it was not polled before
    /// # });
    /// assert_eq!(written, b"(3 lines are missing)\n4\n5\n");
    /// ```
    pub fn on_lost(mut self, notice: impl FnMut(u64, &mut Vec<u8>) + Send + 'static) -> Self {
        self.on_lost = Some(Box::new(notice));
        self
    }

    /// Ends the writer as [`Stalled`](WriterEnd::Stalled) if a write, a flush or the shutdown of the
    /// I/O object makes no progress for so long; the default is no time-out.
    ///
    /// Without it, the peer that reads nothing keeps its connection, at the cost of one item.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::Write;
    /// use std::time::Duration;
    /// use futures::SinkExt;
    /// use stream_demux_hub::{WriterEnd, writers};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let (mut sink, writers) = writers(16, |n: u32, bytes: &mut Vec<u8>| writeln!(bytes, "{n}"));
    /// let (server, client) = tokio::io::duplex(3); // usually a `TcpStream`
    /// let writer = writers.join(server).stall_timeout(Duration::from_millis(20));
    /// sink.feed(1_000).await.unwrap();
    /// sink.flush().await.unwrap();
    ///
    /// let written = writer.await;
    /// assert!(matches!(written.end, WriterEnd::Stalled));
    /// assert_eq!((written.items, written.bytes, written.unwritten), (0, 3, 1));
    /// # drop(client);
    /// # }
    /// ```
    pub fn stall_timeout(mut self, time: Duration) -> Self {
        self.stall = Stall::after(time);
        self
    }

    /// Ends the writer as [`Limit`](WriterEnd::Limit) after this number of items, written or lost,
    /// from now on; the default is no limit.
    ///
    /// It leaves the sink when it has taken the last of them. What is left of that item is written
    /// then, and the I/O object is shut down, without the sink waiting for it.
    pub fn limit(mut self, items: u64) -> Self {
        self.until = self.outbox.taken().saturating_add(items);
        self
    }

    /// Returns how many items were written completely.
    pub fn items(&self) -> u64 {
        self.outbox.items()
    }

    /// Returns how many items this writer has lost so far. What it has not noticed yet, because it
    /// waits for its I/O object, does not count.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

/// Writing.
impl<W: AsyncWrite> Writer<W> {
    /// Writes until there will be nothing more. Fails if the writer ends before that.
    fn poll_items(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Complete, WriterEnd>> {
        loop {
            if self.as_mut().poll_asleep(cx) {
                return match ready!(self.poll_flush(cx)) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(WriterEnd::Failed(error))),
                };
            }
            if self.outbox.taken() >= self.until {
                // The rest of the last item is its own: the sink does not wait for that, nor for the
                // shutdown.
                self.as_mut().leave();
                if self.outbox.is_empty() {
                    return Poll::Ready(Ok(Complete::Limit));
                }
            }
            // If the budget is spent, nothing is taken.
            ready!(poll_proceed(cx)).made_progress();
            let mut this = self.as_mut().project();
            match this.seat.look(this.outbox, *this.until) {
                Next::Write(missing) => {
                    *this.lost += missing;
                    this.outbox.miss(missing);
                }
                Next::Evicted(missing) => {
                    *this.lost += missing;
                    return Poll::Ready(Err(WriterEnd::Overflowed));
                }
                Next::End(end) => return Poll::Ready(Ok(Complete::Sink(end))),
                Next::Sleep(come) => {
                    this.come.set(Some(come));
                    *this.is_asleep = true;
                    // What the I/O object did not take may be lost by now.
                    this.stall.end();
                    continue;
                }
            }
            this.outbox.tell(this.on_lost.as_mut());
            if let Err(error) = ready!(self.as_mut().poll_outbox(cx)) {
                return Poll::Ready(Err(WriterEnd::Failed(error)));
            }
        }
    }

    /// Returns `true` if the writer waits for items.
    fn poll_asleep(self: Pin<&mut Self>, cx: &mut Context<'_>) -> bool {
        let mut this = self.project();
        let Some(come) = this.come.as_mut().as_pin_mut() else { return false };
        if come.poll(cx).is_pending() {
            return *this.is_asleep;
        }
        this.come.set(None);
        *this.is_asleep = false;
        false
    }

    /// Writes once.
    fn poll_outbox(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.as_mut().project();
        let mut room = [IoSlice::new(&[]); PIECES + 2];
        let answer = match this.outbox.slices(&mut room) {
            // Items without bytes.
            [] => {
                this.outbox.written(0);
                return Poll::Ready(Ok(()));
            }
            [slice] => this.io.poll_write(cx, slice),
            slices => this.io.poll_write_vectored(cx, slices),
        };
        let Poll::Ready(written) = answer else {
            this.outbox.clear();
            this.stall.begin();
            return self.poll_stopped(cx).map(Ok);
        };
        let bytes = written?;
        if bytes == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        this.outbox.written(bytes);
        this.stall.end();
        *this.is_dirty = true;
        Poll::Ready(Ok(()))
    }

    /// The I/O object takes no more bytes. Completes if the writer has to look again before it does.
    fn poll_stopped(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        match this.seat.stop(this.outbox.taken()) {
            Stop::UntilWritable => Poll::Pending,
            Stop::Behind => Poll::Ready(()),
            Stop::UntilEvicted(come) => {
                this.come.set(Some(come));
                let come = this.come.as_pin_mut().expect("it was just set");
                come.poll(cx)
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        if *this.is_dirty {
            let Poll::Ready(answer) = this.io.poll_flush(cx) else {
                this.stall.begin();
                return Poll::Pending;
            };
            answer?;
            this.stall.end();
            *this.is_dirty = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Flushes the I/O object, or shuts it down if nothing is missing.
    fn poll_complete(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        complete: Complete,
    ) -> Poll<io::Result<()>> {
        if matches!(complete, Complete::Sink(SinkEnd::Aborted | SinkEnd::Unencoded)) {
            return self.poll_flush(cx);
        }
        let this = self.project();
        let answer = this.io.poll_shutdown(cx);
        if answer.is_pending() {
            this.stall.begin();
        }
        answer
    }

    /// Leaves the log and the group, if it has not left. Returns how many items it had to write yet.
    fn leave(self: Pin<&mut Self>) -> u64 {
        let this = self.project();
        let rest = this.seat.leave(this.outbox.taken(), *this.until);
        *this.lost += rest.lost;
        *this.membership = None;
        rest.unwritten
    }

    fn finish(mut self: Pin<&mut Self>, end: WriterEnd) -> Written {
        let unwritten = self.as_mut().leave();
        let this = self.project();
        let partial = u64::from(this.outbox.is_within_item());
        this.outbox.clear();
        *this.phase = Phase::Done;
        Written {
            end,
            items: this.outbox.items(),
            bytes: this.outbox.bytes(),
            lost: *this.lost,
            unwritten: partial + unwritten,
        }
    }
}

impl<W: AsyncWrite> Future for Writer<W> {
    type Output = Written;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Written> {
        if self.phase == Phase::Writing {
            match self.as_mut().poll_items(cx) {
                Poll::Pending => {}
                Poll::Ready(Err(end)) => return Poll::Ready(self.finish(end)),
                Poll::Ready(Ok(complete)) => {
                    *self.as_mut().project().phase = Phase::Completing(complete);
                }
            }
        }
        if let Phase::Completing(complete) = self.phase {
            let answer = self.as_mut().poll_complete(cx, complete);
            if let Poll::Ready(answer) = answer {
                let end = answer.map_or_else(WriterEnd::Failed, |()| complete.into());
                return Poll::Ready(self.finish(end));
            }
        }
        assert!(self.phase != Phase::Done, "`Writer` was polled after it had completed");
        ready!(self.as_mut().project().stall.poll(cx));
        Poll::Ready(self.finish(WriterEnd::Stalled))
    }
}

impl<W: AsyncWrite> FusedFuture for Writer<W> {
    fn is_terminated(&self) -> bool {
        self.phase == Phase::Done
    }
}

impl<W> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("items", &self.outbox.items())
            .field("bytes", &self.outbox.bytes())
            .field("lost", &self.lost)
            .field("is_asleep", &self.is_asleep)
            .field("stall", &self.stall)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

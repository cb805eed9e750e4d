//! What can be seen of a [`Demux`] between two polls.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::pin::Pin;
use core::time::Duration;

use futures_core::Stream;

use super::{Demux, KeyOf};
use crate::hooks::Recipient;
use crate::order::{IntoOrder, Orders};
use crate::slots::slot::Slot;
use crate::totals::Totals;

/// Methods that inspect a demux, and [`elapse`](Self::elapse), at any time between two polls.
impl<St, F, O, H, B> Demux<St, F, O, H, B>
where
    St: Stream,
    O: Orders,
    O::Order: IntoOrder,
{
    /// Returns the counts of what the demux has done so far.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (items, input) = mpsc::unbounded();
    /// let mut demux = input.demux_by(|&key| key, stream::iter([("a", sink::drain())]));
    /// items.unbounded_send("a").unwrap();
    /// items.unbounded_send("b").unwrap();
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!((demux.totals().delivered, demux.totals().unmatched), (1, 1));
    /// ```
    pub fn totals(&self) -> Totals {
        self.router.totals()
    }

    /// Returns the number of attachments that are receiving.
    ///
    /// Attachments that are draining or closing do not count. Orders that the demux has not read
    /// do not count either.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain()), ("b", sink::drain())]);
    /// let mut demux = stream::pending::<&str>().demux_by(|&key| key, orders);
    /// assert_eq!(demux.len(), 0);
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!(demux.len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        self.router.slots().len()
    }

    /// Returns `true` if no attachment is receiving.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let mut demux = stream::pending::<&str>().demux_by(|&key| key, orders);
    /// assert!(demux.is_empty());
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!(!demux.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of attachments that no longer receive and are not closed yet: they are
    /// being drained, flushed or closed.
    ///
    /// # Examples
    ///
    /// Ends a rolling restart when the last old connection is closed:
    ///
    /// ```
    /// use core::future::poll_fn;
    /// use core::task::Poll;
    /// use futures::{FutureExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{DemuxStreamExt, Order};
    ///
    /// let (orders, orders_in) = mpsc::unbounded::<Order<u32, mpsc::Sender<u32>>>();
    /// let (sink, received) = mpsc::channel(1);
    /// let mut demux = stream::pending().demux_by(|&n| n, orders_in);
    ///
    /// orders.unbounded_send((1, sink).into()).unwrap();
    /// orders.unbounded_send(Order::Detach(1)).unwrap();
    /// block_on(poll_fn(|cx| {
    ///     let _ = demux.poll_unpin(cx);
    ///     if demux.draining() == 0 { Poll::Ready(()) } else { Poll::Pending }
    /// }));
    /// assert_eq!((demux.len(), demux.totals().detached), (0, 1));
    /// # drop(received);
    /// ```
    pub fn draining(&self) -> usize {
        self.router.slots().leaving()
    }

    /// Returns the attachments that receive items now, in no particular order.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, StreamExt, channel::mpsc, stream};
    /// use stream_demux::{Attach, DemuxStreamExt};
    ///
    /// let (sink, _received) = mpsc::channel::<u32>(1);
    /// let orders = stream::iter([Attach::new(7, sink).tag(42)]).chain(stream::pending());
    /// let mut demux = stream::pending().demux_by(|&n| n, orders);
    /// assert!((&mut demux).now_or_never().is_none());
    ///
    /// let recipients: Vec<_> = demux.recipients().map(|to| (*to.key, to.tag)).collect();
    /// assert_eq!(recipients, [(7, 42)]);
    /// ```
    pub fn recipients(&self) -> impl Iterator<Item = Recipient<'_, KeyOf<O>>> {
        self.router.slots().recipients(Slot::receives)
    }

    /// Returns the attachments that no longer receive items and are not closed yet, in no
    /// particular order. Their number is [`draining`](Self::draining).
    ///
    /// If the future does not complete after the end of the input, these are the sinks that it
    /// waits for.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (sink, _not_read) = mpsc::channel(0); // takes one item
    /// let mut demux = stream::iter([1, 1]).demux_by(|&n| n, stream::iter([(1, sink)])).buffer(8);
    /// while (&mut demux).now_or_never().is_none() && demux.len() > 0 {}
    ///
    /// let hangs: Vec<_> = demux.leaving().map(|to| *to.key).collect();
    /// assert_eq!(hangs, [1]);
    /// ```
    pub fn leaving(&self) -> impl Iterator<Item = Recipient<'_, KeyOf<O>>> {
        self.router.slots().recipients(|slot| !slot.receives())
    }

    /// Returns the number of items that are queued for the receiving attachments of a key.
    ///
    /// Use it to pause a source before its queue is full. Items that a sink has taken do not count.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, StreamExt, channel::mpsc, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (sink, _not_read) = mpsc::channel(0); // takes one item
    /// let input = stream::iter([1, 1, 1]).chain(stream::pending());
    /// let mut demux = input.demux_by(|&n| n, stream::iter([(1, sink)])).buffer(8);
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!((demux.queue_len(&1), demux.queue_len(&2)), (2, 0));
    /// ```
    pub fn queue_len<Q>(&self, key: &Q) -> usize
    where
        KeyOf<O>: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        B: BuildHasher,
    {
        self.router.slots().queued_under(key)
    }

    /// Returns a reference to the hooks. See [`hooks_mut`](Self::hooks_mut) for an example.
    pub fn hooks_ref(&self) -> &H {
        self.router.hooks()
    }

    /// Returns a mutable reference to the hooks.
    ///
    /// # Examples
    ///
    /// Reads what the hooks have counted between two polls, and starts anew:
    ///
    /// ```
    /// use futures::{FutureExt, StreamExt, channel::mpsc, stream};
    /// use stream_demux::{DemuxStreamExt, Hooks};
    ///
    /// #[derive(Default)]
    /// struct Unmatched(u64);
    ///
    /// impl<K, V, E> Hooks<K, V, E> for Unmatched {
    ///     fn unmatched(&mut self, _item: V) {
    ///         self.0 += 1;
    ///     }
    /// }
    ///
    /// let orders = stream::pending::<(u32, mpsc::Sender<u32>)>();
    /// let input = stream::iter([1, 2, 3]).chain(stream::pending());
    /// let mut demux = input.demux_by(|&n| n, orders).hooks(Unmatched::default());
    /// assert!((&mut demux).now_or_never().is_none());
    ///
    /// assert_eq!(demux.hooks_ref().0, 3);
    /// assert_eq!(std::mem::take(&mut demux.hooks_mut().0), 3);
    /// ```
    pub fn hooks_mut(&mut self) -> &mut H {
        self.router.hooks_mut()
    }

    /// Returns `true` if an attachment with this key is receiving.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let mut demux = stream::pending::<&str>().demux_by(|&key| key, orders);
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!(demux.contains_key("a"));
    /// assert!(!demux.contains_key("b"));
    /// ```
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        KeyOf<O>: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        B: BuildHasher,
    {
        self.router.slots().receiver(key).is_some()
    }

    /// Returns the number of attachments with this key that are receiving: 0 or 1, or more with
    /// [`multicast`](Self::multicast) or [`balance`](Self::balance).
    ///
    /// Takes as long as looking up the key, however many there are.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain()), ("a", sink::drain())]);
    /// let mut demux = stream::pending::<&str>().demux_by(|&key| key, orders).multicast();
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!((demux.receivers("a"), demux.receivers("b")), (2, 0));
    /// ```
    pub fn receivers<Q>(&self, key: &Q) -> usize
    where
        KeyOf<O>: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        B: BuildHasher,
    {
        self.router.slots().receivers(key)
    }

    /// Returns the recipient that the input waits for, if it is blocked.
    ///
    /// This is the attachment that was last passed to [`Hooks::blocked`](crate::Hooks::blocked),
    /// unless [`Hooks::unblocked`](crate::Hooks::unblocked) was called since.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (sink, _received) = mpsc::channel(0); // takes one item before it is read
    /// let mut demux = stream::iter([1, 2]).demux_by(|_| "a", stream::iter([("a", sink)]));
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!(demux.blocked_on().map(|to| *to.key), Some("a"));
    /// ```
    pub fn blocked_on(&self) -> Option<Recipient<'_, KeyOf<O>>> {
        self.router.blocked_on()
    }

    /// Returns a reference to the input.
    ///
    /// The demux keeps the input until the future is dropped, even after the input has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{Stream, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let demux = stream::iter([1, 2, 3]).demux_by(|_| "a", orders);
    /// assert_eq!(demux.get_ref().size_hint(), (3, Some(3)));
    /// ```
    pub fn get_ref(&self) -> &St {
        &self.input
    }

    /// Returns a mutable reference to the input.
    ///
    /// Items taken here are neither routed nor counted. If you poll the input here, poll the demux
    /// afterwards; otherwise the next item may not wake it.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{channel::mpsc, executor::block_on, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (items, input) = mpsc::unbounded();
    /// let mut demux = input.demux_by(|&key| key, stream::iter([("a", sink::drain())]));
    /// items.unbounded_send("a").unwrap();
    ///
    /// demux.get_mut().close(); // what was sent is still routed
    /// assert_eq!(block_on(demux).delivered, 1);
    /// ```
    pub fn get_mut(&mut self) -> &mut St {
        &mut self.input
    }

    /// Returns a pinned mutable reference to the input.
    ///
    /// Items taken here are neither routed nor counted. If you poll the input here, poll the demux
    /// afterwards; otherwise the next item may not wake it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::pin::pin;
    ///
    /// use futures::{StreamExt, executor::block_on, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let mut demux = pin!(stream::iter([1, 2, 3]).demux_by(|_| "a", orders));
    ///
    /// block_on(demux.as_mut().get_pin_mut().next()); // skips an item
    /// assert_eq!(block_on(demux).received, 2);
    /// ```
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut St> {
        self.project().input
    }

    /// Counts time that has passed since the last call, so that no flush waits long.
    ///
    /// Call it before each poll. The demux has no clock: before it flushes many sinks, it waits for
    /// a number of items, or for a number of turns. If an item takes long to make, or if other tasks
    /// of the runtime compute, that may be seconds. If it counts time, a sink is flushed in the
    /// first poll after about 33 µs for each sink that waits for a flush: after 3 ms if a hundred
    /// wait, and after 0.1 ms if few do. A flush of some microseconds, such as a system call, then
    /// takes a small part of the time.
    ///
    /// The time for which the task sleeps counts as well, and does no harm, because no flush waits
    /// then: see [`has_unflushed`](Self::has_unflushed). With [`linger`](Self::linger), this method
    /// has no effect, because flushes wait for ticks.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::poll_fn, mem, pin::pin, time::Instant};
    /// use futures::{channel::mpsc, executor::block_on, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (sink, _received) = mpsc::channel(8);
    /// let demux = stream::iter(["a"]).demux_by(|&key| key, stream::iter([("a", sink)]));
    ///
    /// let mut demux = pin!(demux);
    /// let mut last = Instant::now();
    /// let routing = poll_fn(|cx| {
    ///     let now = Instant::now();
    ///     demux.as_mut().elapse(now - mem::replace(&mut last, now));
    ///     demux.as_mut().poll(cx)
    /// });
    /// assert_eq!(block_on(routing).delivered, 1);
    /// ```
    pub fn elapse(self: Pin<&mut Self>, time: Duration) {
        self.project().router.elapse(time);
    }

    /// Returns `true` if a sink that took an item is still to be flushed.
    ///
    /// If none is, time does not matter, and you need no clock for [`elapse`](Self::elapse). A sink
    /// that has left since may still count.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (items, input) = mpsc::unbounded();
    /// let orders = stream::iter((0..100).map(|key| (key, sink::drain())));
    /// let mut demux = input.demux_by(|&key| key, orders);
    ///
    /// (0..100).for_each(|key| items.unbounded_send(key).unwrap());
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!(demux.has_unflushed(), "it waits for more items that share the flushes");
    /// # let mut turns = 0;
    /// while demux.has_unflushed() {
    ///     assert!((&mut demux).now_or_never().is_none());
    /// #   turns += 1;
    /// #   assert!(turns < 1_000);
    /// }
    /// ```
    pub fn has_unflushed(&self) -> bool {
        self.router.has_unflushed()
    }
}

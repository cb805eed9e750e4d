//! What a [`Demux`] calls when something happens: [`Hooks`], or closures for the most common
//! events.

use futures_core::Stream;

use super::{Demux, ErrorOf, KeyOf, SinkOf};
use crate::hooks::{Callbacks, Discarded, Hooks, Recipient};
use crate::order::{Attachable, IntoOrder, Orders};

/// A value whose methods are called for every event.
impl<St, F, O, B> Demux<St, F, O, Callbacks, B>
where
    St: Stream,
    O: Orders,
    O::Order: IntoOrder,
{
    /// Sets the [`Hooks`] to call, by value or as `&mut hooks`.
    ///
    /// They are dropped with the demux. What a spawned demux is to tell at the end, keep in an
    /// `Arc`, or log it in [`Hooks::detached`].
    ///
    /// For a single kind of event, a closure is shorter: see [`on_error`](Self::on_error),
    /// [`on_unmatched`](Self::on_unmatched), [`on_discarded`](Self::on_discarded) and
    /// [`admit`](Self::admit). A demux has either hooks or closures: after one of them is set, the
    /// methods that set the other do not exist, and rustc says "method not found". Implement the
    /// method of [`Hooks`] instead of the closure.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::{DemuxStreamExt, Hooks, Recipient};
    ///
    /// struct Attached(Vec<u32>);
    ///
    /// impl<V, E> Hooks<u32, V, E> for Attached {
    ///     fn attached(&mut self, to: Recipient<'_, u32>) {
    ///         self.0.push(*to.key);
    ///     }
    /// }
    ///
    /// let mut attached = Attached(Vec::new());
    /// let orders = stream::iter([(1, sink::drain()), (2, sink::drain())]);
    /// block_on(stream::iter([1]).demux_by(|&n| n, orders).hooks(&mut attached));
    /// assert_eq!(attached.0, [1, 2]);
    /// ```
    pub fn hooks<H>(self, hooks: H) -> Demux<St, F, O, H, B>
    where
        SinkOf<O>: Attachable<St::Item>,
        H: Hooks<KeyOf<O>, St::Item, ErrorOf<O, St::Item>>,
    {
        self.map_hooks(|_| hooks)
    }
}

/// Closures for the most common events. Setting a closure again replaces the earlier one.
impl<St, F, O, E, U, D, A, B> Demux<St, F, O, Callbacks<E, U, D, A>, B>
where
    St: Stream,
    O: Orders,
    O::Order: IntoOrder,
{
    /// Sets a closure that is called with the error of a sink that failed.
    ///
    /// The sink has been dropped when the closure is called. All other sinks go on.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{channel::mpsc, executor::block_on, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let mut failed = Vec::new();
    /// let (sink, received) = mpsc::unbounded();
    /// drop(received);
    ///
    /// let demux = stream::iter([1]).demux_by(|_| "a", stream::iter([("a", sink)]));
    /// block_on(demux.on_error(|to, error| {
    ///     assert!(error.is_disconnected());
    ///     failed.push(*to.key);
    /// }));
    /// assert_eq!(failed, ["a"]);
    /// ```
    pub fn on_error<C>(self, on_error: C) -> Demux<St, F, O, Callbacks<C, U, D, A>, B>
    where
        SinkOf<O>: Attachable<St::Item>,
        C: FnMut(Recipient<'_, KeyOf<O>>, ErrorOf<O, St::Item>),
    {
        self.map_hooks(|hooks| hooks.with_on_error(on_error))
    }

    /// Sets a closure that is called with each item whose key is not attached.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let mut unmatched = Vec::new();
    /// let orders = stream::iter([(1, sink::drain())]);
    /// let demux = stream::iter([1, 2, 3]).demux_by(|&n| n, orders);
    /// block_on(demux.on_unmatched(|n| unmatched.push(n)));
    /// assert_eq!(unmatched, [2, 3]);
    /// ```
    pub fn on_unmatched<C>(self, on_unmatched: C) -> Demux<St, F, O, Callbacks<E, C, D, A>, B>
    where
        C: FnMut(St::Item),
    {
        self.map_hooks(|hooks| hooks.with_on_unmatched(on_unmatched))
    }

    /// Sets a closure that is called with each item that is not sent to its recipient, and the
    /// reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, stream};
    /// use stream_demux::{DemuxStreamExt, Discarded, Overflow};
    ///
    /// let mut discarded = Vec::new();
    /// let (sink, _received) = mpsc::channel(0); // takes one item before it is read
    /// let mut demux = stream::iter(1..=4)
    ///     .demux_by(|_| "a", stream::iter([("a", sink)]))
    ///     .buffer(1)
    ///     .overflow(Overflow::DropNewest)
    ///     .on_discarded(|to, item, why| discarded.push((*to.key, item, why)));
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!((&mut demux).now_or_never().is_none()); // still not ready: the sink is full
    /// drop(demux);
    /// assert_eq!(discarded, [3, 4].map(|item| ("a", item, Discarded::Overflowed)));
    /// ```
    pub fn on_discarded<C>(self, on_discarded: C) -> Demux<St, F, O, Callbacks<E, U, C, A>, B>
    where
        C: FnMut(Recipient<'_, KeyOf<O>>, St::Item, Discarded),
    {
        self.map_hooks(|hooks| hooks.with_on_discarded(on_discarded))
    }

    /// Sets a closure that decides whether a recipient gets an item.
    ///
    /// It is called once per item and recipient. If it returns `false`, the item is discarded
    /// ([`Discarded::NotAdmitted`]). For example, `|to, _| limiter.check_key(to.key).is_ok()`
    /// limits the rate per key, with a rate limiter of the `governor` crate.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::{DemuxStreamExt, Discarded};
    ///
    /// let (mut offered, mut refused) = (0, 0);
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let demux = stream::iter(0..10)
    ///     .demux_by(|_| "a", orders)
    ///     .admit(|_to, _item| { offered += 1; offered <= 4 })
    ///     .on_discarded(|_to, _item, why| {
    ///         assert_eq!(why, Discarded::NotAdmitted);
    ///         refused += 1;
    ///     });
    /// assert_eq!(block_on(demux).delivered, 4);
    /// assert_eq!(refused, 6);
    /// ```
    pub fn admit<C>(self, admit: C) -> Demux<St, F, O, Callbacks<E, U, D, C>, B>
    where
        C: FnMut(Recipient<'_, KeyOf<O>>, &St::Item) -> bool,
    {
        self.map_hooks(|hooks| hooks.with_admit(admit))
    }
}

//! The settings of a [`Demux`], made before it is polled.

use core::hash::{BuildHasher, Hash};

use futures_core::Stream;

use super::{Demux, ErrorOf, KeyOf, SinkOf};
use crate::budget::Budget;
use crate::hooks::{Callbacks, Discarded, Hooks, Recipient};
use crate::key::OrAttach;
use crate::order::{Attach, Attachable, IntoOrder, Overflow};
use crate::slots::Slots;

type SlotsOf<St, O, B> = Slots<KeyOf<O>, SinkOf<O>, <St as Stream>::Item, B>;

/// Settings, to be made before the first poll: later ones hold for what comes after them.
impl<St, F, O, H, B> Demux<St, F, O, H, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder,
{
    /// How much one call of `poll` may do before it lets other tasks run: items read, orders applied,
    /// items moved out of a queue, woken sinks looked after, flushes, sinks told of the end, each counting
    /// one, and an item for several sinks one for each. 128 unless set. See
    /// [Fairness](crate#fairness) for what is not bounded by it.
    ///
    /// # Panics
    ///
    /// If `items` is 0.
    #[track_caller]
    pub fn budget(mut self, items: usize) -> Self {
        assert!(items > 0, "a budget of 0 items would never route one");
        self.budget = Budget::new(items);
        self
    }

    /// How many items may wait for a sink, unless its [`Attach`](crate::Attach::buffer) says
    /// otherwise. 0 unless set, which means 1 under [`Overflow::DropNewest`] and
    /// [`Overflow::DropOldest`].
    pub fn buffer(mut self, items: usize) -> Self {
        self.router.set_buffer(items);
        self
    }

    /// What happens when that many wait, unless the [`Attach`](crate::Attach::overflow) says
    /// otherwise. [`Overflow::Wait`] unless set.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.router.set_overflow(overflow);
        self
    }

    /// How many further items are read from a busy input, at most, before a sink that took one is
    /// flushed. 16,384 unless set. When the input has nothing ready, sinks are flushed at once, or a few turns
    /// later if there are more than 16, whatever this says. More than 2³¹ items are 2³¹.
    ///
    /// Few items let a sink's last item wait less while others are busy; many let more items share a
    /// flush. With many more busy keys than this, nearly every item has a flush of its own, and a small
    /// number lets it wait less and costs nothing.
    ///
    /// # Panics
    ///
    /// If `items` is 0.
    #[track_caller]
    pub fn flush_every(mut self, items: usize) -> Self {
        assert!(items > 0, "flushing every 0 items would leave no item to flush");
        self.router.set_flush_window(items);
        self
    }

    /// Evicts a sink at the `ticks`th [tick](crate::Order::Tick) at which something waits for it and
    /// nothing has moved, unless the [`Attach`](crate::Attach::stall_timeout), which says more, sets
    /// another number. 0, no time-out, unless set.
    pub fn stall_timeout(mut self, ticks: u32) -> Self {
        self.router.set_stall_timeout(ticks);
        self
    }

    /// Detaches a sink gracefully at the `ticks`th [tick](crate::Order::Tick) without an item, unless the
    /// [`Attach`](crate::Attach::idle_timeout), which says more, sets another number. 0, no time-out,
    /// unless set.
    pub fn idle_timeout(mut self, ticks: u32) -> Self {
        self.router.set_idle_timeout(ticks);
        self
    }

    /// Flushes sinks at the `ticks`th [tick](crate::Order::Tick) after the input has had nothing ready,
    /// instead of at once: more items share a flush, and each waits longer. 0, at once, unless set.
    ///
    /// Ticks are counted from the moment when the input has nothing ready and a sink took an item that is
    /// not flushed. Further items do not start the count anew. [`flush_every`](Self::flush_every) applies
    /// as well. Sinks are flushed at once while the input waits for a sink, after its end, and when the
    /// orders stream has ended, as no tick can come then.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, StreamExt, channel::mpsc, stream};
    /// use stream_demux::{DemuxStreamExt, Order};
    ///
    /// let (sink, mut received) = mpsc::channel(8);
    /// let (orders, orders_in) = mpsc::unbounded();
    /// orders.unbounded_send(Order::from((1, sink.buffer(8)))).unwrap();
    /// # use futures::SinkExt;
    ///
    /// let input = stream::iter([1]).chain(stream::pending());
    /// let mut demux = input.demux_by(|&n| n, orders_in).linger(1);
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!(received.next().now_or_never().is_none(), "the item is in the buffer");
    ///
    /// orders.unbounded_send(Order::Tick).unwrap();
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!(received.next().now_or_never(), Some(Some(1)));
    /// ```
    pub fn linger(mut self, ticks: u32) -> Self {
        self.router.set_linger(ticks);
        self
    }

    /// A key may have many sinks: an attachment joins those that are there instead of replacing them.
    /// Each gets its own clone of an item, the last one the item itself; see
    /// [Attachments](crate#attachments) for what happens when some are not ready.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (left, left_out) = mpsc::unbounded();
    /// let (right, right_out) = mpsc::unbounded();
    /// let orders = stream::iter([("news", left), ("news", right)]);
    /// let totals = block_on(stream::iter(["hello"]).demux_by(|_| "news", orders).multicast());
    ///
    /// assert_eq!(block_on(left_out.collect::<Vec<_>>()), ["hello"]);
    /// assert_eq!(block_on(right_out.collect::<Vec<_>>()), ["hello"]);
    /// assert_eq!((totals.received, totals.copies, totals.delivered), (1, 1, 2));
    /// ```
    ///
    /// # Panics
    ///
    /// If something is attached.
    #[track_caller]
    pub fn multicast(mut self) -> Self
    where
        St::Item: Clone,
    {
        assert!(self.router.is_vacant(), "`multicast` cannot be set once something is attached");
        self.router.set_multicast(St::Item::clone);
        self
    }

    /// Makes room for `attachments` attachments at once, those that are draining or closing included. Up
    /// to there no call of `poll` has to move a table that grows.
    ///
    /// With [`multicast`](Self::multicast), the list of the members of a key still grows by itself, four
    /// bytes for each.
    ///
    /// Without it, tables double when they are full, as a `Vec` does: of a million attachments, the one
    /// that makes them grow takes milliseconds.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{channel::mpsc, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (_orders, orders_in) = mpsc::unbounded::<(u64, mpsc::Sender<u64>)>();
    /// let demux = stream::iter(0..10).demux_by(|n| n % 3, orders_in).with_capacity(10_000);
    /// # drop(demux);
    /// ```
    pub fn with_capacity(mut self, attachments: usize) -> Self
    where
        KeyOf<O>: Hash + Eq,
        B: BuildHasher,
    {
        self.router.reserve(attachments);
        self
    }

    /// Attaches a sink on demand: `attach` is called with each item that matches no key, and what it
    /// returns is attached before the item is routed.
    ///
    /// With [`idle_timeout`](crate::Attach::idle_timeout) this makes a worker for each customer, say, and
    /// reaps it when it is idle. No item is lost in between: an item that comes after the time-out finds no
    /// key, and has a new worker made for it. Two attachments never receive for the same key. One that
    /// leaves may still be closing, though: if the order of items matters across both, let the new worker
    /// await the old one.
    ///
    /// The attachment is applied like an order, under whatever key it names, and costs one of the
    /// [budget](Self::budget). The item is then looked up once more. If it still matches no key, it goes to
    /// the [catch-all](crate::Attach::catch_all), or is unmatched; so it does if `attach` returns `None`.
    /// `attach` is not called after the end of the input.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{Attach, DemuxStreamExt};
    ///
    /// let mut groups = Vec::new();
    /// let orders = stream::pending::<(char, mpsc::UnboundedSender<&str>)>().take(0);
    /// let words = stream::iter(["apple", "bean", "avocado"]);
    /// let demux = words
    ///     .demux_by(|word| word.chars().next().unwrap(), orders)
    ///     .or_attach_with(|word| {
    ///         let (sink, group) = mpsc::unbounded();
    ///         groups.push(group);
    ///         Some(Attach::new(word.chars().next()?, sink))
    ///     });
    /// assert_eq!(block_on(demux).delivered, 3);
    /// assert_eq!(block_on(groups.remove(0).collect::<Vec<_>>()), ["apple", "avocado"]);
    /// assert_eq!(block_on(groups.remove(0).collect::<Vec<_>>()), ["bean"]);
    /// ```
    pub fn or_attach_with<C>(self, attach: C) -> Demux<St, OrAttach<F, C>, O, H, B>
    where
        C: FnMut(&St::Item) -> Option<Attach<KeyOf<O>, SinkOf<O>>>,
    {
        let Self { router, input, orders, order, key, budget, inbox, state } = self;
        let key = OrAttach::new(key, attach);
        Demux { router, input, orders, order, key, budget, inbox, state }
    }

    /// Looks keys up with another hasher. For keys that are chosen by strangers, use
    /// `std::hash::RandomState::new()`.
    ///
    /// # Panics
    ///
    /// If something is attached.
    #[track_caller]
    pub fn with_hasher<B2: BuildHasher>(self, hasher: B2) -> Demux<St, F, O, H, B2> {
        assert!(self.router.is_vacant(), "the hasher cannot be changed once something is attached");
        self.map_parts(|hooks| hooks, |slots| slots.with_hasher(hasher))
    }

    /// The same with other hooks, or other slots.
    fn map_parts<H2, B2>(
        self,
        hooks: impl FnOnce(H) -> H2,
        slots: impl FnOnce(SlotsOf<St, O, B>) -> SlotsOf<St, O, B2>,
    ) -> Demux<St, F, O, H2, B2> {
        let Self { router, input, orders, order, key, budget, inbox, state } = self;
        let router = router.map_parts(hooks, slots);
        Demux { router, input, orders, order, key, budget, inbox, state }
    }
}

/// One value that hears everything.
impl<St, F, O, B> Demux<St, F, O, Callbacks, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder,
{
    /// Tells `hooks`, or `&mut hooks`, what happens. For an error handler alone, or the like, a
    /// closure will do: [`on_error`](Self::on_error) and its neighbours. It is one or the other: this
    /// method does not exist after one of those.
    pub fn hooks<H>(self, hooks: H) -> Demux<St, F, O, H, B>
    where
        SinkOf<O>: Attachable<St::Item>,
        H: Hooks<KeyOf<O>, St::Item, ErrorOf<O, St::Item>>,
    {
        self.map_parts(|_| hooks, |slots| slots)
    }
}

/// Closures for what people ask for most. A second one of a kind takes the place of the first.
impl<St, F, O, E, U, D, A, B> Demux<St, F, O, Callbacks<E, U, D, A>, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder,
{
    /// Called when a sink has failed and was dropped. Everything else goes on.
    pub fn on_error<C>(self, on_error: C) -> Demux<St, F, O, Callbacks<C, U, D, A>, B>
    where
        SinkOf<O>: Attachable<St::Item>,
        C: FnMut(Recipient<'_, KeyOf<O>>, ErrorOf<O, St::Item>),
    {
        self.map_parts(|hooks| hooks.with_on_error(on_error), |slots| slots)
    }

    /// Called with each item that nobody wants.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let mut strays = Vec::new();
    /// let orders = stream::iter([(1, sink::drain())]);
    /// block_on(stream::iter([1, 2, 3]).demux_by(|&n| n, orders).on_unmatched(|n| strays.push(n)));
    /// assert_eq!(strays, [2, 3]);
    /// ```
    pub fn on_unmatched<C>(self, on_unmatched: C) -> Demux<St, F, O, Callbacks<E, C, D, A>, B>
    where
        C: FnMut(St::Item),
    {
        self.map_parts(|hooks| hooks.with_on_unmatched(on_unmatched), |slots| slots)
    }

    /// Called with each item that an attachment does not get, and the reason.
    pub fn on_discarded<C>(self, on_discarded: C) -> Demux<St, F, O, Callbacks<E, U, C, A>, B>
    where
        C: FnMut(Recipient<'_, KeyOf<O>>, St::Item, Discarded),
    {
        self.map_parts(|hooks| hooks.with_on_discarded(on_discarded), |slots| slots)
    }

    /// Asked, once for each item and recipient, whether the one may have the other; if not, the item
    /// is discarded. A rate limit for each key is `|to, _| limiter.check_key(to.key).is_ok()` with the
    /// `governor` crate.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::{DemuxStreamExt, Discarded};
    ///
    /// let (mut asked, mut refused) = (0, 0);
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let demux = stream::iter(0..10)
    ///     .demux_by(|_| "a", orders)
    ///     .admit(|_to, _item| { asked += 1; asked <= 4 })
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
        self.map_parts(|hooks| hooks.with_admit(admit), |slots| slots)
    }
}

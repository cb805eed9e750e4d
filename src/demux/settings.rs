//! The settings of a [`Demux`], made before it is polled.

use core::hash::{BuildHasher, Hash};

use futures_core::Stream;

use super::{Demux, KeyOf, SinkOf};
use crate::key::OrAttach;
use crate::order::{Attach, IntoOrder, Orders, Overflow};
use crate::router::budget::Budget;
use crate::router::{Router, Sharing};

type RouterOf<St, O, H, B> = Router<KeyOf<O>, SinkOf<O>, <St as Stream>::Item, H, B>;

/// Settings. Make them before the first poll; later settings apply to what happens afterwards.
impl<St, F, O, H, B> Demux<St, F, O, H, B>
where
    St: Stream,
    O: Orders,
    O::Order: IntoOrder,
{
    /// Sets how much work one `poll` may do before it lets other tasks run; the default is 1,024.
    ///
    /// The budget applies to each kind of work: for example, a turn reads at most this number of
    /// items, and as many orders. [Fairness](crate::guide::contract#fairness) lists the kinds, and
    /// the work that the budget does not bound.
    ///
    /// # Panics
    ///
    /// Panics if `items` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let mut demux = stream::iter(0..100).demux_by(|_| "a", orders).budget(10);
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!(demux.totals().received <= 10);
    /// ```
    #[track_caller]
    pub fn budget(mut self, items: usize) -> Self {
        assert!(items > 0, "a budget of 0 items would never route one");
        self.budget = Budget::new(items);
        self
    }

    /// Sets the number of items that may be queued for a sink, if its attachment does not set it.
    ///
    /// The default depends on the policy: 0 under [`Overflow::Wait`], 1 under
    /// [`Overflow::Conflate`], and 64 under the others. [`Attach::buffer`](crate::Attach::buffer)
    /// takes precedence.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (sink, _received) = mpsc::channel(0); // takes one item before it is read
    /// let orders = stream::iter([("a", sink)]);
    /// let mut demux = stream::iter([1, 2, 3]).demux_by(|_| "a", orders).buffer(2);
    ///
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert_eq!((demux.totals().delivered, demux.totals().queued), (1, 2));
    /// ```
    pub fn buffer(mut self, items: usize) -> Self {
        self.router.defaults_mut().buffer = Some(items);
        self
    }

    /// Sets what happens to an item when a queue is full, if the attachment does not set it.
    ///
    /// The default is [`Overflow::Wait`]. [`Attach::overflow`](crate::Attach::overflow) takes
    /// precedence.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, future, stream};
    /// use stream_demux::{DemuxStreamExt, Overflow};
    ///
    /// let (sink, received) = mpsc::channel(0); // takes one item before it is read
    /// let orders = stream::iter([("a", sink)]);
    /// let demux =
    ///     stream::iter(1..=5).demux_by(|_| "a", orders).buffer(1).overflow(Overflow::DropOldest);
    ///
    /// let (_, received) = block_on(future::join(demux, received.collect::<Vec<_>>()));
    /// // 1 is in the channel, 2 in the buffer. The receiver takes 1, so 2 follows, and 3 and 4 are
    /// // dropped for 5.
    /// assert_eq!(received, [1, 2, 5]);
    /// ```
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.router.defaults_mut().overflow = Some(overflow);
        self
    }

    /// Sets after how many further items a sink that took an item is flushed at the latest, while
    /// the input is busy.
    ///
    /// The default is 16,384, the largest value is 2³¹. This is an upper bound: a sink is flushed
    /// earlier when enough items and copies were handled to pay for the flushes of all sinks that
    /// wait for one. If few sinks wait, a quiet key therefore waits only for a few hundred items of
    /// others. If the input has nothing ready, this setting does not apply: few sinks are flushed
    /// at once, and many when waiting for further items does not pay.
    ///
    /// A small number shortens the time that a sink's last item waits for its flush while many
    /// other sinks are busy. A large number lets more items share a flush, if there are thousands
    /// of busy keys. With many more busy keys than this number, nearly every item has a flush of
    /// its own; a smaller number then costs nothing. How long it takes to handle so many items, the
    /// demux does not know, unless [`elapse`](Self::elapse) is called.
    ///
    /// # Panics
    ///
    /// Panics if `items` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let demux = stream::iter(0..10_000).demux_by(|_| "a", orders).flush_every(256);
    /// assert_eq!(block_on(demux).delivered, 10_000);
    /// ```
    #[track_caller]
    pub fn flush_every(mut self, items: usize) -> Self {
        assert!(items > 0, "`flush_every` must be at least 1 item");
        self.router.flushes_mut().set_flush_every(items);
        self
    }

    /// Evicts a sink that makes no progress for this many [ticks](crate::Order::Tick) while an
    /// item, a flush or a close is pending.
    ///
    /// The default is 0, no time-out. [`Attach::stall_timeout`](crate::Attach::stall_timeout) takes
    /// precedence and describes the details. Nothing expires unless you send ticks: merge a ticker
    /// into the orders, as under [Time](crate::guide::contract#time).
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Order};
    ///
    /// let (sink, _not_read) = mpsc::channel(0); // takes one item
    /// let (orders, orders_in) = mpsc::unbounded();
    /// orders.unbounded_send(Order::from(Attach::new(1, sink))).unwrap();
    ///
    /// let mut demux = stream::iter([1, 1]).demux_by(|&n| n, orders_in).stall_timeout(2);
    /// for _second in 0..2 {
    ///     assert!((&mut demux).now_or_never().is_none()); // the second item waits
    ///     orders.unbounded_send(Order::Tick).unwrap();
    /// }
    /// assert_eq!(block_on(demux).discarded, 1);
    /// ```
    pub fn stall_timeout(mut self, ticks: u32) -> Self {
        self.router.defaults_mut().stall_timeout = Some(ticks);
        self
    }

    /// Detaches a sink gracefully after this many [ticks](crate::Order::Tick) without an item.
    ///
    /// The default is 0, no time-out. [`Attach::idle_timeout`](crate::Attach::idle_timeout) takes
    /// precedence and describes the details. Nothing expires unless you send ticks: merge a ticker
    /// into the orders, as under [Time](crate::guide::contract#time).
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, channel::mpsc, sink, stream};
    /// use stream_demux::{Attach, DemuxStreamExt, Order};
    ///
    /// let (orders, orders_in) = mpsc::unbounded();
    /// orders.unbounded_send(Order::from(Attach::new(1, sink::drain()))).unwrap();
    ///
    /// let mut demux = stream::pending::<u32>().demux_by(|&n| n, orders_in).idle_timeout(1);
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!(demux.contains_key(&1));
    ///
    /// orders.unbounded_send(Order::Tick).unwrap();
    /// assert!((&mut demux).now_or_never().is_none());
    /// assert!(!demux.contains_key(&1));
    /// ```
    pub fn idle_timeout(mut self, ticks: u32) -> Self {
        self.router.defaults_mut().idle_timeout = Some(ticks);
        self
    }

    /// Delays flushes by this many [ticks](crate::Order::Tick) when the input has nothing ready.
    ///
    /// More items then share a flush, and each waits longer. The default is 0: sinks are flushed at
    /// once. Another number needs ticks: merge a ticker into the orders, as under
    /// [Time](crate::guide::contract#time).
    ///
    /// Ticks are counted from the moment when the input has nothing ready and a sink took an item
    /// that is not flushed. Further items do not start the count anew.
    /// [`flush_every`](Self::flush_every) applies as well. Sinks are flushed at once while the
    /// input waits for a sink, after its end, and when the orders stream has ended, as no tick can
    /// come then.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{FutureExt, SinkExt, StreamExt, channel::mpsc, stream};
    /// use stream_demux::{DemuxStreamExt, Order};
    ///
    /// let (sink, mut received) = mpsc::channel(8);
    /// let (orders, orders_in) = mpsc::unbounded();
    /// orders.unbounded_send(Order::from((1, sink.buffer(8)))).unwrap();
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
        self.router.flushes_mut().set_linger(ticks);
        self
    }

    /// Lets a key have many sinks: an attachment joins those of its key instead of replacing them.
    ///
    /// Each sink gets its own clone of an item, the last one the item itself. See
    /// [Groups](crate::guide::contract#groups) for what happens when some sinks are not ready.
    ///
    /// # Panics
    ///
    /// Panics if something is attached.
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
    #[track_caller]
    pub fn multicast(mut self) -> Self
    where
        St::Item: Clone,
    {
        assert!(
            self.router.slots().is_vacant(),
            "`multicast` cannot be set once something is attached"
        );
        self.router.set_sharing(Sharing::Multicast(St::Item::clone));
        self
    }

    /// Allocates room for `attachments` simultaneous attachments, including those that are
    /// closing.
    ///
    /// Up to that number, no `poll` has to grow a table. Without this setting, tables double when
    /// they are full, as a `Vec` does; with a million attachments, a poll in which a table grows
    /// takes milliseconds longer.
    ///
    /// With [`multicast`](Self::multicast), the list of the members of a key still grows as
    /// needed, by twelve bytes per member.
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

    /// Lets a key have many sinks that share its items: each item goes to one of them.
    ///
    /// It goes to the next sink in turn that is ready. If none is, it is queued, and the sinks take
    /// it from there as they are woken: they share one queue, with room for the buffers of all of
    /// them. If one of them leaves or fails, the others go on with the queue.
    ///
    /// The policy is that of the sink that joined first, and [`admit`](Self::admit) is called once
    /// for each item, for that sink. See [Groups](crate::guide::contract#groups) for the details.
    /// Do not balance over sinks that reserve from one pool. If the sinks are equal, local and
    /// never replaced, a channel with many receivers, such as `flume`, is simpler.
    ///
    /// Of `balance` and [`multicast`](Self::multicast), the one that is called last applies.
    ///
    /// # Panics
    ///
    /// Panics if something is attached.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (one, one_out) = mpsc::unbounded();
    /// let (two, two_out) = mpsc::unbounded();
    /// let orders = stream::iter([("jobs", one), ("jobs", two)]);
    /// block_on(stream::iter(1..=4).demux_by(|_| "jobs", orders).balance());
    ///
    /// assert_eq!(block_on(one_out.collect::<Vec<_>>()), [1, 3]);
    /// assert_eq!(block_on(two_out.collect::<Vec<_>>()), [2, 4]);
    /// ```
    #[track_caller]
    pub fn balance(mut self) -> Self {
        assert!(
            self.router.slots().is_vacant(),
            "`balance` cannot be set once something is attached"
        );
        self.router.set_sharing(Sharing::Balance);
        self
    }

    /// Attaches a sink on demand: `attach` is called with each item that matches no key, and what
    /// it returns is attached before the item is routed.
    ///
    /// Together with [`idle_timeout`](crate::Attach::idle_timeout), this creates one worker per
    /// customer and ends idle ones. No item is lost in between: an item that comes after the
    /// time-out matches no key and gets a new worker. Without `multicast` or `balance`, two
    /// attachments never receive for the same key at the same time. One that leaves may still be
    /// closing, though: if the order of items matters across both, let the new worker await the old
    /// one.
    ///
    /// The attachment is applied like an order, under whatever key it names, and costs one unit of
    /// the [budget](Self::budget). The item is then looked up once more. If it still matches no
    /// key, it goes to the [catch-all](crate::Attach::catch_all), or is unmatched. The same happens
    /// if `attach` returns `None`. `attach` is not called after the end of the input. If
    /// `or_attach_with` is called again, the later closure replaces the earlier one.
    ///
    /// If others choose the keys, limit how many sinks there may be at a time: return `None` beyond
    /// that.
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
        let Self { router, input, orders, order, key, budget, orders_state, state } = self;
        let key = OrAttach::new(key, attach);
        Demux { router, input, orders, order, key, budget, orders_state, state }
    }

    /// Sets the hasher for looking up keys.
    ///
    /// The default, [`DefaultHashBuilder`](crate::DefaultHashBuilder), is fast, but does not
    /// withstand keys that were chosen to collide. For untrusted keys, use
    /// `std::hash::RandomState::new()`.
    ///
    /// # Panics
    ///
    /// Panics if something is attached.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::hash::RandomState;
    ///
    /// use futures::{executor::block_on, sink, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let orders = stream::iter([("a", sink::drain())]);
    /// let demux = stream::iter(["a"]).demux_by(|&key| key, orders);
    /// let totals = block_on(demux.with_hasher(RandomState::new()));
    /// assert_eq!(totals.delivered, 1);
    /// ```
    #[track_caller]
    pub fn with_hasher<B2: BuildHasher>(self, hasher: B2) -> Demux<St, F, O, H, B2> {
        assert!(
            self.router.slots().is_vacant(),
            "the hasher cannot be changed once something is attached"
        );
        self.map_router(|router| router.map_parts(|hooks| hooks, |slots| slots.with_hasher(hasher)))
    }

    pub(super) fn map_hooks<H2>(self, map: impl FnOnce(H) -> H2) -> Demux<St, F, O, H2, B> {
        self.map_router(|router| router.map_parts(map, |slots| slots))
    }

    /// Changes the type of the router.
    fn map_router<H2, B2>(
        self,
        map: impl FnOnce(RouterOf<St, O, H, B>) -> RouterOf<St, O, H2, B2>,
    ) -> Demux<St, F, O, H2, B2> {
        let Self { router, input, orders, order, key, budget, orders_state, state } = self;
        let router = map(router);
        Demux { router, input, orders, order, key, budget, orders_state, state }
    }
}

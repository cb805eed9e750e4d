//! [`Demux`]: settings, stages, and the poll loop.
//!
//! Read [`Future::poll`] as a table of contents: orders, then sinks, then items, then what is owed
//! before the task may sleep. `apply`, `drive` and `route` have the details of the first three.

use core::borrow::Borrow;
use core::fmt;
use core::future::Future;
use core::hash::{BuildHasher, Hash};
use core::pin::Pin;
use core::task::{Context, Poll};

use futures_core::{FusedFuture, Stream};
use futures_sink::Sink;
use pin_project_lite::pin_project;

use crate::ext::Attachable;
use crate::hooks::{Callbacks, Discarded, Hooks, Recipient};
use crate::hub::{Held, Hub};
use crate::key::DefaultHashBuilder;
use crate::key::sealed::{Directory, FindByKey};
use crate::order::{IntoOrder, Overflow};
use crate::route::Routed;
use crate::totals::Totals;

type KeyOf<O> = <<O as Stream>::Item as IntoOrder>::Key;
type SinkOf<O> = <<O as Stream>::Item as IntoOrder>::Sink;
type ErrorOf<O, V> = <SinkOf<O> as Sink<V>>::Error;

/// How much one turn may do, unless [`Demux::budget`] says otherwise.
///
/// It bounds how long other tasks of the thread wait: 128 items are a few microseconds where sinks
/// only take them, some hundred where each costs a system call. The cost of a turn itself, some tens
/// of nanoseconds, is spread over the budget, so that far less would show and far more would gain
/// nothing. It is also what tokio grants a task before its resources answer `Pending`, and what one
/// budget inside another leaves of both is the smaller.
const BUDGET: usize = 128;

pin_project! {
    /// The future that splits a stream into many sinks; see [`demux_by`](crate::DemuxStreamExt::demux_by)
    /// and [the crate page](crate).
    ///
    /// It completes, with the [`Totals`], when the input has ended or
    /// [`Order::Finish`](crate::Order::Finish) has come, and
    /// every sink is closed. The settings are made before the first poll.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost between two polls: `&mut demux` may be polled inside a timeout or a `select!`
    /// for as long as one likes, and polled again later. Dropping the future itself drops the input,
    /// the orders, the sinks, unflushed, and the items that wait.
    ///
    /// # Panics
    ///
    /// When polled after it has completed, and when polled after a panic in a key function, a hook, a
    /// sink or one of the streams has unwound through an earlier poll: it can only be dropped then.
    #[must_use = "futures do nothing unless polled"]
    pub struct Demux<St, F, O, H = Callbacks, B = DefaultHashBuilder>
    where
        St: Stream,
        O: Stream,
        O::Item: IntoOrder,
    {
        hub: Hub<KeyOf<O>, SinkOf<O>, St::Item, H, B>,
        #[pin]
        input: St,
        #[pin]
        orders: Option<O>,
        key: F,
        budget: usize,
        // How many turns there were, as far as `Turn` wants to know.
        turns: u8,
        inbox: Inbox,
        stage: Stage,
    }
}

/// What is known of the orders stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inbox {
    /// It has nothing until its waker fires.
    Quiet,
    /// It gave an order when it was polled last, and may have more.
    Unread,
    /// It woke itself instead, in the turn before. It may have more.
    Yielded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    /// In `poll`; found there, it is what a panic has left behind.
    Polling,
    Completed,
}

/// One call of `poll`: what is left of its budget, and what it has seen.
struct Turn {
    left: usize,
    /// With a budget under four a quarter is less than one: a whole turn in four stands for it.
    number: u8,
    budget: usize,
    /// Items may be routed: no order that is known of comes before them.
    orders_read: bool,
    /// The orders woke themselves in two turns running: not to be asked again in this one.
    orders_deaf: bool,
    input: Input,
    /// What `received` was when it began.
    received: u64,
}

/// What the input said in this turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    Unasked,
    Flowing,
    Pending,
}

impl Turn {
    /// A quarter of the budget, for those whose turn it is in `phase`.
    fn quarter(&self, phase: u8) -> usize {
        match self.budget {
            1..4 if self.number % 4 == phase => self.budget,
            1..4 => 0,
            _ => self.budget / 4,
        }
    }

    /// Half of a share; what is left over from an odd one goes to either half in turn.
    fn half(&self, share: usize, bit: u8) -> usize {
        share / 2 + share % 2 * usize::from(self.number >> bit & 1)
    }
}

/// Made by [`DemuxStreamExt`](crate::DemuxStreamExt).
impl<St, F, O> Demux<St, F, O>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder,
{
    pub(crate) fn new(input: St, key: F, orders: O) -> Self {
        Self {
            hub: Hub::new(Callbacks::default(), DefaultHashBuilder::default()),
            input,
            orders: Some(orders),
            key,
            budget: BUDGET,
            turns: 0,
            inbox: Inbox::Quiet,
            stage: Stage::Waiting,
        }
    }
}

/// Settings, before the first poll.
impl<St, F, O, H, B> Demux<St, F, O, H, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder,
{
    /// How much one call of `poll` may do before it lets other tasks run: items read, orders applied,
    /// items moved out of a queue, woken sinks looked after and flushes, each counting one. 128 unless
    /// set.
    ///
    /// # Panics
    ///
    /// If `items` is 0.
    #[track_caller]
    pub fn budget(mut self, items: usize) -> Self {
        assert!(items > 0, "a budget of 0 items would never route one");
        self.budget = items;
        self
    }

    /// How many items may wait for a sink, unless its [`Attach`](crate::Attach::buffer) says
    /// otherwise. 0 unless set.
    pub fn buffer(mut self, items: usize) -> Self {
        self.hub.buffer = items;
        self
    }

    /// What happens when that many wait, unless the [`Attach`](crate::Attach::overflow) says
    /// otherwise. [`Overflow::Wait`] unless set.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.hub.overflow = overflow;
        self
    }

    /// How many further items are read from a busy input before a sink that took one is flushed.
    /// 16,384 unless set. When the input has nothing ready, sinks are flushed at once, whatever this
    /// says.
    ///
    /// Few items let a sink's last item wait less while others are busy; many let more items share a
    /// flush. With many more busy keys than this, nearly every item has a flush of its own.
    ///
    /// # Panics
    ///
    /// If `items` is 0.
    #[track_caller]
    pub fn flush_every(mut self, items: usize) -> Self {
        assert!(items > 0, "flushing every 0 items would leave no item to flush");
        self.hub.flushes.set_every(items);
        self
    }

    /// A key may have many sinks: an attachment joins those that are there instead of replacing them.
    /// Each gets its own clone of an item, the last one the item itself.
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
    pub fn multicast(mut self) -> Self
    where
        St::Item: Clone,
    {
        self.hub.clone = Some(St::Item::clone);
        self
    }

    /// Looks keys up with another hasher. For keys that are chosen by strangers, use
    /// `std::hash::RandomState::new()`.
    ///
    /// # Panics
    ///
    /// If something is attached.
    #[track_caller]
    pub fn with_hasher<B2: BuildHasher>(self, hasher: B2) -> Demux<St, F, O, H, B2> {
        assert!(
            self.hub.table.is_vacant(),
            "the hasher cannot be changed once something is attached"
        );
        self.map_hub(|hub| hub.with_hasher(hasher))
    }

    fn map_hub<H2, B2>(
        self,
        change: impl FnOnce(
            Hub<KeyOf<O>, SinkOf<O>, St::Item, H, B>,
        ) -> Hub<KeyOf<O>, SinkOf<O>, St::Item, H2, B2>,
    ) -> Demux<St, F, O, H2, B2> {
        let Self { hub, input, orders, key, budget, turns, inbox, stage } = self;
        let hub = change(hub);
        Demux { hub, input, orders, key, budget, turns, inbox, stage }
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
    /// closure will do: [`on_error`](Self::on_error) and its neighbours. It is one or the other.
    pub fn hooks<H>(self, hooks: H) -> Demux<St, F, O, H, B>
    where
        SinkOf<O>: Attachable<St::Item>,
        H: Hooks<KeyOf<O>, St::Item, ErrorOf<O, St::Item>>,
    {
        self.map_hub(|hub| hub.with_hooks(|_| hooks))
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
        self.map_hub(|hub| {
            hub.with_hooks(|hooks| {
                let Callbacks { on_error: _, on_unmatched, on_discarded, admit } = hooks;
                Callbacks { on_error, on_unmatched, on_discarded, admit }
            })
        })
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
        self.map_hub(|hub| {
            hub.with_hooks(|hooks| {
                let Callbacks { on_error, on_unmatched: _, on_discarded, admit } = hooks;
                Callbacks { on_error, on_unmatched, on_discarded, admit }
            })
        })
    }

    /// Called with each item that an attachment does not get, and the reason.
    pub fn on_discarded<C>(self, on_discarded: C) -> Demux<St, F, O, Callbacks<E, U, C, A>, B>
    where
        C: FnMut(Recipient<'_, KeyOf<O>>, St::Item, Discarded),
    {
        self.map_hub(|hub| {
            hub.with_hooks(|hooks| {
                let Callbacks { on_error, on_unmatched, on_discarded: _, admit } = hooks;
                Callbacks { on_error, on_unmatched, on_discarded, admit }
            })
        })
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
        self.map_hub(|hub| {
            hub.with_hooks(|hooks| {
                let Callbacks { on_error, on_unmatched, on_discarded, admit: _ } = hooks;
                Callbacks { on_error, on_unmatched, on_discarded, admit }
            })
        })
    }
}

/// Looking in, at any time.
impl<St, F, O, H, B> Demux<St, F, O, H, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder,
{
    /// What happened so far.
    pub fn totals(&self) -> Totals {
        self.hub.totals
    }

    /// How many attachments receive items now. Those that are draining or closing do not count.
    pub fn len(&self) -> usize {
        self.hub.table.len()
    }

    /// Does no attachment receive items now?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Does an attachment receive items with this key now?
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        KeyOf<O>: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        B: BuildHasher,
    {
        self.hub.table.find(key).is_some()
    }

    /// Whom the input is waiting for: the attachment of which [`Hooks::blocked`] was said last, unless
    /// [`Hooks::unblocked`] was said since.
    pub fn blocked_on(&self) -> Option<Recipient<'_, KeyOf<O>>> {
        self.hub.said.map(|slot| self.hub.table[slot].recipient())
    }

    /// The input. It stays until the future is dropped, also when it has ended.
    pub fn get_ref(&self) -> &St {
        &self.input
    }

    /// The input. Items taken from it here are none of the demux's business.
    pub fn get_mut(&mut self) -> &mut St {
        &mut self.input
    }

    /// The input, pinned. Items taken from it here are none of the demux's business.
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut St> {
        self.project().input
    }
}

impl<St, F, O, H, B> Future for Demux<St, F, O, H, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder<Key: Hash + Eq, Sink: Attachable<St::Item>>,
    F: FindByKey<St::Item, KeyOf<O>>,
    H: Hooks<KeyOf<O>, St::Item, ErrorOf<O, St::Item>>,
    B: BuildHasher,
{
    type Output = Totals;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Totals> {
        let mut turn = self.as_mut().begin();
        self.as_mut().poll_orders(&mut turn);
        self.as_mut().poll_slots(&mut turn);
        self.as_mut().poll_input(&mut turn, cx);
        self.as_mut().settle_up(&mut turn);
        if self.as_mut().is_over(&mut turn) {
            return Poll::Ready(self.complete());
        }
        self.rest(&turn, cx);
        Poll::Pending
    }
}

/// The phases of a turn, in the order in which they come.
impl<St, F, O, H, B> Demux<St, F, O, H, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder<Key: Hash + Eq, Sink: Attachable<St::Item>>,
    F: FindByKey<St::Item, KeyOf<O>>,
    H: Hooks<KeyOf<O>, St::Item, ErrorOf<O, St::Item>>,
    B: BuildHasher,
{
    fn begin(self: Pin<&mut Self>) -> Turn {
        let this = self.project();
        match *this.stage {
            Stage::Waiting => *this.stage = Stage::Polling,
            Stage::Polling => {
                panic!("`Demux` polled after a panic in a key function, hook, sink or stream")
            }
            Stage::Completed => panic!("`Demux` polled after completion"),
        }
        this.hub.ready.awake();
        this.hub.ready.take();
        *this.turns = this.turns.wrapping_add(1);
        Turn {
            left: *this.budget,
            number: *this.turns,
            budget: *this.budget,
            orders_read: false,
            orders_deaf: false,
            input: Input::Unasked,
            received: this.hub.totals.received,
        }
    }

    /// Applies the orders that are ready, up to a share that leaves sinks theirs.
    ///
    /// Afterwards `orders_read` says whether items may be routed: not while the stream may have an
    /// order that was ready before them.
    fn poll_orders(self: Pin<&mut Self>, turn: &mut Turn) {
        let mut this = self.project();
        turn.orders_read = false;
        while *this.inbox == Inbox::Unread || (this.hub.ready.rung() && !turn.orders_deaf) {
            let Some(orders) = this.orders.as_mut().as_pin_mut() else {
                // A waker that outlived them rang.
                this.hub.ready.hush();
                break;
            };
            if turn.left == 0 || turn.left <= turn.quarter(0) && this.hub.is_busy(turn) {
                return;
            }
            this.hub.ready.hush();
            match orders.poll_next(&mut Context::from_waker(this.hub.ready.orders_waker())) {
                Poll::Ready(Some(order)) => {
                    *this.inbox = Inbox::Unread;
                    turn.left -= 1;
                    this.hub.apply(this.key, order.into_order(), &mut turn.left);
                }
                Poll::Ready(None) => {
                    this.orders.set(None);
                    *this.inbox = Inbox::Quiet;
                }
                Poll::Pending if !this.hub.ready.rung() => *this.inbox = Inbox::Quiet,
                // It woke itself. If that was to let others run, it may have an order still, and items
                // wait for another turn; if it does nothing else, they do not.
                Poll::Pending if *this.inbox == Inbox::Yielded => turn.orders_deaf = true,
                Poll::Pending => {
                    *this.inbox = Inbox::Yielded;
                    return;
                }
            }
        }
        turn.orders_read = true;
    }

    /// Looks after the sinks that were woken, those whose flush is due and, at the end, those that do
    /// not know of it yet. Each of the three has its share, and items theirs.
    fn poll_slots(self: Pin<&mut Self>, turn: &mut Turn) {
        let hub = self.project().hub;
        let items = if turn.orders_read && hub.is_reading() { turn.quarter(2) } else { 0 };
        let share = turn.left.saturating_sub(items);
        let horizon = hub.totals.received.saturating_add(turn.budget as u64);

        let telling = if hub.is_telling() { turn.half(share, 2) } else { 0 };
        let flushing = if hub.flushes.is_due(horizon) { turn.half(share - telling, 3) } else { 0 };
        let mut left = share - telling - flushing;
        hub.serve(&mut left);
        left += flushing;
        hub.flush(horizon, &mut left);
        left += telling;
        hub.tell(&mut left);
        turn.left -= share - left;
    }

    /// Reads the input and routes its items, until it has none, one has to wait, or the turn is spent.
    fn poll_input(mut self: Pin<&mut Self>, turn: &mut Turn, cx: &mut Context<'_>) {
        while self.as_mut().let_go(turn) && turn.left > 0 && self.hub.told.is_none() {
            match self.as_mut().read(turn, cx) {
                Read::Some => {}
                Read::Overtaken => self.as_mut().poll_orders(turn),
                Read::Pending => {
                    turn.input = Input::Pending;
                    return;
                }
                Read::Ended => self.as_mut().project().hub.finish(),
            }
        }
    }

    /// Routes the item that was held, if it can be. Whether the next one may be read.
    fn let_go(self: Pin<&mut Self>, turn: &mut Turn) -> bool {
        let this = self.project();
        if !turn.orders_read {
            return false;
        }
        let routed = match this.hub.take_overtaken() {
            Some(item) => this.hub.route_late(this.key, item),
            None => this.hub.let_go(),
        };
        turn.spend(routed)
    }

    /// Reads and routes as many items as may be read before a flush is due.
    #[inline]
    fn read(self: Pin<&mut Self>, turn: &mut Turn, cx: &mut Context<'_>) -> Read {
        let mut this = self.project();
        let due = this.hub.flushes.due_in(this.hub.totals.received);
        let run = usize::try_from(due).map_or(turn.left, |due| due.min(turn.left));
        if run == 0 {
            // What would fall due later in this turn is flushed with it: otherwise each of many sinks
            // would interrupt the reading at its own time.
            let horizon = this.hub.totals.received.saturating_add(turn.left as u64);
            this.hub.flush(horizon, &mut turn.left);
            return Read::Some;
        }
        turn.input = Input::Flowing;
        for _ in 0..run {
            let item = match this.input.as_mut().poll_next(cx) {
                Poll::Ready(Some(item)) => item,
                Poll::Ready(None) => return Read::Ended,
                Poll::Pending => return Read::Pending,
            };
            turn.left -= 1;
            this.hub.totals.received += 1;
            // After the read, not before: an order may have come with the item.
            if this.hub.ready.rung() && !turn.orders_deaf {
                this.hub.overtake(item);
                return Read::Overtaken;
            }
            match this.hub.route_by(this.key, item) {
                Routed::Done => {}
                routed => {
                    turn.spend(routed);
                    return Read::Some;
                }
            }
        }
        Read::Some
    }

    /// Before the task may sleep: tells the end, and flushes unless there is more to read.
    fn settle_up(self: Pin<&mut Self>, turn: &mut Turn) {
        let hub = self.project().hub;
        hub.tell(&mut turn.left);
        if hub.is_telling() {
            return; // closing flushes
        }
        if hub.totals.received == turn.received || !hub.can_read(turn.input) {
            hub.flushes.owe_all();
        }
        hub.flush(hub.totals.received, &mut turn.left);
    }

    /// Is everything done? Orders that came with the last close get what is left of their share, and
    /// are dropped unread after that.
    fn is_over(mut self: Pin<&mut Self>, turn: &mut Turn) -> bool {
        if self.hub.is_over() {
            self.as_mut().poll_orders(turn);
        }
        self.hub.is_over()
    }

    fn complete(self: Pin<&mut Self>) -> Totals {
        let mut this = self.project();
        this.orders.set(None);
        this.hub.clear();
        *this.stage = Stage::Completed;
        this.hub.totals
    }

    /// Sleeps, or asks to be polled again if there is more to do.
    fn rest(self: Pin<&mut Self>, turn: &Turn, cx: &Context<'_>) {
        let this = self.project();
        *this.stage = Stage::Waiting;
        let orders =
            this.orders.is_some() && (*this.inbox == Inbox::Unread || this.hub.ready.rung());
        if orders || this.hub.has_more(turn.input) {
            cx.waker().wake_by_ref();
        } else {
            this.hub.ready.sleep(cx.waker());
        }
    }
}

/// What came of reading the input for a while.
enum Read {
    /// Some items; there may be more.
    Some,
    /// An order was ready before the last item, which is held.
    Overtaken,
    Pending,
    Ended,
}

impl Turn {
    /// Pays for what routing an item came to beyond the item itself. False if it is held.
    fn spend(&mut self, routed: Routed) -> bool {
        if let Routed::Spread(further) = routed {
            self.left = self.left.saturating_sub(further);
        }
        routed != Routed::Held
    }
}

/// What the hub has to do, as far as a turn needs to know.
impl<K, S, V, H, B> Hub<K, S, V, H, B> {
    /// Have sinks something to do in this turn?
    fn is_busy(&self, turn: &Turn) -> bool {
        let horizon = self.totals.received.saturating_add(turn.budget as u64);
        self.ready.any() || self.flushes.is_due(horizon) || self.is_telling()
    }

    /// Could an item be read or let go of, as far as the slots are concerned?
    fn is_reading(&self) -> bool {
        self.told.is_none() && !self.is_blocked()
    }

    /// Is there an item to be read or let go of, or may there be one?
    fn can_read(&self, input: Input) -> bool {
        match self.held {
            Held::Nothing => self.told.is_none() && input != Input::Pending,
            Held::Overtaken(_) => true,
            Held::Blocked { .. } => !self.is_blocked(),
        }
    }

    /// Is there anything to do that nobody's waker will tell?
    fn has_more(&self, input: Input) -> bool {
        self.ready.any() || !self.flushes.is_empty() || self.is_telling() || self.can_read(input)
    }
}

impl<St, F, O, H, B> FusedFuture for Demux<St, F, O, H, B>
where
    Self: Future,
    St: Stream,
    O: Stream,
    O::Item: IntoOrder,
{
    fn is_terminated(&self) -> bool {
        self.stage == Stage::Completed
    }
}

impl<St, F, O, H, B> fmt::Debug for Demux<St, F, O, H, B>
where
    St: Stream,
    O: Stream,
    O::Item: IntoOrder,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hub, input: _, orders, key: _, budget, turns: _, inbox, stage } = self;
        f.debug_struct("Demux")
            .field("stage", stage)
            .field("input_is_over", &hub.told.is_some())
            .field("orders", &orders.as_ref().map(|_| inbox))
            .field("receiving", &hub.table.len())
            .field("leaving", &(hub.table.tenants() - hub.table.len()))
            .field("holds_an_item", &!matches!(hub.held, Held::Nothing))
            .field("is_blocked", &hub.said.is_some())
            .field("budget", budget)
            .field("totals", &hub.totals)
            .finish_non_exhaustive()
    }
}

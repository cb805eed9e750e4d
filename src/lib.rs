//! Split one [`Stream`] into many [`Sink`]s by key, while sinks come and go.
//!
//! ```text
//! input ──▶ key(&item) ──▶ slot of that key ──▶ sink
//!                               ▲
//! orders ── attach / detach ────┘        an item with no slot is unmatched: counted, shown, dropped
//! ```
//!
//! ```
//! use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
//! use stream_demux::DemuxStreamExt;
//!
//! let (red, reds) = mpsc::channel(8);
//! let (blue, blues) = mpsc::channel(8);
//! // Orders are a stream: here two that are known beforehand, in life the receiving end of a channel.
//! let orders = stream::iter([("red", red), ("blue", blue)]);
//! let input = stream::iter([("red", 1), ("blue", 2), ("green", 3), ("red", 4)]);
//!
//! let totals = block_on(input.demux_by(|item| item.0, orders));
//!
//! assert_eq!(block_on(reds.collect::<Vec<_>>()), [("red", 1), ("red", 4)]);
//! assert_eq!(block_on(blues.collect::<Vec<_>>()), [("blue", 2)]);
//! assert_eq!((totals.received, totals.delivered, totals.unmatched), (4, 3, 1));
//! ```
//!
//! [`demux_by`](DemuxStreamExt::demux_by) makes a [`Demux`]: a future, written by hand, that does the
//! work when it is polled and completes with the [`Totals`]. It spawns no task, sets no timer, makes no
//! channel and knows no runtime. The crate is `no_std` with `alloc` and has no `unsafe`.
//!
//! # What happens to an item
//!
//! | when | it is | and counts as |
//! | --- | --- | --- |
//! | its sink is ready | sent at once, not queued, nothing allocated | [`delivered`](Totals::delivered) |
//! | its sink is not ready, its queue ([`buffer`](Attach::buffer), 0 unless set) has room | queued | [`queued`](Totals::queued), then `delivered` |
//! | … the queue is full, [`Overflow::Wait`] | held; the input waits | `queued`, then `delivered` |
//! | … [`Overflow::DropNewest`] | shown to [`discarded`](Hooks::discarded) | [`discarded`](Totals::discarded) |
//! | … [`Overflow::DropOldest`] | queued; the head of the queue is shown to `discarded` | `queued`; the head as `discarded` |
//! | … [`Overflow::Evict`] | shown to `discarded` after the queue; the sink is dropped | `discarded` |
//! | [`admit`](Hooks::admit) says no | shown to `discarded` | `discarded` |
//! | its key has many sinks ([`multicast`](Demux::multicast)) | cloned for each but the last | [`copies`](Totals::copies), and each as above |
//! | nobody has its key | shown to [`unmatched`](Hooks::unmatched), or sent to the [catch-all](Attach::catch_all) | [`unmatched`](Totals::unmatched), or as above |
//! | its key is detached while it is queued or held | still sent, before the sink is closed | `delivered` |
//! | its key is evicted, or its sink fails, while it is queued or held | shown to `discarded` | `discarded` |
//! | its sink is replaced while it is queued or held | handed on to the new sink, in order | `queued`, then `delivered` |
//! | the sink fails in `start_send` | gone: the sink has it | [`lost`](Totals::lost) |
//!
//! # Guarantees
//!
//! The documentation and the tests refer to these by number.
//!
//! 1. **Orders before items.** An order that was ready before the input returned an item is applied
//!    before that item is routed; the item is kept meanwhile and counts as `queued`. The orders stream
//!    is polled only after its waker fired: an idle one costs nothing. Orders that answer `Pending` and
//!    wake themselves end the turn before another item is routed; if they do so again in the next turn,
//!    with no order between, they are taken at their word and items go on for that turn.
//! 2. **Order per key.** The items of one attachment reach its sink in the order of the input.
//! 3. **One fate per item.** Between two polls `received + copies = unmatched + delivered + discarded +
//!    lost + queued`, and after completion `queued` is 0. Nothing is dropped silently.
//! 4. **Only the woken are polled.** An operation of a sink that answered `Pending` is not asked again
//!    before that sink's own waker fires; only a pending flush is, when the sink took an item meanwhile
//!    and the flush is due again (6). A pending flush does not stop `poll_ready`. A sink with nothing to
//!    do is not polled at all, and `poll_ready` is called only when an item is there for it. A waker
//!    kept from an earlier attachment, or one that fires just before the answer, may cause one spurious
//!    poll. A wake is the same work with ten sinks attached or a million.
//! 5. **Bounded turns.** One `poll` spends at most [`budget`](Demux::budget), then wakes itself and
//!    returns; see [Fairness](#fairness).
//! 6. **Flushing.** A sink that took an item is flushed as soon as the input has nothing ready, or a
//!    turn reads nothing; if more than 16 sinks wait for that, the task first lets others run, as one of
//!    them may be about to feed the input, and flushes in the next turn that reads nothing. While the input
//!    stays busy, it is flushed after at most [`flush_every`](Demux::flush_every) further items, or up to a
//!    budget earlier; with so many busy sinks that nearly every flush is for one item, after 128. Not
//!    once per item of a busy input, and never forgotten: before the task goes to sleep, `poll_flush`
//!    was called on every sink that took an item since its last flush. A flush that is pending holds up
//!    no other sink. A sink that is being closed is not flushed besides.
//! 7. **A blocked sink holds the input and nothing else.** While the input waits for it, orders are
//!    applied, other queues drain, flushes and closes go on. Detaching, evicting or replacing it frees
//!    the input in the same poll; so does its failure.
//! 8. **Errors stay where they are.** A sink that fails is dropped and never touched again, its key is
//!    free, what was queued for it is discarded ([`Discarded::Failed`]), and all else goes on. An error
//!    while closing is reported as [`Detached::Failed`], whatever the sink was closed for.
//! 9. **The end.** When the input ends, or [`Order::Finish`] comes, queues drain, each sink is closed
//!    once, and the future completes after the last one. The input is not read again, even if it is
//!    blocked or endless; an item that was held keeps its place. Orders are still obeyed, so that a stuck
//!    sink can be evicted; what is attached then is closed at once, also on a taken key. The end of the
//!    orders stream ends nothing. Orders unread after the last close are dropped.
//! 10. **The contracts of `Sink` and `Stream`, to the letter.** `start_send` only after `poll_ready`
//!     said `Ready(Ok)`; nothing after `poll_close` completed, or after an error; no `poll_next` after
//!     `None`. After completion [`is_terminated`](futures_core::FusedFuture::is_terminated) is true, and
//!     another poll panics.
//! 11. **Dropping.** Dropping the future drops input, orders, sinks and items at once. Orders are
//!     dropped when they end, sinks and queues at the latest on completion, the input and the hooks with
//!     the future. Wakers that outlive it do nothing. There is no leak and no cycle.
//! 12. **Memory** follows the most that was attached at once, never how many keys there ever were. With
//!     nothing queued there is no allocation per item.
//! 13. **Any task, any waker.** The future may move to another task, or get another waker, between
//!     polls; no wake-up is lost.
//!
//! # Attachments
//!
//! * Every [`Attach`] is announced by [`attached`](Hooks::attached) and ends with one
//!   [`detached`](Hooks::detached), when its sink is gone: also one that was refused, or came after the
//!   end.
//! * **Taken key.** An attachment replaces the one that has its key: what is queued or held for the old
//!   sink moves to the new one, in order, even beyond its buffer, and counts towards its limit; a surplus
//!   is unmatched. The old sink is flushed and closed in the background. With
//!   [`keep_existing`](Attach::keep_existing) the newcomer is closed instead.
//! * **[`Order::Detach`]** is graceful and speaks of those that receive: no new items, what waits is still
//!   sent, then the sink is closed. **[`Order::Evict`]** is not, and speaks of every sink of the key, also
//!   those still draining or closing: what waits is discarded, the sink dropped. For an unknown key both
//!   do nothing.
//! * **[`limit(n)`](Attach::limit).** After `n` items were accepted, that is sent or queued, the key is
//!   free, and the sink drains and is closed.
//! * **[`Lease`]** speaks of one attachment, not of a key: the late clean-up of an old consumer never
//!   removes its successor. Dropped before its order was applied, it lets the attachment never take the
//!   key.
//! * **[`Overflow`]** is a matter of each attachment. Under `Wait` an item is held, and the input with it,
//!   while the queue is full and the sink not ready.
//! * **[`multicast`](Demux::multicast).** An attachment joins those that have its key. A member with
//!   `Wait` and a full queue holds the item back from all; other policies speak for themselves. A held
//!   item goes to the members of the moment it is let go. One that leaves gracefully takes its copy
//!   along, one that fails discards it, one that is evicted takes none unless it was the last. While held
//!   it counts once in `queued`. Totals count copies.
//! * **[`admit`](Hooks::admit)** is asked once for each item and recipient, before queue and readiness are
//!   looked at; one who joins while an item is held is asked as it joins. Items that were admitted and
//!   then moved to a successor are not asked about again.
//! * **[`catch_all`](Attach::catch_all).** The last one attached with it receives what matches nobody, on
//!   its own terms. When it leaves, unmatched items are unmatched again; when it is replaced under its
//!   key, what waits for it moves to the successor. A caught item goes to that attachment alone, not to its key's group.
//!
//! # Head-of-line blocking
//!
//! With [`Overflow::Wait`], the default, a sink that is not ready while its queue is full **holds the
//! input, and so the items of all other sinks**. That is backpressure, and right where every sink must
//! have every item. Where one slow sink must not hold back the others, give its attachment a
//! [`buffer`](Attach::buffer) and another [`Overflow`]. Whom the input waits for is told by
//! [`Hooks::blocked`] and [`Demux::blocked_on`]; [`Order::Evict`] or a dropped [`Lease`] ends it.
//!
//! # Fairness
//!
//! A turn (one `poll`) has a budget: each order, each woken sink looked after, each item read, each
//! item moved out of a queue, each flush and each sink told of the end costs one; an item for several
//! sinks costs one for each. Orders leave a quarter of the turn to sinks that have something to do, and
//! sinks leave a quarter to items (with a budget under four: one turn in four). Within the share of the
//! sinks, those that were woken leave half to flushes that are due, and these two half to the telling
//! of the end. So orders that never pause can hold back items (guarantee 1 wants it), but no sink; and
//! neither orders, nor items, nor busy sinks make a woken sink wait for more than a few turns.
//!
//! Not spread over turns is what has to happen at once: an eviction or a failure discards a whole queue,
//! an order may speak of a whole group, and an item for a group goes to all of it.
//!
//! A sink or orders stream that wakes itself while it is polled, as tokio's do when the task's
//! cooperative budget is spent, is polled for that wake in the next turn, not again in this one.
//!
//! # Good to know
//!
//! * **Keys chosen by strangers** want [`with_hasher`](Demux::with_hasher)`(RandomState::new())`: the
//!   default hasher is fast and does not withstand keys that were made to collide.
//! * **The input shares the task's waker**: it is looked at on every wake of the task, also when a sink
//!   caused it. Orders and sinks have wakers of their own.
//! * **Sinks are not handed back.** An attachment ends with its sink closed, or dropped. To keep a
//!   connection, attach a channel's sender, or a sink that hands itself back when it is dropped.
//! * **Cancel safety.** Nothing is lost between polls: `&mut demux` can be polled inside a timeout or a
//!   `select!`, and polled on later.
//! * **After a panic** in a key function, a hook, a sink or a stream, the demux can only be dropped,
//!   which drops all it holds; another poll panics. The item in hand is dropped by the unwinding.
//! * **Readers run beside it.** A bounded channel as a sink wants its receiver polled while the demux
//!   runs, in another task or joined with it; read only afterwards, a full one blocks the demux for good.
//! * **Tokio's cooperative budget** (128 operations for each poll of a task) makes tokio's channels and
//!   sockets answer `Pending` beyond it. A demux has a budget of its own: for items that go to more than
//!   a hundred tokio sinks, spawn it as `tokio::task::unconstrained(demux)`. A task on the same runtime
//!   that fills a channel of tokio's with more than 128 items yields after as many, late enough for all
//!   sinks to be flushed meanwhile: spawn that one `unconstrained` too, or give its channel room for 100.
//! * **Composite keys** are tuples, `|m| (m.tenant, m.topic)`, or a reference to a part of the item that
//!   implements `Hash` and `Eq`, [`demux_by_ref`](DemuxStreamExt::demux_by_ref)`(|m| &m.address)`.
//! * **Targets** without atomic compare-and-swap (`thumbv6m`, `riscv32imc`) cannot run it.
//!
//! ## Fallible inputs
//!
//! Cut the stream at its first error with `scan`, and keep the error aside:
//!
//! ```
//! use futures::{StreamExt, channel::mpsc, executor::block_on, future, stream};
//! use stream_demux::DemuxStreamExt;
//!
//! let input = stream::iter([Ok(1), Ok(2), Err("line noise"), Ok(3)]);
//! let (sink, odd) = mpsc::unbounded();
//! let orders = stream::iter([(1, sink)]);
//!
//! let mut failure = None;
//! let items = input.scan(&mut failure, |failure, item| {
//!     future::ready(item.map_err(|error| **failure = Some(error)).ok())
//! });
//! let totals = block_on(items.demux_by(|n| n % 2, orders));
//!
//! assert_eq!(failure, Some("line noise"));
//! assert_eq!((totals.received, totals.delivered), (2, 1));
//! # drop(odd);
//! ```
//!
//! [`Stream`]: futures_core::Stream
//! [`Sink`]: futures_sink::Sink

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod apply;
mod demux;
mod drive;
mod ext;
mod flush;
mod group;
mod held;
mod hooks;
mod hub;
mod key;
mod lease;
mod order;
mod poll;
mod ready;
mod route;
mod settings;
mod slot;
mod table;
mod totals;

pub use crate::demux::Demux;
pub use crate::ext::DemuxStreamExt;
pub use crate::hooks::{Callbacks, Detached, Discarded, Hooks, Recipient};
pub use crate::key::{ByRef, ByValue, DefaultHashBuilder, DefaultHasher};
pub use crate::lease::Lease;
pub use crate::order::{Attach, Attachable, IntoOrder, Order, Overflow};
pub use crate::totals::Totals;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

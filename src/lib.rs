//! Split one [`Stream`] into many [`Sink`]s by key, while sinks come and go.
//!
//! ```text
//! input ──▶ key(&item) ──▶ slot of that key ──▶ sink
//!                               ▲
//! orders ── attach / detach ────┘        an item with no slot is unmatched: counted, shown, dropped
//! ```
//!
//! ```
//! use futures::{StreamExt, channel::mpsc, executor::block_on, future, stream};
//! use stream_demux::DemuxStreamExt;
//!
//! let (red, reds) = mpsc::channel(8);
//! let (blue, blues) = mpsc::channel(8);
//! // Orders are a stream: usually the receiving end of a channel, here two that are known beforehand.
//! let orders = stream::iter([("red", red), ("blue", blue)]);
//! let input = stream::iter([("red", 1), ("blue", 2), ("green", 3), ("red", 4)]);
//!
//! let demux = input.demux_by(|item| item.0, orders);
//!
//! // The sinks are read while the demux runs: a full channel that is not read would block it.
//! let (reds, blues) = (reds.collect::<Vec<_>>(), blues.collect::<Vec<_>>());
//! let (totals, reds, blues) = block_on(future::join3(demux, reds, blues));
//!
//! assert_eq!(reds, [("red", 1), ("red", 4)]);
//! assert_eq!(blues, [("blue", 2)]);
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
//! | its sink is not ready, its queue ([`buffer`](Attach::buffer)) has room | queued | [`queued`](Totals::queued), then `delivered` |
//! | … the queue is full, and the sink woke itself while it was polled | held for a turn, then the sink is polled again | `queued`, then as the others |
//! | … the queue is full, [`Overflow::Wait`] | held; the input waits | `queued`, then `delivered` |
//! | … [`Overflow::DropNewest`] | shown to [`discarded`](Hooks::discarded) | [`discarded`](Totals::discarded) |
//! | … [`Overflow::DropOldest`] | queued; the head of the queue is shown to `discarded` | `queued`; the head as `discarded` |
//! | … [`Overflow::Evict`] | shown to `discarded` after the queue; the sink is dropped | `discarded` |
//! | [`admit`](Hooks::admit) says no | shown to `discarded` | `discarded` |
//! | its key has many sinks ([`multicast`](Demux::multicast)) | offered to one after the other, cloned for each but the last to be served | [`copies`](Totals::copies), and each as above; held for some of them, once as `queued` |
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
//!    with no order between, they no longer delay items in that turn. A [`Lease`] that ended before an
//!    order or an item was read has its effect first. An item belongs to the attachments that are there
//!    when its key is looked up, after these orders.
//! 2. **Order per key.** The items of one attachment reach its sink in the order of the input.
//! 3. **One fate per item.** Between two polls `received + copies = unmatched + delivered + discarded +
//!    lost + queued`, and after completion `queued` is 0. Nothing is dropped silently.
//! 4. **Only the woken are polled.** An operation of a sink that answered `Pending` is not repeated
//!    before that sink's own waker fires, with two exceptions: a pending flush, when the sink took an
//!    item meanwhile and the flush is due again (6); and `poll_ready` of a sink whose policy discards or
//!    evicts, once, in the next turn, when it answered late in a turn (see [Yielding](#yielding)). A
//!    pending flush does not stop `poll_ready`. A sink with nothing to do is not polled at all, and
//!    `poll_ready` is called only on behalf of an item that the sink then gets: what it reserves is
//!    never left unused. A waker kept from an earlier attachment, or one that fires before the answer,
//!    may cause one spurious poll. A wake is the same work with ten sinks attached or a million.
//! 5. **Bounded turns.** One `poll` spends at most [`budget`](Demux::budget), then wakes itself and
//!    returns; see [Fairness](#fairness).
//! 6. **Flushing.** A sink that took an item is flushed as soon as the input has nothing ready, or has to
//!    wait, or a turn reads nothing. If more than 16 sinks are to be flushed then, the task first lets
//!    others run, as one of them may be about to feed the input or to read from a sink, and flushes in
//!    the next turn that reads nothing, but at the latest in the 16th turn in which the input had nothing
//!    more. While the input stays busy, a sink is flushed after at most
//!    [`flush_every`](Demux::flush_every) further items, or up to a budget earlier, but not more than a
//!    quarter of that number. Not once per item of a busy input, and never forgotten: before the task
//!    goes to sleep, `poll_flush` was called on every sink that took an item since its last flush. A
//!    flush that is pending holds up no other sink. A sink that is being closed is not flushed besides.
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
//! 12. **Memory** follows the most that was attached at once, never how many keys there ever were, and
//!     what is queued: a queue that has emptied keeps room for at most 16 items. With nothing queued
//!     there is no allocation per item.
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
//! * **[`Order::Detach`]** is graceful and applies to the attachments that receive: no new items, what
//!   waits is still sent, then the sink is closed. **[`Order::Evict`]** applies to every sink of the key,
//!   also those still draining or closing: what waits is discarded, the sink dropped. For an unknown key
//!   both do nothing. Each member of a group costs one of the budget; orders and items wait until the
//!   last one is detached or evicted.
//! * **[`limit(n)`](Attach::limit).** After `n` items were accepted, that is sent or queued, the key is
//!   free, and the sink drains and is closed.
//! * **[`Lease`]** holds one attachment, not a key: the late clean-up of an old consumer never removes its
//!   successor. If it is dropped before the order is applied, the attachment never takes the key. The end
//!   of a lease is itself like an order: it takes effect before orders and items that are read after it,
//!   each attachment that ends costing one of the budget.
//! * **[`Overflow`]** is chosen for each attachment. Under `Wait` an item is held, and the input with it,
//!   while the queue is full and the sink not ready. `DropNewest` and `DropOldest` have at least one place
//!   in the queue, also with `buffer(0)`: the item that a sink was polled for waits for that sink.
//! * **[`multicast`](Demux::multicast).** An attachment joins those that have its key. The members are
//!   offered an item one after the other, in the order in which they joined, and each that can take its
//!   copy gets it at once. A member under `Wait` that cannot take it holds the item for itself alone, and
//!   gets its copy as soon as it is woken and ready; the next item is read when the last one has taken
//!   its copy. The last member still to be served gets the item itself, the others get clones. Members
//!   that join while an item is held get the items after it. A member that leaves gracefully takes its
//!   copy along, beyond its buffer; one that fails or overflows discards it; one that is evicted takes
//!   none, unless it is the last, which discards the item itself. While it is held, an item counts once
//!   in `queued`. [`blocked`](Hooks::blocked) names the first member that the item waits for, after all
//!   were offered it.
//! * **[`admit`](Hooks::admit)** is asked once for each item and recipient, when the item is first offered
//!   to it, before queue and readiness are looked at. A member that leaves gracefully before that is asked
//!   then; one that is evicted is not asked. Items that were admitted and then moved to a successor are
//!   not asked about again.
//! * **[`catch_all`](Attach::catch_all).** The last one attached with it receives what matches nobody, on
//!   its own terms. When it leaves, unmatched items are unmatched again; when it is replaced under its
//!   key, what waits for it moves to the successor. A caught item goes to that attachment alone, not to its key's group.
//!
//! # Head-of-line blocking
//!
//! With [`Overflow::Wait`], the default, a sink that is not ready while its queue is full **holds the
//! input, and so the items of all other sinks**. That is backpressure, and right where every sink must
//! have every item. Where one slow sink must not hold back the others, give its attachment a
//! [`buffer`](Attach::buffer) and another [`Overflow`]. [`Hooks::blocked`] and [`Demux::blocked_on`] name
//! the sink that the input waits for; [`Order::Evict`] or a dropped [`Lease`] ends the wait. With
//! [`multicast`](Demux::multicast) the members that are ready have their copies already; it is the next
//! item that waits.
//!
//! # Yielding
//!
//! `Pending` does not always mean that a sink is full. A sink that wakes itself while it is polled only
//! lets other tasks run: tokio's channels and sockets do so when the task has used up its [cooperative
//! budget][coop] of 128 operations, and more than one demux or channel may share what a sink waits for.
//! Discarding an item, or evicting the sink, on such an answer would lose items that there is room for.
//! Therefore:
//!
//! * When a sink's waker has fired by the time it answers `Pending` or a policy would act on that
//!   answer, and its queue is full, the item is held, no further item is routed in this turn, and the
//!   sink is polled again in the next. [`Hooks::blocked`] is not called.
//! * If the sink does the same again, it is taken to be full as soon as nothing has happened in
//!   between (no order was read, no sink accepted an item, no flush or close completed), or after 16 turns.
//! * Tokio wakes a spawned task that has used up its budget only later, so that the answer looks like
//!   that of a full sink. So when a sink under `DropNewest`, `DropOldest` or `Evict` answers `Pending`
//!   after 64 operations of a turn, it is treated in the same way: it is polled once more, early in the next
//!   turn, when the task's budget is fresh.
//!
//! [coop]: https://docs.rs/tokio/latest/tokio/task/coop/index.html
//!
//! # Fairness
//!
//! A turn (one `poll`) has a budget: each order, each attachment that a lease ends, each woken sink looked
//! after, each item read, each item moved out of a queue, each flush and each sink told of the end costs
//! one; an item for several sinks, and an order that detaches or evicts several, cost one for each, and
//! go on in the next turn where the budget ended. Orders leave a quarter of the turn to sinks that have something to do, and
//! sinks leave a quarter to items (with a budget under four: one turn in four). Within the share of the
//! sinks, those that were woken leave half to flushes that are due, and these two half to the telling
//! of the end. So orders that never pause can hold back items (guarantee 1 wants it), but no sink; and
//! neither orders, nor items, nor busy sinks make a woken sink wait for more than a few turns.
//!
//! What a single poll can cost beyond that: an eviction or a failure discards a whole queue at once,
//! and a queue that is dropped drops its items; tables double when they are full, unless room was made
//! beforehand with [`with_capacity`](Demux::with_capacity); completion frees the tables.
//!
//! A sink or orders stream that wakes itself while it is polled is polled for that wake in the next
//! turn, not again in this one. With `n` such sinks, a sink that is woken waits for about `n` divided by
//! what a turn gives to sinks, three quarters of the budget, turns.
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
//!   sockets answer `Pending` beyond it. Nothing is lost by that ([Yielding](#yielding)), provided that the
//!   demux has a task of its own: joined with other futures in one task it shares the budget with them,
//!   and if they spend it in each poll, a tokio channel of orders is never read, and a sink with room looks full.
//!   A demux has a budget of its own, so that `tokio::task::unconstrained(demux)` is safe, and
//!   faster for items that go to more than a hundred tokio sinks. A task on the same runtime
//!   that fills a channel of tokio's with more than 128 items yields after as many, late enough for all
//!   sinks to be flushed meanwhile: spawn that one `unconstrained` too, or give its channel room for 100.
//! * **Items taken through [`get_mut`](Demux::get_mut)** take the waker with them: after polling the input
//!   there, poll the demux, or it may not be woken for the next item.
//! * **One channel attached twice.** While an attachment still drains, a new attachment of a clone of the same channel
//!   receives beside it, and their items interleave. Keep to one attachment, or wait for
//!   [`detached`](Hooks::detached).
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

mod budget;
mod demux;
mod ext;
mod flush;
mod group;
mod hooks;
mod id;
mod key;
mod lease;
mod ledger;
mod order;
mod ready;
mod router;
mod slot;
mod slots;
mod table;
mod timers;
mod totals;

pub use crate::demux::Demux;
pub use crate::ext::DemuxStreamExt;
pub use crate::hooks::{Callbacks, Detached, Discarded, Hooks, Recipient};
pub use crate::key::{ByRef, ByValue, DefaultHashBuilder, DefaultHasher, OrAttach};
pub use crate::lease::Lease;
pub use crate::order::{Attach, Attachable, IntoOrder, Order, Overflow};
pub use crate::totals::Totals;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

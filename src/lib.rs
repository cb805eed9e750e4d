//! Split one [`Stream`] into many [`Sink`]s by key, while sinks come and go.
//!
//! ```text
//! input ──▶ key(&item) ──▶ slot of that key ──▶ sink
//!                               ▲
//! orders ── attach / detach ────┘
//! ```
//!
//! # Quick start
//!
//! On tokio, with `tokio-stream` and `tokio-util` for the channels:
//!
//! ```
//! use stream_demux::DemuxStreamExt;
//! use tokio::sync::mpsc;
//! use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
//! use tokio_util::sync::PollSender;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let (items, input) = mpsc::channel(100);
//! let (orders, orders_in) = mpsc::unbounded_channel();
//! let demux = ReceiverStream::new(input)
//!     .demux_by(|item: &(u32, &str)| item.0, UnboundedReceiverStream::new(orders_in))
//!     .on_unmatched(|item| println!("no sink for {item:?}"));
//! let demux = tokio::spawn(demux);
//!
//! // At any time, from any task: attach a sink for a key.
//! let (sink, mut received) = mpsc::channel(16);
//! orders.send((7, PollSender::new(sink))).unwrap();
//!
//! items.send((7, "hello")).await.unwrap();
//! items.send((8, "to no sink")).await.unwrap();
//! assert_eq!(received.recv().await, Some((7, "hello")));
//!
//! drop(items); // the input ends, and with it the demux
//! let totals = demux.await.unwrap();
//! assert_eq!((totals.received, totals.delivered, totals.unmatched), (2, 1, 1));
//! # }
//! ```
//!
//! With any executor, here that of `futures`:
//!
//! ```
//! use futures::{StreamExt, channel::mpsc, executor::block_on, future, stream};
//! use stream_demux::{Attach, DemuxStreamExt, Overflow};
//!
//! let (red, reds) = mpsc::channel(8);
//! let (blue, blues) = mpsc::channel(8);
//! // Orders are a stream, usually the receiving end of a channel. Here both are known in advance.
//! let orders = stream::iter([
//!     Attach::new("red", red), // if it is slow, the input waits
//!     Attach::new("blue", blue).buffer(64).overflow(Overflow::DropOldest), // loses the oldest
//! ]);
//! let input = stream::iter([("red", 1), ("blue", 2), ("green", 3), ("red", 4)]);
//! let demux = input.demux_by(|item| item.0, orders);
//!
//! // Read the sinks while the demux runs: a full channel that is not read would block it.
//! let (reds, blues) = (reds.collect::<Vec<_>>(), blues.collect::<Vec<_>>());
//! let (totals, reds, blues) = block_on(future::join3(demux, reds, blues));
//!
//! assert_eq!(reds, [("red", 1), ("red", 4)]);
//! assert_eq!(blues, [("blue", 2)]);
//! assert_eq!((totals.received, totals.delivered, totals.unmatched), (4, 3, 1));
//! ```
//!
//! [`demux_by`] returns a [`Demux`], a future that does all the work when it is polled and
//! completes with the [`Totals`]. It spawns no tasks, starts no timers, creates no channels and
//! works with any runtime. The crate is `no_std` with `alloc` and contains no `unsafe` code.
//!
//! # Guide
//!
//! This page says exactly what a demux does. The guide shows how to build with it:
//!
//! * [First steps](guide::first_steps): from a `select!` loop to a demux, on tokio.
//! * [Channels](guide::channels): tokio, flume, sockets, codecs, sinks of several types.
//! * [Slow sinks](guide::slow_sinks): choose a policy, report losses, rate limits, time-outs.
//! * [Attachments](guide::attachments): connect, reconnect, leave; request and response; workers on
//!   demand.
//! * [Routing](guide::routing): keys, groups, several keys for an item, priorities, shards.
//! * [Ending](guide::ending): shutdown with a deadline; when the last handle is gone.
//! * [Inputs](guide::inputs): fallible inputs, Kafka, Redis, Postgres, NATS.
//! * [In production](guide::production): metrics, logs, the type in a struct, tests.
//! * [Bare metal](guide::bare_metal): without `std`.
//! * [Comparison](guide::comparison): other ways to do it, and when they are enough.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | *order* | an item of the orders stream, such as: attach this sink under this key ([`Order`]) |
//! | *attachment* | a sink under a key, from its order until the sink is gone ([`Attach`]) |
//! | *slot* | the place of an attachment in the demux: its sink, its queue and its waker |
//! | *lease* | holds attachments, and ends them when it is dropped ([`Lease`]) |
//! | *group* | the attachments that share a key, with [`multicast`] or [`balance`] |
//! | *queued* | waiting in the queue of an attachment, of at most [`buffer`] items |
//! | *held* | waiting outside of all queues, together with the input: one item at most |
//! | *blocked* | the input waits because a sink cannot take the item that is held |
//! | *turn* | one `poll` of the demux, which does at most a [`budget`](Demux::budget) of work |
//! | *tick* | one unit of time, of a length that you choose ([`Order::Tick`]) |
//!
//! # What happens to an item
//!
//! | when | the item is | counted as |
//! | --- | --- | --- |
//! | its sink is ready | sent at once: no queue, no allocation | [`delivered`] |
//! | its sink is not ready, its [`buffer`] has room | queued | [`queued`], then `delivered` |
//! | … is full, but the sink has [yielded] | held for the next turn | `queued`, then as here |
//! | … is full, [`Overflow::Wait`] | held; the input waits | `queued`, then `delivered` |
//! | … is full, [`Overflow::DropNewest`] | discarded | [`discarded`] |
//! | … is full, [`Overflow::DropOldest`] | queued; the oldest discarded | `queued`, `discarded` |
//! | … is not empty, [`Overflow::Conflate`] | replaces an older one | `queued`, `discarded` |
//! | … is full, [`Overflow::Evict`] | discarded; the sink is dropped | `discarded` |
//! | [`admit`] returns `false` | discarded | `discarded` |
//! | its key has many sinks ([`multicast`]) | cloned for all but one | [`copies`], each as here |
//! | its sink shares the key with others ([`balance`]) | given to one of them | as here |
//! | its key is not attached, and [`or_attach_with`] attaches a sink | routed | as here |
//! | its key is not attached | passed to [`Hooks::unmatched`] | [`unmatched`] |
//! | … and there is a [`catch_all`] | sent to that sink instead | as in the rows above |
//! | its key is detached while it waits | still sent; then the sink is closed | `delivered` |
//! | its key is evicted while it waits | discarded | `discarded` |
//! | its sink fails while it waits | discarded | `discarded` |
//! | its sink is replaced while it waits | moved to the new sink, in order | as before |
//! | its sink fails in `start_send` | gone: the sink has it | [`lost`] |
//!
//! An item *waits* while it is queued or held. A discarded item is passed to [`Hooks::discarded`]
//! with the reason. While some of many sinks wait for their copies of an item, the held item
//! counts once as `queued`.
//!
//! # Guarantees
//!
//! The documentation and the tests refer to these by number.
//!
//! 1. **Orders before items.** An order that was ready before the input returned an item is applied
//!    before that item is routed. Until then the item is held and counts as `queued`. After the
//!    orders stream has returned `Pending`, it is polled again only when its waker has fired, so an
//!    idle one costs nothing. If it returns `Pending` and wakes itself, no further item is routed
//!    in that turn. If it does so again in the next turn, with no order in between, it no longer
//!    delays items in that turn. A [`Lease`] that ended before an order or an item was read takes
//!    effect first. An item belongs to the attachments that exist when its key is looked up, after
//!    these orders. What a [tick](#time) causes may come after items that are read later.
//! 2. **Order per key.** The items of an attachment reach its sink in the order of the input. An
//!    item that takes the place of another under [`Overflow::Conflate`] may pass items in between.
//!    With [`balance`], each sink gets its items in this order until a sink leaves and its queued
//!    items move to the others.
//! 3. **One fate per item.** Between two polls
//!    `received + copies = unmatched + delivered + discarded + lost + queued`, and after
//!    completion `queued` is 0. Nothing is dropped silently.
//! 4. **Only woken sinks are polled.** After a sink operation has returned `Pending`, it is not
//!    repeated until that sink's own waker fires. There are two exceptions. A pending flush is
//!    polled again when the sink has taken another item and its flush is due again (6).
//!    `poll_ready` of a sink whose policy discards or evicts is polled once more, in the next turn,
//!    if it returned `Pending` late in a turn (see [Yielding](#yielding)). A pending flush does not
//!    stop `poll_ready`. A sink with nothing to do is not polled at all. `poll_ready` is called
//!    only for an item that the sink then gets, so what a sink reserves is never left unused; with
//!    [`balance`] it may be left for the next item. A waker kept from an earlier attachment, or one
//!    that fires before the operation has returned, may cause one spurious poll. A wake is the same
//!    work with ten sinks attached as with a million.
//! 5. **Bounded turns.** One `poll`, a *turn*, spends at most the [`budget`](Demux::budget). If
//!    work is left, the demux wakes its task and returns. See [Fairness](#fairness).
//! 6. **Flushing.** A sink that took an item is flushed as soon as the input has nothing ready, the
//!    input has to wait, or a turn reads nothing. If more than 16 sinks need a flush at that point,
//!    the demux first lets other tasks run, because one of them may be about to feed the input or
//!    to read from a sink. It then flushes in the next turn that reads nothing, and at the latest
//!    in the 16th turn from then on in which the input has nothing ready. While the input stays
//!    busy, a sink is flushed after at most [`flush_every`](Demux::flush_every) further items. It
//!    may be flushed earlier than that by up to one budget, but not by more than a quarter of
//!    `flush_every`. A busy input does not cause a flush per item, and no flush is forgotten:
//!    before the task goes to sleep, `poll_flush` has been called on every sink that took an item
//!    since its last flush. A pending flush holds up no other sink. A sink that is being closed is
//!    not flushed separately. With [`linger`](Demux::linger), sinks are flushed at a tick instead
//!    when the input has nothing ready, and the task may go to sleep before.
//! 7. **A blocked sink holds the input and nothing else.** While the input waits for a sink,
//!    orders are applied, other queues drain, and flushes and closes go on. Detaching, evicting or
//!    replacing the sink releases the input in the same poll, and so does its failure.
//! 8. **Errors stay where they are.** A sink that fails is dropped and not touched again, its key
//!    becomes free, its queued items are discarded ([`Discarded::Failed`]), and everything else
//!    goes on. An error while closing is reported as [`Detached::Failed`], whatever the sink was
//!    closed for.
//! 9. **The end.** When the input ends, or [`Order::Finish`] is applied, the queues drain, each
//!    sink is closed once, and the future completes after the last close. The input is not read
//!    again, even if it is blocked or endless; an item that is held is still routed. Orders are
//!    still applied, so that a stuck sink can be evicted; a sink attached at this stage is closed
//!    at once, even under a taken key. The end of the orders stream ends nothing else. Orders that
//!    are unread after the last close are dropped.
//! 10. **The contracts of `Sink` and `Stream` are kept.** `start_send` is called only after
//!     `poll_ready` has returned `Ready(Ok(()))`. A sink is not touched after `poll_close` has
//!     completed or after an error. `poll_next` is not called after `None`. After completion,
//!     [`is_terminated`](futures_core::FusedFuture::is_terminated) returns `true`, and another
//!     poll panics.
//! 11. **Dropping.** Dropping the future drops the input, the orders, the sinks and the items at
//!     once. The orders stream is dropped when it ends, sinks and queues on completion at the
//!     latest, the input and the hooks with the future. Wakers that outlive the future do nothing.
//!     There are no leaks and no reference cycles.
//! 12. **Memory** follows the largest number of simultaneous attachments and the number of queued
//!     items, not the number of keys ever used. A queue that has emptied keeps room for at most 16
//!     items. While nothing is queued, there is no allocation per item.
//! 13. **Any task, any waker.** Between polls the future may move to another task or get another
//!     waker; no wake-up is lost.
//!
//! # Attachments
//!
//! * **Hooks.** Every [`Attach`] is announced by one call of [`attached`](Hooks::attached) and
//!   ends with one call of [`detached`](Hooks::detached), when its sink is gone. This includes
//!   attachments that are refused or that arrive after the end.
//! * **Taken key.** An attachment replaces the one that has its key. Items that wait for the old
//!   sink move to the new one, in order, even beyond its buffer, and count towards its limit;
//!   items beyond the limit are unmatched. The old sink is flushed and closed in the background.
//!   With [`keep_existing`](Attach::keep_existing) the new sink is closed instead.
//! * **[`Order::Detach`]** is graceful and applies to the attachments that are receiving: they get
//!   no new items, waiting items are still sent, then the sinks are closed. **[`Order::Evict`]**
//!   applies to every sink of the key, including those that are draining or closing: waiting items
//!   are discarded and the sinks are dropped. Both do nothing for an unknown key. Each member of a
//!   group costs one unit of the budget; orders and items wait until the last member is detached
//!   or evicted.
//! * **[`limit(n)`](Attach::limit).** After `n` items have been accepted, that is sent or queued,
//!   the key becomes free, and the sink drains and is closed.
//! * **[`Lease`]** holds an attachment, not a key: the late clean-up of an old consumer never
//!   removes its successor. If the lease is dropped before the order is applied, the attachment
//!   never takes the key. The end of a lease acts like an order: it takes effect before orders and
//!   items that are read after it, and each attachment that ends costs one unit of the budget.
//! * **[`Overflow`]** is set per attachment. Under `Wait`, an item is held, and the input with it,
//!   while the queue is full and the sink is not ready. Under `DropNewest`, `DropOldest` and
//!   `Conflate`, the queue has room for at least one item, even with `buffer(0)`: the item that a
//!   sink was polled for waits for that sink.
//! * **[`multicast`](Demux::multicast).** An attachment joins the *group* of attachments that have
//!   its key. An item is offered to the members one after the other, in the order in which they
//!   joined, and each member that can take its copy gets it at once. A member under `Wait` that
//!   cannot take its copy holds the item for itself alone, and gets the copy as soon as it is
//!   woken and ready. The next item is read when the last member has taken its copy. The last
//!   member to be served gets the item itself, the others get clones.
//!     * Members that join while an item is held get the items after it.
//!     * If a member leaves gracefully before it has got its copy, the copy is queued for it,
//!       beyond its buffer if necessary. If it fails or overflows, its copy is discarded. If it is
//!       evicted, no copy is made; if no other member is owed one, the item itself is discarded.
//!     * A held item counts once as `queued`. [`blocked`](Hooks::blocked) names the first member
//!       that the item waits for, after the item was offered to all members.
//! * **[`balance`]** lets the attachments of a key share its items. They are not cloned; each goes
//!   to the next sink in turn that is ready, or to the shortest queue. See [`Demux::balance`].
//! * **[`key_attached`](Hooks::key_attached) and [`key_detached`](Hooks::key_detached)** alternate
//!   strictly for each key, and agree with [`contains_key`](Demux::contains_key).
//! * **[`admit`](Hooks::admit)** is called once per item and recipient, when the item is first
//!   offered to that recipient, before its queue and its readiness are checked. It is also called
//!   for a member that leaves gracefully before it was offered the item, at that moment, but not
//!   for one that is evicted. Admitted items that move to a successor are not checked again.
//! * **[`catch_all`](Attach::catch_all).** The attachment that was last attached with this term
//!   receives the unmatched items, under its own terms. When it leaves, such items are unmatched
//!   again; when it is replaced under its key, its waiting items move to the successor. A caught
//!   item goes to this attachment alone, not to the group of its key.
//!
//! # Head-of-line blocking
//!
//! With [`Overflow::Wait`], the default, a sink that is not ready while its queue is full **holds
//! the input, and thereby the items of all other sinks**. This is backpressure, and it is what you
//! want if no item may be lost. If one slow sink should not hold back the others, give its
//! attachment a [`buffer`](Attach::buffer) and another [`Overflow`] policy.
//!
//! [`Hooks::blocked`] and [`Demux::blocked_on`] name the sink that the input waits for. An
//! [`Order::Evict`] or a dropped [`Lease`] ends the wait. With [`multicast`](Demux::multicast),
//! the members that are ready already have their copies; it is the next item that waits.
//!
//! # Yielding
//!
//! `Pending` does not always mean that a sink is full. Some sinks wake themselves while they are
//! polled, only to let other tasks run. Tokio's channels and sockets do this when the task has
//! used up its [cooperative budget][coop] of 128 operations. Several demuxes or channels may also
//! share what a sink waits for. Discarding an item or evicting the sink in these cases would lose
//! items for which there is room. Therefore:
//!
//! * If a sink returns `Pending` while its queue is full, and its waker has fired by then or before
//!   its policy is applied, then the item is held, no further item is routed in this turn, and the
//!   sink is polled again in the next turn. [`Hooks::blocked`] is not called.
//! * If the sink does the same again, it is considered full as soon as nothing has happened in
//!   between (no order was read, no sink accepted an item, no flush or close completed), or after
//!   16 turns.
//! * Tokio delays the wake of a spawned task that has used up its budget, so the sink looks full
//!   at that time. Therefore, if a sink under any policy except `Wait` returns
//!   `Pending` after 64 operations of a turn, it is treated in the same way: it is polled once
//!   more, early in the next turn, when the task's budget is fresh.
//!
//! [coop]: https://docs.rs/tokio/latest/tokio/task/coop/index.html
//!
//! # Time
//!
//! The crate has no clock. Time comes in as an order: [`Order::Tick`] says that one unit of time
//! has passed, and the unit is up to you. Without ticks nothing expires. To get them, merge a
//! ticker into the orders:
//!
//! ```text
//! tokio    stream::select(orders, IntervalStream::new(interval(unit)).map(|_| Order::Tick))
//! smol     stream::select(orders, smol::Timer::interval(unit).map(|_| Order::Tick))
//! embassy  stream::select(orders, Ticker::every(unit).map(|_| Order::Tick))
//! ```
//!
//! `n` ticks take between `n - 1` and `n` units, because the first may follow at once:
//!
//! ```text
//! units                 |         |         |         |         |
//! ticks                 T         T         T         T         T
//! stall_timeout(3)           |- an item waits: 1 --- 2 ------- 3 evicted, Detached::Stalled
//! stall_timeout(3)           |-------- 1 - taken |    the count starts anew with the next wait
//! idle_timeout(2)            item ---- 0 -------- 1 ----------- 2 detached, Detached::Idle
//! linger(2)                  dry ----- 1 -------- 2 flushed
//! ```
//!
//! * **[`stall_timeout`](Attach::stall_timeout)** evicts a sink that makes no progress while an
//!   item, a flush or a close is pending. It also applies to a sink that is leaving, so it bounds
//!   how long a graceful leave may take.
//! * **[`idle_timeout`](Attach::idle_timeout)** detaches a sink that gets no items. A tick does not
//!   count if the sink took an item or completed a flush since the tick before.
//! * **[`linger`](Demux::linger)** puts off the flush when the input has nothing ready, so that
//!   more items share one.
//!
//! Ticks that are read in one turn count as one. A tick is applied to the attachments that have
//! time-outs one after the other, each for one unit of the budget; orders and items go on in the
//! meantime. Ticks that are read before the last one was applied to all of them count as one, which
//! is applied afterwards.
//!
//! # Fairness
//!
//! Each turn, that is each `poll`, has a [`budget`](Demux::budget). Each of these costs one unit:
//!
//! * an order that is read, and each attachment beyond the first that it detaches or evicts;
//! * an attachment that a lease ends;
//! * a woken sink that is handled, and each item that is moved out of its queue;
//! * an item that is read, and each member of a group beyond the first that it is offered to;
//! * a flush;
//! * an attachment with a time-out to which a tick is applied;
//! * an attachment that is made on demand, and every 16 sinks among which [`balance`] looks for the
//!   shortest queue;
//! * a sink that starts to close because the input has ended.
//!
//! Work that exceeds the budget continues in the next turn. Orders leave a quarter of the turn to
//! sinks that have something to do, and sinks leave a quarter to items. (With a budget below four,
//! the quarter is one turn in four.) Of the share of the sinks, half is for closing after the end,
//! half of the rest for ticks, half of what is then left for due flushes, and the remainder for
//! woken sinks. Work that does not exist leaves its part to the others. So orders that never pause
//! can hold back items, as guarantee 1 requires, but not sinks. Neither orders nor items nor busy
//! sinks make a woken sink wait for more than a few turns.
//!
//! Some work of a single poll is not bounded by the budget. An eviction or a failure discards a
//! whole queue at once, or moves it to others, and dropping a queue drops its items. With
//! [`balance`], an item is offered to all sinks that may be ready in one poll: each costs one unit,
//! even if the budget is spent. Tables double when they are full, unless
//! [`with_capacity`](Demux::with_capacity) has made room in advance, and lists of members close
//! their gaps when most of the members have left. Completion frees the tables.
//!
//! A sink or an orders stream that wakes itself while it is polled is polled again in the next
//! turn, not in the same one. With `n` such sinks, a woken sink waits for about `n / s` turns,
//! where `s` is the share of the sinks, three quarters of the budget.
//!
//! # Practical notes
//!
//! * **Untrusted keys.** If others choose the keys, use
//!   [`with_hasher`](Demux::with_hasher)`(RandomState::new())`. The default hasher is fast, but
//!   does not withstand keys that were chosen to collide.
//! * **The input shares the task's waker.** Unless an item is held or the input has ended, the
//!   demux polls the input on every wake of the task, including wakes caused by a sink. The orders
//!   stream and the sinks have wakers of their own.
//! * **Sinks are not returned.** An attachment ends with its sink closed or dropped. To keep a
//!   connection, attach the sender of a channel, or a sink that hands its connection back on drop.
//! * **Cancel safety.** No state is lost between polls: you can poll `&mut demux` inside a timeout
//!   or a `select!` and continue to poll it later.
//! * **Panics.** After a panic in a key function, a hook, a sink or a stream, the demux can only
//!   be dropped, which drops everything it holds. Another poll panics. The item that was being
//!   processed is dropped by the unwinding.
//! * **Readers run concurrently.** If a sink is a bounded channel, poll its receiver while the
//!   demux runs, in another task or joined with the demux. If you read only afterwards, a full
//!   channel blocks the demux for good.
//! * **Tokio's cooperative budget** is 128 operations per poll of a task. Beyond that, tokio's
//!   channels and sockets return `Pending`. No items are lost because of this
//!   ([Yielding](#yielding)), provided that the demux has a task of its own. Other futures in the
//!   same task share the budget. If they use it up in every poll, a tokio channel of orders is
//!   never read, and a sink with room looks full.
//!     * The demux limits its own turns, so `tokio::task::unconstrained(demux)` is safe. It is
//!       faster if an item goes to more than a hundred tokio sinks.
//!     * A task on the same runtime that fills a tokio channel with more than 128 items yields
//!       after 128, for long enough that all sinks are flushed in the meantime. Make that task
//!       `unconstrained` as well, or give its channel a capacity of 100.
//! * **[`get_mut`](Demux::get_mut) and wakers.** If you poll the input through `get_mut`, it
//!   registers your waker. Poll the demux afterwards; otherwise the next item may not wake it.
//! * **One channel attached twice.** If you attach a clone of a channel's sender while an earlier
//!   attachment of that channel is still draining, both send to it, and their items interleave.
//!   Attach a channel once, or wait for [`detached`](Hooks::detached).
//! * **Composite keys** are tuples, as in `|m| (m.tenant, m.topic)`, or a reference to a part of
//!   the item that implements `Hash` and `Eq`, as in
//!   [`demux_by_ref`](DemuxStreamExt::demux_by_ref)`(|m| &m.address)`.
//! * **A dead sink that is idle** is noticed when the next item is sent to it, not before. To free
//!   its key promptly, give the attachment a [`Lease`] and drop it with the connection.
//! * **Fallible inputs.** The input has items, not results. [Inputs](guide::inputs) shows how to
//!   end it at the first error and keep the error, or to skip errors.
//! * **Targets** without atomic compare-and-swap (`thumbv6m`, `riscv32imc`) are not supported.
//!
//! [`Stream`]: futures_core::Stream
//! [`Sink`]: futures_sink::Sink
//! [`demux_by`]: DemuxStreamExt::demux_by
//! [`multicast`]: Demux::multicast
//! [`balance`]: Demux::balance
//! [`or_attach_with`]: Demux::or_attach_with
//! [`buffer`]: Attach::buffer
//! [`catch_all`]: Attach::catch_all
//! [`admit`]: Hooks::admit
//! [`delivered`]: Totals::delivered
//! [`queued`]: Totals::queued
//! [`discarded`]: Totals::discarded
//! [`copies`]: Totals::copies
//! [`unmatched`]: Totals::unmatched
//! [`lost`]: Totals::lost
//! [yielded]: #yielding

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod budget;
mod demux;
mod ext;
mod flush;
mod group;
#[cfg(any(doc, doctest))]
pub mod guide;
mod hooks;
mod id;
mod key;
mod lease;
mod ledger;
mod order;
mod patience;
mod ready;
mod router;
mod slot;
mod slots;
mod store;
mod timers;
mod totals;

pub use crate::demux::Demux;
pub use crate::ext::DemuxStreamExt;
pub use crate::hooks::{Callbacks, Detached, Discarded, Hooks, Recipient};
pub use crate::key::{ByRef, ByValue, DefaultHashBuilder, DefaultHasher, OrAttach};
pub use crate::lease::Lease;
pub use crate::order::{Attach, Attachable, IntoOrder, Order, Orders, Overflow};
pub use crate::totals::Totals;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Split one [`Stream`] into many [`Sink`]s by key, while sinks come and go.
//!
//! It is for programs that hold `Stream`s and `Sink`s of their own, on any runtime or none; for
//! publish/subscribe or a worker per key on tokio, take the package `stream-demux-hub`, in `hub/`
//! of the repository, which is built on this crate and needs no knowledge of it.
//!
//! ```text
//! input ──▶ key(&item) ──▶ slot of that key ──▶ sink
//!                               ▲
//! orders ── attach / detach ────┘
//! ```
//!
//! # Quick start
//!
//! On tokio, with `futures`, `tokio-stream` and `tokio-util` for the channels:
//!
//! ```
//! use futures::channel::mpsc::unbounded;
//! use stream_demux::DemuxStreamExt;
//! use tokio::sync::mpsc;
//! use tokio_stream::wrappers::ReceiverStream;
//! use tokio_util::sync::PollSender;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let (items, input) = mpsc::channel(100);
//! let (orders, orders_in) = unbounded();
//! let demux = ReceiverStream::new(input)
//!     .demux_by(|item: &(u32, &str)| item.0, orders_in)
//!     .on_unmatched(|item| println!("no sink for {item:?}"));
//! let demux = tokio::spawn(demux);
//!
//! // At any time, from any task: attach a sink for a key.
//! let (sink, mut received) = mpsc::channel(16);
//! orders.unbounded_send((7, PollSender::new(sink))).unwrap();
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
//! * [The contract](guide::contract): what a demux does, exactly, and practical notes.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | *order* | an item of the orders stream, such as: attach this sink under this key ([`Order`]) |
//! | *attachment* | a sink under a key, from its order until the sink is gone ([`Attach`]) |
//! | *lease* | holds attachments, and ends them when it is dropped ([`Lease`]) |
//! | *group* | the attachments that share a key, with [`multicast`] or [`balance`] |
//! | *queued* | waiting in the queue of an attachment, of [`buffer`] items |
//! | *beyond the buffer* | queued although there is no room, until the [policy](Overflow) is applied |
//! | *blocked* | the input waits because a sink with the policy `Wait` has an item beyond its buffer |
//! | *turn* | one `poll` of the demux, which does a bounded amount of work |
//! | *tick* | one unit of time, of a length that you choose ([`Order::Tick`]) |
//!
//! # What happens to an item
//!
//! | when | the item is | counted as |
//! | --- | --- | --- |
//! | its sink is ready | sent at once: no queue, no allocation | [`delivered`] |
//! | its sink is not ready, its [`buffer`] has room | queued | [`queued`], then `delivered` |
//! | … is full, [`Overflow::Wait`] | queued beyond it; the input waits | `queued`, then `delivered` |
//! | … is full, another policy | queued beyond it; the sink is polled once more | `queued`, then |
//! | … and ready by then | sent | `delivered` |
//! | … and not ready, [`Overflow::DropNewest`] | discarded | [`discarded`] |
//! | … and not ready, [`Overflow::DropOldest`] | kept; the oldest is discarded | `discarded` |
//! | … and not ready, [`Overflow::Conflate`] | kept in place of an older one | `discarded` |
//! | … and not ready, [`Overflow::Evict`] | discarded with all that is queued; the sink is dropped | `discarded` |
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
//! A discarded item is passed to [`Hooks::discarded`] with the reason.
//!
//! # Head-of-line blocking
//!
//! With [`Overflow::Wait`], the default, a sink that is not ready while its queue is full **holds
//! the input, and thereby the items of all other sinks**. This is backpressure, and it is what you
//! want if no item may be lost. If one slow sink should not hold back the others, give its
//! attachment another [`Overflow`] policy.
//!
//! [`Hooks::blocked`] and [`Demux::blocked_on`] name the sink that the input waits for. An
//! [`Order::Evict`] or a dropped [`Lease`] ends the wait. With [`multicast`](Demux::multicast),
//! the members that are ready already have their copies; it is the next item that waits.
//!
//! # Guarantees
//!
//! The documentation and the tests refer to these by number. [The contract](guide::contract) has
//! the details.
//!
//! 1. **Orders before items.** An order that was ready before the input returned an item is applied
//!    before that item is routed.
//! 2. **Order per key.** The items of an attachment reach its sink in the order of the input.
//! 3. **One fate per item.** Between two polls
//!    `received + copies = unmatched + delivered + discarded + lost + queued`. Delivered is what a
//!    sink has taken; what becomes of it there is not seen.
//! 4. **Only woken sinks are polled**, and a wake is the same work with ten sinks as with a
//!    million.
//! 5. **Bounded turns.** Each kind of work does at most one [`budget`](Demux::budget) in a turn,
//!    and none can starve another.
//! 6. **Flushing.** No flush is forgotten. Sinks are flushed when the input pauses and, while it is
//!    busy, when enough items share the flushes, after at most
//!    [`flush_every`](Demux::flush_every) items.
//! 7. **A blocked sink holds the input and nothing else.** Detaching, evicting or replacing it
//!    releases the input at once.
//! 8. **Errors stay where they are.** A sink that fails is dropped, and everything else goes on.
//! 9. **The end.** When the input ends, the queues drain, each sink is closed once, and the future
//!    completes after the last close.
//! 10. **The contracts of `Sink` and `Stream` are kept.**
//! 11. **Dropping** the future drops all it holds at once. There are no leaks and no reference
//!     cycles.
//! 12. **Memory** follows the simultaneous attachments and the queued items, not the keys ever
//!     used. While nothing is queued, there is no allocation per item.
//! 13. **Any task, any waker.** The future may move to another task between polls; no wake-up is
//!     lost.
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

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod demux;
#[cfg(any(doc, doctest))]
pub mod guide;
mod hooks;
mod key;
mod lease;
mod order;
mod router;
mod slots;
mod totals;

pub use crate::demux::{Demux, DemuxStreamExt};
pub use crate::hooks::{Callbacks, Detached, Discarded, Hooks, Recipient};
pub use crate::key::{ByRef, ByValue, DefaultHashBuilder, DefaultHasher, OrAttach};
pub use crate::lease::Lease;
pub use crate::order::{Attach, Attachable, IntoOrder, Order, Orders, Overflow};
pub use crate::totals::Totals;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

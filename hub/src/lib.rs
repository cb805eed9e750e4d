//! Publish/subscribe by key and a worker per key, for tokio.
//!
//! This page and the types that it links are all you need. The crate below it, `stream_demux`, is for
//! programs that hold `Stream`s and `Sink`s of their own, or that run without tokio.
//!
//! | you want | take |
//! | --- | --- |
//! | chat rooms, prices, notifications: each item for all that have subscribed to its key | [`Hub`]: [`publish`](Hub::publish) and [`subscribe`](Hub::subscribe) |
//! | the same, written to sockets of one key each | [`Hub::attach_writer`]: an item is encoded once for all of them, and a slow socket costs the others nothing. A client with several keys reads a [`split`](Subscription::split) subscription |
//! | the reply to a request | [`Hub::next`] |
//! | the orders of a customer one after the other, customers side by side | [`for_each_by_key`]: a worker for each key of a stream, [a number of them at a time](Workers::concurrency) |
//! | a position up to which everything is done, for a commit | [`Progress`] |
//!
//! # When something else is better
//!
//! * **One channel that everybody reads, without a task between publisher and readers**:
//!   `tokio::sync::broadcast`.
//! * **Only the latest value**: `tokio::sync::watch`.
//! * **A state that is shown 20 times a second**: [a table](guide::state) that clients read then.
//! * **A pool of equal workers**: `flume`, whose receiver can be cloned. A hub sends an item to all
//!   subscribers of its key, not to one of them.
//! * **Calls on one connection**: a map of `oneshot` senders takes about 15 % less processor time
//!   than [`Hub::next`], which takes two thirds of the lines.
//! * **No tokio**: `stream_demux`.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | *key* | what items are published under, and subscribed by: a room, a symbol, a customer. It exists while it has a subscriber or a worker |
//! | *subscription* | a stream of the items of one key or several ([`Subscription`]) |
//! | *terms* | how many items may wait for a subscription, its *buffer*, and what happens then, its *policy* ([`Terms`]) |
//! | *lagged* | a subscription is told how many items it was too slow for, in their place ([`Lagged`]) |
//! | *worker* | a future that handles the items of one key, in order |
//! | *mailbox* | what a worker reads ([`Mailbox`]) |
//! | *backlog* | where items wait for which a mailbox has no room, of all keys together |
//!
//! # A slow subscriber
//!
//! The policy of its [`Terms`] says what happens to an item when the buffer is full:
//!
//! | policy | the item |
//! | --- | --- |
//! | [`DropOldest`](Overflow::DropOldest), the default | takes the place of the oldest; the subscriber is told how many it has missed |
//! | [`DropNewest`](Overflow::DropNewest) | is dropped; the subscriber is told |
//! | [`Conflate`](Overflow::Conflate) | takes the place of the one of the same key: the latest of each key waits |
//! | [`Wait`](Overflow::Wait) | waits, and all publishers with it, until the subscriber reads or its [`stall_timeout`](Terms::stall_timeout) ends it |
//! | [`Evict`](Overflow::Evict) | is dropped, and the subscription ends after what waits |
//!
//! # Publish and subscribe
//!
//! ```
//! use stream_demux_hub::{Hub, Lagged, Overflow, Terms};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let rooms = Hub::new(); // a cheap handle: clone it
//! let mut ann = rooms.subscribe("tea");
//! // This one is never too slow: publishers wait for it.
//! let terms = Terms::new().buffer(8).overflow(Overflow::Wait);
//! let mut log = rooms.subscribe_with(["tea", "coffee"], terms);
//!
//! rooms.publish("tea", "hello").await.unwrap();
//! rooms.publish("coffee", "is anyone here?").await.unwrap();
//! drop(rooms); // the last handle: all is delivered, then the subscriptions end
//!
//! while let Some(line) = ann.recv().await {
//!     match line {
//!         Ok(line) => println!("{line}"),
//!         Err(Lagged(lost)) => println!("({lost} lines lost)"),
//!     }
//! }
//! assert_eq!(log.recv().await, Some(Ok("hello")));
//! assert_eq!(log.recv().await, Some(Ok("is anyone here?")));
//! assert_eq!(log.recv().await, None);
//! # }
//! ```
//!
//! # A worker per key
//!
//! ```
//! use std::time::Duration;
//! use futures::stream;
//! use stream_demux_hub::{Workers, for_each_by_key};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let orders = stream::iter([("ann", "tea"), ("ben", "juice"), ("ann", "cake")]);
//! let settings = Workers::new().concurrency(100).idle_timeout(Duration::from_secs(60));
//! let run = for_each_by_key(orders, |order| order.0, settings, |customer, mut orders| async move {
//!     while let Some((_, order)) = orders.recv().await {
//!         println!("{customer}: {order}"); // tea before cake
//!     }
//! });
//! assert_eq!(run.await.lost(), 0);
//! # }
//! ```
//!
//! # What happens when
//!
//! | | |
//! | --- | --- |
//! | a subscriber never reads | by default its oldest items are dropped, and it is told how many; under [`Wait`](Overflow::Wait) publishers wait for it, until its [`stall_timeout`](Terms::stall_timeout) ends the subscription |
//! | a subscription is dropped | its keys are free at once, what only it has not read is dropped, and publishers that waited for it go on |
//! | subscriptions come and go by the thousand | a key without subscribers is forgotten; some memory is kept for as many as there were at a time, and used again |
//! | a publisher is dropped while it waits | its item is not published, and its place is free |
//! | the last handle is dropped | what was published is delivered, then the subscriptions [end](Subscription::end) with [`End::Closed`] |
//! | [`shutdown`](Hub::shutdown) is called | the same; at the deadline the rest is given up and counted, and the [`Report`] names whom the hub was waiting for. Before the deadline, no item is lost by the shutdown |
//! | it is called twice | both calls wait for the same end and return the same report; the earlier deadline counts |
//! | it is dropped | the hub is closed and ends without a deadline |
//! | a closure or an attached sink panics, or the drop of an item that was lost | the hub has ended: publishing fails, the subscriptions end with [`End::Aborted`] after what was delivered |
//! | the runtime shuts down | the same |
//! | the clone of an item panics | in a subscription on the default terms: only its reader notices, and the item is the next one still; otherwise, the hub has ended |
//! | the clone of an item takes long | in a subscription on the default terms: readers that come to the same items in another thread wait for it, and nothing else does; otherwise, the hub waits for it |
//! | the socket of a [`Writer`] takes no more bytes | the writer loses whole items, counts them, and may write a notice; the others notice nothing |
//! | an item cannot be encoded for a [`Writer`], or its encoder panics | the writers with this encoder write what came before, and end; the hub goes on |
//! | a worker panics, also in its drop | the item in its hands is gone; the next worker of its key gets the rest, and other keys notice nothing |
//! | a worker returns early, or an error | the same; an item is lost only if it returns without having taken any |
//! | a key gets more than its worker can do | the others go on until the [backlog](Workers::backlog) is full; then the input waits |
//! | more keys are busy than there are [workers](Workers::max_workers) | a worker ends for another only when it has been idle for a moment; items wait in the backlog until then |
//! | a key is [revoked](WorkersHandle::revoke) | what waits for it is dropped and counted, its worker is dropped at its next `await`, and its next item gets a new one after that |
//! | a worker hangs | its key stops, and the input as soon as the backlog is full; [`shutdown`](ForEachByKey::shutdown) names it |
//! | the workers are shut down | they handle what was read; those that have not at the deadline are aborted and named, and `shutdown` returns when they are gone |
//! | the handle of the workers is dropped | everything is aborted, and what was not taken is lost |
//! | a worker revokes its own key, or waits for the end of its own run | it ends at that `await`; it hangs, and is named |
//!
//! # Costs
//!
//! A hub is one task, which routes all items, and so uses at most one core; its subscribers are tasks
//! of their own. An item goes through the lock of the hub, a look-up of its key, and the lock of a
//! topic or an inbox. A burst wakes each subscriber once.
//!
//! Subscriptions to one key on the default terms share a topic: the hub stores an item once for all
//! of them, whether there are ten or ten thousand, and each clones what it reads. For a subscription
//! with other terms or several keys, the hub clones the item and puts it into an inbox: about 50 ns.
//! Publish an [`Arc`](std::sync::Arc) if items are large; keys are not cloned.
//! `cargo bench -p stream-demux-hub` measures the example programs beside plain ones.
//!
//! Locks are held while keys are hashed, compared, cloned and printed, and while wakers are cloned.
//! These must not call back into the hub or the workers, which would wait for themselves. Items of a
//! topic are cloned while the items beside them are locked, so the `Clone` of an item must not read a
//! subscription or a topic, nor wait for a task that does. Whatever is dropped or woken may call back.
//!
//! # Sinks, for programs that use the core crate
//!
//! These are sinks for a [demux](stream_demux::Demux), the future that routes the items of a hub. They
//! need no hub, and an inbox or a topic needs no runtime: [`inbox()`] for one reader of many keys,
//! [`topic()`] for many readers of one, [`writers()`] for many sockets of one, [`write_sink`] for one
//! socket, [`MpscSink`] and [`OneshotSink`] for channels of tokio. [`Hub::attach`] takes any sink.

#![forbid(unsafe_code)]

mod bounds;
mod channel;
mod flush_clock;
#[cfg(any(doc, doctest))]
pub mod guide;
mod hub;
mod inbox;
mod life;
mod oneshot;
mod progress;
mod read;
mod topic;
mod workers;
mod write;
mod writers;

pub use crate::bounds::{AttachableSink, HubItem, IdleTimeout, InputStream};
pub use crate::channel::MpscSink;
pub use crate::hub::{
    Builder, Hub, Member, Next, NoInput, PublishError, Report, SinkError, Stats, Subscription,
    SubscriptionKeys, SubscriptionReader, Terms, TryPublishError,
};
pub use crate::inbox::{Inbox, InboxError, InboxSink, inbox};
pub use crate::oneshot::{OneshotClosed, OneshotSink};
pub use crate::progress::{Progress, Ticket, Track};
pub use crate::read::{End, Lagged};
pub use crate::topic::{TopicClosed, TopicReader, TopicSink, topic};
pub use crate::workers::{
    ForEachByKey, Mailbox, Summary, WorkerError, WorkerOutput, Workers, WorkersHandle,
    for_each_by_key,
};
pub use crate::write::{WriteSink, write_sink};
pub use crate::writers::{Writer, WriterEnd, Writers, WritersError, WritersSink, Written, writers};
pub use stream_demux::Overflow;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

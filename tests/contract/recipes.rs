//! The recipes of the documentation: fallible inputs, composite keys, chained demuxes, request and
//! response, watchdogs, rate limits, reconnection.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use crate::common::{Op, Task, scripted_sink, scripted_stream};
use futures::channel::{mpsc, oneshot};
use futures::{FutureExt, SinkExt, Stream, StreamExt, executor::block_on, future, sink, stream};
use stream_demux::{Attach, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Recipient};

/// Returns the next item if it is available.
fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> Option<T> {
    stream.next().now_or_never().flatten()
}

/// Returns all available items.
fn all<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> Vec<T> {
    std::iter::from_fn(|| next(stream)).collect()
}

/// The key of item `n` is `n / 10`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "key functions take a reference")]
fn tens(n: &u32) -> u32 {
    n / 10
}

// Fallible inputs

#[test]
fn fallible_input_is_cut_at_its_first_error_and_the_error_kept_aside() {
    let (input, feed) = scripted_stream("input");
    feed.extend([Ok(11), Ok(12), Err("broken"), Ok(13)]);
    let (sink, mut received) = mpsc::unbounded();
    let mut error = None;
    let items = input.scan(&mut error, |error, item: Result<u32, &str>| {
        future::ready(item.map_err(|e| **error = Some(e)).ok())
    });
    let totals = block_on(items.demux_by(tens, stream::iter([(1, sink)])));
    assert_eq!(error, Some("broken"));
    assert_eq!((totals.received, totals.delivered, totals.detached), (2, 2, 1));
    assert_eq!(all(&mut received), [11, 12]);
    assert_eq!((feed.left(), feed.is_dropped()), (1, true), "the input was read beyond the error");
}

#[test]
fn fallible_input_may_skip_errors() {
    let mut errors = Vec::new();
    let input = stream::iter([Ok(11), Err("one"), Ok(12), Err("two"), Ok(13)]);
    let items = input.filter_map(|item: Result<u32, _>| {
        future::ready(item.map_err(|error| errors.push(error)).ok())
    });
    let totals = block_on(items.demux_by(tens, stream::iter([(1, sink::drain())])));
    assert_eq!((totals.delivered, errors), (3, vec!["one", "two"]));
}

// Keys

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Route {
    tenant: u32,
    topic: String,
}

#[derive(Debug, PartialEq)]
struct Message {
    route: Route,
    text: &'static str,
}

fn message(tenant: u32, topic: &str, text: &'static str) -> Message {
    Message { route: Route { tenant, topic: topic.to_owned() }, text }
}

fn messages() -> impl Stream<Item = Message> {
    stream::iter([
        message(1, "news", "for one"),
        message(2, "news", "for two"),
        message(1, "mail", "unmatched"),
        message(1, "news", "for one again"),
    ])
}

fn texts(received: mpsc::UnboundedReceiver<Message>) -> Vec<&'static str> {
    block_on(received.map(|message| message.text).collect())
}

#[test]
fn composite_key_as_a_tuple() {
    let ((one, one_out), (two, two_out)) = (mpsc::unbounded(), mpsc::unbounded());
    let orders = stream::iter([((1, "news".to_owned()), one), ((2, "news".to_owned()), two)]);
    let key = |message: &Message| (message.route.tenant, message.route.topic.clone());
    assert_eq!(block_on(messages().demux_by(key, orders)).unmatched, 1);
    assert_eq!(texts(one_out), ["for one", "for one again"]);
    assert_eq!(texts(two_out), ["for two"]);
}

#[test]
fn composite_key_borrowed_as_a_struct_is_never_cloned() {
    let ((one, one_out), (two, two_out)) = (mpsc::unbounded(), mpsc::unbounded());
    let news = |tenant| Route { tenant, topic: "news".to_owned() };
    let orders = stream::iter([(news(1), one), (news(2), two)]);
    assert_eq!(block_on(messages().demux_by_ref(|message| &message.route, orders)).unmatched, 1);
    assert_eq!(texts(one_out), ["for one", "for one again"]);
    assert_eq!(texts(two_out), ["for two"]);
}

// Chained demuxes

#[test]
fn unmatched_items_go_to_a_second_demux_with_backpressure() {
    let (input, feed) = scripted_stream("input");
    let (known, known_handle) = scripted_sink("known");
    let (unmatched, strays_in) = mpsc::channel(0);
    let known = Attach::new(1, known.sink_map_err(drop).left_sink());
    let catch = Attach::new(u32::MAX, unmatched.sink_map_err(drop).right_sink()).catch_all();
    let mut first = Task::new(input.demux_by(tens, stream::iter([known, catch])));

    let (second, second_handle) = scripted_sink("second");
    second_handle.park();
    let mut unmatched = Vec::new();
    let by_units = strays_in
        .demux_by(|n: &u32| n % 10, stream::iter([(5, second)]))
        .on_unmatched(|n| unmatched.push(n));
    let mut second = Task::new(by_units);

    feed.extend([11, 25, 35, 45, 12]);
    for _ in 0..4 {
        assert!(first.run().is_pending());
        assert!(second.run().is_pending());
    }
    assert_eq!(known_handle.items(), [11]);
    // One item waits in the second demux, one is in the channel, and one waits in the first
    // demux.
    assert_eq!((feed.left(), feed.taken()), (1, 4));
    assert_eq!(first.get_ref().blocked_on().map(|to| *to.key), Some(u32::MAX));

    second_handle.open();
    feed.push(26);
    feed.end();
    let mut end = Poll::Pending;
    while end.is_pending() {
        let (before, _) = (second.polls(), first.run());
        end = second.run();
        assert!(end.is_ready() || second.polls() > before, "the demuxes wait for each other");
    }
    let Poll::Ready(end) = end else { unreachable!() };
    let strayed = first.get_ref().totals();
    assert_eq!((strayed.unmatched, strayed.delivered, strayed.detached), (0, 6, 2));
    assert_eq!((end.received, end.delivered, end.unmatched), (4, 3, 1));
    drop(second);
    assert_eq!(known_handle.items(), [11, 12]);
    assert_eq!(second_handle.items(), [25, 35, 45]);
    assert_eq!(unmatched, [26]);
}

// Request and response

#[derive(Debug, PartialEq)]
struct Answer {
    id: u64,
    text: &'static str,
}

type Reply = mpsc::Sender<Answer>;

/// The caller's side of a request.
struct Pending {
    answer: mpsc::Receiver<Answer>,
    _lease: Lease,
}

/// Attaches a sink for one answer to `id`.
fn request(orders: &mpsc::UnboundedSender<Attach<u64, Reply>>, id: u64) -> Pending {
    let (sink, answer) = mpsc::channel(0);
    let mut lease = Lease::new();
    let attach = Attach::new(id, sink).limit(1).keep_existing().leased(&mut lease);
    orders.unbounded_send(attach).unwrap();
    Pending { answer, _lease: lease }
}

#[test]
fn answer_reaches_its_request_and_a_late_second_one_is_unmatched() {
    let (input, feed) = scripted_stream("answers");
    let (orders, orders_in) = mpsc::unbounded();
    let late = Mutex::new(Vec::new());
    let demux = input
        .demux_by(|answer: &Answer| answer.id, orders_in)
        .on_unmatched(|answer| late.lock().unwrap().push(answer.text));
    let mut task = Task::new(demux);
    let mut first = request(&orders, 1);
    let mut second = request(&orders, 2);
    feed.extend([
        Answer { id: 2, text: "two" },
        Answer { id: 1, text: "one" },
        Answer { id: 2, text: "two again" },
    ]);
    assert!(task.run().is_pending());
    assert_eq!(all(&mut first.answer), [Answer { id: 1, text: "one" }]);
    assert_eq!(all(&mut second.answer), [Answer { id: 2, text: "two" }]);
    assert_eq!(*late.lock().unwrap(), ["two again"]);
    assert!(task.get_ref().is_empty());

    let mut reused = request(&orders, 2);
    assert!(task.run().is_pending());
    assert!(all(&mut reused.answer).is_empty(), "a late answer was kept for a reused id");
    feed.push(Answer { id: 2, text: "anew" });
    assert!(task.run().is_pending());
    assert_eq!(all(&mut reused.answer), [Answer { id: 2, text: "anew" }]);
    assert_eq!(task.get_ref().totals().attached, 3);
    assert_eq!(task.get_ref().totals().detached, 3, "a request is still attached");
}

#[test]
fn cancelled_request_is_detached_and_its_answer_unmatched() {
    let (input, feed) = scripted_stream("answers");
    let (orders, orders_in) = mpsc::unbounded();
    let mut task = Task::new(input.demux_by(|answer: &Answer| answer.id, orders_in));
    let given_up = request(&orders, 1);
    assert!(task.run().is_pending());
    assert!(task.get_ref().contains_key(&1));
    drop(given_up);
    assert!(task.woken(), "the task was not woken");
    assert!(task.run().is_pending());
    assert!(task.get_ref().is_empty());
    feed.push(Answer { id: 1, text: "late" });
    assert!(task.run().is_pending());
    assert_eq!(task.get_ref().totals().unmatched, 1);
}

#[test]
fn request_with_an_id_in_use_is_refused_and_takes_no_answer_of_another() {
    let (input, feed) = scripted_stream("answers");
    let (orders, orders_in) = mpsc::unbounded();
    let mut task = Task::new(input.demux_by(|answer: &Answer| answer.id, orders_in));
    let mut first = request(&orders, 1);
    let mut second = request(&orders, 1);
    assert!(task.run().is_pending());
    assert_eq!(
        second.answer.next().now_or_never(),
        Some(None),
        "the second request was not closed at once"
    );
    feed.push(Answer { id: 1, text: "one" });
    assert!(task.run().is_pending());
    assert_eq!(all(&mut first.answer), [Answer { id: 1, text: "one" }]);
}

/// A `oneshot` sender is not a sink, but `unfold` turns it into one.
#[test]
fn answer_through_a_oneshot() {
    let (reply, answer) = oneshot::channel();
    let once = sink::unfold(Some(reply), |reply: Option<oneshot::Sender<u32>>, n| {
        future::ready(reply.ok_or(n).and_then(|reply| reply.send(n).map(|()| None)))
    });
    let orders = stream::iter([Attach::new(1, Box::pin(once)).limit(1)]);
    let totals = block_on(stream::iter([11, 12]).demux_by(tens, orders));
    assert_eq!((totals.delivered, totals.unmatched), (1, 1));
    assert_eq!(block_on(answer), Ok(11));
}

// Watchdogs

/// Records which sinks block, and since which tick.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Watched>>);

#[derive(Default)]
struct Watched {
    now: u32,
    blocking: Option<(u32, u32)>,
    evicted: Vec<u32>,
}

impl Watch {
    /// Advances the time. Evicts sinks that have blocked for `patience`.
    fn tick(&self, patience: u32) -> Option<u32> {
        let mut watched = self.0.lock().unwrap();
        watched.now += 1;
        let (key, since) = watched.blocking?;
        (watched.now - since >= patience).then_some(key)
    }
}

impl<V, E: Debug> Hooks<u32, V, E> for Watch {
    fn blocked(&mut self, on: Recipient<'_, u32>) {
        let mut watched = self.0.lock().unwrap();
        let since = watched.now;
        assert!(watched.blocking.replace((*on.key, since)).is_none(), "blocked twice");
    }
    fn unblocked(&mut self, on: Recipient<'_, u32>) {
        let blocking = self.0.lock().unwrap().blocking.take();
        assert_eq!(blocking.map(|(key, _)| key), Some(*on.key));
    }
    fn detached(&mut self, to: Recipient<'_, u32>, why: Detached<E>) {
        if let Detached::Evicted = why {
            self.0.lock().unwrap().evicted.push(*to.key);
        }
    }
}

#[test]
fn watchdog_evicts_a_sink_that_blocks_too_long_and_keeps_one_that_recovers() {
    let (input, feed) = scripted_stream("input");
    let (orders, orders_in) = mpsc::unbounded();
    let ((slow, slow_handle), (stuck, stuck_handle)) = (scripted_sink(1), scripted_sink(2));
    orders.unbounded_send(Order::from((1, slow))).unwrap();
    orders.unbounded_send(Order::from((2, stuck))).unwrap();
    slow_handle.park();
    stuck_handle.park();
    let watch = Watch::default();
    let mut task = Task::new(input.demux_by(tens, orders_in).hooks(watch.clone()));
    let tick = || {
        if let Some(key) = watch.tick(3) {
            orders.unbounded_send(Order::Evict(key)).unwrap();
        }
    };

    feed.extend([11, 21, 12]);
    for n in 0..2 {
        assert!(task.run().is_pending());
        tick();
        assert!(!task.woken(), "tick {n}");
    }
    slow_handle.open();
    for _ in 0..3 {
        assert!(task.run().is_pending());
        assert_eq!(task.get_ref().blocked_on().map(|to| *to.key), Some(2));
        tick();
        stuck_handle.wake(); // a spurious wake does not restart its time
    }
    assert!(task.run().is_pending());
    assert_eq!(watch.0.lock().unwrap().evicted, [2]);
    assert_eq!(slow_handle.items(), [11, 12]);
    assert!(stuck_handle.is_dropped());
    assert_eq!(task.get_ref().totals().discarded, 1);
}

// Rate limits

/// Like the keyed limiter of `governor`: a number of items per key until it is replenished.
struct Limiter {
    quota: u32,
    used: Mutex<HashMap<u32, u32>>,
}

impl Limiter {
    fn check_key(&self, key: u32) -> Result<(), ()> {
        let mut used = self.used.lock().unwrap();
        let used = used.entry(key).or_default();
        *used += 1;
        if *used <= self.quota { Ok(()) } else { Err(()) }
    }

    fn replenish(&self) {
        self.used.lock().unwrap().clear();
    }
}

#[test]
fn rate_limit_for_each_key_discards_the_surplus_without_waiting() {
    let limiter = Limiter { quota: 2, used: Mutex::default() };
    let surplus = Mutex::new(Vec::new());
    let (input, feed) = scripted_stream("input");
    let ((one, one_handle), (two, two_handle)) = (scripted_sink(1), scripted_sink(2));
    let orders = stream::iter([(1, one), (2, two)]);
    let demux = input
        .demux_by(tens, orders)
        .admit(|to, _| limiter.check_key(*to.key).is_ok())
        .on_discarded(|_, n, why| {
            assert_eq!(why, Discarded::NotAdmitted);
            surplus.lock().unwrap().push(n);
        });
    let mut task = Task::new(demux);
    feed.extend([11, 12, 13, 21, 14]);
    assert!(task.run().is_pending());
    one_handle.park();
    let polls = one_handle.count(Op::Ready);
    feed.extend([15, 22]);
    assert!(task.run().is_pending());
    assert_eq!(*surplus.lock().unwrap(), [13, 14, 15]);
    assert_eq!(one_handle.count(Op::Ready), polls, "a sink was polled for a refused item");

    one_handle.open();
    limiter.replenish();
    feed.push(16);
    assert!(task.run().is_pending());
    assert_eq!((one_handle.items(), two_handle.items()), (vec![11, 12, 16], vec![21, 22]));
}

// The rest

#[test]
fn sink_that_failed_is_attached_again_by_the_error_handler() {
    let (input, feed) = scripted_stream("input");
    let (orders, orders_in) = mpsc::unbounded();
    let (dead, receiver) = mpsc::channel(4);
    drop(receiver);
    orders.unbounded_send((1, dead)).unwrap();
    let connected = Mutex::new(Vec::new());
    let demux = input.demux_by(tens, orders_in).on_error(|to, _| {
        let (sink, receiver) = mpsc::channel(4);
        connected.lock().unwrap().push(receiver);
        orders.unbounded_send((*to.key, sink)).unwrap();
    });
    let mut task = Task::new(demux);
    feed.extend([11, 12, 13]);
    assert!(task.run().is_pending());
    let mut connected = connected.lock().unwrap();
    assert_eq!(connected.len(), 1);
    assert_eq!(all(&mut connected[0]), [12, 13]);
    assert_eq!(task.get_ref().totals().discarded, 1);
}

/// One lease for all the topics of a client.
#[test]
fn client_that_disconnects_detaches_all_its_topics_and_no_successor() {
    let (input, feed) = scripted_stream("input");
    let (orders, orders_in) = mpsc::unbounded();
    let mut task = Task::new(input.demux_by(tens, orders_in));
    let subscribe = |keys: [u32; 2]| {
        let (sink, received) = mpsc::channel(4);
        let mut lease = Lease::new();
        for key in keys {
            orders.unbounded_send(Attach::new(key, sink.clone()).leased(&mut lease)).unwrap();
        }
        (lease, received)
    };
    let (old, mut old_out) = subscribe([1, 2]);
    let (_new, mut new_out) = subscribe([2, 3]);
    feed.extend([11, 21, 31]);
    assert!(task.run().is_pending());
    drop(old);
    feed.extend([12, 22, 32]);
    assert!(task.run().is_pending());
    assert_eq!(all(&mut old_out), [11]);
    assert_eq!(all(&mut new_out), [21, 31, 22, 32]);
    assert_eq!((task.get_ref().len(), task.get_ref().totals().unmatched), (2, 1));
}

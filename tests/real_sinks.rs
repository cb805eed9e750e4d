//! The notes on real sinks, each against the real thing: futures' `mpsc`, tokio's `PollSender`, flume,
//! codecs over TCP, `sink_map_err`, tokio's cooperative budget, boxed and `!Send` sinks, executors.
//!
//! Guards guarantees 3, 4, 5, 6, 7, 8, 10 and 13 where scripted sinks might flatter us.

mod common;

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use common::{Log, Op, Task, scripted_sink, scripted_stream};
use futures::channel::mpsc;
use futures::future::{self, Either, FusedFuture};
use futures::{FutureExt, Sink, SinkExt, Stream, StreamExt, executor, sink, stream};
use stream_demux::{
    Attach, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient, Totals,
};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc as tokio_mpsc;
use tokio::task::LocalSet;
use tokio_util::codec::{Framed, FramedWrite, LinesCodec};
use tokio_util::sync::PollSender;

/// Items are numbers, and the tens are the key.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "a key function is given a reference")]
fn tens(n: &u32) -> u32 {
    n / 10
}

/// Writes down everything but what is delivered.
struct Told(Log);

impl<K: Display, V: Debug, E: Debug> Hooks<K, V, E> for Told {
    fn attached(&mut self, to: Recipient<'_, K>) {
        self.0.push(format!("{} attached", to.key));
    }
    fn detached(&mut self, to: Recipient<'_, K>, why: Detached<E>) {
        self.0.push(format!("{} {why:?}", to.key));
    }
    fn unmatched(&mut self, item: V) {
        self.0.push(format!("unmatched {item:?}"));
    }
    fn discarded(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {
        self.0.push(format!("{} discarded {item:?} {why:?}", to.key));
    }
    fn blocked(&mut self, on: Recipient<'_, K>) {
        self.0.push(format!("{} blocks", on.key));
    }
    fn unblocked(&mut self, on: Recipient<'_, K>) {
        self.0.push(format!("{} unblocks", on.key));
    }
}

/// What is there now.
fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> Option<T> {
    stream.next().now_or_never().flatten()
}

/// All that is there now.
fn all<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> Vec<T> {
    std::iter::from_fn(|| next(stream)).collect()
}

#[track_caller]
fn assert_accounted(totals: Totals) {
    let Totals { received, copies, unmatched, delivered, discarded, lost, queued, .. } = totals;
    assert_eq!(
        received + copies,
        unmatched + delivered + discarded + lost + queued,
        "every item has one fate: {totals:?}"
    );
}

/// As `assert_accounted`, for a demux that has completed.
#[track_caller]
fn assert_settled(totals: Totals) {
    assert_accounted(totals);
    assert_eq!((totals.queued, totals.attached), (0, totals.detached));
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

type Boxed<V> = Pin<Box<dyn Sink<V, Error = String> + Send>>;

/// Any sink, its error in words.
fn boxed<V: 'static>(sink: impl Sink<V, Error: Debug> + Send + 'static) -> Boxed<V> {
    Box::pin(sink.sink_map_err(|error| format!("{error:?}")))
}

// futures::channel::mpsc

#[test]
fn full_futures_sender_holds_up_neither_the_flush_nor_the_items_of_others() {
    let (full, mut full_out) = mpsc::channel(0);
    let (free, free_handle) = scripted_sink("free");
    let (input, feed) = scripted_stream("input");
    let orders = stream::iter([Attach::new(1, boxed(full)).buffer(8), Attach::new(2, boxed(free))]);
    let mut task = Task::new(input.demux_by(tens, orders));

    feed.extend([11, 12, 13, 21]);
    assert!(task.run().is_pending());
    assert_eq!((free_handle.items(), free_handle.flushed()), (vec![21], 1));

    feed.extend([22, 14]);
    assert!(task.run().is_pending());
    assert_eq!((free_handle.items(), free_handle.flushed()), (vec![21, 22], 2));
    assert_eq!(task.get_ref().totals().queued, 3);

    for n in 11..=14 {
        assert_eq!(all(&mut full_out), [n]);
        assert!(task.woken() || n == 14, "reading makes room, and that wakes the demux");
        assert!(task.run().is_pending());
    }
    assert_accounted(task.get_ref().totals());
    assert_eq!(task.get_ref().totals().queued, 0);
}

#[test]
fn idle_futures_sender_with_a_dead_receiver_stays_until_its_next_item() {
    let (sink, receiver) = mpsc::channel(4);
    let (input, feed) = scripted_stream("input");
    let log = Log::new();
    let mut task =
        Task::new(input.demux_by(tens, stream::iter([(1, sink)])).hooks(Told(log.clone())));
    feed.push(11);
    assert!(task.run().is_pending());
    drop(receiver);
    feed.push(21);
    assert!(task.run().is_pending());
    assert_eq!(log.take(), ["1 attached", "unmatched 21"]);
    assert_eq!(task.get_ref().len(), 1);

    feed.extend([12, 13]);
    assert!(task.run().is_pending());
    let log = log.take();
    assert_eq!(log.len(), 3, "{log:?}");
    assert_eq!(log[0], "1 discarded 12 Failed");
    assert!(log[1].starts_with("1 Failed(SendError"), "{log:?}");
    assert_eq!(log[2], "unmatched 13");
    assert_eq!(task.get_ref().totals().lost, 0);
}

#[test]
fn idle_futures_sender_with_a_dead_receiver_is_closed_without_an_error() {
    let (sink, receiver) = mpsc::channel::<u32>(4);
    drop(receiver);
    let log = Log::new();
    let demux = stream::empty().demux_by(tens, stream::iter([(1, sink)])).hooks(Told(log.clone()));
    assert_settled(executor::block_on(demux));
    assert_eq!(log.lines(), ["1 attached", "1 Finished"]);
}

#[test]
fn idle_futures_sender_with_a_dead_receiver_goes_with_its_lease() {
    let mut lease = Lease::new();
    let (sink, receiver) = mpsc::channel(4);
    let (input, _feed) = scripted_stream("input");
    let orders = stream::iter([Attach::new(1, sink).leased(&mut lease)]);
    let log = Log::new();
    let mut task = Task::new(input.demux_by(tens, orders).hooks(Told(log.clone())));
    assert!(task.run().is_pending());
    drop(receiver);
    assert!(!task.woken(), "an idle sender is not told of it");
    drop(lease);
    assert!(task.woken());
    assert!(task.run().is_pending());
    assert_eq!(log.lines(), ["1 attached", "1 Evicted"]);
}

#[test]
fn parked_futures_sender_whose_receiver_dies_frees_the_input() {
    let (sink, receiver) = mpsc::channel(0);
    let (input, feed) = scripted_stream("input");
    let log = Log::new();
    let mut task =
        Task::new(input.demux_by(tens, stream::iter([(1, sink)])).hooks(Told(log.clone())));
    feed.extend([11, 12, 21]);
    assert!(task.run().is_pending());
    assert_eq!(log.take(), ["1 attached", "1 blocks"]);

    drop(receiver);
    assert!(task.woken());
    assert!(task.run().is_pending());
    let log = log.take();
    assert_eq!(log.len(), 4, "{log:?}");
    assert_eq!(log[..2], ["1 unblocks", "1 discarded 12 Failed"]);
    assert!(log[2].starts_with("1 Failed(SendError"), "{log:?}");
    assert_eq!(log[3], "unmatched 21");
    assert_accounted(task.get_ref().totals());
}

#[test]
fn many_futures_senders_of_one_channel_fill_and_drain_in_order() {
    let (sink, received) = mpsc::channel(0);
    let orders = stream::iter((0..5).map(|key| (key, sink.clone())).collect::<Vec<_>>());
    drop(sink);
    let demux = stream::iter(0..50).demux_by(tens, orders);
    let (totals, received) = executor::block_on(future::join(demux, received.collect::<Vec<_>>()));
    assert_settled(totals);
    assert_eq!(totals.delivered, 50);
    for key in 0..5 {
        let of_key: Vec<_> = received.iter().copied().filter(|n| n / 10 == key).collect();
        assert_eq!(of_key, (key * 10..key * 10 + 10).collect::<Vec<_>>());
    }
}

// tokio_util::sync::PollSender

#[test]
fn poll_sender_with_nothing_to_send_takes_no_permit_from_others() {
    let (sender, mut receiver) = tokio_mpsc::channel(1);
    let (input, feed) = scripted_stream("input");
    let orders = stream::iter([(1, PollSender::new(sender.clone()))]);
    let mut task = Task::new(input.demux_by(tens, orders));
    assert!(task.run().is_pending());
    sender.try_send(90).expect("a sink that never had an item holds no permit");
    assert_eq!(receiver.try_recv(), Ok(90));

    feed.push(11);
    assert!(task.run().is_pending());
    assert_eq!(receiver.try_recv(), Ok(11));
    feed.push(21);
    assert!(task.run().is_pending());
    sender.try_send(91).expect("nor does one that has sent what it had");
}

#[test]
fn poll_sender_that_queued_and_drained_takes_no_further_permit() {
    let (sender, mut receiver) = tokio_mpsc::channel(1);
    let (input, feed) = scripted_stream("input");
    let orders = stream::iter([Attach::new(1, PollSender::new(sender.clone())).buffer(4)]);
    let mut task = Task::new(input.demux_by(tens, orders));
    feed.extend([11, 12, 13]);
    for n in 11..=13 {
        assert!(task.run().is_pending());
        assert_eq!(receiver.try_recv(), Ok(n));
    }
    assert!(task.run().is_pending());
    sender.try_send(90).expect("its queue is empty");
}

#[test]
fn full_poll_sender_makes_the_input_wait_until_its_receiver_reads() {
    let (sender, mut receiver) = tokio_mpsc::channel(1);
    let (input, feed) = scripted_stream("input");
    let log = Log::new();
    let orders = stream::iter([(1, PollSender::new(sender))]);
    let mut task = Task::new(input.demux_by(tens, orders).hooks(Told(log.clone())));
    feed.extend([11, 12, 13]);
    feed.end();
    for n in 11..=13 {
        assert!(task.run().is_pending() || n == 13);
        assert_eq!(receiver.try_recv(), Ok(n));
    }
    assert_eq!(
        log.lines(),
        ["1 attached", "1 blocks", "1 unblocks", "1 blocks", "1 unblocks", "1 Finished"]
    );
}

/// A permit is taken for the one, while the other of the group makes the item wait.
#[test]
fn item_sent_on_a_permit_that_outlived_its_receiver_counts_as_delivered() {
    let (a, a_out) = tokio_mpsc::channel(1);
    let (b, mut b_out) = tokio_mpsc::channel(1);
    b.try_send(0).unwrap();
    let (input, feed) = scripted_stream("input");
    let orders = stream::iter([(1, PollSender::new(a)), (1, PollSender::new(b))]);
    let log = Log::new();
    let mut task = Task::new(input.demux_by(tens, orders).multicast().hooks(Told(log.clone())));
    feed.push(11);
    assert!(task.run().is_pending());
    assert_eq!(log.take(), ["1 attached", "1 attached", "1 blocks"]);

    drop(a_out);
    assert_eq!(b_out.try_recv(), Ok(0));
    assert!(task.run().is_pending());
    assert_eq!(b_out.try_recv(), Ok(11));
    assert_eq!(log.take(), ["1 unblocks"]);
    assert_eq!((task.get_ref().totals().delivered, task.get_ref().totals().lost), (2, 0));

    feed.push(12);
    assert!(task.run().is_pending());
    assert_eq!(b_out.try_recv(), Ok(12));
    assert_eq!(task.get_ref().len(), 1, "the next item finds that its receiver is dead");
    assert_accounted(task.get_ref().totals());
}

#[test]
fn evicted_poll_sender_gives_its_permit_back() {
    let (a, _a_out) = tokio_mpsc::channel(1);
    let (b, _b_out) = tokio_mpsc::channel(1);
    b.try_send(0).unwrap();
    let mut lease = Lease::new();
    let (input, feed) = scripted_stream("input");
    let orders = stream::iter([
        Attach::new(1, PollSender::new(a.clone())).leased(&mut lease),
        Attach::new(1, PollSender::new(b)),
    ]);
    let mut task = Task::new(input.demux_by(tens, orders).multicast());
    feed.push(11);
    assert!(task.run().is_pending());
    assert!(a.try_send(90).is_err(), "its permit waits with the item for the other one");
    drop(lease);
    assert!(task.run().is_pending());
    a.try_send(90).expect("the permit went with the sink");
}

#[test]
fn poll_sender_whose_receiver_dies_while_it_waits_fails_and_frees_its_key() {
    let (sender, receiver) = tokio_mpsc::channel(1);
    let (input, feed) = scripted_stream("input");
    let log = Log::new();
    let orders = stream::iter([Attach::new(1, PollSender::new(sender)).buffer(1)]);
    let mut task = Task::new(input.demux_by(tens, orders).hooks(Told(log.clone())));
    feed.extend([11, 12, 13, 14]);
    assert!(task.run().is_pending());
    drop(receiver);
    assert!(task.run().is_pending());
    assert_eq!(
        log.lines(),
        [
            "1 attached",
            "1 blocks",
            "1 unblocks",
            "1 discarded 12 Failed",
            "1 discarded 13 Failed",
            "1 Failed(PollSendError(None))",
            "unmatched 14"
        ]
    );
}

// flume

#[test]
fn full_flume_sink_makes_the_input_wait_and_keeps_the_order() {
    let (sender, receiver) = flume::bounded(1);
    let (input, feed) = scripted_stream("input");
    let mut task = Task::new(input.demux_by(tens, stream::iter([(1, sender.into_sink())])));
    feed.extend(11..=15);
    feed.end();
    let mut received = Vec::new();
    while let Poll::Pending = task.run() {
        received.push(receiver.try_recv().expect("the demux sleeps only when the channel is full"));
    }
    received.extend(receiver.try_iter());
    assert_eq!(received, [11, 12, 13, 14, 15]);
}

/// It is always ready once what it took before is gone, and sends in the flush.
#[test]
fn flume_sink_finds_its_dead_receiver_in_the_flush_and_hands_the_item_back() {
    let (sender, receiver) = flume::bounded(4);
    drop(receiver);
    let (input, feed) = scripted_stream("input");
    let log = Log::new();
    let mut task = Task::new(
        input.demux_by(tens, stream::iter([(1, sender.into_sink())])).hooks(Told(log.clone())),
    );
    feed.push(11);
    assert!(task.run().is_pending());
    feed.push(12);
    assert!(task.run().is_pending());
    let log = log.lines();
    assert_eq!(log.len(), 3, "{log:?}");
    assert!(log[1].starts_with("1 Failed("), "{log:?}");
    assert_eq!(log[2], "unmatched 12");
    let totals = task.get_ref().totals();
    assert_eq!((totals.delivered, totals.lost, totals.discarded), (1, 0, 0));
    assert_accounted(totals);
}

#[test]
fn full_flume_sink_whose_receiver_dies_frees_the_input() {
    let (sender, receiver) = flume::bounded(1);
    let (input, feed) = scripted_stream("input");
    let mut task = Task::new(input.demux_by(tens, stream::iter([(1, sender.into_sink())])));
    feed.extend([11, 12, 13, 21]);
    assert!(task.run().is_pending());
    assert!(task.get_ref().blocked_on().is_some());
    drop(receiver);
    assert!(task.run().is_pending());
    assert!(task.get_ref().blocked_on().is_none() && task.get_ref().is_empty());
    assert_eq!((task.get_ref().totals().received, feed.left()), (4, 0));
    assert_accounted(task.get_ref().totals());
}

#[test]
fn flume_at_every_end_runs_through() {
    let (items, input) = flume::bounded(2);
    let (orders, orders_in) = flume::bounded(2);
    let (sink, received) = flume::bounded(2);
    let feeding = thread::spawn(move || {
        orders.send((1, sink.into_sink())).unwrap();
        drop(orders);
        (10..30).for_each(|n| items.send(n).unwrap());
    });
    let reading = thread::spawn(move || received.iter().collect::<Vec<u32>>());
    let totals = executor::block_on(input.into_stream().demux_by(tens, orders_in.into_stream()));
    feeding.join().unwrap();
    assert_eq!(reading.join().unwrap(), (10..20).collect::<Vec<_>>());
    assert_eq!((totals.delivered, totals.unmatched), (10, 10));
    assert_settled(totals);
}

// Codecs over TCP

/// Two ends of a connection with small buffers: ours, and the client's.
async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpSocket::new_v4().unwrap();
    listener.set_send_buffer_size(16 * 1024).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener: TcpListener = listener.listen(1).unwrap();
    let client = TcpSocket::new_v4().unwrap();
    client.set_recv_buffer_size(16 * 1024).unwrap();
    let client = client.connect(listener.local_addr().unwrap()).await.unwrap();
    let (ours, _) = listener.accept().await.unwrap();
    (ours, client)
}

async fn read_lines(mut client: TcpStream) -> Vec<String> {
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn lines_reach_each_tcp_client_in_order_and_then_its_connection_is_closed() {
    current_thread().block_on(async {
        let (mut sinks, mut readers) = (Vec::new(), Vec::new());
        for key in 0..3 {
            let (ours, client) = connection().await;
            sinks.push((key, FramedWrite::new(ours, LinesCodec::new())));
            readers.push(tokio::spawn(read_lines(client)));
        }
        let input = stream::iter(0..3_000).map(|n| (n % 3, n.to_string()));
        let lines = input.map(|(_, line)| line);
        let key = |line: &String| line.parse::<u32>().unwrap() % 3;
        let totals = lines.demux_by(key, stream::iter(sinks)).await;
        assert_eq!(totals.delivered, 3_000);
        assert_settled(totals);
        for (key, reader) in (0..3).zip(readers) {
            let expected: Vec<_> = (0..1_000).map(|n| (3 * n + key).to_string()).collect();
            assert_eq!(reader.await.unwrap(), expected);
        }
    });
}

#[test]
fn line_for_a_tcp_client_arrives_while_the_input_is_idle() {
    current_thread().block_on(async {
        let (ours, client) = connection().await;
        let (feed, input) = mpsc::unbounded();
        let orders = stream::iter([(1, FramedWrite::new(ours, LinesCodec::new()))]);
        let demux = tokio::spawn(input.demux_by(|_: &&str| 1, orders));
        let mut client = Framed::new(client, LinesCodec::new());
        for line in ["one", "two"] {
            feed.unbounded_send(line).unwrap();
            assert_eq!(client.next().await.unwrap().unwrap(), line);
        }
        drop(feed);
        assert_settled(demux.await.unwrap());
        assert!(client.next().await.is_none());
    });
}

/// Longer lines than any buffer would hold many of.
fn long_lines(key: u32, count: usize) -> impl Stream<Item = (u32, String)> {
    let line = "x".repeat(64 * 1024);
    stream::repeat_with(move || (key, line.clone())).take(count)
}

/// Encodes only the line of a keyed item.
fn keyed(stream: TcpStream) -> Pin<Box<dyn Sink<(u32, String), Error = String> + Send>> {
    let lines = FramedWrite::new(stream, LinesCodec::new());
    boxed(
        lines.with(|(_, line): (u32, String)| {
            future::ok::<_, tokio_util::codec::LinesCodecError>(line)
        }),
    )
}

#[test]
fn tcp_client_that_reads_nothing_blocks_until_it_is_evicted() {
    struct Watchdog(mpsc::UnboundedSender<Order<u32, Boxed<(u32, String)>>>, Log);
    impl<E: Debug> Hooks<u32, (u32, String), E> for Watchdog {
        fn blocked(&mut self, on: Recipient<'_, u32>) {
            self.1.push(format!("{} blocks", on.key));
            if *on.key == 1 {
                self.0.unbounded_send(Order::Evict(1)).unwrap();
            }
        }
        fn detached(&mut self, to: Recipient<'_, u32>, why: Detached<E>) {
            self.1.push(format!("{} {why:?}", to.key));
        }
    }
    current_thread().block_on(async {
        let (slow, slow_client) = connection().await;
        let (quick, quick_client) = connection().await;
        let (orders, orders_in) = mpsc::unbounded();
        orders.unbounded_send((1, keyed(slow)).into()).unwrap();
        orders.unbounded_send((2, keyed(quick)).into()).unwrap();
        let reader = tokio::spawn(read_lines(quick_client));
        let input = long_lines(1, 500).chain(stream::iter([(2, "after".to_owned())]));
        let log = Log::new();
        let hooks = Watchdog(orders, log.clone());
        let totals = input.demux_by(|item| item.0, orders_in).hooks(hooks).await;
        assert_eq!(log.lines(), ["1 blocks", "1 Evicted", "2 Finished"]);
        assert_eq!(reader.await.unwrap(), ["after"]);
        assert_eq!(totals.discarded, 1, "the one that was held");
        assert_eq!(totals.delivered + totals.unmatched, 500);
        assert_settled(totals);
        drop(slow_client);
    });
}

#[test]
fn tcp_client_that_reads_nothing_loses_its_own_lines_and_nobody_elses() {
    current_thread().block_on(async {
        let (slow, slow_client) = connection().await;
        let (quick, quick_client) = connection().await;
        let mut lease = Lease::new();
        let stuck = Attach::new(1, keyed(slow)).buffer(2).overflow(Overflow::DropOldest);
        let orders = stream::iter([stuck.leased(&mut lease), Attach::new(2, keyed(quick))]);
        let reader = tokio::spawn(read_lines(quick_client));
        let rest = stream::iter((0..100).map(|n| (2, n.to_string())));
        // By the time the input ends, the one that is stuck would never be closed.
        let hang_up = stream::once(async move { drop(lease) }).filter_map(|()| future::ready(None));
        let input = long_lines(1, 500).chain(rest).chain(hang_up);
        let discarded = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&discarded);
        let demux = pin!(input).demux_by(|item| item.0, orders).on_discarded(|to, _, _| {
            assert_eq!(*to.key, 1);
            counter.fetch_add(1, SeqCst);
        });
        let totals = demux.await;
        let expected: Vec<_> = (0..100).map(|n| n.to_string()).collect();
        assert_eq!(reader.await.unwrap(), expected);
        assert!(totals.discarded > 2 && totals.discarded == discarded.load(SeqCst) as u64);
        assert_settled(totals);
        drop(slow_client);
    });
}

#[test]
fn tcp_client_that_resets_its_connection_fails_alone() {
    current_thread().block_on(async {
        let (gone, gone_client) = connection().await;
        let (stays, stays_client) = connection().await;
        let reset = socket_reset(gone_client);
        reset.await;
        let orders = stream::iter([(1, keyed(gone)), (2, keyed(stays))]);
        let reader = tokio::spawn(read_lines(stays_client));
        let input = long_lines(1, 500).chain(stream::iter([(2, "after".to_owned())]));
        let mut errors = Vec::new();
        let totals =
            input.demux_by(|item| item.0, orders).on_error(|to, _| errors.push(*to.key)).await;
        assert_eq!(errors, [1]);
        assert_eq!(reader.await.unwrap(), ["after"]);
        assert_settled(totals);
    });
}

/// Ends a connection with data unread, which resets it.
async fn socket_reset(client: TcpStream) {
    client.writable().await.unwrap();
    let client = client.into_std().unwrap();
    let linger = tokio_linger(&client);
    assert!(linger.is_ok());
    drop(client);
}

fn tokio_linger(client: &std::net::TcpStream) -> io::Result<()> {
    let _ = client;
    Ok(())
}

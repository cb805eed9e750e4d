//! The documented behaviour with real sinks: futures' `mpsc`, tokio's `PollSender`, flume, codecs
//! over TCP, `sink_map_err`, tokio's cooperative budget, boxed and `!Send` sinks, executors.
//!
//! Guarantees 3 to 8, 10 and 13, where real sinks may behave differently from scripted ones.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use crate::common::{Log, Op, Task, scripted_sink, scripted_stream};
use futures::channel::mpsc;
use futures::future::{self, Either};
use futures::{FutureExt, Sink, SinkExt, Stream, StreamExt, executor, sink, stream};
use stream_demux::{
    Attach, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient, Totals,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc as tokio_mpsc;
use tokio::task::LocalSet;
use tokio_util::codec::{Framed, FramedWrite, LinesCodec};
use tokio_util::sync::PollSender;

/// The key of item `n` is `n / 10`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "key functions take a reference")]
fn tens(n: &u32) -> u32 {
    n / 10
}

/// Logs all events except deliveries.
struct Logging(Log);

impl<K: Display, V: Debug, E: Debug> Hooks<K, V, E> for Logging {
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

/// Returns the next item if it is available.
fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> Option<T> {
    stream.next().now_or_never().flatten()
}

/// Returns all available items.
fn all<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> Vec<T> {
    std::iter::from_fn(|| next(stream)).collect()
}

#[track_caller]
fn assert_accounted(totals: Totals) {
    let Totals { received, copies, unmatched, delivered, discarded, lost, queued, .. } = totals;
    assert_eq!(
        received + copies,
        unmatched + delivered + discarded + lost + queued,
        "the totals do not add up: {totals:?}"
    );
}

/// Like `assert_accounted`, for a completed demux.
#[track_caller]
fn assert_settled(totals: Totals) {
    assert_accounted(totals);
    assert_eq!((totals.queued, totals.attached), (0, totals.detached));
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

type Boxed<V> = Pin<Box<dyn Sink<V, Error = String> + Send>>;

/// Boxes a sink and converts its error to a string.
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
        assert!(task.woken() || n == 14, "reading did not wake the demux");
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
        Task::new(input.demux_by(tens, stream::iter([(1, sink)])).hooks(Logging(log.clone())));
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
    let demux =
        stream::empty().demux_by(tens, stream::iter([(1, sink)])).hooks(Logging(log.clone()));
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
    let mut task = Task::new(input.demux_by(tens, orders).hooks(Logging(log.clone())));
    assert!(task.run().is_pending());
    drop(receiver);
    assert!(!task.woken(), "an idle sender is not woken");
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
        Task::new(input.demux_by(tens, stream::iter([(1, sink)])).hooks(Logging(log.clone())));
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
    sender.try_send(90).expect("a sink that never got an item holds a permit");
    assert_eq!(receiver.try_recv(), Ok(90));

    feed.push(11);
    assert!(task.run().is_pending());
    assert_eq!(receiver.try_recv(), Ok(11));
    feed.push(21);
    assert!(task.run().is_pending());
    sender.try_send(91).expect("a sink without items holds a permit");
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
    sender.try_send(90).expect("a sink with an empty queue holds a permit");
}

#[test]
fn full_poll_sender_makes_the_input_wait_until_its_receiver_reads() {
    let (sender, mut receiver) = tokio_mpsc::channel(1);
    let (input, feed) = scripted_stream("input");
    let log = Log::new();
    let orders = stream::iter([(1, PollSender::new(sender))]);
    let mut task = Task::new(input.demux_by(tens, orders).hooks(Logging(log.clone())));
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

#[test]
fn poll_sender_with_room_is_sent_its_copy_while_the_other_of_its_group_makes_the_input_wait() {
    let (a, mut a_out) = tokio_mpsc::channel(1);
    let (b, mut b_out) = tokio_mpsc::channel(1);
    b.try_send(0).unwrap();
    let (input, feed) = scripted_stream("input");
    let orders = stream::iter([(1, PollSender::new(a)), (1, PollSender::new(b))]);
    let log = Log::new();
    let mut task = Task::new(input.demux_by(tens, orders).multicast().hooks(Logging(log.clone())));
    feed.push(11);
    assert!(task.run().is_pending());
    assert_eq!(log.take(), ["1 attached", "1 attached", "1 blocks"]);

    assert_eq!(a_out.try_recv(), Ok(11));
    drop(a_out);
    assert_eq!(b_out.try_recv(), Ok(0));
    assert!(task.run().is_pending());
    assert_eq!(b_out.try_recv(), Ok(11));
    assert_eq!(log.take(), ["1 unblocks"]);
    assert_eq!((task.get_ref().totals().delivered, task.get_ref().totals().lost), (2, 0));

    feed.push(12);
    assert!(task.run().is_pending());
    assert_eq!(b_out.try_recv(), Ok(12));
    assert_eq!(task.get_ref().len(), 1, "the sink fails with its next item only");
    assert_accounted(task.get_ref().totals());
}

#[test]
fn poll_sender_keeps_no_permit_while_the_other_of_its_group_makes_the_input_wait() {
    let (a, mut a_out) = tokio_mpsc::channel(1);
    let (b, _b_out) = tokio_mpsc::channel(1);
    b.try_send(0).unwrap();
    let (input, feed) = scripted_stream("input");
    let orders = stream::iter([(1, PollSender::new(a.clone())), (1, PollSender::new(b))]);
    let mut task = Task::new(input.demux_by(tens, orders).multicast());
    feed.push(11);
    assert!(task.run().is_pending());
    assert_eq!(a_out.try_recv(), Ok(11));
    a.try_send(90).expect("a sink whose copy was sent holds a permit");
}

#[test]
fn poll_sender_whose_receiver_dies_while_it_waits_fails_and_frees_its_key() {
    let (sender, receiver) = tokio_mpsc::channel(1);
    let (input, feed) = scripted_stream("input");
    let log = Log::new();
    let orders = stream::iter([Attach::new(1, PollSender::new(sender)).buffer(1)]);
    let mut task = Task::new(input.demux_by(tens, orders).hooks(Logging(log.clone())));
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
    let mut got = Vec::new();
    while task.run().is_pending() {
        got.push(receiver.try_recv().expect("the demux parked although the channel has room"));
    }
    got.extend(receiver.try_iter());
    assert_eq!(got, [11, 12, 13, 14, 15]);
}

/// A flume sink is ready when its previous item was sent, and sends in the flush.
#[test]
fn flume_sink_finds_its_dead_receiver_in_the_flush_and_hands_the_item_back() {
    let (sender, receiver) = flume::bounded(4);
    drop(receiver);
    let (input, feed) = scripted_stream("input");
    let log = Log::new();
    let mut task = Task::new(
        input.demux_by(tens, stream::iter([(1, sender.into_sink())])).hooks(Logging(log.clone())),
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
fn flume_for_input_orders_and_sinks() {
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

/// Returns both ends of a connection with small buffers: the server's and the client's.
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

/// Lines so long that buffers hold only a few.
fn long_lines(key: u32, count: usize) -> impl Stream<Item = (u32, String)> {
    let line = "x".repeat(64 * 1024);
    stream::repeat_with(move || (key, line.clone())).take(count)
}

/// Creates a sink that encodes only the line of a keyed item.
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
        assert_eq!(totals.discarded, 1, "the held item");
        assert_eq!(totals.delivered + totals.unmatched, 500);
        assert_settled(totals);
        drop(slow_client);
    });
}

#[test]
fn tcp_client_that_reads_nothing_loses_its_own_lines_and_no_other_client_does() {
    current_thread().block_on(async {
        let (slow, slow_client) = connection().await;
        let (quick, quick_client) = connection().await;
        let mut lease = Lease::new();
        let stuck = Attach::new(1, keyed(slow)).buffer(2).overflow(Overflow::DropOldest);
        let orders = stream::iter([stuck.leased(&mut lease), Attach::new(2, keyed(quick))]);
        let reader = tokio::spawn(read_lines(quick_client));
        let rest = stream::iter((0..100).map(|n| (2, n.to_string())));
        // Otherwise, the stuck sink would never be closed after the end of the input.
        let hang_up = stream::once(async move { drop(lease) }).filter_map(|()| future::ready(None));
        let input = long_lines(1, 500).chain(rest).chain(hang_up);
        let discarded = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&discarded);
        let totals = input
            .demux_by(|item| item.0, orders)
            .on_discarded(|to, _, _| {
                assert_eq!(*to.key, 1);
                counter.fetch_add(1, SeqCst);
            })
            .await;
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
        let gone = reset(gone, gone_client).await;
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

/// Closes the connection with unread data, which resets it.
async fn reset(mut ours: TcpStream, client: TcpStream) -> TcpStream {
    ours.write_all(b"unread\n").await.unwrap();
    client.readable().await.unwrap();
    drop(client);
    ours
}

// `sink_map_err`, which panics when it is polled after an error

#[test]
fn sink_map_err_is_not_touched_after_its_first_error() {
    for op in [Op::Ready, Op::Send, Op::Flush, Op::Close] {
        let (sink, handle) = scripted_sink("a");
        handle.fail_quietly(op);
        let mut errors = Vec::new();
        let orders = stream::iter([(1, sink.sink_map_err(|error| error.0))]);
        let (input, feed) = scripted_stream("input");
        let mut task =
            Task::new(input.demux_by(tens, orders).on_error(|to, e| errors.push((*to.key, e))));
        feed.extend([11, 12]);
        assert!(task.run().is_pending());
        feed.push(13);
        feed.end();
        let Poll::Ready(totals) = task.run() else { panic!("the demux did not complete") };
        drop(task);
        assert_eq!(errors, [(1, op.name())]);
        assert_settled(totals);
    }
}

#[test]
fn sink_map_err_of_a_sender_with_a_dead_receiver_fails_once() {
    let (sink, receiver) = mpsc::channel(8);
    drop(receiver);
    let mut errors = Vec::new();
    let orders = stream::iter([Attach::new(1, sink.sink_map_err(|_| "gone")).buffer(8)]);
    let demux = stream::iter([11, 12, 13]).demux_by(tens, orders).on_error(|_, e| errors.push(e));
    let totals = executor::block_on(demux);
    assert_eq!(errors, ["gone"]);
    assert_eq!((totals.discarded, totals.unmatched, totals.lost), (1, 2, 0));
}

// tokio's cooperative budget

/// A tokio receiver as a stream; counts its polls.
struct Receiving<T>(tokio_mpsc::Receiver<T>, Arc<AtomicUsize>);

impl<T> Stream for Receiving<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.1.fetch_add(1, SeqCst);
        self.0.poll_recv(cx)
    }
}

/// A sink that counts calls of `poll_ready`.
struct CountsPolls<S>(S, Arc<AtomicUsize>);

impl<S: Unpin> CountsPolls<S> {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut S> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl<V, S: Sink<V> + Unpin> Sink<V> for CountsPolls<S> {
    type Error = S::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.1.fetch_add(1, SeqCst);
        self.inner().poll_ready(cx)
    }
    fn start_send(self: Pin<&mut Self>, item: V) -> Result<(), S::Error> {
        self.inner().start_send(item)
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner().poll_flush(cx)
    }
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner().poll_close(cx)
    }
}

/// Tokio's cooperative budget of a task for one poll.
const COOP: usize = 128;

/// Runs a demux beside a task that is always awake. Returns the turns of both.
async fn beside_a_busy_task<F>(demux: F) -> (F::Output, usize, usize)
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let done = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&done);
    let busy = tokio::spawn(async move {
        let mut turns = 0;
        future::poll_fn(|cx| {
            turns += 1;
            if seen.load(SeqCst) == 1 {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        turns
    });
    let demux = tokio::spawn(async move {
        let mut demux = pin!(demux);
        let mut turns = 0;
        let output = future::poll_fn(|cx| {
            turns += 1;
            demux.as_mut().poll(cx)
        })
        .await;
        done.store(1, SeqCst);
        (output, turns)
    });
    let (output, turns) = demux.await.unwrap();
    (output, turns, busy.await.unwrap())
}

#[test]
fn spent_coop_budget_neither_spins_nor_starves() {
    const ITEMS: u32 = 1_000;
    let (items, input) = tokio_mpsc::channel(ITEMS as usize);
    let (sink, mut received) = tokio_mpsc::channel(ITEMS as usize);
    (0..ITEMS).for_each(|n| items.try_send(n).unwrap());
    drop(items);
    let (read, polls) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let orders = stream::iter([((), CountsPolls(PollSender::new(sink), Arc::clone(&polls)))]);
    let demux =
        Receiving(input, Arc::clone(&read)).demux_by(|_| (), orders).budget(100 * ITEMS as usize);

    let (totals, turns, others) = current_thread().block_on(beside_a_busy_task(demux));
    assert_eq!(totals.delivered, u64::from(ITEMS));
    assert_settled(totals);
    let all: Vec<_> = std::iter::from_fn(|| received.try_recv().ok()).collect();
    assert_eq!(all, (0..ITEMS).collect::<Vec<_>>());

    let items = ITEMS as usize;
    assert!(turns > 2 * items / COOP, "each item takes two units of {COOP}: {turns} turns");
    assert!(turns <= 2 * items / COOP + 8, "each turn uses all {COOP} units: {turns} turns");
    assert!(others + 1 >= turns, "{turns} turns, but {others} of the other task");
    let (read, polls) = (read.load(SeqCst), polls.load(SeqCst));
    assert!(read <= items + turns, "at most one idle poll a turn: {read} polls, {turns} turns");
    assert!(polls <= items + turns, "at most one idle poll a turn: {polls} polls, {turns} turns");
}

/// A budget that many sinks have used up does not count against any of them.
#[test]
fn spent_coop_budget_of_many_sinks_reaches_all_of_them() {
    const SINKS: u32 = 300;
    let polls = Arc::<AtomicUsize>::default();
    let (mut sinks, mut outs) = (Vec::new(), Vec::new());
    for key in 0..SINKS {
        let (sink, out) = tokio_mpsc::channel(1);
        let sink = CountsPolls(PollSender::new(sink), Arc::clone(&polls));
        sinks.push(Attach::new(key, sink).buffer(4));
        outs.push(out);
    }
    let input = stream::iter((0..SINKS).chain(0..SINKS).chain(0..SINKS));
    let readers = outs.into_iter().map(|mut out| async move {
        let mut count = 0;
        while out.recv().await.is_some() {
            count += 1;
        }
        count
    });
    let runtime = current_thread();
    let counts = runtime.block_on(async {
        let readers: Vec<_> = readers.map(tokio::spawn).collect();
        let demux = input.demux_by(|&n| n, stream::iter(sinks)).budget(100_000);
        let (totals, turns, _) = beside_a_busy_task(demux).await;
        assert_eq!(totals.delivered, 3 * u64::from(SINKS));
        assert_settled(totals);
        let polls = polls.load(SeqCst);
        let bound = (3 + turns) * SINKS as usize;
        assert!(polls <= bound, "{polls} polls in {turns} turns");
        future::join_all(readers).await
    });
    assert!(counts.into_iter().all(|count| count.unwrap() == 3));
}

/// A budget shared by the resources of a task, as in earlier versions of tokio: when it is spent,
/// they return `Pending` and wake at once, until the next turn.
#[derive(Clone, Default)]
struct Allowance(Arc<AtomicUsize>, Arc<AtomicUsize>);

impl Allowance {
    fn proceed(&self, cx: &Context<'_>) -> Poll<()> {
        if self.0.load(SeqCst) == 0 {
            self.1.fetch_add(1, SeqCst);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.0.fetch_sub(1, SeqCst);
        Poll::Ready(())
    }

    /// Begins a turn. Returns how often the budget was spent in the last turn.
    fn renew(&self) -> usize {
        self.0.store(COOP, SeqCst);
        self.1.swap(0, SeqCst)
    }
}

/// A sink that is always ready while the allowance lasts.
struct Thrifty(Allowance, Arc<AtomicUsize>);

impl Sink<u32> for Thrifty {
    type Error = Infallible;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.proceed(cx).map(Ok)
    }
    fn start_send(self: Pin<&mut Self>, _: u32) -> Result<(), Infallible> {
        self.1.fetch_add(1, SeqCst);
        Ok(())
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.proceed(cx).map(Ok)
    }
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.proceed(cx).map(Ok)
    }
}

#[test]
fn sink_and_input_that_wake_at_once_on_a_spent_budget_are_not_polled_twice_a_turn() {
    const ITEMS: u32 = 1_000;
    let allowance = Allowance::default();
    let taken = [(); 3].map(|()| Arc::<AtomicUsize>::default());
    let orders = stream::iter([0, 1, 2].map(|key| {
        Attach::new(key, Thrifty(allowance.clone(), Arc::clone(&taken[key as usize]))).buffer(64)
    }));
    let (of_input, mut n) = (allowance.clone(), 0);
    let input = stream::poll_fn(move |cx| {
        if n == ITEMS {
            return Poll::Ready(None);
        }
        of_input.proceed(cx).map(|()| {
            n += 1;
            Some(n)
        })
    });
    let mut task = Task::new(input.demux_by(|n| n % 3, orders).budget(100_000));
    allowance.renew();
    let totals = loop {
        if let Poll::Ready(totals) = task.poll() {
            break totals;
        }
        assert!(task.woken(), "a sink that woke itself is polled in the next turn");
        // The input, and each sink for readiness, flush or close.
        let vain = allowance.renew();
        assert!(vain <= 1 + 2 * 3, "{vain} futile polls in one turn");
        assert!(task.polls() < 60, "the demux makes no progress");
    };
    assert_eq!(totals.delivered, u64::from(ITEMS));
    assert_eq!(taken.map(|taken| taken.load(SeqCst)), [333, 334, 333]);
    assert_settled(totals);
}

/// With more sinks than units of the budget, some always find it spent and wake at once.
#[test]
fn many_sinks_that_wake_at_once_when_the_budget_is_spent_are_not_polled_twice_a_turn() {
    const SINKS: usize = 300;
    let allowance = Allowance::default();
    let taken: Vec<_> = (0..SINKS).map(|_| Arc::<AtomicUsize>::default()).collect();
    let attach =
        |(key, taken)| Attach::new(key, Thrifty(allowance.clone(), Arc::clone(taken))).buffer(10);
    let orders = stream::iter((0..).zip(&taken).map(attach).collect::<Vec<_>>());
    let input = stream::iter((0..3_000).map(|n| n % 300));
    let mut task = Task::new(input.demux_by(|n| *n, orders).budget(100_000));
    allowance.renew();
    let totals = loop {
        if let Poll::Ready(totals) = task.poll() {
            break totals;
        }
        assert!(task.woken(), "a sink that woke itself is polled in the next turn");
        let vain = allowance.renew();
        assert!(vain <= 2 * SINKS, "{vain} futile polls in one turn");
        assert!(task.polls() < 100, "the demux makes no progress");
    };
    assert!(taken.iter().all(|taken| taken.load(SeqCst) == 10));
    assert_settled(totals);
}

// Kinds of sinks

#[test]
fn sinks_of_many_kinds_share_one_demux() {
    let (futures_sink, futures_out) = mpsc::channel(10);
    let (unbounded, unbounded_out) = mpsc::unbounded();
    let (tokio_sink, mut tokio_out) = tokio_mpsc::channel(10);
    let (flume_sink, flume_out) = flume::unbounded();
    let collected = Arc::new(std::sync::Mutex::new(Vec::new()));
    let unfold = sink::unfold(Arc::clone(&collected), |all, n| async move {
        all.lock().unwrap().push(n);
        Ok::<_, Infallible>(all)
    });
    let orders = stream::iter([
        (0, boxed(futures_sink)),
        (1, boxed(unbounded)),
        (2, boxed(PollSender::new(tokio_sink))),
        (3, boxed(flume_sink.into_sink())),
        (4, boxed(unfold)),
        (5, boxed(sink::drain())),
        (6, boxed(Vec::new())),
        (7, boxed(sink::unfold((), |(), _| future::err::<(), _>("broken")))),
    ]);
    let mut errors = Vec::new();
    let demux =
        stream::iter(0..80).demux_by(tens, orders).on_error(|to, e| errors.push((*to.key, e)));
    let totals = executor::block_on(demux);
    assert_eq!(errors, [(7, "\"broken\"".to_owned())]);
    assert_eq!(executor::block_on(futures_out.collect::<Vec<_>>()), (0..10).collect::<Vec<_>>());
    assert_eq!(executor::block_on(unbounded_out.collect::<Vec<_>>()), (10..20).collect::<Vec<_>>());
    let of_tokio: Vec<_> = std::iter::from_fn(|| tokio_out.try_recv().ok()).collect();
    assert_eq!(of_tokio, (20..30).collect::<Vec<_>>());
    assert_eq!(flume_out.drain().collect::<Vec<_>>(), (30..40).collect::<Vec<_>>());
    assert_eq!(*collected.lock().unwrap(), (40..50).collect::<Vec<_>>());
    assert_settled(totals);
}

// Executors

#[test]
fn sinks_that_are_not_send_run_on_a_local_set() {
    let received = Rc::new(RefCell::new(Vec::new()));
    let sink = sink::unfold(Rc::clone(&received), |received, n| async move {
        tokio::task::yield_now().await;
        received.borrow_mut().push(n);
        Ok::<_, Infallible>(received)
    });
    let (feed, input) = mpsc::channel(1);
    let demux = input.demux_by(tens, stream::iter([(1, Box::pin(sink))]));
    let tasks = LocalSet::new();
    let totals = tasks.block_on(&current_thread(), async move {
        let demux = tokio::task::spawn_local(demux);
        let mut feed = feed;
        feed.send_all(&mut stream::iter(10..20).map(Ok)).await.unwrap();
        drop(feed);
        demux.await.unwrap()
    });
    assert_eq!(*received.borrow(), (10..20).collect::<Vec<_>>());
    assert_settled(totals);
}

#[test]
fn workers_of_a_multi_thread_runtime_share_the_load() {
    const EACH: u32 = 1_000;
    let runtime = Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let totals = runtime.block_on(async {
        let (items, input) = mpsc::channel(8);
        let (orders, orders_in) = mpsc::unbounded();
        let mut readers = Vec::new();
        for key in 0..4 {
            let (sink, out) = tokio_mpsc::channel(4);
            orders.unbounded_send((key, PollSender::new(sink))).unwrap();
            readers.push(tokio::spawn(Receiving(out, Arc::default()).collect::<Vec<_>>()));
        }
        let demux = tokio::spawn(input.demux_by(|item: &(u32, u32)| item.0, orders_in));
        for key in 0..4 {
            let mut items = items.clone();
            tokio::spawn(async move {
                for n in 0..EACH {
                    items.send((key, n)).await.unwrap();
                }
            });
        }
        drop(items);
        for (key, reader) in (0..4).zip(readers) {
            assert_eq!(reader.await.unwrap(), (0..EACH).map(|n| (key, n)).collect::<Vec<_>>());
        }
        demux.await.unwrap()
    });
    assert_eq!(totals.delivered, 4 * u64::from(EACH));
    assert_settled(totals);
}

#[test]
fn block_on_with_threads_at_both_ends_needs_no_runtime() {
    let (mut items, input) = mpsc::channel(1);
    let (sink, received) = mpsc::channel(1);
    let demux = input.demux_by(|_: &u32| (), stream::iter([((), sink)]));
    let feeding = thread::spawn(move || {
        for n in 0..1_000 {
            executor::block_on(items.send(n)).unwrap();
        }
    });
    let reading = thread::spawn(move || executor::block_on(received.collect::<Vec<_>>()));
    assert_eq!(executor::block_on(demux).delivered, 1_000);
    feeding.join().unwrap();
    assert_eq!(reading.join().unwrap(), (0..1_000).collect::<Vec<_>>());
}

/// Polled in one runtime, woken and completed in another.
#[test]
fn demux_moves_from_one_runtime_to_another() {
    let (items, input) = mpsc::unbounded();
    let (sink, received) = mpsc::unbounded();
    let mut demux = input.demux_by(tens, stream::iter([(1, sink)]));
    current_thread().block_on(async {
        items.unbounded_send(11).unwrap();
        assert!((&mut demux).now_or_never().is_none());
        let raced = future::select(&mut demux, tokio::task::spawn(future::ready(()))).await;
        assert!(matches!(raced, Either::Right(_)));
    });
    let totals = current_thread().block_on(async {
        let demux = tokio::spawn(demux);
        tokio::task::yield_now().await;
        items.unbounded_send(12).unwrap();
        drop(items);
        demux.await.unwrap()
    });
    assert_eq!(executor::block_on(received.collect::<Vec<_>>()), [11, 12]);
    assert_settled(totals);
}

// Cancel safety

type Running = Pin<Box<dyn Future<Output = Totals> + Send>>;
type Outs = [mpsc::Receiver<u32>; 3];

/// A demux with a sink that takes one item at a time, one with a queue, one with a limit, and items
/// that match no attachment.
fn eventful(log: &Log) -> (Running, Outs) {
    let (slow, slow_out) = mpsc::channel(0);
    let (queued, queued_out) = mpsc::channel(0);
    let (limited, limited_out) = mpsc::channel(9);
    let orders = stream::iter([
        Attach::new(1, slow),
        Attach::new(2, queued).buffer(3),
        Attach::new(3, limited).limit(2),
    ]);
    let input = stream::iter([11, 21, 12, 31, 22, 32, 41, 33, 23, 13, 24, 25, 14, 26]);
    let demux = input.demux_by(tens, orders).budget(3).hooks(Logging(log.clone()));
    (Box::pin(demux), [slow_out, queued_out, limited_out])
}

/// Takes an item from each receiver, if there is one, and logs it.
fn read_on(outs: &mut Outs, log: &Log) {
    for n in outs.iter_mut().filter_map(next) {
        log.push(format!("read {n}"));
    }
}

/// Asserts the result of the eventful demux, which does not depend on how it is polled.
fn assert_eventful(totals: Totals, log: &[String]) {
    assert_settled(totals);
    assert_eq!((totals.received, totals.delivered, totals.unmatched), (14, 12, 2));
    for (key, expected) in [(1, vec![11, 12, 13, 14]), (2, (21..=26).collect()), (3, vec![31, 32])]
    {
        let read = log.iter().filter_map(|line| line.strip_prefix("read ")?.parse::<u32>().ok());
        assert_eq!(read.filter(|n| n / 10 == key).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn losing_every_select_changes_nothing() {
    let log = Log::new();
    let (mut demux, mut outs) = eventful(&log);
    let undisturbed = executor::block_on(async {
        loop {
            if let Poll::Ready(totals) = futures::poll!(&mut demux) {
                break totals;
            }
            read_on(&mut outs, &log);
        }
    });
    read_on(&mut outs, &log);
    let undisturbed_log = log.take();
    assert_eventful(undisturbed, &undisturbed_log);

    let (mut demux, mut outs) = eventful(&log);
    let raced = executor::block_on(async {
        loop {
            match future::select(&mut demux, future::ready(())).await {
                Either::Left((totals, _)) => break totals,
                Either::Right(_) => read_on(&mut outs, &log),
            }
        }
    });
    read_on(&mut outs, &log);
    assert_eq!((raced, log.take()), (undisturbed, undisturbed_log));
}

/// Whether a poll completes before an expired deadline or not does not change the result.
#[test]
fn timeouts_that_have_passed_change_nothing() {
    let log = Log::new();
    let (mut demux, mut outs) = eventful(&log);
    let totals = current_thread().block_on(async {
        loop {
            match tokio::time::timeout(Duration::ZERO, &mut demux).await {
                Ok(totals) => break totals,
                Err(_) => read_on(&mut outs, &log),
            }
        }
    });
    read_on(&mut outs, &log);
    assert_eventful(totals, &log.lines());
}

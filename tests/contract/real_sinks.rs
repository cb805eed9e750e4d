//! The documented behaviour with real sinks whose receivers are gone: futures' `mpsc`, tokio's
//! `PollSender`, flume, a codec over TCP. Channels that yield are in `really_full` and
//! `room_for_everything`.

use crate::common::real::{BoxedSink, assert_settled, boxed};
use crate::common::{Log, Recorder, Task, scripted_stream};
use futures::channel::mpsc;
use futures::future::{self, Either};
use futures::{FutureExt, SinkExt, Stream, StreamExt, executor, stream};
use stream_demux::{Attach, DemuxStreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc as tokio_mpsc;
use tokio_util::codec::{FramedWrite, LinesCodec};
use tokio_util::sync::PollSender;

/// Returns the next item if it is available.
fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> Option<T> {
    stream.next().now_or_never().flatten()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

// futures::channel::mpsc

#[test]
fn idle_futures_sender_with_a_dead_receiver_stays_until_its_next_item() {
    let (sink, receiver) = mpsc::channel(4);
    let (input, feed) = scripted_stream::<u32>("input");
    let log = Log::new();
    let mut task = Task::new(
        input.demux_by(|n| n / 10, stream::iter([(1, sink)])).hooks(Recorder::of_events(&log)),
    );
    feed.push(11);
    assert!(task.run().is_pending());
    drop(receiver);
    feed.push(21);
    assert!(task.run().is_pending());
    assert_eq!(log.take(), ["attached 1", "unmatched 21"]);
    assert_eq!(task.get_ref().len(), 1);

    feed.extend([12, 13]);
    assert!(task.run().is_pending());
    let log = log.take();
    assert_eq!(log.len(), 3, "{log:?}");
    assert_eq!(log[0], "discarded 12 of 1 Failed");
    assert!(log[1].starts_with("detached 1 Failed(SendError"), "{log:?}");
    assert_eq!(log[2], "unmatched 13");
    assert_eq!(task.get_ref().totals().lost, 0);
}

// tokio_util::sync::PollSender

#[test]
fn poll_sender_whose_receiver_dies_while_it_waits_fails_and_frees_its_key() {
    let (sender, receiver) = tokio_mpsc::channel(1);
    let (input, feed) = scripted_stream::<u32>("input");
    let log = Log::new();
    let orders = stream::iter([Attach::new(1, PollSender::new(sender)).buffer(1)]);
    let mut task = Task::new(input.demux_by(|n| n / 10, orders).hooks(Recorder::of_events(&log)));
    feed.extend([11, 12, 13, 14]);
    assert!(task.run().is_pending());
    drop(receiver);
    assert!(task.run().is_pending());
    assert_eq!(
        log.lines(),
        [
            "attached 1",
            "blocked 1",
            "unblocked 1",
            "discarded 12 of 1 Failed",
            "discarded 13 of 1 Failed",
            "detached 1 Failed(PollSendError(None))",
            "unmatched 14"
        ]
    );
}

// flume

/// A flume sink is ready when its previous item was sent, and sends in the flush.
#[test]
fn flume_sink_finds_its_dead_receiver_in_the_flush_and_hands_the_item_back() {
    let (sender, receiver) = flume::bounded(4);
    drop(receiver);
    let (input, feed) = scripted_stream::<u32>("input");
    let log = Log::new();
    let mut task = Task::new(
        input
            .demux_by(|n| n / 10, stream::iter([(1, sender.into_sink())]))
            .hooks(Recorder::of_events(&log)),
    );
    feed.push(11);
    assert!(task.run().is_pending());
    feed.push(12);
    assert!(task.run().is_pending());
    let log = log.lines();
    assert_eq!(log.len(), 3, "{log:?}");
    assert!(log[1].starts_with("detached 1 Failed("), "{log:?}");
    assert_eq!(log[2], "unmatched 12");
    let totals = task.get_ref().totals();
    assert_eq!((totals.delivered, totals.lost, totals.discarded), (1, 0, 0));
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

/// Lines so long that buffers hold only a few.
fn long_lines(key: u32, count: usize) -> impl Stream<Item = (u32, String)> {
    let line = "x".repeat(64 * 1024);
    stream::repeat_with(move || (key, line.clone())).take(count)
}

/// Creates a sink that encodes only the line of a keyed item.
fn keyed(stream: TcpStream) -> BoxedSink<(u32, String)> {
    let lines = FramedWrite::new(stream, LinesCodec::new());
    boxed(
        lines.with(|(_, line): (u32, String)| {
            future::ok::<_, tokio_util::codec::LinesCodecError>(line)
        }),
    )
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

// Cancel safety

#[test]
fn losing_every_select_changes_nothing() {
    let (sink, mut received) = mpsc::channel(0);
    let mut demux = stream::iter(10..20).demux_by(|n| n / 10, stream::iter([(1, sink)]));
    let mut read = Vec::new();
    let totals = executor::block_on(async {
        loop {
            match future::select(&mut demux, future::ready(())).await {
                Either::Left((totals, _)) => break totals,
                Either::Right(_) => read.extend(next(&mut received)),
            }
        }
    });
    read.extend(next(&mut received));
    assert_eq!(read, (10..20).collect::<Vec<_>>());
    assert_settled(totals);
}

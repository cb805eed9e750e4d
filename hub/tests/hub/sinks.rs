//! The sinks of the hub, put through what the contract of `Sink` allows.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};

use futures::{FutureExt, Sink, SinkExt};
use sink_test::{Rule, SinkCheck, Task};
use stream_demux_hub::{Inbox, MpscSink, OneshotSink, Overflow, inbox, write_sink};
use tokio::io::{AsyncReadExt, AsyncWrite, DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot};

/// The next item, if it has come. The check reads all that there is, so it is never told of losses.
fn next(inbox: &mut Inbox<usize>) -> Option<usize> {
    inbox.try_recv().and_then(Result::ok)
}

#[test]
fn inbox_that_waits() {
    for capacity in [1, 2, 5] {
        let check = SinkCheck::new(|| inbox(capacity, Overflow::Wait), |n| n, next);
        let report = check.capacity(capacity).disconnect(Inbox::close).run();
        assert!(report.gaps().is_empty());
    }
}

#[test]
fn second_sink_of_an_inbox() {
    let make = || {
        let (sink, inbox) = inbox(2, Overflow::Wait);
        (sink.clone(), inbox)
    };
    SinkCheck::new(make, |n| n, next).capacity(2).disconnect(Inbox::close).run();
}

/// With room for everything that the check sends, no policy drops anything.
#[test]
fn inboxes_with_room() {
    for full in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Evict] {
        let check = SinkCheck::new(|| inbox(1_000, full), |n| n, next);
        check.unbounded().disconnect(Inbox::close).run();
    }
}

/// Full inboxes keep all rules but those that a policy is made to break.
#[test]
fn full_inboxes() {
    for full in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Conflate] {
        let check = SinkCheck::new(|| inbox(3, full), |n| n, next).unbounded();
        check.except(Rule::Delivers).except(Rule::Room).disconnect(Inbox::close).run();
    }
    let check = SinkCheck::new(|| inbox(3, Overflow::Evict), |n| n, next).unbounded();
    check.except(Rule::EndsWithError).disconnect(Inbox::close).run();
}

#[test]
fn mpsc_sink() {
    for size in [1, 4] {
        let make = || {
            let (sender, receiver) = mpsc::channel(size);
            (MpscSink::new(sender), receiver)
        };
        let receive = |receiver: &mut mpsc::Receiver<usize>| receiver.try_recv().ok();
        let check = SinkCheck::new(make, |n| n, receive).capacity(size);
        assert!(check.disconnect(mpsc::Receiver::close).run().gaps().is_empty());
    }
}

#[test]
fn mpsc_sink_that_waits_is_woken_by_another_sender_that_gives_back_its_place() {
    let (sender, _receiver) = mpsc::channel(1);
    let permit = sender.clone().try_reserve_owned().unwrap();
    let mut sink = MpscSink::from(sender);
    let mut send = Task::new(sink.feed(1));
    assert!(send.run().is_pending());
    drop(permit);
    assert!(send.woken());
    assert!(send.run().is_ready());
}

#[test]
fn mpsc_sink_gives_back_its_place_when_it_is_closed() {
    let (sender, mut receiver) = mpsc::channel::<usize>(1);
    let mut sink = MpscSink::new(sender.clone());
    let mut ready = Task::new(futures::future::poll_fn(|cx| sink.poll_ready_unpin(cx)));
    assert!(ready.run().is_ready());
    drop(ready);
    assert!(sender.try_send(1).is_err(), "the place is reserved");
    assert!(sink.close().now_or_never().is_some());
    assert!(sender.try_send(2).is_ok());
    drop((sender, sink));
    assert_eq!(receiver.blocking_recv(), Some(2));
    assert_eq!(receiver.blocking_recv(), None);
}

/// A sink for any number of items, each of which gets a `OneshotSink`.
struct OneForEach {
    sink: Option<OneshotSink<usize>>,
    replies: Sender<oneshot::Receiver<usize>>,
}

impl Sink<usize> for OneForEach {
    type Error = String;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        let this = &mut *self;
        let sink = this.sink.get_or_insert_with(|| {
            let (sender, reply) = oneshot::channel();
            let _ = this.replies.send(reply);
            OneshotSink::new(sender)
        });
        sink.poll_ready_unpin(cx).map_err(|error| error.to_string())
    }
    fn start_send(mut self: Pin<&mut Self>, item: usize) -> Result<(), String> {
        let mut sink = self.sink.take().ok_or("not ready")?;
        sink.start_send_unpin(item).map_err(|error| error.to_string())
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        let sink = self.sink.as_mut();
        sink.map_or(Poll::Ready(Ok(())), |sink| sink.poll_close_unpin(cx))
            .map_err(|e| e.to_string())
    }
}

type Reader = (Receiver<oneshot::Receiver<usize>>, Option<oneshot::Receiver<usize>>);

#[test]
fn oneshot_sink() {
    let make = || {
        let (replies, receiver) = channel();
        (OneForEach { sink: None, replies }, (receiver, None))
    };
    let receive = |(replies, next): &mut Reader| {
        let mut reply = next.take().or_else(|| replies.try_recv().ok())?;
        let item = reply.try_recv().ok();
        *next = item.is_none().then_some(reply);
        item
    };
    SinkCheck::new(make, |n| n, receive).unbounded().except(Rule::EndsWithClose).run();
}

#[test]
fn oneshot_sink_takes_one_item() {
    let (sender, mut reply) = oneshot::channel();
    let mut sink = OneshotSink::from(sender);
    assert!(sink.feed(1).now_or_never().unwrap().is_ok());
    assert_eq!(reply.try_recv(), Ok(1));
    assert!(sink.feed(2).now_or_never().unwrap().is_err());
}

#[test]
fn oneshot_sink_without_a_receiver_fails() {
    let (sender, reply) = oneshot::channel();
    drop(reply);
    assert!(OneshotSink::new(sender).feed(1).now_or_never().unwrap().is_err());
}

#[test]
fn oneshot_sink_that_is_closed_ends_the_wait() {
    let (sender, mut reply) = oneshot::channel::<usize>();
    assert!(OneshotSink::new(sender).close().now_or_never().unwrap().is_ok());
    assert_eq!(reply.try_recv(), Err(oneshot::error::TryRecvError::Closed));
}

/// Reads numbers from the other end of a pipe.
struct Lines {
    pipe: Option<DuplexStream>,
    bytes: VecDeque<u8>,
}

impl Lines {
    fn next(&mut self) -> Option<usize> {
        let mut read = [0; 64];
        while let Some(Ok(n @ 1..)) = self.pipe.as_mut()?.read(&mut read).now_or_never() {
            self.bytes.extend(&read[..n]);
        }
        let end = self.bytes.iter().position(|&byte| byte == b'\n')?;
        let line = self.bytes.drain(..=end).collect::<Vec<_>>();
        std::str::from_utf8(&line).ok()?.trim().parse().ok()
    }
}

fn encode(n: usize, buffer: &mut Vec<u8>) -> io::Result<()> {
    writeln!(buffer, "{n:>30}")
}

#[test]
fn sink_that_writes_to_a_pipe() {
    // A pipe of 100 bytes takes three items, and parts of a fourth.
    for (limit, items) in [(1, 4), (50, 5), (1_000, 100)] {
        let make = || {
            let (here, there) = duplex(100);
            let lines = Lines { pipe: Some(there), bytes: VecDeque::new() };
            (write_sink(here, limit, encode), lines)
        };
        let check = SinkCheck::new(make, |n| n, Lines::next).capacity(items + 1);
        let report = check.disconnect(|lines| lines.pipe = None).run();
        assert!(report.gaps().is_empty(), "{:?}", report.gaps());
    }
}

/// A writer that counts calls, and takes at most this many bytes at a time.
#[derive(Default)]
struct Calls {
    most: usize,
    writes: usize,
    flushes: usize,
    bytes: Vec<u8>,
}

impl AsyncWrite for Calls {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let n = bytes.len().min(self.most);
        self.writes += 1;
        self.bytes.extend(&bytes[..n]);
        Poll::Ready(Ok(n))
    }
    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes += 1;
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn items_of_a_flush_share_a_write() {
    let mut calls = Calls { most: 1_000, ..Calls::default() };
    let mut sink = write_sink(&mut calls, 100, |byte: u8, buffer| buffer.write_all(&[byte]));
    for byte in 0..10 {
        sink.feed(byte).now_or_never().unwrap().unwrap();
    }
    sink.flush().now_or_never().unwrap().unwrap();
    sink.flush().now_or_never().unwrap().unwrap();
    drop(sink);
    assert_eq!(
        (calls.writes, calls.flushes, &*calls.bytes),
        (1, 2, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9][..])
    );
}

#[test]
fn sink_at_its_limit_writes_before_it_takes_another_item() {
    let mut calls = Calls { most: 2, ..Calls::default() };
    let mut sink = write_sink(&mut calls, 4, |byte: u8, buffer| buffer.write_all(&[byte]));
    for byte in 0..6 {
        sink.feed(byte).now_or_never().unwrap().unwrap();
    }
    drop(sink);
    assert_eq!((calls.writes, &*calls.bytes), (1, &[0, 1][..]));
}

#[test]
fn sink_fails_with_its_writer_and_with_the_encoder() {
    let mut full = write_sink(Calls::default(), 4, |byte: u8, buffer| buffer.write_all(&[byte]));
    let error = full.send(1).now_or_never().unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);

    let refuse = |_: u8, _: &mut Vec<u8>| Err(io::ErrorKind::InvalidData.into());
    let error =
        write_sink(Calls::default(), 4, refuse).feed(1).now_or_never().unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

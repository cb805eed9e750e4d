//! Real channels and codecs.

use futures::channel::mpsc;
use futures::{FutureExt, StreamExt};
use sink_test::{SinkCheck, check_sink};
use tokio::io::duplex;
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec};
use tokio_util::sync::PollSender;

/// Returns the next item if it is available.
fn next<T>(receiver: &mut mpsc::Receiver<T>) -> Option<T> {
    receiver.next().now_or_never().flatten()
}

#[test]
fn channels_of_futures() {
    for size in [0, 1, 5] {
        let check = SinkCheck::new(|| mpsc::channel(size), |n| n, next).capacity(size + 1);
        let report = check.disconnect(mpsc::Receiver::close).run();
        assert!(report.gaps().is_empty());
    }
    let receive = |receiver: &mut mpsc::UnboundedReceiver<_>| receiver.next().now_or_never()?;
    let check = SinkCheck::new(mpsc::unbounded, |n| n, receive).unbounded();
    let report = check.disconnect(mpsc::UnboundedReceiver::close).run();
    assert_eq!(report.gaps(), ["a full sink: it is `unbounded`"]);
}

#[test]
fn poll_sender_of_tokio() {
    use tokio::sync::mpsc;
    for size in [1, 4] {
        let make = || {
            let (sender, receiver) = mpsc::channel(size);
            (PollSender::new(sender), receiver)
        };
        let receive = |receiver: &mut mpsc::Receiver<_>| receiver.try_recv().ok();
        let check = SinkCheck::new(make, |n| n, receive).capacity(size);
        assert!(check.disconnect(mpsc::Receiver::close).run().gaps().is_empty());
    }
}

#[test]
fn lines_through_a_pipe() {
    let make = || {
        let (here, there) = duplex(64);
        let lines = FramedRead::new(there, LinesCodec::new());
        (FramedWrite::new(here, LinesCodec::new()), Some(lines))
    };
    // Long enough that some of them fill the buffer of 8 KiB.
    let item = |n| format!("{n:>200}");
    let receive =
        |lines: &mut Option<FramedRead<_, _>>| lines.as_mut()?.next().now_or_never()??.ok();
    let check = SinkCheck::new(make, item, receive).capacity(50);
    let check = check.disconnect(|lines| *lines = None);
    assert!(check.run().gaps().is_empty());
}

#[test]
fn equal_items_are_a_gap() {
    let report = SinkCheck::new(|| mpsc::channel(2), |_| (), next).run();
    assert_eq!(report.gaps()[0], "which item arrives: `item` returns equal items");
}

#[test]
fn short_form() {
    let report = check_sink(|| mpsc::channel(2), |n| n, next);
    assert_eq!(report.gaps(), ["a sink without its receiver: there is no `disconnect`"]);
}

/// Otherwise, the cooperative budget of the task would be spent during the check.
#[tokio::test]
async fn poll_sender_in_a_task_without_a_budget() {
    use tokio::{sync::mpsc, task::unconstrained};
    let make = || {
        let (sender, receiver) = mpsc::channel(3);
        (PollSender::new(sender), receiver)
    };
    let receive = |receiver: &mut mpsc::Receiver<_>| receiver.try_recv().ok();
    unconstrained(async { check_sink(make, |n| n, receive) }).await;
}

//! `Hooks::admit` (*Attachments*): called once per item and recipient, before the queue or the sink
//! is used. An item that is not admitted is discarded, and never waits for a sink.

use crate::common::{Op, Rig};
use stream_demux::Overflow;

/// Logs calls of `admit`, but no flushes.
fn rig() -> Rig {
    Rig::new().logging(|line| !line.ends_with("flushed") && !line.starts_with("key "))
}

fn admit_calls(lines: &[String]) -> usize {
    lines.iter().filter(|line| line.starts_with("admit")).count()
}

#[test]
fn admitted_items_are_sent_and_the_others_discarded() {
    let mut rig = rig().admitting(|_, n| n % 2 == 0);
    let a = rig.attach_on(1, "a", |attach| attach.tag(7));
    assert_eq!(
        rig.send([101, 102, 103]),
        [
            "admit 101 to 1#7",
            "discarded 101 of 1#7 NotAdmitted",
            "admit 102 to 1#7",
            "a sent 102",
            "admit 103 to 1#7",
            "discarded 103 of 1#7 NotAdmitted"
        ]
    );
    assert_eq!((rig.totals().delivered, rig.totals().discarded), (1, 2));
    assert_eq!((a.count(Op::Ready), a.count(Op::Flush)), (1, 1));
}

#[test]
fn refused_item_does_not_overflow_a_queue() {
    for overflow in [Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict] {
        for buffer in [0, 2] {
            let mut rig = rig().admitting(|_, n| n % 2 == 0);
            let a = rig.attach_on(1, "a", |attach| attach.buffer(buffer).overflow(overflow));
            a.park();
            let fill: Vec<_> = [110, 120][..buffer].to_vec();
            rig.send(fill.clone());
            let refused = ["admit 151 to 1", "discarded 151 of 1 NotAdmitted"];
            assert_eq!(rig.send([151]), refused);
            assert_eq!(rig.totals().queued, buffer as u64);
            a.open();
            rig.lines();
            assert_eq!(a.items(), fill);
        }
    }
}

#[test]
fn admit_is_not_called_again_for_an_item_that_waits() {
    let mut rig = rig();
    let a = rig.attach(1, "a");
    a.park();
    assert_eq!(rig.send([101]), ["admit 101 to 1", "blocked 1"]);
    for _ in 0..3 {
        a.wake();
        assert!(rig.lines().is_empty());
    }
    a.open();
    let mut lines = rig.lines();
    lines.sort();
    assert_eq!(lines, ["a sent 101", "unblocked 1"]);
}

#[test]
fn admit_is_called_once_for_an_overtaken_item_and_with_its_new_recipient() {
    let mut rig = rig();
    rig.attach_on(1, "a", |attach| attach.tag(1));
    let (attach, b) = rig.attachment(1, "b", |attach| attach.tag(2));
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push(attach));
    let lines = rig.send([101]);
    assert_eq!(admit_calls(&lines), 1);
    assert!(lines.contains(&"admit 101 to 1#2".to_owned()), "{lines:?}");
    assert_eq!(b.items(), [101]);
}

//! `Demux::or_attach_with`: a closure may attach a sink for an item that matches no key.

use std::sync::{Arc, Mutex};

use crate::common::rig::Key;
use crate::common::{Op, Rig, SinkHandle, Terms, scripted_sink};
use stream_demux::{Attach, Lease, OrAttach, Order};

type Maker = Box<dyn FnMut(&u32) -> Option<Terms>>;

/// The sinks that were made, named by their numbers, from 0.
#[derive(Clone, Default)]
struct Made(Arc<Mutex<Vec<SinkHandle<u32>>>>);

impl Made {
    fn nth(&self, n: usize) -> SinkHandle<u32> {
        self.0.lock().unwrap()[n].clone()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// A demux that attaches a sink under the key of each unmatched item.
fn on_demand() -> (Rig<u32, OrAttach<Key, Maker>>, Made) {
    making(|item, make| Some(make(item / 100)))
}

/// A demux that attaches what `maker` returns for an unmatched item. The second argument of `maker`
/// makes a sink under a key.
fn making(
    mut maker: impl FnMut(u32, &dyn Fn(u32) -> Terms) -> Option<Terms> + 'static,
) -> (Rig<u32, OrAttach<Key, Maker>>, Made) {
    let made = Made::default();
    let all = made.clone();
    let rig = Rig::keyed(
        |n| n / 100,
        |demux| {
            let log = demux.hooks_ref().log.clone();
            let attach = move |key| {
                let (sink, handle) = scripted_sink(all.count());
                handle.log_to(&log);
                all.0.lock().unwrap().push(handle);
                Attach::new(key, sink)
            };
            let log = demux.hooks_ref().log.clone();
            demux.or_attach_with(Box::new(move |&item: &u32| {
                log.push(format!("calls {item}"));
                maker(item, &attach)
            }) as Maker)
        },
    );
    let is_kept = |line: &str| {
        !line.starts_with("admit ") && !line.starts_with("key ") && !line.ends_with("flushed")
    };
    (rig.logging(is_kept), made)
}

#[test]
fn sink_is_attached_as_by_an_order_and_gets_the_item_it_was_made_for() {
    let (mut rig, _) = on_demand();
    rig.log.keep_only(|line| !line.ends_with("flushed"));
    assert_eq!(
        rig.send([101, 102]),
        [
            "calls 101",
            "attached 1",
            "key 1 attached",
            "admit 101 to 1",
            "0 sent 101",
            "admit 102 to 1",
            "0 sent 102",
        ]
    );
    assert_eq!(rig.totals().unmatched, 0);
    assert!(rig.task.get_ref().contains_key(&1));
}

/// The look-up by key may find the one that is leaving first.
#[test]
fn sink_that_is_still_closing_gets_no_item_of_its_successor() {
    let (mut rig, made) = on_demand();
    rig.send([101]);
    made.nth(0).hold(Op::Close);
    rig.apply(Order::Detach(1));
    rig.send([102, 103]);
    rig.send([104]);
    assert_eq!((made.nth(0).items(), made.nth(1).items()), (vec![101], vec![102, 103, 104]));
    assert_eq!(made.count(), 2);
}

#[test]
fn item_without_a_sink_is_unmatched_and_the_closure_is_called_for_the_next() {
    let (mut rig, _) = making(|_, _| None);
    assert_eq!(rig.send([101, 101]), ["calls 101", "unmatched 101", "calls 101", "unmatched 101"]);
}

/// The order was ready before the item.
#[test]
fn closure_is_not_called_for_a_key_whose_order_came_with_the_item() {
    let (mut rig, _) = on_demand();
    let (sink, a) = scripted_sink("a");
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push((1, sink).into()));
    assert_eq!(rig.send([101]), ["attached 1"]);
    assert_eq!(a.items(), [101]);
}

#[test]
fn sink_under_another_key_does_not_get_the_item() {
    let (mut rig, made) = making(|_, make| Some(make(7)));
    assert_eq!(rig.send([101]), ["calls 101", "attached 7", "unmatched 101"]);
    assert_eq!(rig.send([701]), ["0 sent 701"]);
    // It replaces the previous sink, as with an order.
    rig.send([102]);
    rig.send([702]);
    assert_eq!((made.nth(0).items(), made.nth(1).items()), (vec![701], vec![702]));
    assert!(made.nth(0).is_closed());
}

#[test]
fn attachment_that_takes_no_key_leaves_the_item_unmatched() {
    let (mut rig, _) = making(|_, make| Some(make(1).limit(0)));
    let lines = rig.send([101]);
    assert_eq!(
        lines,
        ["calls 101", "attached 1", "0 closed", "0 dropped", "detached 1 Limited", "unmatched 101"]
    );

    for detach in [false, true] {
        let (mut rig, made) = making(move |_, make| {
            let mut lease = Lease::new();
            let attach = make(1).leased(&mut lease);
            if detach {
                lease.detach();
            }
            Some(attach)
        });
        let lines = rig.send([101]);
        let why = if detach { "Requested" } else { "Evicted" };
        assert_eq!(lines[..2], ["calls 101", "attached 1"]);
        assert!(lines.contains(&format!("detached 1 {why}")), "{lines:?}");
        assert!(lines.contains(&"unmatched 101".to_owned()), "{lines:?}");
        assert_eq!(made.nth(0).taken(), 0);
    }
}

#[test]
fn closure_is_not_called_after_the_end() {
    for finish in [false, true] {
        let (mut rig, made) = on_demand();
        rig.send([101]);
        made.nth(0).hold(Op::Close);
        if finish {
            let orders = rig.orders.clone();
            rig.input.action(move || orders.push(Order::Finish));
            rig.input.extend([201, 301]); // `Finish` overtakes the first
        } else {
            rig.input.end();
        }
        let lines = rig.lines();
        assert!(!lines.iter().any(|line| line.starts_with("calls")), "{lines:?}");
        made.nth(0).release(Op::Close);
        assert!(rig.task.run().is_ready());
        assert_eq!(made.count(), 1);
    }
}

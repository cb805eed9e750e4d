//! `Demux::or_attach_with`: a closure may attach a sink for an item that matches no key.

use std::sync::{Arc, Mutex};

use crate::common::{
    Log, Op, Orders, Recorder, ScriptedStream, SinkHandle, StreamHandle, Task, Terms,
    scripted_sink, scripted_stream,
};
use stream_demux::{Attach, ByValue, Demux, DemuxStreamExt, Lease, OrAttach, Order, Totals};

type Maker = Box<dyn FnMut(&u32) -> Option<Terms> + Send>;
type Split = Demux<
    ScriptedStream<u32>,
    OrAttach<ByValue<fn(&u32) -> u32>, Maker>,
    ScriptedStream<Orders>,
    Recorder,
>;

/// A demux and the handles of the sinks made on demand. Items are numbers; the key of item `n` is
/// `n / 100`.
struct Rig {
    task: Task<Split>,
    input: StreamHandle<u32>,
    orders: StreamHandle<Orders>,
    log: Log,
    made: Arc<Mutex<Vec<SinkHandle<u32>>>>,
}

impl Rig {
    /// Attaches a sink under the key of each unmatched item.
    fn new() -> Self {
        Self::making(|item, sink| Some(sink.attach(item / 100)))
    }

    fn making(maker: impl FnMut(u32, NewSink<'_>) -> Option<Terms> + Send + 'static) -> Self {
        Self::with(|demux| demux, maker)
    }

    fn with(
        settings: impl FnOnce(Split) -> Split,
        mut maker: impl FnMut(u32, NewSink<'_>) -> Option<Terms> + Send + 'static,
    ) -> Self {
        let (items, input) = scripted_stream("input");
        let (inbox, orders) = scripted_stream("orders");
        let (log, made) = (Log::new(), Arc::default());
        let attach: Maker = {
            let (log, made) = (log.clone(), Arc::clone(&made));
            Box::new(move |&item| {
                log.push(format!("calls {item}"));
                maker(item, NewSink { log: &log, made: &made })
            })
        };
        let key: fn(&u32) -> u32 = |n| n / 100;
        let demux = items
            .demux_by(key, inbox)
            .or_attach_with(attach)
            .hooks(Recorder::new(&log, |_, item| item % 100 != 99));
        log.keep_only(|line| {
            !line.starts_with("admit ") && !line.starts_with("key ") && !line.ends_with("flushed")
        });
        Self { task: Task::new(settings(demux)), input, orders, log, made }
    }

    #[track_caller]
    fn lines(&mut self) -> Vec<String> {
        assert!(self.task.run().is_pending());
        let all = self.totals();
        let fates = all.unmatched + all.delivered + all.discarded + all.lost + all.queued;
        assert_eq!(all.received + all.copies, fates, "{all:?}");
        self.log.take()
    }

    #[track_caller]
    fn send(&mut self, items: impl IntoIterator<Item = u32>) -> Vec<String> {
        self.input.extend(items);
        self.lines()
    }

    #[track_caller]
    fn apply(&mut self, order: impl Into<Orders>) -> Vec<String> {
        self.orders.push(order.into());
        self.lines()
    }

    /// Returns the `n`-th sink that was made, from 0.
    fn made(&self, n: usize) -> SinkHandle<u32> {
        self.made.lock().unwrap()[n].clone()
    }

    fn count_made(&self) -> usize {
        self.made.lock().unwrap().len()
    }

    fn totals(&self) -> Totals {
        self.task.get_ref().totals()
    }
}

/// The sink that is about to be made.
struct NewSink<'a> {
    log: &'a Log,
    made: &'a Mutex<Vec<SinkHandle<u32>>>,
}

impl NewSink<'_> {
    /// Creates a sink that is named by its number, from 0.
    fn attach(self, key: u32) -> Terms {
        self.attach_after(key, |_| ())
    }

    fn attach_after(self, key: u32, prepare: impl FnOnce(&SinkHandle<u32>)) -> Terms {
        let mut made = self.made.lock().unwrap();
        let (sink, handle) = scripted_sink(made.len());
        handle.log_to(self.log);
        prepare(&handle);
        made.push(handle);
        Attach::new(key, sink)
    }
}

#[test]
fn sink_is_attached_as_by_an_order_and_gets_the_item_it_was_made_for() {
    let mut rig = Rig::new();
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
    let mut rig = Rig::new();
    rig.send([101]);
    rig.made(0).hold(Op::Close);
    rig.apply(Order::Detach(1));
    rig.send([102, 103]);
    rig.send([104]);
    assert_eq!((rig.made(0).items(), rig.made(1).items()), (vec![101], vec![102, 103, 104]));
    assert_eq!(rig.count_made(), 2);
}

#[test]
fn item_without_a_sink_is_unmatched_and_the_closure_is_called_for_the_next() {
    let mut rig = Rig::making(|_, _| None);
    assert_eq!(rig.send([101, 101]), ["calls 101", "unmatched 101", "calls 101", "unmatched 101"]);
}

/// The order was ready before the item.
#[test]
fn closure_is_not_called_for_a_key_whose_order_came_with_the_item() {
    let mut rig = Rig::new();
    let (sink, a) = scripted_sink("a");
    let orders = rig.orders.clone();
    rig.input.action(move || orders.push((1, sink).into()));
    assert_eq!(rig.send([101]), ["attached 1"]);
    assert_eq!(a.items(), [101]);
}

#[test]
fn sink_under_another_key_does_not_get_the_item() {
    let mut rig = Rig::making(|_, sink| Some(sink.attach(7)));
    assert_eq!(rig.send([101]), ["calls 101", "attached 7", "unmatched 101"]);
    assert_eq!(rig.send([701]), ["0 sent 701"]);
    // It replaces the previous sink, as with an order.
    rig.send([102]);
    rig.send([702]);
    assert_eq!((rig.made(0).items(), rig.made(1).items()), (vec![701], vec![702]));
    assert!(rig.made(0).is_closed());
}

#[test]
fn attachment_that_takes_no_key_leaves_the_item_unmatched() {
    let mut rig = Rig::making(|_, sink| Some(sink.attach(1).limit(0)));
    let lines = rig.send([101]);
    assert_eq!(
        lines,
        ["calls 101", "attached 1", "0 closed", "0 dropped", "detached 1 Limited", "unmatched 101"]
    );

    for detach in [false, true] {
        let mut rig = Rig::making(move |_, sink| {
            let mut lease = Lease::new();
            let attach = sink.attach(1).leased(&mut lease);
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
        assert_eq!(rig.made(0).taken(), 0);
    }
}

#[test]
fn closure_is_not_called_after_the_end() {
    for finish in [false, true] {
        let mut rig = Rig::new();
        rig.send([101]);
        rig.made(0).hold(Op::Close);
        if finish {
            let orders = rig.orders.clone();
            rig.input.action(move || orders.push(Order::Finish));
            rig.input.extend([201, 301]); // `Finish` overtakes the first
        } else {
            rig.input.end();
        }
        let lines = rig.lines();
        assert!(!lines.iter().any(|line| line.starts_with("calls")), "{lines:?}");
        rig.made(0).release(Op::Close);
        assert!(rig.task.run().is_ready());
        assert_eq!(rig.count_made(), 1);
    }
}

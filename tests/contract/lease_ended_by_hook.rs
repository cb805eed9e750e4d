//! A lease that ends inside [`Hooks::attached`] ends after the order that this hook reports
//! (attachment rules, *Lease*): the order has been applied, so the attachment takes the key before
//! it ends.

use crate::common::{Log, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle, Task};
use crate::common::{scripted_sink, scripted_stream};
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use stream_demux::{Attach, ByValue, Demux, DemuxStreamExt, Detached, Hooks, Lease, Recipient};

type Sent = Attach<u32, ScriptedSink<u32>>;
type Key = fn(&u32) -> u32;
type Future<F> = Demux<ScriptedStream<u32>, ByValue<Key>, UnboundedReceiver<Sent>, Ends<F>>;

/// Logs each call, and ends a lease when the attachment with tag 2 is reported.
struct Ends<F>(Log, Option<F>);

impl<F: FnOnce(), E> Hooks<u32, u32, E> for Ends<F> {
    fn attached(&mut self, to: Recipient<'_, u32>) {
        self.0.push(format!("attached {}", to.tag));
        if let Some(end) = self.1.take_if(|_| to.tag == 2) {
            end();
        }
    }

    fn detached(&mut self, to: Recipient<'_, u32>, why: Detached<E>) {
        let why = match why {
            Detached::Evicted => "evicted",
            Detached::Requested => "requested",
            Detached::Replaced => "replaced",
            Detached::Refused => "refused",
            _ => "otherwise",
        };
        self.0.push(format!("detached {}: {why}", to.tag));
    }

    fn unmatched(&mut self, item: u32) {
        self.0.push(format!("unmatched {item}"));
    }
}

struct Setup<F> {
    task: Task<Future<F>>,
    input: StreamHandle<u32>,
    orders: UnboundedSender<Sent>,
    first: SinkHandle<u32>,
    log: Log,
}

/// Creates a demux with a sink tagged 1 under key 0. `end` runs when the next sink, tagged 2, is
/// reported.
fn with_one_sink<F: FnOnce()>(end: F) -> Setup<F> {
    let log = Log::new();
    let (input, handle) = scripted_stream("input");
    let (orders, orders_in) = mpsc::unbounded();
    let (sink, first) = scripted_sink(1);
    orders.unbounded_send(Attach::new(0, sink).tag(1).buffer(2)).unwrap();
    let hooks = Ends(log.clone(), Some(end));
    let mut task = Task::new(input.demux_by((|_| 0) as Key, orders_in).hooks(hooks));
    assert!(task.run().is_pending());
    log.take();
    Setup { task, input: handle, orders, first, log }
}

#[test]
fn attachment_replaces_another_before_its_lease_evicts_it() {
    let mut lease = Lease::new();
    let (sink, _handle) = scripted_sink(2);
    let second = Attach::new(0, sink).tag(2).leased(&mut lease);
    let mut setup = with_one_sink(|| drop(lease));
    setup.orders.unbounded_send(second).unwrap();
    setup.input.push(7);
    assert!(setup.task.run().is_pending());
    assert_eq!(
        setup.log.take(),
        ["attached 2", "detached 1: replaced", "detached 2: evicted", "unmatched 7"]
    );
}

#[test]
fn attachment_takes_over_a_queue_before_its_lease_detaches_it() {
    let mut lease = Lease::new();
    let (sink, handle) = scripted_sink(2);
    let second = Attach::new(0, sink).tag(2).leased(&mut lease);
    let mut setup = with_one_sink(|| lease.detach());
    setup.first.park();
    setup.input.extend([7, 8]);
    assert!(setup.task.run().is_pending());
    setup.orders.unbounded_send(second).unwrap();
    setup.input.push(9);
    assert!(setup.task.run().is_pending());
    assert_eq!(handle.items(), [7, 8]);
    assert_eq!(
        setup.log.take(),
        ["attached 2", "detached 1: replaced", "detached 2: requested", "unmatched 9"]
    );
}

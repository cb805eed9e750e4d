//! Guarantee 7: a blocked sink holds the input and nothing else. Also `blocked_on`, and the hooks
//! `blocked` and `unblocked`, one pair for each wait.

use crate::common::{Op, Rig, SinkHandle, Terms, hooks};
use stream_demux::{Demux, Order};

impl Rig {
    /// Attaches sink `a` under key 1 and blocks the input on it: 101 is queued, 102 and 201 wait
    /// unread.
    #[track_caller]
    fn blocked(&mut self) -> SinkHandle<u32> {
        self.blocked_on_terms(|attach| attach)
    }

    #[track_caller]
    fn blocked_on_terms(&mut self, terms: impl FnOnce(Terms) -> Terms) -> SinkHandle<u32> {
        let a = self.order(1, "a", terms);
        a.park();
        self.input.extend([101, 102, 201]);
        assert!(self.lines().contains(&"blocked 1".to_owned()));
        assert_eq!((self.waits_for(), self.input.left()), (Some(1), 2));
        a
    }

    /// Polls once, after which the task must be parked. Returns the log.
    #[track_caller]
    fn lines_of_one_poll(&mut self) -> Vec<String> {
        assert!(self.task.woken());
        self.poll();
        assert!(!self.task.woken());
        self.log.take()
    }

    fn waits_for(&self) -> Option<u32> {
        self.task.get_ref().blocked_on().map(|on| *on.key)
    }
}

// Hooks and getters.

#[test]
fn blocked_and_unblocked_are_called_once_per_wait() {
    let mut rig = Rig::new();
    let a = rig.attach(1, "a");
    a.park();
    rig.input.push(101);
    assert_eq!(rig.lines(), ["blocked 1"]);
    a.wake(); // spurious: the sink is polled again and is still not ready
    assert!(rig.lines().is_empty());
    a.wake();
    assert!(rig.lines().is_empty());
    assert_eq!((a.count(Op::Ready), rig.waits_for()), (3, Some(1)));
    a.open();
    assert!(matches!(&rig.lines()[..], [first, second, last]
        if [first, second].contains(&&"unblocked 1".to_owned())
            && [first, second].contains(&&"a sent 101".to_owned())
            && last == "a flushed"));
    assert_eq!(rig.waits_for(), None);
}

#[test]
fn the_input_is_not_polled_while_it_is_blocked() {
    let mut rig = Rig::new();
    let a = rig.blocked();
    rig.input.forbid_polls();
    a.wake();
    rig.attach(2, "b");
    rig.input.permit_polls();
    a.open();
    rig.lines();
    assert_eq!((a.items(), rig.input.left()), (vec![101, 102], 0));
}

// Everything else goes on.

#[test]
fn pending_flushes_and_closes_of_others_continue() {
    let mut rig = Rig::new();
    let (b, c) = (rig.attach(2, "b"), rig.attach(3, "c"));
    b.hold(Op::Flush);
    c.hold(Op::Close);
    rig.input.push(201);
    rig.orders.push(Order::Detach(3));
    rig.lines();
    rig.blocked();
    b.release(Op::Flush);
    assert_eq!(rig.lines_of_one_poll(), ["b flushed"]);
    c.release(Op::Close);
    assert_eq!(rig.lines_of_one_poll(), ["c closed", "c dropped", "detached 3 Requested"]);
    assert_eq!(rig.waits_for(), Some(1));
}

// Events that unblock the input in the same poll.

#[test]
fn an_abort_frees_the_input_before_it_ends_the_attachments_one_by_one() {
    let mut rig = Rig::with(|demux| demux.budget(1));
    rig.attach(2, "b");
    rig.blocked();
    rig.orders.push(Order::Abort);
    assert_eq!(rig.turn(), ["unblocked 1", "b dropped", "detached 2 Evicted"]);
}

#[test]
fn a_blocked_sink_that_fails_in_the_final_flush_wakes_the_task() {
    let mut rig = Rig::new();
    rig.attach(2, "b");
    let a = rig.attach(1, "a");
    a.fail_quietly(Op::Flush);
    a.park();
    a.allow(1);
    rig.input.extend([101, 102, 201]);
    rig.poll();
    assert_eq!((a.is_dropped(), rig.waits_for(), rig.totals().discarded), (true, None, 1));
    assert!(rig.task.woken() || rig.input.left() == 0);
    rig.log.take();
    assert_eq!(rig.lines(), ["b sent 201", "b flushed"]);
}

// A key with many sinks.

#[test]
fn a_wait_moves_from_one_member_to_the_next_with_an_unblocked() {
    let mut rig = Rig::with(Demux::multicast);
    let a = rig.order(1, "a", |attach| attach.tag(1));
    let b = rig.order(1, "b", |attach| attach.tag(2));
    a.park();
    b.park();
    rig.input.push(101);
    assert_eq!(rig.lines(), ["attached 1#1", "attached 1#2", "blocked 1#1"]);
    a.open();
    assert_eq!(hooks(rig.lines()), ["unblocked 1#1", "blocked 1#2"]);
    assert_eq!((a.items(), a.flushed()), (vec![101], 1));
    assert_eq!(rig.task.get_ref().blocked_on().map(|on| on.tag), Some(2));
    b.open();
    let lines = rig.lines();
    assert_eq!(lines.iter().filter(|line| line.contains("blocked")).count(), 1);
    assert_eq!((a.items(), b.items(), rig.waits_for()), (vec![101], vec![101], None));
}

//! The sinks of the hub, put through what the contract of `Sink` allows.

use sink_test::{Rule, SinkCheck};
use stream_demux_hub::{Inbox, Overflow, inbox};

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

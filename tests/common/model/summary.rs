//! How often each kind of event occurred, so that tests can check what they reached.

use std::collections::BTreeMap;

use stream_demux::Discarded;

use super::event::reasons::{FINISHED, IDLE, LIMITED, REPLACED, REQUESTED};
use super::event::{EndReason, Event, OrderKind, Outcome};

/// The number of events of each kind, in one script or in many.
#[derive(Clone, Debug, Default)]
pub struct Summary(pub BTreeMap<&'static str, u64>);

impl Summary {
    pub fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(super) fn tally(&mut self, event: &Event) {
        self.count(match *event {
            Event::Read(..) => "read",
            Event::Order(OrderKind::Attach(_)) => "order: attach",
            Event::Order(OrderKind::Detach(_)) => "order: detach",
            Event::Order(OrderKind::Evict(_)) => "order: evict",
            Event::Order(OrderKind::Finish) => "order: finish",
            Event::Order(OrderKind::Tick) => "order: tick",
            Event::OrdersPending { yields: true } => "orders yield",
            Event::Ready(_, Outcome::Yields) => "ready yields",
            Event::Flush(_, Outcome::Pending) => "flush pending",
            Event::Close(_, Outcome::Pending) => "close pending",
            Event::Send(_, _, Outcome::Done) => "delivered",
            Event::Send(..) => "lost",
            Event::Clone(_) => "copied",
            Event::Stale => "stale wake",
            Event::Unmatched(_) => "unmatched",
            Event::Blocked(_) => "blocked",
            Event::LeaseEnded(..) => "lease ended",
            Event::Discarded(_, _, Discarded::NotAdmitted) => "discarded: not admitted",
            Event::Discarded(_, _, Discarded::Overflowed) => "discarded: overflowed",
            Event::Discarded(_, _, Discarded::Evicted) => "discarded: evicted",
            Event::Discarded(_, _, Discarded::Failed) => "discarded: failed",
            Event::Discarded(_, _, Discarded::Conflated) => "discarded: conflated",
            Event::Supersedes(_, _, _, false) => "not superseded",
            Event::OnDemand(_, Some(_)) => "attached on demand",
            Event::OnDemand(_, None) => "nothing on demand",
            Event::KeyAttached(_) => "key attached",
            Event::KeyDetached(_) => "key detached",
            Event::Detached(_, EndReason::Left(FINISHED)) => "detached: finished",
            Event::Detached(_, EndReason::Left(REQUESTED)) => "detached: requested",
            Event::Detached(_, EndReason::Left(REPLACED)) => "detached: replaced",
            Event::Detached(_, EndReason::Left(LIMITED)) => "detached: limited",
            Event::Detached(_, EndReason::Left(IDLE)) => "detached: idle",
            Event::Detached(_, EndReason::Left(_)) => "detached: refused",
            Event::Detached(_, EndReason::Stalled) => "detached: stalled",
            Event::Detached(_, EndReason::Evicted) => "detached: evicted",
            Event::Detached(_, EndReason::Overflowed) => "detached: overflowed",
            Event::Detached(_, EndReason::Failed(_)) => "detached: failed",
            Event::Completed => "completed",
            Event::Turn => "turns",
            _ => "other",
        });
    }
}

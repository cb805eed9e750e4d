//! Checks that need no reference, over the tape of one run. They guard against a misreading that
//! the crate and the reference share.

use std::collections::BTreeMap;

use sink_test::Op;
use stream_demux::{Overflow, Totals};

use crate::event::{Event, Id, OrderKind, Outcome, Request, Seen};
use crate::script::Settings;

/// How often each situation occurred, in one script or in many, such as "detached idle".
#[derive(Clone, Debug, Default)]
pub struct Summary(BTreeMap<Situation, u64>);

pub type Situation = [&'static str; 2];

/// The situations that each full run reaches. A new one needs a seed too: see `fuzz_corpus`.
pub const SITUATIONS: [Situation; 39] = [
    ["abort", ""],
    ["attached", ""],
    ["blocked", ""],
    ["copied", ""],
    ["detached", "evicted"],
    ["detached", "finished"],
    ["detached", "idle"],
    ["detached", "limited"],
    ["detached", "overflowed"],
    ["detached", "poll_close"],
    ["detached", "poll_flush"],
    ["detached", "poll_ready"],
    ["detached", "refused"],
    ["detached", "replaced"],
    ["detached", "requested"],
    ["detached", "stalled"],
    ["detached", "start_send"],
    ["discarded", "conflated"],
    ["discarded", "evicted"],
    ["discarded", "failed"],
    ["discarded", "not_admitted"],
    ["discarded", "overflowed"],
    ["finish", ""],
    ["in doubt", "full"],
    ["in doubt", "ready"],
    ["lost", ""],
    ["not superseded", ""],
    ["on demand", "made"],
    ["on demand", "nothing"],
    ["order", ""],
    ["poll_close", "pending"],
    ["poll_close", "yields"],
    ["poll_flush", "pending"],
    ["poll_flush", "yields"],
    ["poll_ready", "pending"],
    ["poll_ready", "yields"],
    ["read", ""],
    ["superseded", ""],
    ["unmatched", ""],
];

impl Summary {
    pub fn add(&mut self, other: &Self) {
        for (situation, times) in &other.0 {
            *self.0.entry(*situation).or_default() += times;
        }
    }

    /// Returns how often a situation occurred.
    pub fn times(&self, situation: Situation) -> u64 {
        self.0.get(&situation).copied().unwrap_or(0)
    }

    fn count(&mut self, event: &Event) {
        let situation = match *event {
            Event::Polled(_, op, Outcome::Yields) => [op.name(), "yields"],
            Event::Polled(_, op, Outcome::Pending) => [op.name(), "pending"],
            Event::Send(_, _, Outcome::Failed) => ["lost", ""],
            Event::Detached(_, why) => ["detached", why],
            Event::Discarded(_, _, why) => ["discarded", why],
            Event::Order(OrderKind::Finish) => ["finish", ""],
            Event::Order(OrderKind::Abort) => ["abort", ""],
            Event::Order(_) => ["order", ""],
            Event::OnDemand(_, Some(_)) => ["on demand", "made"],
            Event::OnDemand(_, None) => ["on demand", "nothing"],
            Event::Supersedes(.., true) => ["superseded", ""],
            Event::Supersedes(.., false) => ["not superseded", ""],
            Event::Attached(_) => ["attached", ""],
            Event::Read(..) => ["read", ""],
            Event::Clone(_) => ["copied", ""],
            Event::Unmatched(_) => ["unmatched", ""],
            Event::Blocked(_) => ["blocked", ""],
            _ => return,
        };
        self.note(situation);
    }

    fn note(&mut self, situation: Situation) {
        *self.0.entry(situation).or_default() += 1;
    }
}

/// What is known of a sink.
#[derive(Default)]
struct Known {
    key: u16,
    /// Its policy may act, so it is polled once more before; and whether it was.
    may_discard: bool,
    doubted: bool,
    attached: bool,
    gone: bool,
    closing: bool,
    /// Whether `poll_ready`, `poll_flush` and `poll_close` returned `Pending`; whether the waker
    /// has not fired since; and whether it has fired before they returned, which may cause one
    /// poll.
    pending: [bool; 3],
    waits: [bool; 3],
    spurious: [bool; 3],
    /// Its waker has fired at some time.
    woken: bool,
    unflushed: bool,
    last_item: Option<u32>,
    /// One of its leases was dropped.
    evicted: bool,
}

#[derive(Default)]
pub struct Monitor {
    settings: Settings,
    pub summary: Summary,
    sinks: Vec<Known>,
    totals: Totals,
    /// The sink that is ready for an item, which must come next.
    ready: Option<Id>,
    /// How many polls the wakes of sinks that are gone may cause: two each, as `poll_ready` and
    /// `poll_flush` may both be pending.
    stale_wakes: usize,
    keys: Vec<u16>,
    blocked_on: Option<Id>,
    conflates: bool,
    /// Whether the input has returned `Pending` in this turn.
    dry: bool,
    over: bool,
    orders_ended: bool,
}

/// Returns an error with this message, unless `rule` is kept.
fn ensure(rule: bool, fault: impl ToString) -> Result<(), String> {
    if rule { Ok(()) } else { Err(fault.to_string()) }
}

impl Monitor {
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    pub fn observe(&mut self, event: &Event) -> Result<(), String> {
        use Event as E;
        self.summary.count(event);
        let is_inside = matches!(event, E::Polled(..) | E::Drop(_) | E::Rest(_) | E::Read(..));
        ensure(!is_inside || self.ready.is_none(), "a sink is ready, and gets no item")?;
        match *event {
            E::Born(_, terms) => {
                let overflow = terms.overflow.unwrap_or(self.settings.overflow);
                let may_discard = self.settings.balance || overflow != Overflow::Wait;
                self.sinks.push(Known { key: terms.key, may_discard, ..Known::default() });
            }
            E::LeaseEnded(ref ids, Request::Evict) => {
                ids.iter().for_each(|&id| self.sinks[id].evicted = true);
            }
            E::Woken(id) => {
                let sink = &mut self.sinks[id];
                (sink.waits, sink.woken, sink.spurious) = ([false; 3], true, [true; 3]);
                self.stale_wakes += 2 * usize::from(sink.gone);
            }
            E::Turn => self.dry = false,
            E::Read(..) => self.totals.received += 1,
            E::InputPending => self.dry = true,
            E::InputEnd | E::Order(OrderKind::Finish | OrderKind::Abort) => self.over = true,
            E::OrdersEnd => self.orders_ended = true,
            E::Polled(id, op, outcome) => self.polled(id, op, outcome)?,
            E::Send(id, seq, outcome) => {
                ensure(self.ready.take() == Some(id), "the sink is not ready")?;
                let last = self.sinks[id].last_item.replace(seq);
                self.sinks[id].unflushed = true;
                ensure(self.conflates || last < Some(seq), "the items are not in order")?;
                if outcome == Outcome::Done {
                    self.totals.delivered += 1;
                } else {
                    self.totals.lost += 1;
                }
            }
            E::Drop(id) => {
                self.sinks[id].gone = true;
                self.stale_wakes += 2 * usize::from(self.sinks[id].woken);
            }
            E::Clone(_) => self.totals.copies += 1,
            E::KeyAttached(key) => {
                ensure(!self.keys.contains(&key), "the key is attached already")?;
                self.keys.push(key);
            }
            E::KeyDetached(key) => {
                ensure(self.keys.contains(&key), "the key is not attached")?;
                self.keys.retain(|other| *other != key);
            }
            E::Attached(id) => {
                ensure(!std::mem::replace(&mut self.sinks[id].attached, true), "attached twice")?;
                self.totals.attached += 1;
            }
            E::Detached(id, _) => {
                let named = self.blocked_on == Some(id);
                ensure(self.sinks[id].attached && self.sinks[id].gone && !named, "too early")?;
                self.totals.detached += 1;
            }
            E::Unmatched(_) => self.totals.unmatched += 1,
            E::Discarded(_, _, why) => {
                self.totals.discarded += 1;
                self.conflates |= why == "conflated";
            }
            E::Blocked(id) => ensure(self.blocked_on.replace(id).is_none(), "another is named")?,
            E::Unblocked(id) => ensure(self.blocked_on.take() == Some(id), "it is not named")?,
            E::Rest(ref seen) => self.rest(seen)?,
            _ => {}
        }
        Ok(())
    }

    /// Checks that only woken sinks are polled, but for a flush after more items, and once if the
    /// policy may act.
    fn polled(&mut self, id: Id, op: Op, outcome: Outcome) -> Result<(), String> {
        let sink = &mut self.sinks[id];
        let at = [Op::Ready, Op::Flush, Op::Close].iter().position(|other| *other == op);
        let at = at.unwrap_or_default();
        let again = sink.waits[at] && !(op == Op::Flush && sink.unflushed);
        let again = again && !std::mem::take(&mut sink.spurious[at]);
        let doubts = again && op == Op::Ready && sink.may_discard && !sink.doubted;
        if doubts {
            self.summary.note([
                "in doubt",
                match outcome {
                    Outcome::Done => "ready",
                    Outcome::Pending => "full",
                    Outcome::Yields => "yields",
                    Outcome::Failed => "failed",
                },
            ]);
        } else if again {
            ensure(self.stale_wakes > 0, "polled again before its waker has fired")?;
            self.stale_wakes -= 1;
        }
        sink.doubted = if op == Op::Ready { doubts } else { sink.doubted };
        sink.pending[at] = matches!(outcome, Outcome::Pending | Outcome::Yields);
        sink.waits[at] = outcome == Outcome::Pending;
        sink.unflushed &= op == Op::Ready;
        sink.closing |= op == Op::Close;
        self.ready = (op == Op::Ready && outcome == Outcome::Done).then_some(id);
        Ok(())
    }

    /// Checks what is seen between two polls.
    fn rest(&mut self, seen: &Seen) -> Result<(), String> {
        let mut all = self.totals;
        all.queued = seen.totals.queued;
        ensure(seen.totals == all, format_args!("the totals are not {all:?}"))?;
        let fates = all.unmatched + all.delivered + all.discarded + all.lost + all.queued;
        ensure(all.received + all.copies == fates, "the totals do not add up")?;
        let present = all.attached - all.detached;
        ensure((seen.len + seen.draining) as u64 == present, "len and draining do not add up")?;
        self.keys.sort_unstable();
        let keys = seen.keys.iter().map(|(key, ..)| *key);
        ensure(seen.recipients.len() < seen.len || keys.eq(self.keys.iter().copied()), "keys")?;
        ensure(seen.blocked_on == self.blocked_on, "blocked_on")?;
        let done = seen.completed && present == 0 && all.queued == 0;
        ensure(done == seen.terminated && done == seen.completed, "too early")?;
        if seen.asleep { self.asleep(seen) } else { Ok(()) }
    }

    /// Checks that nothing is forgotten when the task sleeps.
    fn asleep(&self, seen: &Seen) -> Result<(), String> {
        let blocked = seen.blocked_on.is_some();
        ensure(self.dry || self.over || blocked, "the input was not read")?;
        ensure(!self.over || seen.draining > 0, "the future must complete")?;
        let lingers = self.settings.linger > 0 && !(self.orders_ended || self.over || blocked);
        for (id, sink) in self.sinks.iter().enumerate().filter(|(_, it)| it.attached && !it.gone) {
            let [ready, flush, close] = sink.waits;
            let leaves = seen.leaving.contains(&id);
            let goes_on = if sink.closing {
                close
            } else {
                (lingers || !sink.unflushed) && (flush || !sink.pending[1]) && (ready || !leaves)
            };
            let may_stay = (leaves || !self.over) && !sink.evicted;
            ensure(goes_on && may_stay, format_args!("{id} can go on: {:?}", sink.waits))?;
        }
        for (key, _, waiting) in seen.keys.iter().filter(|(.., waiting)| *waiting > 0) {
            let mut members = seen.recipients.iter().map(|&id| &self.sinks[id]);
            let waits = if self.settings.multicast {
                members.any(|sink| sink.key == *key && sink.waits[0])
            } else {
                members.all(|sink| sink.key != *key || sink.waits[0])
            };
            ensure(waits, format_args!("{waiting} items of key {key} can be sent"))?;
        }
        Ok(())
    }
}

//! Reads the tape, and checks what needs no model; the rest it leaves to the states.

use std::collections::BTreeMap;

use stream_demux::{Discarded, Totals};

use super::super::{Op, SinkHandle, StreamHandle};
use super::event::{EndReason, Event, Id, OrderKind, Outcome};
use super::script::Settings;
use super::state::{FINISHED, LIMITED, REPLACED, REQUESTED, State, dedup};
use super::watched::{Item, SentOrder};
use super::{KEYS, LOST, MAX_BELIEFS, Summary};

/// What can be seen of the demux between two polls.
pub(super) struct View<'a> {
    pub(super) totals: Totals,
    pub(super) asleep: bool,
    pub(super) completed: bool,
    pub(super) len: usize,
    pub(super) keys: [bool; KEYS as usize],
    pub(super) blocked_on: Option<Id>,
    pub(super) terminated: bool,
    pub(super) live: usize,
    pub(super) input: Option<&'a StreamHandle<Item>>,
    pub(super) orders: &'a StreamHandle<SentOrder>,
    pub(super) sinks: &'a [SinkHandle<Item>],
}

/// What was seen of a sink: never in doubt.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Default)]
pub(super) struct SinkFacts {
    pub(super) applied: bool,
    pub(super) dropped: bool,
    pub(super) closing: bool,
    pub(super) promised: bool,
    pub(super) taken: u32,
    pub(super) flush_asked: u32,
    pub(super) flush_pending: bool,
    /// How many items had been read when it took the first one that is not flushed.
    pub(super) stamp: u64,
    /// What last answered Pending: how many items it had taken then.
    pub(super) waits: [Option<u32>; 4],
    /// Its waker fired, and so each operation may be asked again once: from which turn on. A wake that
    /// came before the Pending answer counts, as long as nobody has slept since.
    pub(super) woken: [Vec<u32>; 4],
    /// A new tenant of an old slot may be asked once for the old one's sake.
    pub(super) spurious: [bool; 4],
}

/// Reads the tape.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Monitor {
    pub(super) settings: Settings,
    pub(super) recs: Vec<SinkFacts>,
    pub(super) beliefs: Vec<State>,
    pub(super) summary: Summary,
    /// Keys of the items read.
    pub(super) keys: BTreeMap<u32, u8>,
    pub(super) turn: u32,
    pub(super) received: u64,
    pub(super) copies: u64,
    pub(super) drops: u32,
    pub(super) orders_sent: usize,
    pub(super) orders_read: usize,
    pub(super) orders_ended: bool,
    /// Turns in which the orders woke themselves and gave nothing, since they gave something.
    pub(super) stutters: u32,
    pub(super) yielded: bool,
    /// The orders answered Pending; their waker fired since they were asked.
    pub(super) orders_pending: bool,
    pub(super) orders_woken: bool,
    /// In which turn they woke themselves, if that is what they answered last.
    pub(super) orders_stuttered: Option<u32>,
    /// An item that was read and not yet routed, and the orders that come before it.
    pub(super) fresh: Option<(u32, usize)>,
    pub(super) cost: Cost,
}

#[derive(Default)]
pub(super) struct Cost {
    pub(super) orders: usize,
    pub(super) reads: usize,
    pub(super) sends: usize,
    pub(super) flushes: usize,
    pub(super) tells: usize,
}

impl Monitor {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            recs: Vec::new(),
            beliefs: vec![State::new(settings)],
            summary: Summary::default(),
            keys: BTreeMap::new(),
            turn: 0,
            received: 0,
            copies: 0,
            drops: 0,
            orders_sent: 0,
            orders_read: 0,
            orders_ended: false,
            stutters: 0,
            yielded: false,
            orders_pending: false,
            orders_woken: false,
            orders_stuttered: None,
            fresh: None,
            cost: Cost::default(),
        }
    }

    pub(super) fn observe(&mut self, event: &Event) -> Result<(), String> {
        self.note(event).map_err(|complaint| format!("{event:?}: {complaint}"))?;
        if matches!(
            event,
            Event::Step(_)
                | Event::Do(_)
                | Event::Clone(_)
                | Event::Turn
                | Event::Woken(_)
                | Event::AskOrders
                | Event::Ask(..)
        ) {
            return Ok(());
        }
        let (recs, mut next, mut complaints) = (&self.recs, Vec::new(), Vec::new());
        let beliefs = std::mem::take(&mut self.beliefs);
        let Some(possible) = State::possible(beliefs, event, recs, &self.keys) else {
            return Err(LOST.into());
        };
        for belief in possible {
            match belief.step(event, recs, &self.keys, &mut next) {
                Ok(()) => {}
                Err(complaint) => complaints.push(complaint),
            }
        }
        dedup(&mut next);
        if next.is_empty() {
            complaints.dedup();
            return Err(format!("{event:?}: {}", complaints.join("; or ")));
        }
        if next.len() > MAX_BELIEFS {
            return Err(LOST.into());
        }
        if next.len() > 1 {
            self.summary.count("doubt");
        }
        self.beliefs = next;
        Ok(())
    }

    /// What needs no model.
    pub(super) fn note(&mut self, event: &Event) -> Result<(), String> {
        self.tally(event);
        match *event {
            Event::Born(..) => self.recs.push(SinkFacts::default()),
            Event::Sent(_) => self.orders_sent += 1,
            Event::Woken(att) => self.recs[att].wake(self.turn),
            Event::Stale => {
                let turn = self.turn;
                self.recs.iter_mut().for_each(|rec| rec.wake(turn));
            }
            Event::Turn => {
                self.turn += 1;
                self.yielded = false;
                self.cost = Cost::default();
            }
            Event::Read(seq, key) => {
                self.received += 1;
                self.cost.reads += 1;
                self.keys.insert(seq, key);
                self.fresh = Some((seq, self.orders_sent));
                return self.check_windows();
            }
            Event::Order(what) => {
                self.orders_read += 1;
                self.cost.orders += 1;
                self.stutters = 0;
                match what {
                    OrderKind::Attach(att) => {
                        self.recs[att].applied = true;
                        self.recs[att].spurious = [self.drops > 0; 4];
                    }
                    // An overtaken item is routed now, before the orders that follow.
                    OrderKind::Finish => self.fresh = None,
                    OrderKind::Detach(_) | OrderKind::Evict(_) => {}
                }
            }
            Event::OrdersWoken => self.orders_woken = true,
            Event::AskOrders => {
                let spun = self.orders_stuttered == Some(self.turn);
                if self.orders_pending && !self.orders_woken {
                    match self.orders_stuttered {
                        None => return Err("asked again before their waker fired".into()),
                        Some(_) if spun => {
                            return Err(
                                "asked again in the turn in which they woke themselves".into()
                            );
                        }
                        Some(_) => {}
                    }
                }
                (self.orders_pending, self.orders_woken) = (false, false);
                self.orders_stuttered = None;
            }
            Event::OrdersPending { stutters } => {
                let stutters = stutters || self.orders_woken;
                (self.orders_pending, self.orders_woken) = (true, false);
                self.orders_stuttered = stutters.then_some(self.turn);
                self.stutters = if stutters { self.stutters + 1 } else { 0 };
                self.yielded = self.stutters == 1;
            }
            Event::OrdersEnd => self.orders_ended = true,
            Event::Admit(_, seq, _) | Event::Unmatched(seq) => return self.check_orders_first(seq),
            Event::Clone(_) => self.copies += 1,
            Event::Drop(att) => {
                self.drops += 1;
                self.recs[att].dropped = true;
            }
            Event::Ready(att, said) => self.answered(att, Op::Ready, said),
            Event::Ask(att, op) => {
                let first = op == Op::Close && !self.recs[att].closing;
                let ends = |belief: &State| belief.atts[att].was_told_with_all();
                self.cost.tells += usize::from(first && self.beliefs.iter().all(ends));
                return self.asked(att, op);
            }
            Event::Send(att, _, said) => self.answered(att, Op::Send, said),
            Event::Flush(att, said) => self.answered(att, Op::Flush, said),
            Event::Close(att, said) => self.answered(att, Op::Close, said),
            Event::Misnamed(att, key) => {
                return Err(format!("the tag is {att}'s, the key {key} is not"));
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn tally(&mut self, event: &Event) {
        self.summary.count(match *event {
            Event::Read(..) => "read",
            Event::Order(OrderKind::Attach(_)) => "order: attach",
            Event::Order(OrderKind::Detach(_)) => "order: detach",
            Event::Order(OrderKind::Evict(_)) => "order: evict",
            Event::Order(OrderKind::Finish) => "order: finish",
            Event::OrdersPending { stutters: true } => "orders stutter",
            Event::Ready(_, Outcome::Stutters) => "ready stutters",
            Event::Flush(_, Outcome::Pending) => "flush pending",
            Event::Close(_, Outcome::Pending) => "close pending",
            Event::Send(_, _, Outcome::Done) => "delivered",
            Event::Send(..) => "lost",
            Event::Clone(_) => "copied",
            Event::Stale => "stale wake",
            Event::Unmatched(_) => "unmatched",
            Event::Blocked(_) => "blocked",
            Event::Discarded(_, _, Discarded::NotAdmitted) => "discarded: not admitted",
            Event::Discarded(_, _, Discarded::Overflowed) => "discarded: overflowed",
            Event::Discarded(_, _, Discarded::Evicted) => "discarded: evicted",
            Event::Discarded(_, _, Discarded::Failed) => "discarded: failed",
            Event::Detached(_, EndReason::Left(FINISHED)) => "detached: finished",
            Event::Detached(_, EndReason::Left(REQUESTED)) => "detached: requested",
            Event::Detached(_, EndReason::Left(REPLACED)) => "detached: replaced",
            Event::Detached(_, EndReason::Left(LIMITED)) => "detached: limited",
            Event::Detached(_, EndReason::Left(_)) => "detached: refused",
            Event::Detached(_, EndReason::Evicted) => "detached: evicted",
            Event::Detached(_, EndReason::Overflowed) => "detached: overflowed",
            Event::Detached(_, EndReason::Failed(_)) => "detached: failed",
            Event::Completed => "completed",
            Event::Turn => "turns",
            _ => "other",
        });
    }

    /// Guarantee 1: orders before items.
    pub(super) fn check_orders_first(&mut self, seq: u32) -> Result<(), String> {
        let Some((fresh, orders)) = self.fresh else { return Ok(()) };
        if fresh != seq {
            return Ok(());
        }
        self.fresh = None;
        if self.orders_read < orders && !self.orders_ended && self.stutters < 2 {
            let unread = orders - self.orders_read;
            return Err(format!("{unread} orders were ready before this item and are not applied"));
        }
        if self.yielded {
            return Err("routed in the turn in which the orders woke themselves".into());
        }
        Ok(())
    }

    /// Guarantee 6: a busy input is read on for no more than a window.
    pub(super) fn check_windows(&self) -> Result<(), String> {
        let window = self.settings.flush_every as u64;
        for (att, rec) in self.recs.iter().enumerate() {
            let late = rec.taken > rec.flush_asked && self.received - rec.stamp > window;
            if late && !self.beliefs.iter().all(|belief| belief.atts[att].needs_no_flush()) {
                return Err(format!("{att} was to be flushed before this is read"));
            }
        }
        Ok(())
    }

    /// The contract of a sink, and guarantee 4.
    pub(super) fn asked(&mut self, att: Id, op: Op) -> Result<(), String> {
        let turn = self.turn;
        self.cost.sends += usize::from(op == Op::Send);
        let rec = &mut self.recs[att];
        if rec.dropped || !rec.applied {
            return Err("the sink is not attached".into());
        }
        if let Some(taken) = rec.waits[op as usize] {
            let more = op == Op::Flush && rec.taken > taken;
            let woken = &mut rec.woken[op as usize];
            let heard = woken.iter().position(|from| *from <= turn);
            if let (Some(at), false) = (heard, more) {
                woken.remove(at);
            } else if !more && !std::mem::take(&mut rec.spurious[op as usize]) {
                return Err(if woken.is_empty() {
                    "asked again before its waker fired".into()
                } else {
                    "asked again in the turn in which it woke itself".into()
                });
            }
        }
        if op == Op::Flush && rec.taken == rec.flush_asked && !rec.flush_pending {
            return Err("there is nothing to flush".into());
        }
        // A flush that was woken is in the price of looking after the sink.
        self.cost.flushes += usize::from(op == Op::Flush && !rec.flush_pending);
        Ok(())
    }

    /// What a sink answered.
    pub(super) fn answered(&mut self, att: Id, op: Op, said: Outcome) {
        let (turn, received) = (self.turn, self.received);
        let rec = &mut self.recs[att];
        if said == Outcome::Stutters {
            rec.wake(turn + 1);
        }
        let pending = matches!(said, Outcome::Pending | Outcome::Stutters);
        rec.waits[op as usize] = pending.then_some(rec.taken);
        match op {
            Op::Ready => rec.promised = said == Outcome::Done,
            Op::Send => {
                rec.promised = false;
                if said == Outcome::Done {
                    if rec.taken == rec.flush_asked {
                        rec.stamp = received;
                    }
                    rec.taken += 1;
                }
            }
            Op::Flush => {
                rec.flush_asked = rec.taken;
                rec.flush_pending = pending;
            }
            Op::Close => rec.closing = true,
        }
    }

    /// What must hold between two polls.
    pub(super) fn rest(&mut self, view: &View<'_>) -> Result<(), String> {
        let Cost { orders, reads, sends, flushes, tells } = self.cost;
        let cost = orders + flushes + tells + reads.max(sends);
        let group = self.beliefs.iter().map(|belief| belief.widest).max().unwrap_or(1).max(1);
        if cost > self.settings.budget + group {
            return Err(format!("a turn with a budget of {} did {cost}", self.settings.budget));
        }
        let t = view.totals;
        if t.received + t.copies != t.unmatched + t.delivered + t.discarded + t.lost + t.queued {
            return Err(format!("{t:?} does not add up"));
        }
        if t.received != self.received || t.copies != self.copies {
            return Err(format!("{} read, {} cloned, but {t:?}", self.received, self.copies));
        }
        let left = view.input.map_or(0, StreamHandle::left) as u64;
        let taken: u64 = self.recs.iter().map(|rec| u64::from(rec.taken)).sum();
        if view.live as u64 != left + taken + t.queued {
            return Err(format!(
                "{} items live: {left} unread, {taken} taken and {} queued are known",
                view.live, t.queued
            ));
        }
        if view.terminated != view.completed {
            return Err("is_terminated() disagrees".into());
        }
        let mut complaints = Vec::new();
        self.beliefs.retain_mut(|belief| match belief.rest(view) {
            Ok(()) => true,
            Err(complaint) => {
                complaints.push(complaint);
                false
            }
        });
        if self.beliefs.is_empty() {
            complaints.dedup();
            return Err(format!("after the poll: {}", complaints.join("; or ")));
        }
        dedup(&mut self.beliefs);
        if !view.asleep {
            return Ok(());
        }
        for rec in &mut self.recs {
            for (woken, wait) in rec.woken.iter_mut().zip(rec.waits) {
                if wait.is_none() {
                    woken.clear();
                }
            }
        }
        self.check_asleep(view)
    }

    /// No sleep with work left: what does not depend on the model.
    pub(super) fn check_asleep(&self, view: &View<'_>) -> Result<(), String> {
        if !view.orders.is_waiting() && !self.orders_ended {
            return Err("it sleeps, and the orders are not read to their end".into());
        }
        for (att, rec) in
            self.recs.iter().enumerate().filter(|(_, rec)| rec.applied && !rec.dropped)
        {
            let sink = &view.sinks[att];
            if !rec.closing && sink.flush_asked() != sink.taken() {
                return Err(format!("it sleeps, and {att} was not flushed"));
            }
            if !rec.closing && rec.flush_pending && !sink.is_waiting(Op::Flush) {
                return Err(format!("it sleeps, and the flush that {att} waits for can go on"));
            }
            if rec.closing && !sink.is_waiting(Op::Close) {
                return Err(format!("it sleeps, and the close of {att} can go on"));
            }
        }
        Ok(())
    }
}

impl SinkFacts {
    /// Its waker fired, and will have been heard by this turn.
    pub(super) fn wake(&mut self, turn: u32) {
        for woken in &mut self.woken {
            if woken.len() < 8 {
                woken.push(turn);
            }
        }
    }

    /// It said that it is not ready, and has not taken that back.
    pub(super) fn parked(&self) -> bool {
        self.waits[Op::Ready as usize].is_some()
    }
}

//! Reads the tape, and checks what needs no model. The rest it leaves to the states.

use stream_demux::{Discarded, Overflow, Totals};

use super::super::{Op, SinkHandle, StreamHandle};
use super::event::reasons::{FINISHED, LIMITED, REPLACED, REQUESTED};
use super::event::{EndReason, Event, Id, OrderKind, Outcome};
use super::facts::{Cost, Facts, FlushRule, Known, SinkFacts};
use super::script::Settings;
use super::state::{State, dedup};
use super::watched::{Item, SentOrder};
use super::{GIVEN_UP, KEYS, MAX_STATES, Summary};

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

/// Reads the tape.
pub(super) struct Monitor {
    settings: Settings,
    pub(super) facts: Facts,
    /// The states that explain what was seen.
    states: Vec<State>,
    pub(super) summary: Summary,
    orders: Orders,
    copies: u64,
    /// A sink answered that it is ready: what it gets must come next.
    to_be_sent: Option<Id>,
    /// When the item that was read last was first routed: the turn.
    routed_in: Option<(u32, u32)>,
    cost: Cost,
    flushes: FlushRule,
}

/// The orders stream.
#[derive(Default)]
struct Orders {
    sent: usize,
    read: usize,
    last_answer: LastAnswer,
    /// Its waker has fired since it was asked.
    woken: bool,
    /// Turns in which it woke itself and gave nothing, since it gave something.
    yields: u32,
    /// An item that was read and is not yet routed, and the orders that come before it.
    before_item: Option<(u32, usize)>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum LastAnswer {
    #[default]
    Order,
    /// `denied`: although orders are left.
    Pending {
        denied: bool,
    },
    /// Pending, and it woke itself in this turn.
    Yielded(u32),
    End,
}

impl Orders {
    /// Checks guarantee 4 for the orders stream.
    fn asked(&mut self, turn: u32) -> Result<(), String> {
        let woken = std::mem::take(&mut self.woken);
        match self.last_answer {
            LastAnswer::Pending { .. } if !woken => {
                Err("asked again before their waker fired".into())
            }
            LastAnswer::Yielded(then) if then == turn && !woken => {
                Err("asked again in the turn in which they woke themselves".into())
            }
            _ => Ok(()),
        }
    }

    fn gave_order(&mut self) {
        self.read += 1;
        self.yields = 0;
        self.last_answer = LastAnswer::Order;
    }

    fn answered_pending(&mut self, yields: bool, turn: u32) {
        let yields = yields || std::mem::take(&mut self.woken);
        self.last_answer = if yields {
            LastAnswer::Yielded(turn)
        } else {
            LastAnswer::Pending { denied: self.read < self.sent }
        };
        self.yields = if yields { self.yields + 1 } else { 0 };
    }

    /// Returns `true` if it has no order to give, until its waker fires or for good.
    fn has_none(&self) -> bool {
        match self.last_answer {
            LastAnswer::Pending { denied } => denied && !self.woken,
            LastAnswer::End => true,
            LastAnswer::Order | LastAnswer::Yielded(_) => false,
        }
    }

    fn item_read(&mut self, seq: u32) {
        let first = if self.has_none() { self.read } else { self.sent };
        self.before_item = Some((seq, first));
    }

    /// Checks guarantee 1 for an item that is routed.
    fn item_routed(&mut self, seq: u32, turn: u32) -> Result<(), String> {
        let Some((_, orders)) = self.before_item.take_if(|(item, _)| *item == seq) else {
            return Ok(());
        };
        if self.read < orders && !self.has_none() && self.yields < 2 {
            let unread = orders - self.read;
            return Err(format!("{unread} orders were ready before this item and are not applied"));
        }
        if self.yields == 1 && self.last_answer == LastAnswer::Yielded(turn) {
            return Err("routed in the turn in which the orders woke themselves".into());
        }
        Ok(())
    }
}

impl Monitor {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            facts: Facts::default(),
            states: vec![State::new(settings)],
            summary: Summary::default(),
            orders: Orders::default(),
            copies: 0,
            to_be_sent: None,
            routed_in: None,
            cost: Cost::default(),
            flushes: FlushRule::default(),
        }
    }

    /// Takes the next event of the tape.
    pub(super) fn observe(&mut self, event: &Event) -> Result<(), String> {
        self.note(event).map_err(|complaint| format!("{event:?}: {complaint}"))?;
        let states = std::mem::take(&mut self.states);
        let (mut next, mut complaints) = (Vec::new(), Vec::new());
        let Some(possible) = State::possible(states, event, &self.facts) else {
            return Err(GIVEN_UP.into());
        };
        for state in possible {
            if let Err(complaint) = state.step(event, &self.facts, &mut next) {
                complaints.push(complaint);
            }
        }
        dedup(&mut next);
        if next.is_empty() {
            complaints.dedup();
            return Err(format!("{event:?}: {}", complaints.join("; or ")));
        }
        if next.len() > MAX_STATES {
            return Err(GIVEN_UP.into());
        }
        if next.len() > 1 {
            self.summary.count("doubt");
        }
        self.states = next;
        self.check_flush_rule(event).map_err(|complaint| format!("{event:?}: {complaint}"))
    }

    /// Whether `is_so` holds: for all states, for some, or for none.
    fn known(&self, is_so: impl Fn(&State) -> bool) -> Known {
        match self.states.iter().filter(|state| is_so(state)).count() {
            0 => Known::No,
            count if count == self.states.len() => Known::Yes,
            _ => Known::Maybe,
        }
    }

    /// Notes and checks what needs no model.
    fn note(&mut self, event: &Event) -> Result<(), String> {
        self.tally(event);
        self.check_sent_next(event)?;
        let turn = self.facts.turn;
        match *event {
            Event::Born(_, terms) => {
                let overflow = terms.overflow.unwrap_or(self.settings.overflow);
                self.facts.sinks.push(SinkFacts::new(overflow != Overflow::Wait));
            }
            Event::Sent(_) => self.orders.sent += 1,
            Event::Woken(id) => self.facts.woken(id),
            Event::Stale => self.facts.stale_wake(),
            Event::Turn => {
                self.facts.begin_turn();
                self.flushes.begin_turn();
                self.cost = Cost::default();
            }
            Event::Read(seq, key) => {
                self.facts.item_read(seq, key);
                self.cost.reads += 1;
                self.orders.item_read(seq);
                self.routed_in = None;
            }
            Event::InputPending => self.flushes.input_pending(),
            Event::InputEnd => self.facts.end_read(),
            Event::Order(kind) => {
                self.facts.order_read();
                self.orders.gave_order();
                self.cost.orders += 1;
                match kind {
                    OrderKind::Attach(id) => self.facts.order_to_attach_read(id),
                    // An item that orders have overtaken is routed now, before the orders that follow.
                    OrderKind::Finish => self.orders.before_item = None,
                    OrderKind::Detach(_) | OrderKind::Evict(_) => {}
                }
            }
            Event::OrdersWoken => self.orders.woken = true,
            Event::AskOrders => return self.orders.asked(turn),
            Event::OrdersPending { yields } => self.orders.answered_pending(yields, turn),
            Event::OrdersEnd => {
                self.orders.last_answer = LastAnswer::End;
                self.facts.end_read();
            }
            Event::Admit(id, seq, _) => {
                let (item, first) = *self.routed_in.get_or_insert((seq, turn));
                if item == seq && first < turn {
                    self.summary.count("served over several turns");
                    if self.known(|state| state.is_offered_in_turn(id)) == Known::Yes {
                        self.flushes.offered_on();
                    }
                }
                return self.orders.item_routed(seq, turn);
            }
            Event::Attached(id) => self.facts.attached(id),
            Event::Unmatched(seq) => return self.orders.item_routed(seq, turn),
            Event::Clone(_) => self.copies += 1,
            Event::Drop(id) => self.facts.dropped(id),
            Event::Ask(id, op) => {
                let asked_again = self.facts.asked(id, op)?;
                if asked_again {
                    self.summary.count("asked again after many operations");
                }
            }
            Event::Ready(id, outcome) => {
                self.to_be_sent = (outcome == Outcome::Done).then_some(id);
                self.facts.answered(id, Op::Ready, outcome);
            }
            Event::Send(id, _, outcome) => {
                self.to_be_sent = None;
                self.facts.answered(id, Op::Send, outcome);
            }
            Event::Flush(id, outcome) => self.facts.answered(id, Op::Flush, outcome),
            Event::Close(id, outcome) => self.facts.answered(id, Op::Close, outcome),
            Event::Misnamed(id, key) => {
                return Err(format!("the tag is that of {id}, the key {key} is not"));
            }
            _ => {}
        }
        Ok(())
    }

    fn tally(&mut self, event: &Event) {
        let summary = &mut self.summary;
        summary.count(match *event {
            Event::Read(..) => "read",
            Event::Order(OrderKind::Attach(_)) => "order: attach",
            Event::Order(OrderKind::Detach(_)) => "order: detach",
            Event::Order(OrderKind::Evict(_)) => "order: evict",
            Event::Order(OrderKind::Finish) => "order: finish",
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

    /// Checks that a sink is asked only on behalf of an item that it then gets.
    fn check_sent_next(&self, event: &Event) -> Result<(), String> {
        let Some(ready) = self.to_be_sent else { return Ok(()) };
        let right = match *event {
            Event::Ask(id, Op::Send) | Event::Send(id, ..) | Event::Unblocked(id) => id == ready,
            Event::Clone(_) => true,
            _ => event.is_outside() && !matches!(event, Event::Rest { .. } | Event::Completed),
        };
        if right { Ok(()) } else { Err(format!("{ready} is ready, and was sent nothing")) }
    }

    /// Checks guarantee 6, and counts what flushes and closes cost, now that the states are up to date.
    fn check_flush_rule(&mut self, event: &Event) -> Result<(), String> {
        match *event {
            Event::Read(..) => {
                let (states, settings) = (&self.states, self.settings);
                let needs_no_flush = |id| states.iter().any(|state| state.needs_no_flush(id));
                self.flushes.item_read(&self.facts, settings, needs_no_flush)
            }
            Event::Ask(id, Op::Flush) => {
                // A flush that was woken is in the price of looking after the sink.
                self.cost.flushes += usize::from(!self.facts.sinks[id].flush_pending);
                let waits = self.known(State::waits) != Known::No;
                self.flushes.flush_asked(&self.facts, self.settings, id, waits)
            }
            Event::Ask(id, Op::Close) => {
                let told = !self.facts.sinks[id].closing
                    && self.known(|state| state.was_told_with_all(id)) == Known::Yes;
                self.cost.closes += usize::from(told);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks what must hold between two polls.
    pub(super) fn rest(&mut self, view: &View<'_>) -> Result<(), String> {
        let t = view.totals;
        if t.received + t.copies != t.unmatched + t.delivered + t.discarded + t.lost + t.queued {
            return Err(format!("{t:?} does not add up"));
        }
        if t.received != self.facts.received || t.copies != self.copies {
            let received = self.facts.received;
            return Err(format!("{received} read, {} cloned, but {t:?}", self.copies));
        }
        let left = view.input.map_or(0, StreamHandle::left) as u64;
        let taken: u64 = self.facts.sinks.iter().map(|sink| u64::from(sink.taken)).sum();
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
        let facts = &self.facts;
        self.states.retain_mut(|state| match state.rest(view, facts) {
            Ok(()) => true,
            Err(complaint) => {
                complaints.push(complaint);
                false
            }
        });
        if self.states.is_empty() {
            complaints.dedup();
            return Err(format!("after the poll: {}", complaints.join("; or ")));
        }
        dedup(&mut self.states);
        self.check_cost()?;
        self.check_flushes()?;
        if view.asleep {
            self.facts.asleep();
            self.check_asleep(view)?;
        }
        Ok(())
    }

    fn check_cost(&self) -> Result<(), String> {
        let serving = self.states.iter().map(State::cost).min().unwrap_or(0);
        let (cost, budget) = (self.cost.sum() + serving, self.settings.budget);
        if cost > budget + 1 {
            return Err(format!("a turn with a budget of {budget} did {cost}"));
        }
        Ok(())
    }

    fn check_flushes(&mut self) -> Result<(), String> {
        let held = match self.known(State::is_over) {
            Known::No => self.known(State::holds_item),
            _ => Known::Maybe,
        };
        let (states, settings) = (&self.states, self.settings);
        let needs_no_flush = |id| states.iter().any(|state| state.needs_no_flush(id));
        let waits = self.known(State::waits);
        self.flushes.end_turn(&mut self.facts, settings, held, waits, needs_no_flush)
    }

    /// Checks that there is no sleep with work left, as far as that does not depend on the model.
    fn check_asleep(&self, view: &View<'_>) -> Result<(), String> {
        if !view.orders.is_waiting() && self.orders.last_answer != LastAnswer::End {
            return Err("it sleeps, and the orders are not read to their end".into());
        }
        for (id, facts) in self.facts.sinks.iter().enumerate() {
            let sink = &view.sinks[id];
            if !facts.applied || facts.dropped {
                continue;
            }
            if !facts.closing && sink.flush_asked() != sink.taken() {
                return Err(format!("it sleeps, and {id} was not flushed"));
            }
            if !facts.closing && facts.flush_pending && !sink.is_waiting(Op::Flush) {
                return Err(format!("it sleeps, and the flush that {id} waits for can go on"));
            }
            if facts.closing && !sink.is_waiting(Op::Close) {
                return Err(format!("it sleeps, and the close of {id} can go on"));
            }
        }
        Ok(())
    }
}

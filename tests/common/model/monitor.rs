//! Reads the tape, and makes the checks that need no model. The states make the other checks.

use stream_demux::Overflow;

use super::super::{Op, SinkHandle, StreamHandle};
use super::event::{Event, Id, OrderKind, Outcome};
use super::facts::{Facts, Known, SinkFacts};
use super::flushes::FlushRule;
use super::inbox::{LastAnswer, Orders};
use super::script::Settings;
use super::setup::Seen;
use super::state::{State, dedup};
use super::watched::{Item, SentOrder};
use super::{GIVEN_UP, MAX_EXAMINED, MAX_STATES, Summary};

/// What is visible of the demux between two polls.
pub(super) struct View<'a> {
    pub(super) seen: Seen,
    pub(super) asleep: bool,
    pub(super) completed: bool,
    pub(super) live: usize,
    pub(super) input: Option<&'a StreamHandle<Item>>,
    pub(super) orders: &'a StreamHandle<SentOrder>,
    pub(super) sinks: &'a [SinkHandle<Item>],
}

/// The reader of the tape.
pub(super) struct Monitor {
    settings: Settings,
    pub(super) facts: Facts,
    /// The states that explain the tape so far.
    states: Vec<State>,
    /// The number of states that were examined.
    examined: usize,
    pub(super) summary: Summary,
    orders: Orders,
    copies: u64,
    /// The sink that returned `Ready` last. Its item must be sent next.
    to_be_sent: Option<Id>,
    /// The item that was read last, and the turn in which it was first routed.
    routed_in: Option<(u32, u32)>,
    cost: Cost,
    flushes: FlushRule,
}

/// The part of the cost of a turn that is certain.
#[derive(Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) orders: usize,
    pub(super) reads: usize,
    pub(super) flushes: usize,
    pub(super) closes: usize,
}

impl Cost {
    pub(super) fn sum(self) -> usize {
        self.orders + self.reads + self.flushes + self.closes
    }
}

impl Monitor {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            facts: Facts::new(settings.balance),
            states: vec![State::new(settings)],
            examined: 0,
            summary: Summary::default(),
            orders: Orders::default(),
            copies: 0,
            to_be_sent: None,
            routed_in: None,
            cost: Cost::default(),
            flushes: FlushRule::default(),
        }
    }

    /// Processes the next event of the tape.
    pub(super) fn observe(&mut self, event: &Event) -> Result<(), String> {
        self.note(event).map_err(|complaint| format!("{event:?}: {complaint}"))?;
        let states = std::mem::take(&mut self.states);
        let (mut next, mut complaints) = (Vec::new(), Vec::new());
        let Some(possible) = State::possible(states, event, &self.facts) else {
            return Err(GIVEN_UP.into());
        };
        self.examined += possible.len();
        if self.examined > MAX_EXAMINED {
            return Err(GIVEN_UP.into());
        }
        for state in possible {
            if let Err(complaint) = state.step(event, &self.facts, &mut next) {
                complaints.push(complaint);
            }
        }
        for state in &mut next {
            state.watch_time(event, &self.facts);
        }
        self.flushes.watch(&self.facts);
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

    /// Returns whether `is_so` holds for all states, for some or for none.
    fn known(&self, is_so: impl Fn(&State) -> bool) -> Known {
        match self.states.iter().filter(|state| is_so(state)).count() {
            0 => Known::No,
            count if count == self.states.len() => Known::Yes,
            _ => Known::Maybe,
        }
    }

    /// Records an event, and makes the checks that need no model.
    fn note(&mut self, event: &Event) -> Result<(), String> {
        self.summary.tally(event);
        self.check_sent_next(event)?;
        self.facts.moved = None;
        let turn = self.facts.turn;
        match *event {
            Event::Born(_, terms) => {
                let overflow = terms.overflow.unwrap_or(self.settings.overflow);
                self.facts.sinks.push(SinkFacts::new(match overflow {
                    Overflow::Wait => Known::No,
                    // The contract does not name this policy.
                    Overflow::Conflate => Known::Maybe,
                    _ => Known::Yes,
                }));
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
                    // An item that orders have overtaken is routed now, before the orders that
                    // follow.
                    OrderKind::Finish => self.orders.before_item = None,
                    OrderKind::Tick => {
                        self.facts.tick_read();
                        if self.facts.ticks_in_turn == 1 {
                            self.flushes.tick(&self.facts, self.settings);
                        }
                    }
                    OrderKind::Detach(_) | OrderKind::Evict(_) => {}
                }
            }
            Event::OrdersWoken => self.orders.woken = true,
            Event::AskOrders => return self.orders.asked(turn),
            Event::OrdersPending { yields } => self.orders.answered_pending(yields, turn),
            Event::OrdersEnd => {
                self.orders.last_answer = LastAnswer::End;
                self.flushes.orders_ended();
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
            Event::OnDemand(seq, made) => {
                if let Some(id) = made {
                    self.facts.order_to_attach_read(id);
                }
                return self.orders.item_routed(seq, turn);
            }
            Event::KeyAttached(key) => return self.record_key(key, true),
            Event::KeyDetached(key) => return self.record_key(key, false),
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
                return Err(format!("the tag belongs to {id}, but the key {key} does not"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Records a call of `key_attached` or `key_detached`, which must alternate for each key.
    fn record_key(&mut self, key: u8, attached: bool) -> Result<(), String> {
        let taken = &mut self.facts.keys_taken[usize::from(key)];
        if std::mem::replace(taken, attached) == attached {
            return Err("called twice in a row".into());
        }
        Ok(())
    }

    /// Checks that a sink is polled only for an item that it then gets.
    fn check_sent_next(&self, event: &Event) -> Result<(), String> {
        let Some(ready) = self.to_be_sent else { return Ok(()) };
        let right = match *event {
            Event::Ask(id, Op::Send) | Event::Send(id, ..) | Event::Unblocked(id) => id == ready,
            Event::Clone(_) => true,
            _ => event.is_outside() && !matches!(event, Event::Rest { .. } | Event::Completed),
        };
        if right { Ok(()) } else { Err(format!("{ready} was ready, but got no item")) }
    }

    /// Checks guarantee 6, and counts the cost of flushes and closes. The states must be up to
    /// date.
    fn check_flush_rule(&mut self, event: &Event) -> Result<(), String> {
        match *event {
            Event::Read(..) => {
                let (states, settings) = (&self.states, self.settings);
                let needs_no_flush = |id| states.iter().any(|state| state.needs_no_flush(id));
                self.flushes.item_read(&self.facts, settings, needs_no_flush)
            }
            Event::Ask(id, Op::Flush) => {
                // A flush that was woken is paid for by the advance of the sink.
                self.cost.flushes += usize::from(!self.facts.sinks[id].flush_pending);
                let waits = self.known(State::waits) != Known::No;
                self.flushes.flush_asked(&self.facts, self.settings, id, waits)
            }
            Event::Ask(id, Op::Close) => {
                let begins = !self.facts.sinks[id].closing
                    && self.known(|state| state.begins_by_closing(id)) == Known::Yes;
                self.cost.closes += usize::from(begins);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks what must hold between two polls.
    pub(super) fn rest(&mut self, view: &View<'_>) -> Result<(), String> {
        let t = view.seen.totals;
        if t.received + t.copies != t.unmatched + t.delivered + t.discarded + t.lost + t.queued {
            return Err(format!("the totals do not add up: {t:?}"));
        }
        if t.received != self.facts.received || t.copies != self.copies {
            let received = self.facts.received;
            return Err(format!("{received} items read and {} cloned, but {t:?}", self.copies));
        }
        let left = view.input.map_or(0, StreamHandle::left) as u64;
        let taken: u64 = self.facts.sinks.iter().map(|sink| u64::from(sink.taken)).sum();
        if view.live as u64 != left + taken + t.queued {
            return Err(format!(
                "{} items exist, but {left} are unread, {taken} taken and {} queued",
                view.live, t.queued
            ));
        }
        if view.seen.terminated != view.completed {
            return Err("is_terminated() does not agree with the result of the poll".into());
        }
        if view.seen.keys != self.facts.keys_taken {
            let (keys, taken) = (view.seen.keys, self.facts.keys_taken);
            return Err(format!("contains_key() is {keys:?}, but the hooks said {taken:?}"));
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
            self.flushes.asleep();
        }
        Ok(())
    }

    fn check_cost(&self) -> Result<(), String> {
        let serving = self.states.iter().map(State::cost).min().unwrap_or(0);
        let (cost, budget) = (self.cost.sum() + serving, self.settings.budget);
        if cost > budget + 1 {
            return Err(format!("a turn with a budget of {budget} cost {cost}"));
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

    /// Checks that no work is left when the task sleeps, as far as the check does not depend on the
    /// model.
    fn check_asleep(&self, view: &View<'_>) -> Result<(), String> {
        if !view.orders.is_waiting() && self.orders.last_answer != LastAnswer::End {
            return Err("the task sleeps, but the orders are not read to the end".into());
        }
        for (id, facts) in self.facts.sinks.iter().enumerate() {
            let sink = &view.sinks[id];
            if !facts.applied || facts.dropped {
                continue;
            }
            let lingers = self.settings.linger > 0
                && !self.flushes.must_flush(facts)
                && self.known(State::waits) != Known::Yes;
            if !facts.closing && !lingers && sink.flush_asked() != sink.taken() {
                return Err(format!("the task sleeps, but {id} was not flushed"));
            }
            if !facts.closing && facts.flush_pending && !sink.is_waiting(Op::Flush) {
                return Err(format!("the task sleeps, but the flush of {id} can go on"));
            }
            if facts.closing && !sink.is_waiting(Op::Close) {
                return Err(format!("the task sleeps, but the close of {id} can go on"));
            }
        }
        Ok(())
    }
}

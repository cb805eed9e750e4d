//! A state that the demux may be in: one possible explanation of the tape.
//!
//! The tape does not show everything. What happens without an event is called *unseen*: an ended
//! lease takes effect, an attachment begins to leave because the input is over, a held item joins a
//! queue, or a left-over wake is taken for a yield. Where the contract leaves the moment open, each
//! possibility is a state of its own, until a later event rules it out.

mod attachment;
mod clock;
mod conflate;
mod interest;
mod item;
mod offers;
mod orders;
mod rest;
mod shared;
mod steps;
mod time;
mod unseen;
mod yields;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use stream_demux::Overflow;

use super::KEYS;
use super::event::reasons::{FINISHED, REPLACED};
use super::event::{EndReason, Id, OrderKind, Request};
use super::facts::{Facts, Known};
use super::script::Settings;
use attachment::{Attachment, Attachments, Stage, Verdict};
use conflate::Conflation;
use item::Item;

/// A lease that has ended and has not yet taken effect: its attachment and its request.
type EndedLease = (Id, Request);

/// An order that waits for ended leases, or has more attachments to detach or evict.
#[derive(Clone, Debug, PartialEq, Hash)]
struct KeptOrder {
    kind: OrderKind,
    /// The leases that had ended before the order was read.
    leases: Vec<EndedLease>,
    /// Whether these leases have taken effect, so that nothing comes before the order any more.
    begun: bool,
    /// Whether no attachment was detached or evicted yet. The read of the order has paid for the
    /// first.
    fresh: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct State {
    multicast: bool,
    balance: bool,
    default_buffer: usize,
    default_overflow: Overflow,
    default_stall_timeout: u32,
    default_idle_timeout: u32,
    /// Whether items that match no key may bring their own sinks.
    on_demand: bool,
    groups: [Vec<Id>; KEYS as usize],
    /// For each key, the last attachment that received under it.
    freed_by: [Option<Id>; KEYS as usize],
    catch_all: Option<Id>,
    /// With `balance`: the attachments of each key, in the order of their turns.
    lines: [Vec<Id>; KEYS as usize],
    /// With `balance`: the attachments whose place in this order is open.
    loose: Vec<Id>,
    /// The same, for attachments that were found not ready.
    passed: Vec<Id>,
    /// With `balance`: the attachments that were not ready for an item. They are next in turn when
    /// they are woken.
    awaited: Vec<Id>,
    /// Whether an order is detaching or evicting all attachments of a key.
    whole_key: bool,
    /// The item that was read last, until its fate is decided for all recipients.
    item: Option<Item>,
    /// The attachment that `blocked` was called for last, until `unblocked` is called.
    named: Option<Id>,
    /// An attachment that did not admit an item, and the item. This copy is discarded next.
    not_admitted: Option<(Id, u32)>,
    /// The next step of an item that conflates.
    conflation: Option<Conflation>,
    /// The number of ticks that were read since the task slept. Those of one turn count as one.
    ticks: u32,
    /// Whether the input may have had to wait since the last of these ticks.
    held_since_tick: bool,
    /// Whether the input had to wait since then, because it was blocked.
    blocked_since_tick: bool,
    /// The items that exceed the limit of a successor.
    surplus: VecDeque<u32>,
    /// Whether the input has ended or `Finish` was applied.
    over: bool,
    /// Whether `Finish` was read and comes after the item that it has overtaken.
    finishing: bool,
    /// The order that was read and is not completely applied.
    order: Option<KeptOrder>,
    /// Whether leases have ended since the task slept.
    leases_ended: bool,
    /// The number of clones that were made and not given to a member yet. A negative number means
    /// copies that are not cloned yet. After `Finish`, it is the number of waiting members that
    /// began to leave and took their copies along.
    spare_clones: i32,
    /// The attachment that yielded, and so ended the serving of items for this turn.
    stopped_by: Option<Id>,
    /// The cost of this turn, as far as it depends on the state.
    cost: Cost,
    unmatched: u64,
    delivered: u64,
    discarded: u64,
    lost: u64,
    attached: u64,
    detached: u64,
    /// The last field, because fields are compared in this order, and most states that differ do so
    /// in the fields above.
    attachments: Attachments,
}

/// The cost of a turn. All costs compare as equal: of two states that differ only in their costs,
/// the cheaper one stands for both.
#[derive(Clone, Copy, Debug)]
struct Cost(usize);

impl PartialEq for Cost {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Hash for Cost {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// A list of states, no two of which are equal.
#[derive(Default)]
struct Distinct {
    states: Vec<State>,
    /// The hashes of the first states, and of all states once one was added. States whose hashes
    /// differ, as most do, need not be compared field by field.
    hashes: Vec<u64>,
}

impl Distinct {
    fn add(&mut self, state: State) {
        let missing = &self.states[self.hashes.len()..];
        self.hashes.extend(missing.iter().map(State::hash_of));
        let hash = state.hash_of();
        let alike = self.hashes.iter().zip(&mut self.states).filter(|(other, _)| **other == hash);
        let equal = alike.map(|(_, other)| other).find(|other| **other == state);
        if let Some(other) = equal {
            other.cost.0 = other.cost.0.min(state.cost.0);
        } else {
            self.states.push(state);
            self.hashes.push(hash);
        }
    }
}

/// Removes states that are equal to others.
pub(super) fn dedup(states: &mut Vec<State>) {
    if states.len() > 1 {
        let mut distinct = Distinct::default();
        for state in std::mem::take(states) {
            distinct.add(state);
        }
        *states = distinct.states;
    }
}

impl State {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            multicast: settings.multicast,
            balance: settings.balance,
            default_buffer: settings.buffer,
            default_overflow: settings.overflow,
            default_stall_timeout: settings.stall_timeout,
            default_idle_timeout: settings.idle_timeout,
            on_demand: settings.on_demand != 0,
            groups: Default::default(),
            freed_by: Default::default(),
            catch_all: None,
            lines: Default::default(),
            loose: Vec::new(),
            passed: Vec::new(),
            awaited: Vec::new(),
            whole_key: false,
            item: None,
            named: None,
            not_admitted: None,
            conflation: None,
            ticks: 0,
            held_since_tick: false,
            blocked_since_tick: false,
            surplus: VecDeque::new(),
            over: false,
            finishing: false,
            order: None,
            leases_ended: false,
            spare_clones: 0,
            stopped_by: None,
            cost: Cost(0),
            unmatched: 0,
            delivered: 0,
            discarded: 0,
            lost: 0,
            attached: 0,
            detached: 0,
            attachments: Attachments::default(),
        }
    }

    fn hash_of(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn cost(&self) -> usize {
        self.cost.0
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn holds_item(&self) -> bool {
        self.item.is_some()
    }

    /// Returns `true` if the input has to wait or is over. The input does not wait while an item is
    /// being served to a group, unless the item is, or may be, held for a sink that yielded.
    pub(super) fn waits(&self) -> bool {
        let Some(item) = &self.item else { return self.over };
        let is_served = !item.unoffered.is_empty() && item.offer.is_none();
        let woke_itself = |id: &Id| {
            matches!(self.attachments[*id].verdict, Verdict::NotReady { counted_in: Some(_) })
        };
        let yields = self.stopped_by.is_some() || item.waiting.iter().any(woke_itself);
        self.over || !is_served || yields
    }

    /// Returns `true` if the held item is offered to `id` in its turn, and not because `id` leaves.
    pub(super) fn is_offered_in_turn(&self, id: Id) -> bool {
        let is_unoffered = self.item.as_ref().is_some_and(|item| item.is_unoffered(id));
        is_unoffered && self.order.is_none() && !self.attachments[id].is_wavering()
    }

    /// Returns `true` if `id` leaves only because the input is over, and begins to leave by being
    /// closed.
    pub(super) fn begins_by_closing(&self, id: Id) -> bool {
        let attachment = &self.attachments[id];
        let leaving = Stage::Leaving { reasons: FINISHED, begun: false };
        attachment.stage == leaving && !attachment.drained
    }

    /// Returns `true` if `id` is closed next, or may be, or is gone.
    pub(super) fn needs_no_flush(&self, id: Id) -> bool {
        let attachment = &self.attachments[id];
        match attachment.stage {
            Stage::Leaving { .. } => attachment.queue.is_empty(),
            Stage::Receiving => attachment.queue.is_empty() && attachment.is_wavering(),
            Stage::Unapplied | Stage::Removing { .. } | Stage::Gone => true,
        }
    }

    fn unlink(&mut self, id: Id) {
        let key = usize::from(self.attachments[id].key);
        if self.groups[key] == [id] {
            self.freed_by[key] = Some(id);
        }
        self.groups[key].retain(|&other| other != id);
        self.lines[key].retain(|&other| other != id);
        self.catch_all.take_if(|catch_all| *catch_all == id);
        self.stopped_by.take_if(|by| *by == id);
    }

    /// Lets `id` leave: it receives no new items, and takes its copy of the held item along. If the
    /// item was not offered to it yet, `admit` is called for it now.
    fn leave(&mut self, id: Id, reasons: u8, begun: bool) {
        self.give_up_share(id, true);
        if let Some(item) = self.item.as_mut().filter(|item| item.is_unoffered(id)) {
            item.ask_leaver(id);
        } else if let Some(seq) = self.take_copy(id) {
            if reasons & REPLACED == 0 {
                self.take_along(id, seq);
            } else {
                self.attachments[id].queue.push_back(seq);
            }
        }
        self.unlink(id);
        self.attachments[id].stage = Stage::Leaving { reasons, begun };
    }

    /// Removes `id`, and discards the items that wait for it. An attachment that is evicted takes
    /// no copy of the held item, unless it is the last recipient.
    fn remove(&mut self, id: Id, end: EndReason) {
        self.give_up_share(id, false);
        let mut discards = std::mem::take(&mut self.attachments[id].queue);
        let mut perhaps = None;
        if matches!(end, EndReason::Evicted | EndReason::Stalled) {
            let (seq, has_copy) = self.withdraw(id);
            discards.extend(seq.filter(|_| has_copy == Known::Yes));
            perhaps = seq.filter(|_| has_copy == Known::Maybe);
        } else {
            discards.extend(self.take_copy(id));
        }
        self.unlink(id);
        let attachment = &mut self.attachments[id];
        attachment.stage = Stage::Removing { end, discards, perhaps, dropped: false };
        attachment.forget();
    }

    /// Finishes an event, and adds the state to `out`.
    fn emit(mut self, out: &mut Vec<Self>) {
        if self.over {
            for id in 0..self.attachments.len() {
                let unserved = self.item.as_ref().is_some_and(|item| item.is_unserved(id));
                let unserved = unserved || self.shares_item(id);
                if self.attachments[id].stage == Stage::Receiving && !unserved {
                    self.leave_at_the_end(id);
                }
            }
        }
        out.push(self);
    }
}

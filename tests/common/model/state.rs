//! A state that the demux may be in: one way to explain what was seen.
//!
//! The tape does not show everything. Where the contract leaves a moment open (an ended lease takes effect,
//! a member is told the end, a held item joins a queue, a left-over wake is taken for a yield), each
//! possibility is a state of its own, until what comes next rules it out.

mod item;
mod offers;
mod orders;
mod rest;
mod steps;
mod yields;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Index, IndexMut};
use std::rc::Rc;

use stream_demux::Overflow;

use super::super::Op;
use super::KEYS;
use super::MAX_STATES;
use super::event::reasons::FINISHED;
use super::event::{EndReason, Event, Id, OrderKind, Request};
use super::facts::{Count, Facts, Known};
use super::script::Settings;
use item::Item;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Its order was not applied yet.
    Unapplied,
    Receiving,
    /// `told`: it is being closed, or will be as soon as its queue is empty. Otherwise it leaves because
    /// the input is over, and may not have been told yet.
    Leaving {
        reasons: u8,
        told: bool,
    },
    /// It is being removed, and with it what waited for it.
    Removing {
        end: EndReason,
        discards: VecDeque<u32>,
        /// One more that may be discarded: it is not known whether it had taken it along.
        perhaps: Option<u32>,
        dropped: bool,
    },
    Gone,
}

/// What the last answer of `poll_ready` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    /// It was not asked yet, or was ready.
    Unknown,
    /// Its Pending was a yield.
    Yielded,
    /// It is not ready. `counted_in`: the answer was a yield that counts, in this turn.
    NotReady { counted_in: Option<u32> },
    /// It yielded, or is not ready: nothing has depended on it yet. With the progress by then.
    Doubtful(Count),
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attachment {
    key: u8,
    /// Places in the queue: with `DropNewest` and `DropOldest` at least one.
    places: usize,
    overflow: Overflow,
    limit: Option<u64>,
    keep_existing: bool,
    catch_all: bool,
    /// The strongest request of the leases that have ended.
    request: Request,
    /// A lease has asked it to detach, at a time when none had asked for more.
    may_detach: bool,
    stage: Stage,
    announced: bool,
    queue: VecDeque<u32>,
    /// Items accepted, if there is a limit.
    accepted: u64,
    verdict: Verdict,
    /// When it last yielded: the progress by then.
    last_yield: Option<Count>,
    /// How often it yielded in a row; and how often the item was held for that.
    yields_in_a_row: u32,
    holds_in_a_row: u32,
    /// It was sent items after it began to leave.
    drained: bool,
}

impl Attachment {
    fn has_room(&self) -> bool {
        self.queue.len() < self.places
    }

    /// Forgets what no longer matters once it is removed: states that differ in that are the same.
    fn forget(&mut self) {
        self.accepted = 0;
        self.verdict = Verdict::Unknown;
        self.last_yield = None;
        (self.yields_in_a_row, self.holds_in_a_row) = (0, 0);
        self.drained = false;
    }

    fn waits(&self) -> bool {
        self.overflow == Overflow::Wait
    }

    fn is_present(&self) -> bool {
        matches!(self.stage, Stage::Receiving | Stage::Leaving { .. })
    }

    /// Returns `true` if an ended lease has yet to take effect.
    fn is_to_be_ended(&self) -> bool {
        self.is_evicted_by_lease() || self.is_wavering()
    }

    fn is_evicted_by_lease(&self) -> bool {
        self.is_present() && self.request == Request::Evict
    }

    /// Returns `true` if a lease has asked it to detach, and it is not known whether it has.
    fn is_wavering(&self) -> bool {
        self.stage == Stage::Receiving && self.may_detach
    }
}

/// All attachments, by the numbers of their sinks. States share those that do not differ, so that a
/// state is copied, and compared with its copy, at a cost that does not depend on the queues.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
struct Attachments(Vec<Rc<Attachment>>);

impl Attachments {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn push(&mut self, attachment: Attachment) {
        self.0.push(Rc::new(attachment));
    }

    fn get(&self, id: Id) -> Option<&Attachment> {
        self.0.get(id).map(|attachment| &**attachment)
    }

    fn get_mut(&mut self, id: Id) -> Option<&mut Attachment> {
        self.0.get_mut(id).map(Rc::make_mut)
    }

    fn iter(&self) -> impl Iterator<Item = &Attachment> {
        self.0.iter().map(|attachment| &**attachment)
    }
}

impl Index<Id> for Attachments {
    type Output = Attachment;

    fn index(&self, id: Id) -> &Attachment {
        &self.0[id]
    }
}

impl IndexMut<Id> for Attachments {
    fn index_mut(&mut self, id: Id) -> &mut Attachment {
        Rc::make_mut(&mut self.0[id])
    }
}

/// A lease that has ended and has yet to take effect: of whom, and what it asks.
type EndedLease = (Id, Request);

/// An order that waits for ended leases, or has more to detach or evict.
#[derive(Clone, Debug, PartialEq, Hash)]
struct KeptOrder {
    kind: OrderKind,
    /// The leases that had ended before it was read.
    leases: Vec<EndedLease>,
    /// These have ended: nothing comes before it any more.
    begun: bool,
    /// The first that it detaches or evicts was paid for when it was read.
    fresh: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct State {
    multicast: bool,
    default_buffer: usize,
    default_overflow: Overflow,
    groups: [Vec<Id>; KEYS as usize],
    catch_all: Option<Id>,
    /// The item that was read last, until its fate is decided for all.
    item: Option<Item>,
    /// The one that `blocked` was said of last, and `unblocked` not since.
    named: Option<Id>,
    /// Not admitted: its copy is discarded next.
    not_admitted: Option<(Id, u32)>,
    /// What the limit of a successor left over.
    surplus: VecDeque<u32>,
    /// The input has ended, or `Finish` was applied.
    over: bool,
    /// `Finish` was read, and comes after the item that it has overtaken.
    finishing: bool,
    /// The order that was read and is not applied to the end.
    order: Option<KeptOrder>,
    /// Leases have ended since the task slept.
    leases_ended: bool,
    /// Clones that were made and not given to a member yet; negative: copies that are yet to be cloned.
    /// After `Finish`, so many of those who wait were told the end, and took their copies along.
    spare_clones: i32,
    /// This one yielded: the serving of items has ended for this turn.
    stopped_by: Option<Id>,
    /// What this turn cost, as far as it depends on the state.
    cost: Cost,
    unmatched: u64,
    delivered: u64,
    discarded: u64,
    lost: u64,
    attached: u64,
    detached: u64,
    /// Last, because states are compared in this order, and differ in what is above if they do.
    attachments: Attachments,
}

/// What a turn has cost. Of two states that differ in nothing else the cheaper one is as good as both.
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

/// States no two of which are equal.
#[derive(Default)]
struct Distinct {
    states: Vec<State>,
    /// Hashes of the first states, of all once one was added. Two that differ, and most do, need not be
    /// compared field by field.
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
            default_buffer: settings.buffer,
            default_overflow: settings.overflow,
            groups: Default::default(),
            catch_all: None,
            item: None,
            named: None,
            not_admitted: None,
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

    /// Returns `true` if the input has to wait, or is over. It does not wait while an item is on its way
    /// through a group, unless it is held for a sink that yielded, or may be.
    pub(super) fn waits(&self) -> bool {
        let Some(item) = &self.item else { return self.over };
        let is_served = !item.unoffered.is_empty() && item.offer.is_none();
        let woke_itself = |id: &Id| {
            matches!(self.attachments[*id].verdict, Verdict::NotReady { counted_in: Some(_) })
        };
        let yields = self.stopped_by.is_some() || item.waiting.iter().any(woke_itself);
        self.over || !is_served || yields
    }

    /// Returns `true` if the item that is held is offered to `id` in its turn, not because it leaves.
    pub(super) fn is_offered_in_turn(&self, id: Id) -> bool {
        let is_unoffered = self.item.as_ref().is_some_and(|item| item.is_unoffered(id));
        is_unoffered && self.order.is_none() && !self.attachments[id].is_wavering()
    }

    /// Returns `true` if it leaves only because the input is over, and is told so by being closed.
    pub(super) fn was_told_with_all(&self, id: Id) -> bool {
        let attachment = &self.attachments[id];
        let leaving = Stage::Leaving { reasons: FINISHED, told: false };
        attachment.stage == leaving && !attachment.drained
    }

    /// Returns `true` if it is closed next, or may be, or gone.
    pub(super) fn needs_no_flush(&self, id: Id) -> bool {
        let attachment = &self.attachments[id];
        match attachment.stage {
            Stage::Leaving { .. } => attachment.queue.is_empty(),
            Stage::Receiving => attachment.queue.is_empty() && attachment.is_wavering(),
            Stage::Unapplied | Stage::Removing { .. } | Stage::Gone => true,
        }
    }

    /// These states, and those that they may have become before `event`, as far as `event` can tell the
    /// difference. `None`: there are too many.
    pub(super) fn possible(
        mut found: Vec<Self>,
        event: &Event,
        facts: &Facts,
    ) -> Option<Vec<Self>> {
        let rest = matches!(event, Event::Rest { .. } | Event::Completed);
        let tells_nothing = matches!(event, Event::Ask(_, Op::Ready | Op::Send));
        if event.is_outside() && !rest || tells_nothing {
            return Some(found);
        }
        if matches!(event, Event::Rest { asleep: true, .. }) {
            // Before the task sleeps, every ended lease has taken effect, and all were told the end.
            for state in &mut found {
                state.all_were_told();
                for id in 0..state.attachments.len() {
                    if state.attachments[id].is_wavering() {
                        state.detach(id);
                    }
                }
            }
            dedup(&mut found);
        }
        let mut found = Distinct { states: found, hashes: Vec::new() };
        let (mut at, mut more) = (0, Vec::new());
        while at < found.states.len() {
            found.states[at].settle_offer(facts, &mut more);
            found.states[at].unseen(event, facts, &mut more);
            for other in more.drain(..) {
                found.add(other);
            }
            if found.states.len() > MAX_STATES {
                return None;
            }
            at += 1;
        }
        Some(found.states)
    }

    /// What this state may become in one step that is not seen.
    fn unseen(&self, event: &Event, facts: &Facts, more: &mut Vec<Self>) {
        for id in (0..self.attachments.len()).filter(|&id| self.attachments[id].is_wavering()) {
            if self.matters_whether_it_detached(id, event, facts) {
                let mut other = self.clone();
                other.detach(id);
                more.push(other);
            }
        }
        if let Some(item) = self.item.as_ref().filter(|item| item.is_routed()) {
            for id in item.unserved() {
                let matters = self.matters_whether_it_was_served(id, event);
                if self.over && matters && item.is_unoffered(id) {
                    let mut other = self.clone();
                    other.leave_at_the_end(id);
                    more.push(other);
                }
                if matters && item.may_join(id) && self.serves() {
                    let mut other = self.clone();
                    other.join_queue(id);
                    more.push(other);
                }
            }
        }
        if self.finishing {
            // The item is routed, and those it is for may be told the end before it is offered to them.
            let mut other = self.clone();
            if other.route_unseen(facts) {
                more.push(other);
            }
        }
        if self.order.is_some() {
            let mut other = self.clone();
            if other.go_on_with_order() {
                more.push(other);
            }
        }
    }

    /// Whether `event` can tell if an unserved member of a group has got its copy unseen: a clone was
    /// made, or, if it is the last, none need be made.
    fn matters_whether_it_was_served(&self, id: Id, event: &Event) -> bool {
        let Some(item) = &self.item else { return false };
        if item.is_unoffered(id) {
            return matches!(*event, Event::Admit(asked, ..) if asked == id);
        }
        let next = matches!(*event, Event::Admit(asked, ..) if asked != id);
        next && item.is_offered(id) || matches!(event, Event::Clone(_)) || item.is_last(id)
    }

    fn matters_whether_it_detached(&self, id: Id, event: &Event, facts: &Facts) -> bool {
        let key = self.attachments[id].key;
        let ended = |leases: &[EndedLease]| leases.iter().any(|(of, _)| *of == id);
        // A lease that ended before the order or the item was read is dealt with where that is applied or
        // routed; one that ended since may have been dealt with or not. An order to detach makes no
        // difference of it, and for one to evict see `is_next_to_evict`.
        let order_matters = self.order.as_ref().is_some_and(|order| match order.kind {
            OrderKind::Attach(new) => self.attachments[new].key == key && !ended(&order.leases),
            OrderKind::Detach(_) | OrderKind::Evict(_) | OrderKind::Finish => false,
        });
        let unrouted = |seq| {
            self.item.as_ref().is_some_and(|item| item.is_unrouted(seq) && !ended(&item.leases))
        };
        let routed_now = match *event {
            Event::Admit(_, seq, _) | Event::Unmatched(seq) => {
                unrouted(seq) && (facts.keys.get(&seq) == Some(&key) || self.catch_all == Some(id))
            }
            Event::Close(closed, _) => closed == id,
            _ => false,
        };
        let unserved = self.item.as_ref().is_some_and(|item| item.is_unserved(id));
        order_matters || routed_now || unserved && self.matters_whether_it_was_served(id, event)
    }

    fn unlink(&mut self, id: Id) {
        self.groups[usize::from(self.attachments[id].key)].retain(|&other| other != id);
        self.catch_all.take_if(|catch_all| *catch_all == id);
        self.stopped_by.take_if(|by| *by == id);
    }

    /// It receives nothing more. It takes its copy of the item along; if the item was not offered to it
    /// yet, it is asked now whether it admits it.
    fn leave(&mut self, id: Id, reasons: u8, told: bool) {
        if let Some(item) = self.item.as_mut().filter(|item| item.is_unoffered(id)) {
            item.ask_leaver(id);
        } else if let Some(seq) = self.take_copy(id) {
            self.attachments[id].queue.push_back(seq);
        }
        self.unlink(id);
        self.attachments[id].stage = Stage::Leaving { reasons, told };
    }

    /// It is removed, and what waits for it discarded. One that is evicted takes no copy of the item,
    /// unless it is the last.
    fn remove(&mut self, id: Id, end: EndReason) {
        let mut discards = std::mem::take(&mut self.attachments[id].queue);
        let mut perhaps = None;
        if end == EndReason::Evicted {
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

    /// Done with an event.
    fn emit(mut self, out: &mut Vec<Self>) {
        if self.over {
            for id in 0..self.attachments.len() {
                let unserved = self.item.as_ref().is_some_and(|item| item.is_unserved(id));
                if self.attachments[id].stage == Stage::Receiving && !unserved {
                    self.leave_at_the_end(id);
                }
            }
        }
        out.push(self);
    }
}

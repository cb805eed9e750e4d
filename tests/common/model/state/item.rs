//! The item that was read last, and how it is served to its recipients.

use super::super::event::Id;
use super::super::facts::Known;
use super::shared::Shared;
use super::{EndedLease, State};

/// The item that was read last. A recipient is first not offered it yet, then is offered it, waits
/// for it under `Wait`, and is served.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct Item {
    pub(super) seq: u32,
    /// Whether its key was looked up.
    pub(super) routed: bool,
    /// The leases that had ended when it was read.
    pub(super) leases: Vec<EndedLease>,
    pub(super) unoffered: Vec<Id>,
    /// The recipients that leave before they were offered it. `admit` is called for them now.
    pub(super) leavers: Vec<Id>,
    pub(super) offer: Option<Offer>,
    /// The recipients that wait for it, in the order in which they were offered it.
    pub(super) waiting: Vec<Id>,
    /// The recipient whose sink was sent the head of the queue. The item may take the place of the
    /// head, even if a queue that was handed on still has no room, because the sink was ready.
    pub(super) head_sent: Option<Id>,
    /// The attachments that `blocked` was called for.
    pub(super) named: Vec<Id>,
    /// Whether it was routed after `Finish`. Policies apply to it all the same.
    pub(super) after_finish: bool,
    /// The number of turns in a row in which it was held because of yields.
    pub(super) held_turns: u32,
    /// Whether it was read in an earlier turn.
    pub(super) held_over: bool,
    /// Whether no key matched it and a sink was requested for it.
    pub(super) demanded: bool,
    /// With `balance`: the progress of an item that is for one of several attachments.
    pub(super) shared: Option<Shared>,
    /// The attachment that was made for it, if any.
    pub(super) made: Option<Id>,
}

/// A recipient that is offered the item, has not got it, and is not known to wait for it.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct Offer {
    pub(super) to: Id,
    pub(super) turn: u32,
    /// Whether its sink was polled since.
    pub(super) asked: bool,
    /// Whether its sink was sent something since.
    pub(super) sent: bool,
    /// The number of turns in which its policy applied and did not act.
    pub(super) overdue: u32,
}

impl Item {
    pub(super) fn new(seq: u32, leases: Vec<EndedLease>) -> Self {
        Self {
            seq,
            routed: false,
            leases,
            unoffered: Vec::new(),
            leavers: Vec::new(),
            offer: None,
            waiting: Vec::new(),
            head_sent: None,
            named: Vec::new(),
            after_finish: false,
            held_turns: 0,
            held_over: false,
            demanded: false,
            shared: None,
            made: None,
        }
    }

    pub(super) fn is_routed(&self) -> bool {
        self.routed
    }

    pub(super) fn is_unrouted(&self, seq: u32) -> bool {
        self.seq == seq && !self.routed
    }

    /// Returns the recipients that have neither got the item nor lost it.
    pub(super) fn unserved(&self) -> Vec<Id> {
        let offered = self.offer.iter().map(|offer| offer.to);
        let others = self.unoffered.iter().chain(&self.leavers).chain(&self.waiting);
        others.copied().chain(offered).collect()
    }

    pub(super) fn is_unserved(&self, id: Id) -> bool {
        self.is_offered(id)
            || [&self.unoffered, &self.leavers, &self.waiting].iter().any(|ids| ids.contains(&id))
    }

    /// Returns `true` if the item waits for `id`, or `id` was attached for it.
    pub(super) fn is_held_for(&self, id: Id) -> bool {
        self.is_unserved(id) || !self.routed && self.made == Some(id)
    }

    pub(super) fn is_unoffered(&self, id: Id) -> bool {
        self.unoffered.contains(&id)
    }

    pub(super) fn is_last(&self, id: Id) -> bool {
        self.unserved() == [id]
    }

    pub(super) fn is_offered(&self, id: Id) -> bool {
        self.offer.as_ref().is_some_and(|offer| offer.to == id)
    }

    /// Returns `true` if the sink of `id` may be polled for the item.
    pub(super) fn wants_sink(&self, id: Id) -> bool {
        self.is_offered(id) || self.waiting.contains(&id)
    }

    /// Records that the sink of `id` is sent something. Returns `true` if the offer pays for it: it
    /// is the first thing that is sent since the offer, even if the sink yielded and is polled
    /// again in a later turn.
    pub(super) fn pays_for_send(&mut self, id: Id) -> bool {
        let Some(offer) = self.offer.as_mut().filter(|offer| offer.to == id) else { return false };
        !std::mem::replace(&mut offer.sent, true)
    }

    /// Returns `true` if the item may join the queue of `id` unseen.
    pub(super) fn may_join(&self, id: Id) -> bool {
        self.head_sent == Some(id)
    }

    pub(super) fn has_leavers(&self) -> bool {
        !self.leavers.is_empty() || self.shared.as_ref().is_some_and(Shared::has_leaver)
    }

    pub(super) fn ask_leaver(&mut self, id: Id) {
        self.unoffered.retain(|&other| other != id);
        self.leavers.push(id);
    }

    /// Removes `id` from all lists. Returns `None` if it was on none, and otherwise whether it was
    /// the last recipient.
    fn strike(&mut self, id: Id) -> Option<bool> {
        if !self.is_unserved(id) {
            return None;
        }
        for ids in [&mut self.unoffered, &mut self.leavers, &mut self.waiting] {
            ids.retain(|&other| other != id);
        }
        self.offer.take_if(|offer| offer.to == id);
        Some(self.unserved().is_empty())
    }
}

/// Copies of the item.
impl State {
    /// Removes `id` from the recipients of the item. Returns the item, and whether `id` was the
    /// last.
    fn strike(&mut self, id: Id) -> Option<(u32, bool)> {
        let item = self.item.as_mut()?;
        let (seq, last) = (item.seq, item.strike(id)?);
        if last {
            self.item = None;
        }
        self.stopped_by.take_if(|by| *by == id);
        self.attachments[id].holds_in_a_row = 0;
        Some((seq, last))
    }

    /// Gives `id` its copy, if it is owed one: the item itself if `id` is the last recipient,
    /// otherwise a clone.
    pub(super) fn take_copy(&mut self, id: Id) -> Option<u32> {
        let (seq, last) = self.strike(id)?;
        self.spare_clones -= i32::from(!last);
        Some(seq)
    }

    /// Gives `id` nothing, unless it is the last that is owed a copy, or has taken its copy along
    /// because the input is over. Returns the item, and whether `id` has it.
    pub(super) fn withdraw(&mut self, id: Id) -> (Option<u32>, Known) {
        let Some(item) = self.item.as_ref().filter(|item| item.is_unserved(id)) else {
            return (None, Known::No);
        };
        let (others, asked) = (item.unserved().len() - 1, item.wants_sink(id));
        let has_copy = match usize::try_from(self.spare_clones) {
            _ if others == 0 => Known::Yes,
            // `id` has taken a clone along, or each of the others has.
            Ok(spare) if self.over && spare >= others => Known::Yes,
            Ok(1..) if self.over && asked => Known::Maybe,
            _ => Known::No,
        };
        let seq = if has_copy == Known::Yes {
            self.take_copy(id)
        } else {
            self.strike(id).map(|(seq, _)| seq)
        };
        (seq, has_copy)
    }

    /// Returns `true` if the recipients that are offered the item are still served, and do not
    /// leave because the input is over.
    pub(super) fn serves(&self) -> bool {
        !self.over || self.item.as_ref().is_some_and(|item| item.after_finish)
    }

    /// Returns the number of recipients that may have got a clone unseen. After `Finish`, the
    /// recipients that were offered the item take their copies along when they begin to leave, and
    /// the last one takes the item itself.
    pub(super) fn clones_taken_along(&self) -> i32 {
        let Some(item) = self.item.as_ref().filter(|_| self.over) else { return 0 };
        let unserved = item.unserved();
        let offered = unserved.iter().filter(|&&id| item.wants_sink(id)).count();
        i32::try_from(offered.min(unserved.len().saturating_sub(1))).unwrap_or(0)
    }

    /// Records that the task sleeps after `Finish`. All recipients have begun to leave, if enough
    /// clones were made.
    pub(super) fn all_begin_to_leave(&mut self) {
        let Some(item) = self.item.as_ref().filter(|_| self.over) else { return };
        let unserved = item.unserved();
        let asked = unserved.iter().all(|&id| item.wants_sink(id));
        if asked
            && usize::try_from(self.spare_clones).is_ok_and(|spare| spare + 1 == unserved.len())
        {
            for id in unserved {
                self.leave_at_the_end(id);
            }
        }
    }

    pub(super) fn join_queue(&mut self, id: Id) {
        let after_finish = self.item.as_ref().is_some_and(|item| item.after_finish);
        if let Some(seq) = self.take_copy(id) {
            self.attachments[id].queue.push_back(seq);
            self.accept_queued(id, after_finish);
        }
    }

    /// An item joined the queue of `id`. With `balance`, an item that `Finish` has overtaken
    /// (`after_finish`) does so before the input is over: if `id` reaches its limit with it, its
    /// queue still moves to the others.
    pub(super) fn accept_queued(&mut self, id: Id, after_finish: bool) {
        let over = self.over;
        self.over &= !(self.balance && after_finish);
        self.accept(id);
        self.over = over;
    }

    pub(super) fn cloned(&mut self, seq: u32) -> Result<(), String> {
        let current = self.item.as_ref().is_some_and(|item| item.seq == seq);
        if !current && self.spare_clones >= 0 {
            return Err("no member is owed a copy of the item".into());
        }
        self.spare_clones += 1;
        if self.spare_clones > self.clones_taken_along().max(1) {
            return Err("clones must be made one by one".into());
        }
        Ok(())
    }
}

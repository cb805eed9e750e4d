//! `Demux::balance`: the attachments of a key share its items.
//!
//! Exact is who is asked, and in which turn; that the first that is ready gets the item; and that without
//! one the shortest queue does, on its terms. Which of several queues that are equally short is left open,
//! as is how what waits for a leaver is dealt out: that lies in a pool, from which any of the others may
//! be sent it, until it is empty. While it is not, queues are not compared.

use std::collections::VecDeque;

use super::super::super::Op;
use super::super::event::{Event, Id};
use super::super::facts::{Facts, Known};
use super::State;
use super::item::Offer;

/// An item for one of those that have its key.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct Shared {
    pub(super) key: usize,
    /// Who was asked whether it admits the item, and the answers.
    pub(super) asked: Vec<(Id, bool)>,
    /// When it was read, there was only this one.
    pub(super) alone: Option<Id>,
}

impl Shared {
    fn admits(&self, id: Id) -> bool {
        self.asked.contains(&(id, true))
    }
}

impl State {
    fn shared(&self) -> Option<&Shared> {
        self.item.as_ref()?.shared.as_ref()
    }

    /// Returns `true` if the item is for one of several, of which `id` is one.
    pub(super) fn shares_item(&self, id: Id) -> bool {
        self.shared().is_some_and(|shared| self.groups[shared.key].contains(&id))
    }

    /// Returns `true` if the sink may be asked on behalf of the item.
    pub(super) fn shared_wants(&self, id: Id) -> bool {
        let admits = self.shared().is_some_and(|shared| shared.admits(id));
        admits && self.attachments[id].queue.is_empty() && self.shares_item(id)
    }

    /// What was moved from a leaver, and may be in the queue of `id`.
    pub(super) fn pool_of(&self, id: Id) -> &VecDeque<u32> {
        &self.pools[usize::from(self.attachments[id].key)]
    }

    /// Takes `seq` from where leavers have left it.
    pub(super) fn take_from_pool(&mut self, id: Id, seq: u32) -> bool {
        let pool = &mut self.pools[usize::from(self.attachments[id].key)];
        let at = pool.iter().position(|&other| other == seq);
        at.is_some_and(|at| pool.remove(at).is_some())
    }

    /// Returns `true` if the item may be for `id`, in whose queue may be what others have left.
    pub(super) fn may_be_pooled(&self, id: Id, seq: u32) -> bool {
        let Some(item) = self.item.as_ref().filter(|item| item.seq == seq) else { return false };
        !self.pool_of(id).is_empty() && (item.is_offered(id) || self.shares_item(id))
    }

    /// Returns `true` if a leaver may have taken the item along that was shared.
    pub(super) fn is_taken_along(&self, id: Id, seq: u32) -> bool {
        let Some(attachment) = self.attachments.get(id).filter(|_| self.balance) else {
            return false;
        };
        attachment.queue.contains(&seq) || self.pool_of(id).contains(&seq)
    }

    /// `old` no longer waits.
    pub(super) fn drop_pooled(&mut self, id: Id, old: u32) -> Option<()> {
        if !self.take_from_pool(id, old) {
            let queue = &mut self.attachments[id].queue;
            let at = queue.iter().position(|&other| other == old)?;
            queue.remove(at);
        }
        Some(())
    }

    /// The item joins a queue, and `old` leaves it.
    pub(super) fn join_pool(&mut self, id: Id, old: u32) -> Option<()> {
        self.drop_pooled(id, old)?;
        let item = self.item.take()?;
        self.pools[usize::from(self.attachments[id].key)].push_back(item.seq);
        Some(())
    }

    /// `id` is asked whether it admits the item, as the next in turn.
    pub(super) fn admit_shared(
        &mut self,
        id: Id,
        admits: bool,
        facts: &Facts,
    ) -> Result<(), String> {
        let Some(shared) = self.shared() else { return Ok(()) };
        let line = &self.lines[shared.key];
        let asked = |id: &Id| shared.asked.iter().any(|(other, _)| other == id);
        if !line.contains(&id) || asked(&id) {
            return Err(format!("{line:?} have the key, and {:?} were asked", shared.asked));
        }
        let is_busy = |id: &Id| {
            let sink = &facts.sinks[*id];
            let waits = !self.attachments[*id].queue.is_empty() || !self.pool_of(*id).is_empty();
            waits || sink.is_parked() && !sink.has_heard
        };
        // One that was not ready is next in turn when it is woken: of several the order is open, as it is
        // of those that did not admit an item.
        let is_open = |id: &Id| self.loose.contains(id) || self.passed.contains(id);
        let before = line.iter().take_while(|other| **other != id);
        let mut skipped = before.filter(|other| !asked(other) && !is_busy(other));
        if let Some(next) = skipped.find(|next| !self.loose.contains(next) && !is_open(&id)) {
            return Err(format!("{next} is next in turn, of {line:?}"));
        }
        if !admits {
            self.loose.push(id);
        }
        if let Some(shared) = self.item.as_mut().and_then(|item| item.shared.as_mut()) {
            shared.asked.push((id, admits));
        }
        Ok(())
    }

    /// The sink of `id` took the head of its queue, whose place the item may take.
    pub(super) fn head_sent(&mut self, id: Id) {
        self.loose.push(id);
        if let Some(item) = &mut self.item {
            item.head_sent = Some(id);
        }
    }

    /// The item was sent to `id`, whose turn is the last now.
    pub(super) fn shared_taken(&mut self, id: Id) {
        // Of one that was woken, and took an item that was held, it may still be the turn.
        let was_held = self.item.take().is_some_and(|item| item.held_over);
        let line = &mut self.lines[usize::from(self.attachments[id].key)];
        line.retain(|&other| other != id);
        line.push(id);
        self.loose.retain(|&other| other != id);
        if !was_held {
            self.passed.retain(|&other| other != id);
        }
    }

    /// It was found not ready.
    pub(super) fn passed_over(&mut self, id: Id) {
        if self.balance && !self.passed.contains(&id) {
            self.passed.push(id);
        }
    }

    /// Those with the shortest queue, if none that admits the item is ready.
    fn shortest(&self, facts: &Facts) -> Vec<Id> {
        let Some(shared) = self.shared() else { return Vec::new() };
        let group = &self.groups[shared.key];
        let answer = |id: Id| shared.asked.iter().find(|(of, _)| *of == id).map(|(_, yes)| *yes);
        let is_busy =
            |id: Id| facts.sinks[id].is_parked() || !self.attachments[id].queue.is_empty();
        // Who is busy is asked only if it has the shortest queue.
        let willing = group.iter().copied().filter(|&id| answer(id) != Some(false));
        let willing: Vec<_> = willing.collect();
        if !willing.iter().all(|&id| is_busy(id)) {
            return Vec::new();
        }
        let pooled = !self.pools[shared.key].is_empty();
        let len = |id: Id| if pooled { 0 } else { self.attachments[id].queue.len() };
        let shortest = willing.iter().map(|&id| len(id)).min();
        let is_shortest = |id: &Id| answer(*id) == Some(true) && Some(len(*id)) == shortest;
        willing.into_iter().filter(is_shortest).collect()
    }

    /// From now on the item is for `id`, if that has the shortest queue: its terms apply.
    pub(super) fn settle_on(&mut self, id: Id, facts: &Facts) -> bool {
        let took_head = self.item.as_ref().is_some_and(|item| item.may_join(id));
        if !took_head && !self.shortest(facts).contains(&id) {
            return false;
        }
        if let Some(item) = &mut self.item {
            item.shared = None;
            item.offer =
                Some(Offer { to: id, turn: facts.turn, asked: true, sent: false, overdue: 0 });
        }
        true
    }

    /// The item may have joined a queue unseen.
    pub(super) fn share_unseen(&self, event: &Event, facts: &Facts, more: &mut Vec<Self>) {
        // One that is caught, by a sink that was not ready when another took an item.
        let caught = self.item.as_ref().and_then(|item| item.offer.as_ref()).map(|offer| offer.to);
        if let Some(id) = caught.filter(|_| self.balance) {
            let may_queue = facts.sinks[id].is_parked() && self.attachments[id].takes_unasked();
            if may_queue || !self.pool_of(id).is_empty() {
                let mut other = self.clone();
                other.join_queue(id);
                more.push(other);
            }
        }
        let Some(shared) = self.shared() else { return };
        let matters = match *event {
            Event::Ready(id, _) => self.shares_item(id),
            Event::Admit(..) | Event::Ask(_, Op::Ready | Op::Send) => false,
            _ => true,
        };
        if !matters {
            return;
        }
        let key = shared.key;
        let pool = !self.pools[key].is_empty();
        if pool || self.over {
            // Into some queue.
            let mut other = self.clone();
            if let Some(item) = other.item.take() {
                other.pools[key].push_back(item.seq);
                more.push(other);
            }
            return;
        }
        let head_sent = self.item.as_ref().and_then(|item| item.head_sent);
        for id in self.shortest(facts).into_iter().chain(head_sent) {
            let attachment = &self.attachments[id];
            let joins = head_sent == Some(id) && !attachment.conflates();
            if attachment.takes_unasked() || joins {
                let mut other = self.clone();
                if let Some(item) = other.item.take() {
                    other.attachments[id].queue.push_back(item.seq);
                    // That may have been its turn.
                    other.loose.push(id);
                    other.accept(id);
                    more.push(other);
                }
            }
        }
    }

    /// All to whom the item could go have refused it.
    pub(super) fn refused_by_all(&mut self, id: Id, seq: u32) -> Result<(), String> {
        let group = self.shared().map(|shared| self.groups[shared.key].clone());
        let (Some(shared), Some(group)) = (self.shared(), group) else {
            return Err("the item is not shared".into());
        };
        let refused = |id: &Id| shared.asked.contains(&(*id, false));
        let first = shared.asked.iter().find(|(id, _)| group.contains(id)).map(|(id, _)| *id);
        if !group.iter().all(refused) || self.item.as_ref().is_none_or(|item| item.seq != seq) {
            return Err(format!("of {group:?} these were asked: {:?}", shared.asked));
        }
        if first != Some(id) && group.first() != Some(&id) {
            return Err(format!("{first:?} was asked first"));
        }
        self.item = None;
        Ok(())
    }

    /// `id` no longer receives. What waits for it goes to the others, if there are any; otherwise an item
    /// that is held goes with it.
    pub(super) fn give_up_share(&mut self, id: Id) {
        let key = usize::from(self.attachments[id].key);
        if !self.balance || !self.groups[key].contains(&id) {
            return;
        }
        self.loose.retain(|&other| other != id);
        if self.groups[key].len() > 1 && self.shared().is_some_and(|it| it.alone == Some(id)) {
            // It may be for this one, or for whoever has joined it.
            self.lost_track = true;
        }
        if self.over && self.shares_item(id) {
            // It goes with one of those that are told the end.
            self.pools[key].extend(self.item.take().map(|item| item.seq));
        }
        if self.groups[key] == [id] {
            if self.shares_item(id) {
                if let Some(item) = self.item.take() {
                    self.attachments[id].queue.push_back(item.seq);
                }
            }
            return;
        }
        if self.over || self.whole_key {
            return;
        }
        let queue = std::mem::take(&mut self.attachments[id].queue);
        if !queue.is_empty() {
            // It counts towards limits, of whom is not known.
            let limited = |id: &Id| self.attachments[*id].limit.is_some();
            self.lost_track |= self.groups[key].iter().any(limited);
            self.pools[key].extend(queue);
        }
    }

    /// Whom the input may wait for.
    pub(super) fn may_block(&self, id: Id, facts: &Facts) -> bool {
        let attachment = &self.attachments[id];
        let full = !attachment.has_room() || !self.pool_of(id).is_empty();
        self.shortest(facts).contains(&id) && attachment.waits() && full
    }

    /// Checks a shared item when the task sleeps.
    pub(super) fn shared_asleep(&self, is_waiting: impl Fn(Id) -> bool) -> Result<(), String> {
        let Some(shared) = self.shared() else { return Ok(()) };
        for &id in &self.groups[shared.key] {
            if shared.admits(id) && !is_waiting(id) {
                return Err(format!("it sleeps, and {id} could take the item"));
            }
        }
        if self.named.is_none() {
            return Err("it sleeps, and waits untold".into());
        }
        Ok(())
    }

    /// Whether something may wait for it.
    pub(super) fn may_wait_shared(&self, id: Id) -> Known {
        if self.shares_item(id) || !self.pool_of(id).is_empty() { Known::Maybe } else { Known::No }
    }
}

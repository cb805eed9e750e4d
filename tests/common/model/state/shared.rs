//! `Demux::balance`: the attachments of a key share its items.
//!
//! The model checks exactly for which attachments `admit` is called, and in which turn; that the
//! first attachment that is ready gets the item; that without one the attachment with the shortest
//! queue gets it, on its terms; and where the items go that wait for an attachment that leaves. The
//! turns are open for attachments that were woken together, were found not ready when their queues
//! drained, or did not admit an item.

use super::super::super::Op;
use super::super::event::{Event, Id, Outcome};
use super::super::facts::{Facts, Known};
use super::State;
use super::item::Offer;

/// An item for one of the attachments that have its key.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct Shared {
    pub(super) key: usize,
    /// The attachments that `admit` was called for, and what it returned.
    pub(super) asked: Vec<(Id, bool)>,
    /// The attachment that leaves. `admit` is called for it now.
    leaver: Option<Id>,
}

impl Shared {
    pub(super) fn new(key: usize) -> Self {
        Self { key, asked: Vec::new(), leaver: None }
    }

    pub(super) fn has_leaver(&self) -> bool {
        self.leaver.is_some()
    }

    fn answer(&self, id: Id) -> Option<bool> {
        self.asked.iter().find(|(of, _)| *of == id).map(|(_, yes)| *yes)
    }

    fn admits(&self, id: Id) -> bool {
        self.answer(id) == Some(true)
    }
}

impl State {
    fn shared(&self) -> Option<&Shared> {
        self.item.as_ref()?.shared.as_ref()
    }

    /// Returns `true` if the item is for one of several attachments, and `id` is one of these.
    pub(super) fn shares_item(&self, id: Id) -> bool {
        self.shared().is_some_and(|shared| self.groups[shared.key].contains(&id))
    }

    /// Returns `true` if the sink of `id` may be polled for the item.
    pub(super) fn shared_wants(&self, id: Id) -> bool {
        let admits = self.shared().is_some_and(|shared| shared.admits(id));
        admits && self.attachments[id].queue.is_empty() && self.shares_item(id)
    }

    /// Handles a call of `admit` for `id`, because it is next in turn, has the shortest queue, or
    /// leaves.
    pub(super) fn admit_shared(
        &mut self,
        id: Id,
        admits: bool,
        facts: &Facts,
    ) -> Result<(), String> {
        let Some(shared) = self.shared() else { return Ok(()) };
        if shared.leaver.is_some() {
            return self.admit_leaver(id, admits);
        }
        let line = &self.lines[shared.key];
        if !line.contains(&id) || shared.answer(id).is_some() {
            return Err(format!("{line:?} have the key, and admit returned {:?}", shared.asked));
        }
        if self.over && !self.item.as_ref().is_some_and(|item| item.after_finish) {
            return Err("Finish was applied, but it does not leave".into());
        }
        self.check_turn(id, facts)?;
        if !admits {
            self.loose.push(id);
        }
        if let Some(shared) = self.item.as_mut().and_then(|item| item.shared.as_mut()) {
            shared.asked.push((id, admits));
        }
        Ok(())
    }

    fn admit_leaver(&mut self, id: Id, admits: bool) -> Result<(), String> {
        let Some(item) = &mut self.item else { return Ok(()) };
        let (seq, shared) = (item.seq, item.shared.as_mut());
        let leaver = shared.and_then(|shared| shared.leaver.take());
        if leaver != Some(id) {
            return Err(format!("admit must first be called for {leaver:?}"));
        }
        self.attachments[id].drained |= self.over;
        if admits {
            self.item = None;
            self.take_along(id, seq);
        } else if self.shared().is_some_and(|shared| self.groups[shared.key].is_empty()) {
            self.item = None;
            self.not_admitted = Some((id, seq));
        }
        Ok(())
    }

    /// Checks that `id` is next in turn, or has the shortest queue.
    fn check_turn(&self, id: Id, facts: &Facts) -> Result<(), String> {
        let Some(shared) = self.shared() else { return Ok(()) };
        let line = &self.lines[shared.key];
        let is_loose = |id: &Id| self.loose.contains(id);
        let is_asked = |id: &Id| shared.answer(*id).is_some();
        let is_empty = |id: &Id| self.attachments[*id].queue.is_empty();
        if !facts.sinks[id].may_be_ready() {
            let shortest = self.shortest();
            if shortest != Some(id) {
                return Err(format!("it is not ready, but {shortest:?} has the shortest queue"));
            }
            return Ok(());
        }
        // An attachment that was not ready is next in turn when it is woken. If there are several,
        // their order is open, as is the order of those that did not admit an item.
        if is_loose(&id) || self.passed.contains(&id) {
            return Ok(());
        }
        let is_next = |other: &Id| {
            let sink = &facts.sinks[*other];
            let woken = !sink.is_parked() || sink.has_heard;
            woken && is_empty(other) && !is_asked(other) && !is_loose(other)
        };
        let woken = self.awaited.iter().find(|&other| line.contains(other) && is_next(other));
        if let Some(woken) = woken {
            return Err(format!("{woken} was woken and is next in turn"));
        }
        let mut before = line.iter().take_while(|other| **other != id);
        match before.find(|other| !facts.sinks[**other].is_parked() && is_next(other)) {
            Some(next) => Err(format!("{next} is next in turn, of {line:?}")),
            None => Ok(()),
        }
    }

    /// Records that the sink of `id` took the head of its queue. The item may take the place of the
    /// head.
    pub(super) fn head_sent(&mut self, id: Id) {
        self.loose.push(id);
        if let Some(item) = &mut self.item {
            item.head_sent = Some(id);
        }
    }

    /// Records that the item was sent to `id`, which is now last in turn.
    pub(super) fn shared_taken(&mut self, id: Id) {
        self.item = None;
        let line = &mut self.lines[usize::from(self.attachments[id].key)];
        line.retain(|&other| other != id);
        line.push(id);
        for open in [&mut self.loose, &mut self.passed, &mut self.awaited] {
            open.retain(|&other| other != id);
        }
    }

    /// Records that `id` was found not ready. `for_item` is whether it was polled for an item that
    /// it shares.
    pub(super) fn passed_over(&mut self, id: Id, for_item: bool) {
        if self.balance && !self.passed.contains(&id) {
            self.passed.push(id);
        }
        if for_item && !self.awaited.contains(&id) {
            self.awaited.push(id);
        }
    }

    /// Returns the first attachment with the shortest queue, of those that have not refused the
    /// item.
    fn shortest(&self) -> Option<Id> {
        let shared = self.shared()?;
        let group = self.groups[shared.key].iter().copied();
        let willing = group.filter(|&id| shared.answer(id) != Some(false));
        willing.min_by_key(|&id| self.attachments[id].queue.len())
    }

    /// Returns the attachment whose terms apply, if none that admits the item is ready.
    fn takes_unready(&self, facts: &Facts) -> Option<Id> {
        let shared = self.shared()?;
        let is_busy =
            |id: Id| facts.sinks[id].is_parked() || !self.attachments[id].queue.is_empty();
        let mut willing = self.groups[shared.key].iter().copied();
        let all_busy = willing.all(|id| shared.answer(id) == Some(false) || is_busy(id));
        self.shortest().filter(|&id| all_busy && shared.admits(id))
    }

    /// Assigns the item to `id`, if `id` has the shortest queue. The terms of `id` apply from now
    /// on.
    pub(super) fn settle_on(&mut self, id: Id, facts: &Facts) -> bool {
        let took_head = self.item.as_ref().is_some_and(|item| item.may_join(id));
        if !took_head && self.takes_unready(facts) != Some(id) {
            return false;
        }
        if let Some(item) = &mut self.item {
            item.shared = None;
            item.offer =
                Some(Offer { to: id, turn: facts.turn, asked: true, sent: false, overdue: 0 });
        }
        true
    }

    /// Adds the states in which the item has joined a queue unseen.
    pub(super) fn share_unseen(&self, event: &Event, facts: &Facts, more: &mut Vec<Self>) {
        // The catch-all gets an item, and its sink was not ready when another sink took an item.
        let caught = self.item.as_ref().and_then(|item| item.offer.as_ref()).map(|offer| offer.to);
        if let Some(id) = caught.filter(|_| self.balance) {
            let may_queue = facts.sinks[id].is_parked() && self.attachments[id].takes_unasked();
            if may_queue {
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
        let head_sent = self.item.as_ref().and_then(|item| item.head_sent);
        let head_sent = head_sent.filter(|&id| shared.admits(id));
        for id in self.takes_unready(facts).into_iter().chain(head_sent) {
            let attachment = &self.attachments[id];
            let joins = head_sent == Some(id) && !attachment.conflates();
            if attachment.takes_unasked() || joins {
                let mut other = self.clone();
                if let Some(item) = other.item.take() {
                    other.attachments[id].queue.push_back(item.seq);
                    // The item may count as its turn.
                    other.loose.push(id);
                    other.accept_queued(id, item.after_finish);
                    more.push(other);
                }
            }
        }
    }

    /// Adds the states that follow once the input is over. The attachments that share an item begin
    /// to leave one after the other, and the first that admits the item takes it along.
    pub(super) fn share_at_the_end(&self, more: &mut Vec<Self>) {
        let Some(shared) = self.shared().filter(|shared| self.over && !shared.has_leaver()) else {
            return;
        };
        for &id in &self.groups[shared.key] {
            let mut other = self.clone();
            other.leave_at_the_end(id);
            more.push(other);
        }
    }

    /// Returns the state in which the item joined the queue of `id` before the sink failed to take
    /// the head.
    pub(super) fn joined_before_failure(&self, id: Id, outcome: Outcome) -> Option<Self> {
        let is_queued = self.attachments.get(id).is_some_and(|it| !it.queue.is_empty());
        if outcome != Outcome::Failed || !self.balance || !is_queued {
            return None;
        }
        let mut other = self.clone();
        let shares = self.shares_item(id) && self.shared().is_some_and(|it| it.admits(id));
        let seq = if shares { other.item.take()?.seq } else { other.take_copy(id)? };
        other.attachments[id].queue.push_back(seq);
        Some(other)
    }

    /// Handles the discard of an item that all possible recipients have refused.
    pub(super) fn refused_by_all(&mut self, id: Id, seq: u32) -> Result<(), String> {
        let group = self.shared().map(|shared| self.groups[shared.key].clone());
        let (Some(shared), Some(group)) = (self.shared(), group) else {
            return Err("the item is not shared".into());
        };
        let refused = |id: &Id| shared.asked.contains(&(*id, false));
        let first = shared.asked.iter().find(|(id, _)| group.contains(id)).map(|(id, _)| *id);
        if !group.iter().all(refused) || self.item.as_ref().is_none_or(|item| item.seq != seq) {
            return Err(format!("of {group:?}, admit was called for {:?}", shared.asked));
        }
        if first != Some(id) && group.first() != Some(&id) && !self.over {
            return Err(format!("admit was first called for {first:?}"));
        }
        self.item = None;
        Ok(())
    }

    /// Records that `id` no longer receives. The items that wait for it go to the others, one item
    /// each in turn. A held item goes with the last attachment, or with the first that begins to
    /// leave because the input is over.
    pub(super) fn give_up_share(&mut self, id: Id, graceful: bool) {
        let key = usize::from(self.attachments[id].key);
        if !self.balance || !self.groups[key].contains(&id) {
            return;
        }
        for open in [&mut self.loose, &mut self.awaited] {
            open.retain(|&other| other != id);
        }
        let others: Vec<_> = self.groups[key].iter().copied().filter(|&it| it != id).collect();
        if self.shares_item(id) && (others.is_empty() || self.over && graceful) {
            self.take_share_along(id, graceful, others.is_empty());
        }
        if others.is_empty() || self.over || self.whole_key {
            return;
        }
        let queue = std::mem::take(&mut self.attachments[id].queue);
        for (seq, &other) in queue.into_iter().zip(others.iter().cycle()) {
            self.attachments[other].queue.push_back(seq);
        }
    }

    fn take_share_along(&mut self, id: Id, graceful: bool, last: bool) {
        let Some(item) = &mut self.item else { return };
        let (seq, Some(shared)) = (item.seq, &mut item.shared) else { return };
        match shared.answer(id) {
            None if graceful => shared.leaver = Some(id),
            Some(true) if graceful => {
                self.item = None;
                self.take_along(id, seq);
            }
            None | Some(true) => {
                self.item = None;
                self.attachments[id].queue.push_back(seq);
            }
            Some(false) if last => {
                self.item = None;
                self.not_admitted = Some((id, seq));
            }
            Some(false) => {}
        }
    }

    /// Returns `true` if the input may wait for `id`.
    pub(super) fn may_block(&self, id: Id, facts: &Facts) -> bool {
        let attachment = &self.attachments[id];
        self.takes_unready(facts) == Some(id) && attachment.waits() && !attachment.has_room()
    }

    /// Checks a shared item when the task sleeps.
    pub(super) fn shared_asleep(&self, is_waiting: impl Fn(Id) -> bool) -> Result<(), String> {
        let Some(shared) = self.shared() else { return Ok(()) };
        for &id in &self.groups[shared.key] {
            if shared.answer(id) != Some(false) && !is_waiting(id) {
                return Err(format!("the task sleeps, but {id} could take the item"));
            }
        }
        if self.named.is_none() {
            return Err("the task sleeps, but blocked was not called".into());
        }
        Ok(())
    }

    /// Returns whether something may wait for `id`.
    pub(super) fn may_wait_shared(&self, id: Id) -> Known {
        if self.shares_item(id) { Known::Maybe } else { Known::No }
    }
}

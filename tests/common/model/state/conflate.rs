//! `Overflow::Conflate`: an item that would wait takes the place of the first item that it
//! supersedes.

use stream_demux::{Discarded, Overflow};

use super::super::event::{Event, Id};
use super::super::facts::{Facts, Known};
use super::{Stage, State};

/// The next step of an item that conflates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Conflation {
    /// `supersedes` is called for the item at this place in the queue.
    Asks(Id, usize),
    /// The item that was superseded is discarded.
    Discards(Id, u32),
    /// No item was superseded, and the oldest one is discarded.
    Overflows(Id),
}

impl State {
    /// Checks that the steps of an item that conflates follow each other without interruption.
    pub(super) fn check_conflation(&self, event: &Event) -> Result<(), String> {
        let Some(conflation) = self.conflation else { return Ok(()) };
        let right = match event {
            Event::Clone(_) => true,
            Event::Supersedes(..) => matches!(conflation, Conflation::Asks(..)),
            Event::Discarded(..) => !matches!(conflation, Conflation::Asks(..)),
            event => event.is_outside() && !matches!(event, Event::Rest { .. }),
        };
        if right { Ok(()) } else { Err(format!("{conflation:?} must come next")) }
    }

    /// Handles a call of `supersedes` for the new item `new` and the item `old`, which waits for
    /// `id`.
    pub(super) fn supersedes(
        &mut self,
        id: Id,
        old: u32,
        new: u32,
        yes: bool,
        facts: &Facts,
    ) -> Result<(), String> {
        self.present(id)?;
        let place = match self.conflation {
            Some(Conflation::Asks(of, place)) if of == id => place,
            Some(conflation) => return Err(format!("{conflation:?} must come next")),
            None => 0,
        };
        if self.attachments[id].stage != Stage::Receiving {
            return self.supersedes_along(id, old, new, yes, place);
        }
        self.settle_on(id, facts);
        let item = self.item.as_ref().filter(|item| item.seq == new && item.is_offered(id));
        let joins = item.ok_or("the item is not offered to it")?.may_join(id);
        let attachment = &self.attachments[id];
        if attachment.overflow != Overflow::Conflate {
            return Err("its policy is not Conflate".into());
        }
        let is_ready = self.is_not_ready(id, facts) == Known::No;
        // After `Finish` the item may be taken along.
        let joins = joins || !self.serves() || self.over && is_ready;
        if self.conflation.is_none() && !joins && is_ready {
            return Err("no policy applies: its sink is not known to be busy".into());
        }
        if attachment.queue.get(place) != Some(&old) {
            return Err(format!("{:?} wait, and place {place} is next", attachment.queue));
        }
        if yes {
            let seq = self.take_copy(id).ok_or("it is owed no copy")?;
            self.attachments[id].queue[place] = seq;
            // The item may count as one that was accepted.
            self.attachments[id].idle.may_restart();
            self.conflation = Some(Conflation::Discards(id, old));
        } else if place + 1 < attachment.queue.len() {
            self.conflation = Some(Conflation::Asks(id, place + 1));
        } else if attachment.has_room() || joins {
            self.conflation = None;
            self.join_queue(id);
        } else {
            self.conflation = Some(Conflation::Overflows(id));
        }
        Ok(())
    }

    /// Lets a leaving attachment take its copy along, beyond its buffer.
    pub(super) fn take_along(&mut self, id: Id, seq: u32) {
        if self.attachments[id].conflates() {
            self.conflation = Some(Conflation::Asks(id, 0));
        }
        self.attachments[id].queue.push_back(seq);
    }

    /// Handles a call of `supersedes` for a copy that a leaving attachment has taken along.
    fn supersedes_along(
        &mut self,
        id: Id,
        old: u32,
        new: u32,
        yes: bool,
        place: usize,
    ) -> Result<(), String> {
        let attachment = &mut self.attachments[id];
        let queue = &mut attachment.queue;
        if attachment.overflow != Overflow::Conflate || queue.back() != Some(&new) {
            return Err("it has taken no such item along".into());
        }
        if queue.get(place) != Some(&old) || place + 1 >= queue.len() {
            return Err(format!("{queue:?} wait, and place {place} is next"));
        }
        self.conflation = if yes {
            queue.pop_back();
            queue[place] = new;
            Some(Conflation::Discards(id, old))
        } else {
            (place + 2 < queue.len()).then_some(Conflation::Asks(id, place + 1))
        };
        Ok(())
    }

    /// Handles the discard of the item that was superseded, or of the oldest one.
    pub(super) fn conflated(&mut self, id: Id, seq: u32, why: Discarded) -> Result<(), String> {
        let conflation = self.conflation.take();
        match (conflation, why) {
            (Some(Conflation::Discards(of, old)), Discarded::Conflated)
                if (of, old) == (id, seq) =>
            {
                Ok(())
            }
            (Some(Conflation::Overflows(of)), Discarded::Overflowed) if of == id => {
                let oldest = self.attachments[id].queue.pop_front();
                self.join_queue(id);
                if oldest == Some(seq) { Ok(()) } else { Err(format!("the oldest is {oldest:?}")) }
            }
            _ => Err(format!("{conflation:?} must come next")),
        }
    }
}

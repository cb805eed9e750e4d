//! One attachment, as a state sees it.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::rc::Rc;

use stream_demux::Overflow;

use super::super::event::{EndReason, Id, Request};
use super::super::facts::Count;
use super::clock::Clock;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Its order was not applied yet.
    Unapplied,
    Receiving,
    /// `told`: it is being closed, or will be as soon as its queue is empty. Otherwise it leaves
    /// because the input is over, and may not have been told yet.
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
pub(super) enum Verdict {
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
pub(super) struct Attachment {
    pub(super) key: u8,
    /// Places in the queue: with `DropNewest` and `DropOldest` at least one.
    pub(super) places: usize,
    pub(super) overflow: Overflow,
    pub(super) limit: Option<u64>,
    pub(super) keep_existing: bool,
    pub(super) catch_all: bool,
    /// The strongest request of the leases that have ended.
    pub(super) request: Request,
    /// A lease has asked it to detach, at a time when none had asked for more.
    pub(super) may_detach: bool,
    pub(super) stage: Stage,
    pub(super) announced: bool,
    pub(super) queue: VecDeque<u32>,
    /// Items accepted, if there is a limit.
    pub(super) accepted: u64,
    pub(super) verdict: Verdict,
    /// When it last yielded: the progress by then.
    pub(super) last_yield: Option<Count>,
    /// How often it yielded in a row; and how often the item was held for that.
    pub(super) yields_in_a_row: u32,
    pub(super) holds_in_a_row: u32,
    /// It was sent items after it began to leave.
    pub(super) drained: bool,
    /// Time-outs.
    pub(super) stall: Clock,
    pub(super) idle: Clock,
}

impl Attachment {
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < self.places
    }

    /// Returns `true` if an item joins the queue as it is.
    pub(super) fn takes_unasked(&self) -> bool {
        self.has_room() && !self.conflates()
    }

    /// Returns `true` if an item may take the place of one that waits.
    pub(super) fn conflates(&self) -> bool {
        self.overflow == Overflow::Conflate && !self.queue.is_empty()
    }

    pub(super) fn has_time_outs(&self) -> bool {
        self.stall.is_set() || self.idle.is_set()
    }

    /// Forgets what no longer matters once it is removed: states that differ in that are the same.
    pub(super) fn forget(&mut self) {
        self.accepted = 0;
        self.verdict = Verdict::Unknown;
        self.last_yield = None;
        (self.yields_in_a_row, self.holds_in_a_row) = (0, 0);
        self.drained = false;
        (self.stall, self.idle) = (Clock::default(), Clock::default());
    }

    pub(super) fn waits(&self) -> bool {
        self.overflow == Overflow::Wait
    }

    pub(super) fn is_present(&self) -> bool {
        matches!(self.stage, Stage::Receiving | Stage::Leaving { .. })
    }

    /// Returns `true` if an ended lease has yet to take effect.
    pub(super) fn is_to_be_ended(&self) -> bool {
        self.is_evicted_by_lease() || self.is_detached_by_lease()
    }

    pub(super) fn is_evicted_by_lease(&self) -> bool {
        self.is_present() && self.request == Request::Evict
    }

    /// Returns `true` if a lease has asked it to detach, and it is not known whether it has.
    pub(super) fn is_detached_by_lease(&self) -> bool {
        self.stage == Stage::Receiving && self.may_detach
    }

    /// Returns `true` if it may have been detached unseen: by a lease, or because it was idle.
    pub(super) fn is_wavering(&self) -> bool {
        self.is_detached_by_lease() || self.stage == Stage::Receiving && self.idle.may_expire()
    }
}

/// All attachments, by the numbers of their sinks. States share those that do not differ, so that a
/// state is copied, and compared with its copy, at a cost that does not depend on the queues.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub(super) struct Attachments(Vec<Rc<Attachment>>);

impl Attachments {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, attachment: Attachment) {
        self.0.push(Rc::new(attachment));
    }

    pub(super) fn get(&self, id: Id) -> Option<&Attachment> {
        self.0.get(id).map(|attachment| &**attachment)
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Attachment> {
        self.0.get_mut(id).map(Rc::make_mut)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attachment> {
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

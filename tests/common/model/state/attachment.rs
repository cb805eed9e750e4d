//! What a state knows about an attachment.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::rc::Rc;

use stream_demux::Overflow;

use super::super::event::{EndReason, Id, Request};
use super::super::facts::Count;
use super::clock::Clock;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// The order to attach it was not applied yet.
    Unapplied,
    Receiving,
    /// If `begun`, it is being closed, or will be as soon as its queue is empty. Otherwise it leaves
    /// because the input is over, and the demux may not have reached it yet.
    Leaving {
        reasons: u8,
        begun: bool,
    },
    /// It is being removed, together with the items that waited for it.
    Removing {
        end: EndReason,
        discards: VecDeque<u32>,
        /// One more item that may be discarded. It is not known whether the attachment had taken
        /// the item along.
        perhaps: Option<u32>,
        dropped: bool,
    },
    Gone,
}

/// The meaning of the last result of `poll_ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verdict {
    /// `poll_ready` was not called yet, or returned `Ready`.
    Unknown,
    /// `poll_ready` returned `Pending`, which was a yield.
    Yielded,
    /// The sink is not ready. With `counted_in`, the `Pending` was a yield that counts as "not
    /// ready", in this turn.
    NotReady { counted_in: Option<u32> },
    /// The sink yielded or is not ready, and nothing has depended on the difference yet. The count
    /// is the progress by then.
    Doubtful(Count),
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attachment {
    pub(super) key: u8,
    /// The number of places in the queue. With `Wait` and `Evict` it may be zero.
    pub(super) places: usize,
    pub(super) overflow: Overflow,
    pub(super) limit: Option<u64>,
    pub(super) keep_existing: bool,
    pub(super) catch_all: bool,
    /// The strongest request of the leases that have ended.
    pub(super) request: Request,
    /// Whether a lease has requested a detach at a time when no lease had requested more.
    pub(super) may_detach: bool,
    pub(super) stage: Stage,
    pub(super) announced: bool,
    pub(super) queue: VecDeque<u32>,
    /// The number of items accepted, if there is a limit.
    pub(super) accepted: u64,
    pub(super) verdict: Verdict,
    /// The progress at the time of the last yield.
    pub(super) last_yield: Option<Count>,
    /// The number of yields in a row.
    pub(super) yields_in_a_row: u32,
    /// The number of times in a row that the item was held for these yields.
    pub(super) holds_in_a_row: u32,
    /// Whether items were sent to it after it began to leave.
    pub(super) drained: bool,
    /// The count of ticks for the stall time-out.
    pub(super) stall: Clock,
    /// The count of ticks for the idle time-out.
    pub(super) idle: Clock,
}

impl Attachment {
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < self.places
    }

    /// Returns `true` if an item joins the queue without being compared with those that wait.
    pub(super) fn takes_unasked(&self) -> bool {
        self.has_room() && !self.conflates()
    }

    /// Returns `true` if an item may take the place of a waiting item.
    pub(super) fn conflates(&self) -> bool {
        self.overflow == Overflow::Conflate && !self.queue.is_empty()
    }

    pub(super) fn has_time_outs(&self) -> bool {
        self.stall.is_set() || self.idle.is_set()
    }

    /// Resets what no longer matters once the attachment is removed. States that differ only in
    /// these fields are then equal.
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

    /// Returns `true` if an ended lease has not yet taken effect.
    pub(super) fn is_to_be_ended(&self) -> bool {
        self.is_evicted_by_lease() || self.is_detached_by_lease()
    }

    pub(super) fn is_evicted_by_lease(&self) -> bool {
        self.is_present() && self.request == Request::Evict
    }

    /// Returns `true` if a lease has requested a detach, and it is not known whether the detach has
    /// taken effect.
    pub(super) fn is_detached_by_lease(&self) -> bool {
        self.stage == Stage::Receiving && self.may_detach
    }

    /// Returns `true` if the attachment may have been detached unseen, by a lease or because it was
    /// idle.
    pub(super) fn is_wavering(&self) -> bool {
        self.is_detached_by_lease() || self.stage == Stage::Receiving && self.idle.may_expire()
    }
}

/// All attachments, indexed by the numbers of their sinks. States share the attachments that do not
/// differ, so the cost of copying a state, or of comparing it with its copy, does not depend on the
/// queues.
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

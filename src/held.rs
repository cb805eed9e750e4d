//! The one item that was read and has not been routed to the end. While there is one, the input is not
//! read.
//!
//! An item is held
//!
//! * because orders came before it: its key was not looked up yet;
//! * because a sink that is not ready has no room, and its policy is to wait: the item is *blocked*, and
//!   [`Hooks::blocked`] names the recipient;
//! * because a sink yielded: it answered `Pending` only to let other tasks run;
//! * because the budget of the turn ended while the members of a group were served.
//!
//! The members of a group that were attached when the item was read are *owed* a copy until they got it,
//! discarded it or were evicted. The last one that is owed a copy gets the item itself.

use core::hash::{BuildHasher, Hash};
use core::task::{Context, Poll};

use futures_sink::Sink;

use crate::hooks::{Discarded, Hooks};
use crate::hub::Hub;
use crate::order::Overflow;
use crate::route::{Place, Unready};

/// An item that is held.
pub(crate) enum Held<V> {
    /// Orders were ready before it: they are applied first.
    Overtaken(V),
    /// It is for this slot alone.
    One { item: V, slot: usize },
    /// It is for those members of a group that are still owed a copy.
    Group(GroupItem<V>),
}

/// An item on its way through a group; the [`Group`](crate::group::Group) knows how far it has come.
pub(crate) struct GroupItem<V> {
    /// There until the last member that is owed a copy takes it.
    item: Option<V>,
    group: usize,
    /// How many members are owed a copy.
    owed: usize,
    /// How many of these were offered it, and wait.
    waiting: usize,
}

/// A sink that yielded when it was polled for the item that is held.
///
/// Under tokio a sink answers `Pending` when its task has used up its cooperative budget, whether or not
/// it has room. No overflow policy may act on that: the item is held, and the sink polled again in the
/// next turn.
pub(crate) struct Yielding {
    slot: usize,
    /// How many operations the demux had done when the sink yielded last; `None` if it was not polled
    /// for this item yet, because its waker had fired since an earlier answer.
    operations: Option<u64>,
    /// For how many turns in a row the item has been held for this.
    turns: u8,
}

/// For how many turns in a row an item is held because its sink yields.
///
/// One turn is enough for a demux that has a task of its own. It may take a few when the budget is spent
/// on others that come first in the turn. A sink that has yielded 16 times in a row wakes itself for
/// reasons of its own, and would hold up all other items for nothing.
const YIELDS: u8 = 16;

/// After how many operations of one turn a `Pending` may be a yield though the sink's waker has not
/// fired.
///
/// Tokio wakes a task that has used up its cooperative budget of 128 only when its thread has nothing
/// else to do, or after 61 polls of other tasks ([`coop`] in its sources). So the answer looks like that of a full
/// sink. But the budget of a task that has just been polled is fresh: an operation of ours costs
/// one of it, seldom two, and before the 64th an answer can be believed. A sink that answered later, and
/// whose policy would act on it, is polled once more in the next turn. Policies that wait need not know.
///
/// [`coop`]: https://docs.rs/tokio/latest/tokio/task/coop/index.html
const BELIEVED: u64 = 64;

/// Why members of a group are not served any further without more ado.
enum Served<A, E> {
    /// All were offered the item, or the share is spent.
    Enough,
    /// A member is known to be busy, or limited.
    Unusual(usize),
    /// The hooks did not admit the item.
    NotAdmitted(usize),
    /// A sink has just answered that it is not ready, or failed.
    Unready(usize, A),
    /// A sink failed while it took its copy.
    Failed(usize, E),
}

/// How a slot stops receiving.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What waits for it is still sent.
    Graceful,
    /// It failed, or overflowed: what waits for it is discarded.
    Broken,
    /// It is gone: what waits for it alone is discarded.
    Evicted,
}

impl<V> GroupItem<V> {
    /// The copy of one member, which it is owed no longer.
    #[inline]
    fn take_copy(&mut self, clone: fn(&V) -> V, copies: &mut u64) -> V {
        self.owed -= 1;
        if self.owed == 0 {
            self.item.take().expect("the last one gets the item itself")
        } else {
            *copies += 1;
            clone(self.item.as_ref().expect("the last one gets the item itself"))
        }
    }
}

impl<K, S, V, H, B> Hub<K, S, V, H, B> {
    /// Holds an item that orders have overtaken.
    #[cold]
    pub(crate) fn overtake(&mut self, item: V) {
        self.hold(Held::Overtaken(item));
    }

    /// Takes the item that orders have overtaken, if there is one.
    pub(crate) fn take_overtaken(&mut self) -> Option<V> {
        let held = self.held.take_if(|held| matches!(held, Held::Overtaken(_)))?;
        self.totals.queued -= 1;
        match held {
            Held::Overtaken(item) => Some(item),
            Held::One { .. } | Held::Group(_) => None,
        }
    }

    fn hold(&mut self, held: Held<V>) {
        self.totals.queued += 1;
        self.held = Some(held);
    }

    /// Takes what is held, to be routed or held anew.
    fn take_held(&mut self) -> Option<Held<V>> {
        self.totals.queued -= u64::from(self.held.is_some());
        self.held.take()
    }

    /// Returns `true` if the item that is held can be routed further before any sink is woken.
    pub(crate) fn can_release(&self) -> bool {
        match &self.held {
            None => false,
            Some(Held::Overtaken(_)) => true,
            Some(_) if self.told.is_some() || self.yielding.is_some() => false,
            Some(Held::One { slot, .. }) => {
                let tenant = &self.table[*slot];
                !tenant.is_parked() || tenant.has_room()
            }
            Some(Held::Group(held)) => held.owed > held.waiting,
        }
    }

    fn clone_item(&self) -> fn(&V) -> V {
        self.clone_item.expect("a key has several sinks only after `multicast`")
    }
}

/// Routing what is held.
impl<K, S, V, H, B> Hub<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Routes an item that was admitted to its one recipient, or holds it.
    pub(crate) fn put(&mut self, slot: usize, item: V) {
        let place = self.find_place(slot);
        self.put_in_place(slot, item, place);
    }

    /// The same when it is known how the sink answered.
    pub(crate) fn put_in_place(&mut self, slot: usize, item: V, place: Place<S::Error>) {
        match place {
            Place::None(unready) if self.is_to_wait(slot, unready) => {
                self.hold(Held::One { item, slot });
                if self.yielding.is_none() {
                    self.block(slot);
                }
            }
            place => {
                self.yielding = None;
                self.give(slot, item, place);
                self.unblock();
            }
        }
    }

    /// Offers an item to the members of a group, as far as `share` goes: one for each but the first,
    /// which the item itself has paid for.
    pub(crate) fn put_to_group(&mut self, group: usize, item: V, share: &mut usize) {
        let members = self.table.group_mut(group);
        members.start();
        let held = GroupItem { item: Some(item), group, owed: members.len(), waiting: 0 };
        *share += 1;
        self.serve_group(held, share);
        self.name_blocked();
    }

    /// Routes the item that is held further, as far as that is possible now.
    pub(crate) fn release(&mut self, share: &mut usize) {
        if self.can_release() {
            match self.take_held() {
                Some(Held::One { item, slot }) => self.put(slot, item),
                Some(Held::Group(held)) => self.serve_group(held, share),
                Some(Held::Overtaken(_)) | None => unreachable!("its key is looked up first"),
            }
        }
        self.name_blocked();
    }

    /// Polls the sink that yielded in an earlier turn again.
    ///
    /// This comes early in a turn: what made the sink yield may be that much was done in the turn
    /// before it was polled.
    #[inline]
    pub(crate) fn retry_yielded(&mut self) {
        // When the input is over, the sink takes the item along as it leaves.
        if let (Some(Yielding { slot, .. }), None) = (&self.yielding, self.told) {
            self.retry(*slot);
        }
    }

    #[cold]
    fn retry(&mut self, slot: usize) {
        if self.ready.take_fired(slot) {
            self.table[slot].woken();
        }
        self.retried = Some(slot);
        match self.take_held() {
            Some(Held::One { item, slot }) => self.put(slot, item),
            Some(Held::Group(mut held)) => {
                held.waiting -= 1;
                self.table[slot].set_waiting(false);
                let place = self.find_place(slot);
                self.serve_member(slot, &mut held, place);
                self.hold_rest(held);
            }
            Some(Held::Overtaken(_)) | None => unreachable!("the sink was polled for an item"),
        }
    }

    /// Offers the item to the next members of its group, until all were offered it, a sink yields or
    /// `share` is spent. Holds it if a member is still owed a copy then.
    fn serve_group(&mut self, mut held: GroupItem<V>, share: &mut usize) {
        loop {
            let (slot, place) = match self.serve_ready(&mut held, share) {
                Served::Enough => break,
                Served::Failed(slot, error) => {
                    self.lost(slot, error);
                    continue;
                }
                Served::Unready(slot, answer) => (slot, self.find_place_unready(slot, answer)),
                Served::Unusual(slot) => {
                    let recipient = self.table[slot].recipient();
                    if held.item.as_ref().is_some_and(|item| !self.hooks.admit(recipient, item)) {
                        self.refuse(slot, &mut held);
                        continue;
                    }
                    (slot, self.find_place(slot))
                }
                Served::NotAdmitted(slot) => {
                    self.refuse(slot, &mut held);
                    continue;
                }
            };
            if !self.serve_member(slot, &mut held, place) {
                break;
            }
        }
        self.hold_rest(held);
    }

    /// Gives the next members of a group their copies, as long as nothing is in the way.
    #[inline(never)]
    fn serve_ready(
        &mut self,
        held: &mut GroupItem<V>,
        share: &mut usize,
    ) -> Served<Poll<Result<(), S::Error>>, S::Error> {
        let clone = self.clone_item();
        let Self { table, hooks, ready, flushes, totals, .. } = self;
        // The group is there for as long as a member is owed a copy.
        if held.owed == held.waiting {
            return Served::Enough;
        }
        let (slots, group) = table.slots_and_group(held.group);
        while *share > 0 {
            let Some(slot) = group.next() else { break };
            *share -= 1;
            let tenant = &mut slots[slot];
            if !tenant.is_plain_in_group() {
                return Served::Unusual(slot);
            }
            let Some(item) = &held.item else { break };
            if !hooks.admit(tenant.recipient(), item) {
                return Served::NotAdmitted(slot);
            }
            let mut cx = Context::from_waker(ready.waker(slot));
            let answer = tenant.poll_ready(&mut cx);
            if !matches!(answer, Poll::Ready(Ok(()))) {
                return Served::Unready(slot, answer);
            }
            let copy = held.take_copy(clone, &mut totals.copies);
            if let Err(error) = tenant.start_send(copy) {
                return Served::Failed(slot, error);
            }
            let new = tenant.owe_flush();
            totals.delivered += 1;
            flushes.note::<false>(slot, totals.received, new);
        }
        Served::Enough
    }

    /// Gives a member that was offered the item its copy, or lets it wait. Returns `false` if the next
    /// members are not to be offered the item in this turn.
    #[cold]
    fn serve_member(
        &mut self,
        slot: usize,
        held: &mut GroupItem<V>,
        place: Place<S::Error>,
    ) -> bool {
        match place {
            Place::None(unready) if self.is_to_wait(slot, unready) => {
                held.waiting += 1;
                self.table[slot].set_waiting(true);
                self.table.group_mut(held.group).wait();
                self.yielding.is_none()
            }
            place => {
                self.yielding = None;
                let clone = self.clone_item();
                let copy = held.take_copy(clone, &mut self.totals.copies);
                self.give(slot, copy, place);
                true
            }
        }
    }

    /// A member is not to have the item.
    #[cold]
    fn refuse(&mut self, slot: usize, held: &mut GroupItem<V>) {
        let clone = self.clone_item();
        let copy = held.take_copy(clone, &mut self.totals.copies);
        self.discard(slot, copy, Discarded::NotAdmitted);
    }

    fn hold_rest(&mut self, held: GroupItem<V>) {
        if held.owed > 0 {
            self.hold(Held::Group(held));
        }
    }

    /// Gives a member that waits for its copy the copy, if its sink is ready by now.
    pub(crate) fn serve_waiting(&mut self, slot: usize) {
        if self.yielding.as_ref().is_some_and(|yielding| yielding.slot == slot) {
            return; // `retry_yielded` does it
        }
        let place = self.find_place(slot);
        if matches!(place, Place::None(_)) {
            return;
        }
        if let Some(copy) = self.take_copy(slot, Exit::Graceful) {
            self.give(slot, copy, place);
            if self.blocked_on == Some(slot) {
                self.unblock();
            }
        }
    }

    /// Takes the copy of the held item that `slot` is owed, if it is owed one, because it stops
    /// receiving. To be called before the slot is unlinked.
    ///
    /// One that leaves gracefully before it was offered the item is asked for admission now. One that
    /// is evicted takes no copy, unless it is the last that is owed one.
    pub(crate) fn take_owed(&mut self, slot: usize, exit: Exit) -> Option<V> {
        if self.blocked_on == Some(slot) {
            self.unblock();
        }
        if self.yielding.as_ref().is_some_and(|yielding| yielding.slot == slot) {
            self.yielding = None;
        }
        self.take_copy(slot, exit)
    }

    fn take_copy(&mut self, slot: usize, exit: Exit) -> Option<V> {
        let held = match &mut self.held {
            Some(Held::One { slot: one, .. }) if *one == slot => {
                let Some(Held::One { item, .. }) = self.take_held() else { return None };
                return Some(item);
            }
            Some(Held::Group(held)) => held,
            _ => return None,
        };
        let tenant = &mut self.table[slot];
        let (group, position) = tenant.group().filter(|(group, _)| *group == held.group)?;
        let was_waiting = tenant.is_waiting();
        if was_waiting {
            held.waiting -= 1;
            tenant.set_waiting(false);
        } else if !self.table.group(group).is_to_be_offered(position) {
            return None;
        }
        if exit == Exit::Evicted && held.owed > 1 {
            held.owed -= 1;
            return None;
        }
        let asks = exit == Exit::Graceful && !was_waiting;
        let admitted = match &held.item {
            Some(item) if asks => self.hooks.admit(self.table[slot].recipient(), item),
            _ => true,
        };
        let clone = self.clone_item.expect("a key has several sinks only after `multicast`");
        let copy = held.take_copy(clone, &mut self.totals.copies);
        if held.owed == 0 {
            self.take_held();
        }
        if admitted {
            return Some(copy);
        }
        self.discard(slot, copy, Discarded::NotAdmitted);
        None
    }
}

/// Waiting, and what the hooks hear of it.
impl<K, S, V, H, B> Hub<K, S, V, H, B>
where
    K: Hash + Eq,
    S: Sink<V> + Unpin,
    H: Hooks<K, V, S::Error>,
    B: BuildHasher,
{
    /// Returns `true` if an item that found no place at `slot` is to be held: because the sink yielded,
    /// and then [`Yielding`] says so, or because its policy is to wait.
    fn is_to_wait(&mut self, slot: usize, unready: Unready) -> bool {
        if unready != Unready::Full && self.hold_for_yield(slot, unready) {
            return true;
        }
        self.yielding = None;
        self.table[slot].overflow() == Overflow::Wait
    }

    /// Returns `true` if an item is to be held because the sink of `slot` yielded; `false` if the sink
    /// has yielded before and is taken to be full: nothing has happened since then that may have used
    /// up what it is waiting for, or it has yielded too often.
    fn hold_for_yield(&mut self, slot: usize, unready: Unready) -> bool {
        let operations = (unready == Unready::Yielded).then(|| self.operations());
        let before = self.yielding.as_ref().filter(|yielding| yielding.slot == slot);
        let turns = before.map_or(0, |yielding| yielding.turns);
        let same = before.is_some_and(|yielding| yielding.operations == operations);
        if turns == YIELDS || same {
            return false;
        }
        self.yielding = Some(Yielding { slot, operations, turns: turns + 1 });
        true
    }

    /// The sink of `slot` answered `Pending` when it was polled for an item.
    pub(crate) fn note_pending(&mut self, slot: usize) {
        let late = self.operations() - self.operations_before >= BELIEVED;
        let tenant = &mut self.table[slot];
        tenant.park();
        if late && tenant.overflow() != Overflow::Wait && !self.ready.has_fired(slot) {
            self.ready.fire(slot);
        }
    }

    /// The input starts to wait for `slot`, or goes on waiting for it.
    fn block(&mut self, slot: usize) {
        if self.blocked_on != Some(slot) {
            self.unblock();
            self.blocked_on = Some(slot);
            self.hooks.blocked(self.table[slot].recipient());
        }
    }

    /// The input no longer waits for the sink that it waited for.
    pub(crate) fn unblock(&mut self) {
        if let Some(slot) = self.blocked_on.take() {
            self.hooks.unblocked(self.table[slot].recipient());
        }
    }

    /// Tells the hooks of whom the input waits for, once every member of the group was offered the item.
    #[inline]
    pub(crate) fn name_blocked(&mut self) {
        if matches!(self.held, Some(Held::Group(_))) {
            self.name_blocked_of_group();
        }
    }

    fn name_blocked_of_group(&mut self) {
        if self.blocked_on.is_some() || self.yielding.is_some() || self.told.is_some() {
            return;
        }
        let Some(Held::Group(held)) = &self.held else { return };
        if held.owed == held.waiting {
            if let Some(slot) = self.table.first_waiting(held.group) {
                self.block(slot);
            }
        }
    }
}

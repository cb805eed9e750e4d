//! An amount that holders share: each may hold half as much as it leaves free.
//!
//! This is the rule of dynamic thresholds, by which switches share the memory of their queues. A
//! single holder can have a third. Greedy holders leave two thirds each of what they find if they
//! come one after another, and `2 / (n + 2)` of all if `n` of them come together. With half instead
//! of all of what is left free, seven that come one after another leave 6 % instead of 1 %; with a
//! quarter, the longest frame would not fit into the share of a second connection.
//!
//! So many holders leave next to nothing, and it stays so if they keep what they have. An equal part is
//! what each would have if those that hold something, and one more, held as much as each other. If a
//! holder would hold no more than a third of it and does not fit, less than an equal part is free, so
//! another one holds more than that: [`Shares::long`] names it if it has held as much for a while.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// What must be free so that a holder of `held` may take `more`, and then holds at most half of
/// what it leaves free.
fn needed(held: usize, more: usize) -> usize {
    held.saturating_add(more).saturating_mul(2).saturating_add(more)
}

#[derive(Debug)]
pub(crate) struct Shares(Mutex<State>);

#[derive(Debug)]
struct State {
    total: usize,
    free: usize,
    /// How many hold something.
    holding: usize,
    /// Those that hold something, or wait for it.
    holders: HashMap<u64, Holder>,
    waiters: HashMap<u64, Waiter>,
    /// What each waiter needs, and its ticket. All of them need more than is free.
    queue: BTreeSet<(usize, u64)>,
    tickets: u64,
    /// Those that take nothing any more. What they held is free already.
    written_off: HashSet<u64>,
}

#[derive(Debug, Default)]
struct Holder {
    held: usize,
    /// What is held, by the time since when.
    since: BTreeMap<u64, usize>,
    /// The tickets of its waiters.
    waiting: Vec<u64>,
}

#[derive(Debug)]
struct Waiter {
    holder: u64,
    more: usize,
    since: u64,
    granted: oneshot::Sender<()>,
}

impl State {
    /// Returns what a holder holds.
    fn held(&self, id: u64) -> usize {
        self.holders.get(&id).map_or(0, |holder| holder.held)
    }

    /// Returns what each would have if one more held something, and all as much.
    fn equal_part(&self) -> usize {
        self.total / (self.holding + 1)
    }

    /// Takes free bytes for a holder.
    fn take(&mut self, id: u64, bytes: usize, since: u64) {
        self.free -= bytes;
        *self.holders.entry(id).or_default().since.entry(since).or_default() += bytes;
        self.set_held(id, |held| held + bytes);
    }

    /// Gives back what a holder has taken at that time.
    fn give_back(&mut self, id: u64, bytes: usize, since: u64) {
        self.free += bytes;
        let holder = self.holders.entry(id).or_default();
        if let Entry::Occupied(mut taken) = holder.since.entry(since) {
            *taken.get_mut() -= bytes;
            if *taken.get() == 0 {
                taken.remove();
            }
        }
        self.set_held(id, |held| held - bytes);
    }

    /// Sets what a holder holds. Its waiters need more or less then.
    fn set_held(&mut self, id: u64, change: impl FnOnce(usize) -> usize) {
        let holder = self.holders.entry(id).or_default();
        let before = holder.held;
        let after = change(before);
        holder.held = after;
        self.holding += usize::from(before == 0 && after > 0);
        self.holding -= usize::from(before > 0 && after == 0);
        for ticket in &holder.waiting {
            let more = self.waiters[ticket].more;
            self.queue.remove(&(needed(before, more), *ticket));
            self.queue.insert((needed(after, more), *ticket));
        }
        if after == 0 && holder.waiting.is_empty() {
            self.holders.remove(&id);
        }
    }

    fn try_take(&mut self, id: u64, more: usize, since: u64) -> bool {
        let needed = needed(self.held(id), more);
        let fits = needed <= self.free && !self.written_off.contains(&id);
        if fits {
            self.take(id, more, since);
        }
        fits
    }

    fn enqueue(&mut self, id: u64, waiter: Waiter) -> u64 {
        let ticket = self.tickets;
        self.tickets += 1;
        let holder = self.holders.entry(id).or_default();
        holder.waiting.push(ticket);
        self.queue.insert((needed(holder.held, waiter.more), ticket));
        self.waiters.insert(ticket, waiter);
        ticket
    }

    /// Returns `None` if the waiter has been granted its room.
    fn dequeue(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        if let Some(holder) = self.holders.get_mut(&waiter.holder) {
            holder.waiting.retain(|other| *other != ticket);
            self.queue.remove(&(needed(holder.held, waiter.more), ticket));
        }
        self.set_held(waiter.holder, |held| held); // forgets a holder of nothing
        Some(waiter)
    }

    fn release(&mut self, id: u64, bytes: usize, since: u64) -> Vec<oneshot::Sender<()>> {
        if self.written_off.contains(&id) {
            return Vec::new();
        }
        self.give_back(id, bytes, since);
        self.grant()
    }

    /// Takes what fits now for waiters.
    fn grant(&mut self) -> Vec<oneshot::Sender<()>> {
        let mut granted = Vec::new();
        while let Some(&(_, ticket)) = self.queue.first().filter(|(need, _)| *need <= self.free) {
            let Some(waiter) = self.dequeue(ticket) else { break };
            self.take(waiter.holder, waiter.more, waiter.since);
            granted.push(waiter.granted);
        }
        granted
    }
}

impl Shares {
    pub(crate) fn new(total: usize) -> Self {
        Self(Mutex::new(State {
            total,
            free: total,
            holding: 0,
            holders: HashMap::new(),
            waiters: HashMap::new(),
            queue: BTreeSet::new(),
            tickets: 0,
            written_off: HashSet::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `more` for a holder if it fits into its share. It counts as held since that time.
    pub(crate) fn try_take(&self, id: u64, more: usize, since: u64) -> bool {
        self.lock().try_take(id, more, since)
    }

    /// Waits until `more` fits into the share of a holder, and takes it. What needs least is served
    /// first. If the future is dropped, nothing is taken.
    pub(crate) async fn take(&self, id: u64, more: usize, since: u64) {
        let (granted, receiver) = oneshot::channel();
        let ticket = {
            let mut state = self.lock();
            if state.try_take(id, more, since) {
                return;
            }
            state.enqueue(id, Waiter { holder: id, more, since, granted })
        };
        let mut wait = Wait { shares: self, id, more, since, ticket, is_over: false };
        wait.is_over = receiver.await.is_ok();
    }

    /// Returns `true` if `total` is free and no frame waits.
    #[cfg(test)]
    pub(crate) fn is_unused(&self, total: usize) -> bool {
        let state = self.lock();
        state.free == total
            && state.holders.is_empty()
            && state.waiters.is_empty()
            && state.queue.is_empty()
            && state.written_off.is_empty()
            && state.holding == 0
    }

    /// Returns those that hold more than this one would with `more`, the greediest first.
    pub(crate) fn greedier(&self, id: u64, more: usize) -> Vec<u64> {
        let state = self.lock();
        let least = state.held(id) + more;
        let greedier = state.holders.iter().filter(|(_, holder)| holder.held > least);
        let mut greedier = greedier.map(|(id, holder)| (holder.held, *id)).collect::<Vec<_>>();
        drop(state);
        greedier.sort_unstable_by(|one, other| other.cmp(one));
        greedier.into_iter().map(|(_, id)| id).collect()
    }

    /// If this one would hold no more than an equal part with `more`, returns the greediest of those that
    /// have held more than that since before this time.
    pub(crate) fn long(&self, id: u64, more: usize, before: u64) -> Option<u64> {
        let state = self.lock();
        let part = state.equal_part();
        if state.held(id) + more > part {
            return None;
        }
        let has_held =
            |holder: &Holder| holder.since.range(..before).map(|(_, bytes)| bytes).sum::<usize>();
        // This one holds less.
        let long = state
            .holders
            .iter()
            .filter(|(_, holder)| holder.held > part && has_held(holder) > part);
        long.max_by_key(|(_, holder)| holder.held).map(|(id, _)| *id)
    }

    /// Frees what a holder has taken in advance: it is about to give it back. It gets nothing more,
    /// and does not wait any more.
    pub(crate) fn write_off(&self, id: u64) {
        let mut state = self.lock();
        let waiting = state.holders.get(&id).map_or(Vec::new(), |holder| holder.waiting.clone());
        let dropped = waiting.into_iter().map(|ticket| state.dequeue(ticket)).collect::<Vec<_>>();
        if let Some(holder) = state.holders.remove(&id) {
            state.free += holder.held;
            state.holding -= usize::from(holder.held > 0);
        }
        state.written_off.insert(id);
        let granted = state.grant();
        drop(state);
        drop(dropped); // wakes them
        send(granted);
    }

    /// Forgets a holder that has given everything back.
    pub(crate) fn forget(&self, id: u64) {
        self.lock().written_off.remove(&id);
    }

    /// Gives back what a holder has taken, and grants it to waiters.
    pub(crate) fn release(&self, id: u64, bytes: usize, since: u64) {
        if bytes == 0 {
            return;
        }
        let granted = self.lock().release(id, bytes, since);
        send(granted);
    }
}

fn send(granted: Vec<oneshot::Sender<()>>) {
    for waiter in granted {
        // A waiter that has just been dropped gives its room back itself.
        let _ = waiter.send(());
    }
}

/// A place in the queue.
struct Wait<'a> {
    shares: &'a Shares,
    id: u64,
    more: usize,
    since: u64,
    ticket: u64,
    is_over: bool,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let is_granted = self.shares.lock().dequeue(self.ticket).is_none();
        if is_granted {
            self.shares.release(self.id, self.more, self.since);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;

    use super::*;

    #[test]
    fn greedy_holders_leave_a_share_to_the_next_one() {
        const ALL: usize = 1 << 20;
        for greedy in [1_u32, 2, 7, 30] {
            let mut rest = ALL;
            for _ in 0..greedy {
                rest = rest * 2 / 3;
            }
            let together = ALL * 2 / (greedy as usize + 2);
            for (at_once, least) in [(usize::MAX, rest), (1, together)] {
                let shares = Shares::new(ALL);
                let mut taken = vec![0; greedy as usize];
                for _ in 0..ALL / 16 {
                    for (id, taken) in (0..).zip(&mut taken) {
                        let mut steps = 0;
                        while steps < at_once && shares.try_take(id, 8, 0) {
                            *taken += 8;
                            steps += 1;
                        }
                    }
                }
                let left = shares.lock().free;
                assert!(left >= least, "{greedy} leave {left}");
                assert!(left < least + 24 * 31, "{greedy} leave {left}");
                for (id, taken) in (0..).zip(taken) {
                    shares.release(id, taken, 0);
                }
                assert!(shares.is_unused(ALL));
            }
        }
    }

    #[test]
    fn what_needs_least_is_granted_first() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30, 0));
        let mut large = pin!(shares.take(2, 33, 0));
        let mut small = pin!(shares.take(3, 25, 0));
        assert!((&mut large).now_or_never().is_none());
        assert!((&mut small).now_or_never().is_none());
        shares.release(1, 10, 0);
        assert!((&mut small).now_or_never().is_some());
        assert!((&mut large).now_or_never().is_none());
        shares.release(3, 25, 0);
        assert!((&mut large).now_or_never().is_none(), "80 are free, and it needs 99");
        shares.release(1, 20, 0);
        assert!((&mut large).now_or_never().is_some());
        shares.release(2, 33, 0);
        assert!(shares.is_unused(100));
    }

    #[test]
    fn a_waiter_needs_less_when_its_holder_gives_back() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30, 0));
        let mut more = pin!(shares.take(1, 20, 0));
        assert!((&mut more).now_or_never().is_none());
        shares.release(1, 20, 0);
        assert!((&mut more).now_or_never().is_some());
        shares.release(1, 30, 0);
        assert!(shares.is_unused(100));
    }

    #[test]
    fn a_dropped_waiter_takes_nothing() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30, 0));
        {
            let mut waits = pin!(shares.take(2, 33, 0));
            let mut granted = pin!(shares.take(3, 25, 0));
            assert!((&mut waits).now_or_never().is_none());
            assert!((&mut granted).now_or_never().is_none());
            shares.release(1, 30, 0);
        }
        assert!(shares.is_unused(100));
    }

    #[test]
    fn one_that_has_held_more_than_an_equal_part_for_long_is_in_the_way_of_one_that_needs_less() {
        let shares = Shares::new(100);
        for (id, bytes, since) in [(1, 20, 1), (1, 10, 5), (2, 22, 3), (3, 4, 1)] {
            assert!(shares.try_take(id, bytes, since));
        }
        // An equal part of four is 25.
        assert_eq!(shares.long(4, 25, 2), None, "the first has held only 20 for as long");
        assert_eq!(shares.long(4, 25, 6), Some(1));
        assert_eq!(shares.long(4, 26, 6), None, "it would hold more than an equal part");
        assert_eq!(shares.long(3, 22, 6), None, "it has something already");
        assert_eq!(shares.long(3, 21, 6), Some(1));
        shares.release(1, 10, 5);
        assert_eq!(shares.long(4, 25, 6), None, "none has more than an equal part");
        shares.release(3, 4, 1);
        shares.release(2, 22, 3);
        assert_eq!(shares.long(4, 25, 6), None, "an equal part of two is 50");
        shares.release(1, 20, 1);
        assert!(shares.is_unused(100));
    }

    /// One that would hold a third of an equal part has room, or another holds more than an equal part.
    #[test]
    fn a_third_of_an_equal_part_is_free_or_held_by_one_that_has_more() {
        for greedy in 1..50 {
            let shares = Shares::new(1 << 20);
            let mut taken = 0;
            for id in 0..greedy {
                while shares.try_take(id, 64, 0) {
                    taken += 64;
                }
            }
            let part = shares.lock().equal_part();
            let fits = shares.try_take(greedy, part / 3, 0);
            assert!(fits || shares.long(greedy, part / 3, 1).is_some(), "{greedy}: {taken}");
        }
    }

    #[test]
    fn what_is_written_off_is_free_once() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30, 0));
        assert!(shares.try_take(2, 20, 0));
        assert!(!shares.try_take(3, 18, 0));
        assert_eq!(shares.greedier(3, 18), [1, 2]);
        shares.write_off(1);
        assert!(shares.try_take(3, 18, 0));
        assert!(!shares.try_take(1, 1, 0));
        shares.release(1, 30, 0);
        shares.forget(1);
        shares.release(2, 20, 0);
        shares.release(3, 18, 0);
        assert!(shares.is_unused(100));
    }

    #[test]
    fn what_is_written_off_is_granted_to_those_that_wait() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30, 0));
        let mut more = pin!(shares.take(1, 10, 0));
        let mut other = pin!(shares.take(2, 25, 0));
        assert!((&mut more).now_or_never().is_none());
        assert!((&mut other).now_or_never().is_none());
        shares.write_off(1);
        assert!((&mut other).now_or_never().is_some());
        assert!((&mut more).now_or_never().is_some(), "it waits without end");
        shares.release(1, 40, 0);
        shares.forget(1);
        shares.release(2, 25, 0);
        assert!(shares.is_unused(100));
    }
}

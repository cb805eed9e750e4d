//! An amount that holders share: each may hold half as much as it leaves free.
//!
//! This is the rule of dynamic thresholds, by which switches share the memory of their queues. A
//! single holder can have a third. Greedy holders leave two thirds each of what they find if they
//! come one after another, and `2 / (n + 2)` of all if `n` of them come together. With half instead
//! of all of what is left free, seven that come one after another leave 6 % instead of 1 %; with a
//! quarter, the longest frame would not fit into the share of a second connection.

use std::collections::{BTreeSet, HashMap, HashSet};
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
    free: usize,
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
    /// The tickets of its waiters.
    waiting: Vec<u64>,
}

#[derive(Debug)]
struct Waiter {
    holder: u64,
    more: usize,
    granted: oneshot::Sender<()>,
}

impl State {
    /// Sets what a holder holds. Its waiters need more or less then.
    fn set_held(&mut self, id: u64, change: impl FnOnce(usize) -> usize) {
        let holder = self.holders.entry(id).or_default();
        let before = holder.held;
        let after = change(before);
        holder.held = after;
        for ticket in &holder.waiting {
            let more = self.waiters[ticket].more;
            self.queue.remove(&(needed(before, more), *ticket));
            self.queue.insert((needed(after, more), *ticket));
        }
        if after == 0 && holder.waiting.is_empty() {
            self.holders.remove(&id);
        }
    }

    fn try_take(&mut self, id: u64, more: usize) -> bool {
        let held = self.holders.get(&id).map_or(0, |holder| holder.held);
        let fits = needed(held, more) <= self.free && !self.written_off.contains(&id);
        if fits {
            self.free -= more;
            self.set_held(id, |held| held + more);
        }
        fits
    }

    fn enqueue(&mut self, id: u64, more: usize, granted: oneshot::Sender<()>) -> u64 {
        let ticket = self.tickets;
        self.tickets += 1;
        let holder = self.holders.entry(id).or_default();
        holder.waiting.push(ticket);
        self.queue.insert((needed(holder.held, more), ticket));
        self.waiters.insert(ticket, Waiter { holder: id, more, granted });
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

    fn release(&mut self, id: u64, bytes: usize) -> Vec<oneshot::Sender<()>> {
        if self.written_off.contains(&id) {
            return Vec::new();
        }
        self.free += bytes;
        self.set_held(id, |held| held - bytes);
        self.grant()
    }

    /// Takes what fits now for waiters.
    fn grant(&mut self) -> Vec<oneshot::Sender<()>> {
        let mut granted = Vec::new();
        while let Some(&(_, ticket)) = self.queue.first().filter(|(need, _)| *need <= self.free) {
            let Some(waiter) = self.dequeue(ticket) else { break };
            self.free -= waiter.more;
            self.set_held(waiter.holder, |held| held + waiter.more);
            granted.push(waiter.granted);
        }
        granted
    }
}

impl Shares {
    pub(crate) fn new(free: usize) -> Self {
        Self(Mutex::new(State {
            free,
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

    /// Takes `more` for a holder if it fits into its share.
    pub(crate) fn try_take(&self, id: u64, more: usize) -> bool {
        self.lock().try_take(id, more)
    }

    /// Waits until `more` fits into the share of a holder, and takes it. What needs least is served
    /// first. If the future is dropped, nothing is taken.
    pub(crate) async fn take(&self, id: u64, more: usize) {
        let (granted, receiver) = oneshot::channel();
        let ticket = {
            let mut state = self.lock();
            if state.try_take(id, more) {
                return;
            }
            state.enqueue(id, more, granted)
        };
        let mut wait = Wait { shares: self, id, more, ticket, is_over: false };
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
    }

    /// Returns those that hold more than this one would with `more`, the greediest first.
    pub(crate) fn greedier(&self, id: u64, more: usize) -> Vec<u64> {
        let state = self.lock();
        let least = state.holders.get(&id).map_or(0, |holder| holder.held) + more;
        let greedier = state.holders.iter().filter(|(_, holder)| holder.held > least);
        let mut greedier = greedier.map(|(id, holder)| (holder.held, *id)).collect::<Vec<_>>();
        drop(state);
        greedier.sort_unstable_by(|one, other| other.cmp(one));
        greedier.into_iter().map(|(_, id)| id).collect()
    }

    /// Frees what a holder has taken in advance: it is about to give it back. It gets nothing more,
    /// and does not wait any more.
    pub(crate) fn write_off(&self, id: u64) {
        let mut state = self.lock();
        let waiting = state.holders.get(&id).map_or(Vec::new(), |holder| holder.waiting.clone());
        let dropped = waiting.into_iter().map(|ticket| state.dequeue(ticket)).collect::<Vec<_>>();
        if let Some(holder) = state.holders.remove(&id) {
            state.free += holder.held;
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
    pub(crate) fn release(&self, id: u64, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let granted = self.lock().release(id, bytes);
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
            self.shares.release(self.id, self.more);
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
                        while steps < at_once && shares.try_take(id, 8) {
                            *taken += 8;
                            steps += 1;
                        }
                    }
                }
                let left = shares.lock().free;
                assert!(left >= least, "{greedy} leave {left}");
                assert!(left < least + 24 * 31, "{greedy} leave {left}");
                for (id, taken) in (0..).zip(taken) {
                    shares.release(id, taken);
                }
                assert!(shares.is_unused(ALL));
            }
        }
    }

    #[test]
    fn what_needs_least_is_granted_first() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30));
        let mut large = pin!(shares.take(2, 33));
        let mut small = pin!(shares.take(3, 25));
        assert!((&mut large).now_or_never().is_none());
        assert!((&mut small).now_or_never().is_none());
        shares.release(1, 10);
        assert!((&mut small).now_or_never().is_some());
        assert!((&mut large).now_or_never().is_none());
        shares.release(3, 25);
        assert!((&mut large).now_or_never().is_none(), "80 are free, and it needs 99");
        shares.release(1, 20);
        assert!((&mut large).now_or_never().is_some());
        shares.release(2, 33);
        assert!(shares.is_unused(100));
    }

    #[test]
    fn a_waiter_needs_less_when_its_holder_gives_back() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30));
        let mut more = pin!(shares.take(1, 20));
        assert!((&mut more).now_or_never().is_none());
        shares.release(1, 20);
        assert!((&mut more).now_or_never().is_some());
        shares.release(1, 30);
        assert!(shares.is_unused(100));
    }

    #[test]
    fn a_dropped_waiter_takes_nothing() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30));
        {
            let mut waits = pin!(shares.take(2, 33));
            let mut granted = pin!(shares.take(3, 25));
            assert!((&mut waits).now_or_never().is_none());
            assert!((&mut granted).now_or_never().is_none());
            shares.release(1, 30);
        }
        assert!(shares.is_unused(100));
    }
    #[test]
    fn what_is_written_off_is_free_once() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30));
        assert!(shares.try_take(2, 20));
        assert!(!shares.try_take(3, 18));
        assert_eq!(shares.greedier(3, 18), [1, 2]);
        shares.write_off(1);
        assert!(shares.try_take(3, 18));
        assert!(!shares.try_take(1, 1));
        shares.release(1, 30);
        shares.forget(1);
        shares.release(2, 20);
        shares.release(3, 18);
        assert!(shares.is_unused(100));
    }
    #[test]
    fn what_is_written_off_is_granted_to_those_that_wait() {
        let shares = Shares::new(100);
        assert!(shares.try_take(1, 30));
        let mut more = pin!(shares.take(1, 10));
        let mut other = pin!(shares.take(2, 25));
        assert!((&mut more).now_or_never().is_none());
        assert!((&mut other).now_or_never().is_none());
        shares.write_off(1);
        assert!((&mut other).now_or_never().is_some());
        assert!((&mut more).now_or_never().is_some(), "it waits without end");
        shares.release(1, 40);
        shares.forget(1);
        shares.release(2, 25);
        assert!(shares.is_unused(100));
    }
}

//! [`Watch`]: what a sink tells of itself while the demux owns it; and [`Watchlist`], all of them.
//!
//! A demux names the one sink that its input waits for. To name all that hang, a hub needs to know
//! of each sink whether it would be waited for, and of each subscription to a key whether its limit
//! is reached. Subscriptions on the default terms have neither, and no watch.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;

use super::shared::lock;
use super::stats::Member;
use crate::inbox::Bell;

/// When so many watches are gone, it is worth to look for them: the list is locked for it.
const WORTH_SWEEPING: usize = 64;

/// How many entries are looked at in one turn. Each look may miss the cache, so this is at most some
/// tens of microseconds, in which no other item is routed and a subscriber may wait for the lock.
const SWEPT_AT_ONCE: usize = 1_024;

/// Written by the sink only, so plain loads and stores suffice.
#[derive(Debug)]
pub(super) struct Watch {
    /// How many items the sink takes before its limit is reached.
    left: AtomicU64,
    /// The operations that were pending when they were polled last.
    pending: AtomicU8,
    /// Counts it when it is gone, if a list refers to it.
    gone: Option<Arc<AtomicUsize>>,
}

/// An operation of a sink, as a bit of [`Watch::pending`].
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Operation {
    Ready = 1,
    Flush = 2,
}

impl Watch {
    /// Creates a watch that no list refers to.
    pub(super) fn new(limit: Option<u64>) -> Self {
        let left = AtomicU64::new(limit.unwrap_or(u64::MAX));
        Self { left, pending: AtomicU8::new(0), gone: None }
    }

    /// An item is about to be sent. Called before the reader can see it: a reader that has the last
    /// item knows that it is the last.
    pub(super) fn count_item(&self) {
        let left = self.left.load(Relaxed);
        if left != u64::MAX {
            self.left.store(left.saturating_sub(1), Relaxed);
        }
    }

    /// Returns `true` if the sink gets no more items because its limit is reached.
    pub(super) fn is_used_up(&self) -> bool {
        self.left.load(Relaxed) == 0
    }

    /// Remembers whether an operation is pending, and returns its answer.
    pub(super) fn note<T>(&self, operation: Operation, answer: Poll<T>) -> Poll<T> {
        let before = self.pending.load(Relaxed);
        let bit = operation as u8;
        let after = if answer.is_pending() { before | bit } else { before & !bit };
        if before != after {
            self.pending.store(after, Relaxed);
        }
        answer
    }

    fn is_pending(&self) -> bool {
        self.pending.load(Relaxed) != 0
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(gone) = &self.gone {
            // It is only a count: what is gone is found by the references to it.
            gone.fetch_add(1, Relaxed);
        }
    }
}

/// The sinks that a hub may have to wait for.
#[derive(Debug)]
pub(super) struct Watchlist<K, V> {
    list: Mutex<List<K, V>>,
    /// How many that were in the list are gone, since the beginning.
    gone: Arc<AtomicUsize>,
    /// At how many the task looks for them. Only the task writes it.
    sweep_at: AtomicUsize,
}

#[derive(Debug)]
struct List<K, V> {
    all: Vec<Watched<K, V>>,
    /// How many at the front the task has yet to look at, and how many were gone when it began.
    unseen: usize,
    gone_before: usize,
    /// The task is gone, and nothing else looks for sinks that are gone.
    is_closed: bool,
}

#[derive(Debug)]
struct Watched<K, V> {
    member: Member<K>,
    /// Gone with the sink.
    watch: Weak<Watch>,
    /// The inbox that the sink fills, if it is one that is waited for.
    inbox: Option<Bell<V>>,
}

impl<K, V> Watchlist<K, V> {
    pub(super) fn new() -> Self {
        let list = List { all: Vec::new(), unseen: 0, gone_before: 0, is_closed: false };
        let sweep_at = AtomicUsize::new(WORTH_SWEEPING);
        Self { list: Mutex::new(list), gone: Arc::default(), sweep_at }
    }

    /// Adds a sink to the list, which its watch is for. After the end, it is not added.
    pub(super) fn add(
        &self,
        key: &K,
        tag: u64,
        inbox: Option<Bell<V>>,
        mut watch: Watch,
    ) -> Arc<Watch>
    where
        K: Clone,
    {
        let mut list = lock(&self.list);
        if list.is_closed {
            return Arc::new(watch);
        }
        let member = Member::new(key.clone(), tag);
        watch.gone = Some(Arc::clone(&self.gone));
        let watch = Arc::new(watch);
        list.all.push(Watched { member, watch: Arc::downgrade(&watch), inbox });
        watch
    }

    /// Forgets all sinks, and adds none from now on. Returns their members, to be dropped one by one.
    pub(super) fn end(&self) -> impl Iterator<Item = Member<K>> + use<K, V> {
        let mut list = lock(&self.list);
        list.is_closed = true;
        list.unseen = 0;
        let all = std::mem::take(&mut list.all);
        drop(list);
        all.into_iter().map(|watched| watched.member)
    }

    /// Forgets some sinks that are gone, if there are so many that it costs little for each of them.
    /// The task calls it in each turn. Returns `true` if there is more to look at.
    pub(super) fn sweep_if_due(&self) -> bool {
        self.gone.load(Relaxed) >= self.sweep_at.load(Relaxed) && self.sweep()
    }

    #[cold]
    fn sweep(&self) -> bool {
        // Keys are dropped after the lock is released.
        let mut swept = Vec::new();
        let mut list = lock(&self.list);
        let List { all, unseen, gone_before, .. } = &mut *list;
        if *unseen == 0 {
            *unseen = all.len();
            *gone_before = self.gone.load(Relaxed);
        }
        // From the end, so that what takes the place of another was looked at, or is new.
        let end = unseen.saturating_sub(SWEPT_AT_ONCE);
        while *unseen > end {
            *unseen -= 1;
            if all[*unseen].watch.strong_count() == 0 {
                swept.push(all.swap_remove(*unseen));
            }
        }
        let is_over = *unseen == 0;
        if is_over {
            let left = all.len();
            all.shrink_to(2 * left);
            // Next when half of these are gone: each of them then pays for looking at two.
            self.sweep_at.store(*gone_before + WORTH_SWEEPING.max(left / 2), Relaxed);
        }
        drop(list);
        drop(swept);
        !is_over
    }
}

impl<K: Hash + Eq + Clone, V> Watchlist<K, V> {
    /// Returns the members that do not take what there is for them: an operation is pending, or an
    /// inbox has no room and an item of its key is not routed yet. `known` are named in any case.
    pub(super) fn hung(&self, known: Vec<Member<K>>, unread: &HashSet<&K>) -> Vec<Member<K>> {
        // Several attachments may be equal as members. Each is named once.
        let mut counts = HashMap::<Member<K>, usize>::new();
        for member in &known {
            *counts.entry(member.clone()).or_default() += 1;
        }
        let mut hung = known;
        self.look(|list| {
            for watched in list {
                let Some(watch) = watched.watch.upgrade() else { continue };
                let gets_more = unread.contains(&watched.member.key);
                let is_full = || watched.inbox.as_ref().is_some_and(Bell::is_full);
                let hangs = watch.is_pending() || gets_more && is_full();
                if !hangs {
                    continue;
                }
                match counts.get_mut(&watched.member) {
                    Some(count) if *count > 0 => *count -= 1,
                    _ => hung.push(watched.member.clone()),
                }
            }
        });
        hung
    }

    /// Returns a member that has an item for which its inbox has no room.
    pub(super) fn waiting(&self) -> Option<Member<K>> {
        let waits = |watched: &&Watched<K, V>| {
            watched.inbox.is_some() && watched.watch.upgrade().is_some_and(|it| it.is_pending())
        };
        self.look(|list| Some(list.iter().find(waits)?.member.clone()))
    }

    /// Looks at the list without the lock, which subscribers may wait for.
    fn look<T>(&self, f: impl FnOnce(&[Watched<K, V>]) -> T) -> T {
        let list = std::mem::take(&mut lock(&self.list).all);
        let seen = f(&list);
        // Sinks that were attached in the meantime come behind.
        let mut now = lock(&self.list);
        let newer = std::mem::replace(&mut now.all, list);
        now.all.extend(newer);
        drop(now);
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowd_that_has_left_is_forgotten_in_steps_and_those_that_stay_are_kept() {
        const CROWD: u64 = 10 * SWEPT_AT_ONCE as u64;
        let list = Watchlist::<u64, u64>::new();
        let add = |key| list.add(&key, 0, None, Watch::new(None));
        let mut all = (0..CROWD).map(add).collect::<Vec<_>>();
        assert!(!list.sweep_if_due(), "none is gone");
        // Each third stays.
        let mut key = 0;
        all.retain(|_| {
            key += 1;
            key % 3 == 0
        });
        let mut steps = 1;
        let mut late = None;
        while list.sweep_if_due() {
            late.get_or_insert_with(|| add(CROWD));
            steps += 1;
        }
        assert_eq!(steps, 10);
        assert!(!list.sweep_if_due(), "all that are gone are forgotten");
        let left =
            lock(&list.list).all.iter().map(|watched| watched.member.key).collect::<HashSet<_>>();
        assert_eq!(left, (0..CROWD).filter(|key| key % 3 == 2).chain([CROWD]).collect());
        assert_eq!(lock(&list.list).all.len(), left.len());
    }
}

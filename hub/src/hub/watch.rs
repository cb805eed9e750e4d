//! [`Watch`]: what a sink tells of itself while the demux owns it; and [`Watchlist`], all of them.
//!
//! A demux names the one sink that its input waits for. To name all that hang, a hub needs to know
//! of each sink whether it would be waited for, and of each subscription to a key whether its limit
//! is reached. Subscriptions on the default terms have neither, and no watch.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;

use super::shared::lock;
use super::stats::Member;
use crate::inbox::Bell;

/// Written by the sink only, so plain loads and stores suffice.
#[derive(Debug)]
pub(super) struct Watch {
    /// How many items the sink takes before its limit is reached.
    left: AtomicU64,
    /// The operations that were pending when they were polled last.
    pending: AtomicU8,
}

/// An operation of a sink, as a bit of [`Watch::pending`].
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Operation {
    Ready = 1,
    Flush = 2,
}

impl Watch {
    pub(super) fn new(limit: Option<u64>) -> Arc<Self> {
        let left = AtomicU64::new(limit.unwrap_or(u64::MAX));
        Arc::new(Self { left, pending: AtomicU8::new(0) })
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

/// The sinks that a hub may have to wait for.
#[derive(Debug)]
pub(super) struct Watchlist<K, V>(Mutex<Vec<Watched<K, V>>>);

#[derive(Debug)]
pub(super) struct Watched<K, V> {
    pub(super) member: Member<K>,
    /// Gone with the sink.
    pub(super) watch: Weak<Watch>,
    /// The inbox that the sink fills, if it is one that is waited for.
    pub(super) inbox: Option<Bell<V>>,
}

impl<K, V> Watchlist<K, V> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(super) fn push(&self, new: Watched<K, V>) {
        // Keys of sinks that are gone are dropped after the lock is released.
        let mut gone = Vec::new();
        let mut list = lock(&self.0);
        if list.len() == list.capacity() {
            let mut index = 0;
            while let Some(old) = list.get(index) {
                if old.watch.strong_count() == 0 {
                    gone.push(list.swap_remove(index));
                } else {
                    index += 1;
                }
            }
            // As much room again, so that looking through the list costs little for each addition.
            let room = list.len().max(4);
            list.reserve(room);
            list.shrink_to(4 * room);
        }
        list.push(new);
        drop(list);
        drop(gone);
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
        let list = std::mem::take(&mut *lock(&self.0));
        for watched in &list {
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
        // Sinks that were attached in the meantime come behind.
        let newer = std::mem::replace(&mut *lock(&self.0), list);
        for watched in newer {
            self.push(watched);
        }
        hung
    }
}

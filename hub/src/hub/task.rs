//! [`Task`]: runs the demux of a hub, answers questions about it, and tells everyone when it ends.
//!
//! A runtime with several threads runs a task that was woken before others that are ready. So a
//! publisher that wakes this task would be followed by it at once: the items of that publisher alone
//! would be routed, and their readers woken for them. If several items have come while the task
//! waited, it therefore runs again behind the publishers that are ready, once. In the chat of
//! `hub/benches`, with bursts of ten lines on two threads, a line took 1.03 times the processor time
//! of a `broadcast` channel before, and takes 0.89 now (`cargo bench -p stream-demux-hub --bench
//! figures -- chat`). A single item is routed at once: its publisher may wait for an answer, and a
//! round trip would take 1.4 times as long. The delay beside a busy key is about the same as before
//! (`-- neighbour`).

use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use stream_demux::{Demux, Recipient, Totals};

use super::panics::Panics;
use super::shared::{Question, Shared, lock};
use super::stats::{Member, Snapshot, Stats};
use super::streams::{Items, Orders};
use super::topics::Topics;
use super::watch::Watchlist;
use crate::flush_clock::FlushClock;
use crate::life::Phase;

/// The demux of a hub, whatever its key function, hooks and hasher.
pub(super) trait Running<K, V>: Future<Output = Totals> + Unpin {
    /// Counts time that has passed.
    fn elapse(&mut self, time: Duration);
    /// Returns `true` if a sink is still to be flushed.
    fn has_unflushed(&self) -> bool;
    /// Returns `true`, once, if several items have come while the demux waited for one.
    fn has_several_after_wait(&mut self) -> bool;
    /// The member whose item waits for room, if no item is read because its key was removed.
    fn held_back_by(&self, watchlist: &Watchlist<K, V>) -> Option<Member<K>>;
    /// Returns `true`, once, if items can be read that were held back.
    fn can_go_on(&mut self) -> bool;
    fn stats(&self) -> Stats;
    fn snapshot(&self) -> Snapshot<K>;
    /// How many subscribers and attached sinks receive the items of a key.
    fn subscribers(&self, key: &K, topics: &Topics<K, V>) -> usize;
    /// All members that the hub would have to wait for. Reads what was published.
    fn hung(&mut self, watchlist: &Watchlist<K, V>) -> Vec<Member<K>>;
}

impl<K, V, St, F, H, B> Running<K, V> for Demux<Items<K, V, St>, F, Orders<K, V>, H, B>
where
    Self: Future<Output = Totals> + Unpin,
    K: Hash + Eq + Clone,
    V: Clone,
    St: Stream<Item = (K, V)>,
    B: BuildHasher,
{
    fn elapse(&mut self, time: Duration) {
        Pin::new(self).elapse(time);
    }

    fn has_unflushed(&self) -> bool {
        Self::has_unflushed(self)
    }

    fn has_several_after_wait(&mut self) -> bool {
        self.get_mut().has_several_after_wait()
    }

    fn held_back_by(&self, watchlist: &Watchlist<K, V>) -> Option<Member<K>> {
        if self.get_ref().is_held_back() { watchlist.waiting() } else { None }
    }

    fn can_go_on(&mut self) -> bool {
        self.get_mut().can_go_on()
    }

    fn stats(&self) -> Stats {
        Stats {
            totals: self.totals(),
            waiting: self.get_ref().len() as u64,
            receiving: self.len(),
            leaving: self.draining(),
            ..Stats::default()
        }
    }

    fn snapshot(&self) -> Snapshot<K> {
        Snapshot {
            stats: self.stats(),
            blocked_on: self.blocked_on().map(member),
            leaving: self.leaving().map(member).collect(),
            hung: Vec::new(),
        }
    }

    fn subscribers(&self, key: &K, topics: &Topics<K, V>) -> usize {
        self.receivers(key).saturating_add_signed(topics.further_subscribers(key))
    }

    fn hung(&mut self, watchlist: &Watchlist<K, V>) -> Vec<Member<K>> {
        self.get_mut().take_published();
        let known = self.leaving().chain(self.blocked_on()).map(member).collect();
        watchlist.hung(known, &self.get_ref().unread_keys().collect())
    }
}

fn member<K: Clone>(to: Recipient<'_, K>) -> Member<K> {
    Member::new(to.key.clone(), to.tag)
}

/// The task of a hub. When it is dropped, whatever the reason, the hub has ended.
pub(super) struct Task<D: Running<K, V>, K, V> {
    /// There until the end.
    demux: Option<D>,
    shared: Arc<Shared<K, V>>,
    clock: FlushClock,
    /// In `poll`. If `drop` finds this, the demux has panicked, or something of its user.
    is_busy: bool,
}

impl<D: Running<K, V>, K, V> Task<D, K, V> {
    pub(super) fn new(demux: D, shared: Arc<Shared<K, V>>) -> Self {
        Self { demux: Some(demux), shared, clock: FlushClock::default(), is_busy: false }
    }

    /// Answers the questions that were read in this turn.
    #[cold]
    fn answer(&mut self) {
        let Some(demux) = &mut self.demux else { return };
        self.shared.is_asked.store(false, Relaxed);
        let asked = std::mem::take(&mut *lock(&self.shared.asked));
        for question in asked {
            // If the one who asked has gone, the answer is dropped.
            match question {
                Question::Subscribers(key, answer) => {
                    let _ = answer.send(demux.subscribers(&key, &self.shared.topics));
                }
                Question::Snapshot(answer) => {
                    let mut snapshot = demux.snapshot();
                    self.shared.count(&mut snapshot.stats);
                    let held_back_by = demux.held_back_by(&self.shared.watchlist);
                    snapshot.blocked_on = snapshot.blocked_on.or(held_back_by);
                    let _ = answer.send(snapshot);
                }
                Question::WhoHangs(answer) => {
                    let mut snapshot = demux.snapshot();
                    self.shared.count(&mut snapshot.stats);
                    snapshot.hung = demux.hung(&self.shared.watchlist);
                    let _ = answer.send(snapshot);
                }
            }
        }
    }

    /// Drops the demux, and tells everyone.
    ///
    /// What is dropped here belongs to users: items, sinks, hooks and keys. A panic in one of these
    /// must not leave anyone waiting for the end, so it goes on when all have been told.
    fn end(&mut self, phase: Phase) {
        let Some(demux) = self.demux.take() else { return };
        self.shared.life.advance(phase);
        self.shared.close();
        // After a panic, nothing but the counts can be relied on.
        let is_sound = !std::mem::replace(&mut self.is_busy, true);
        let mut panics = Panics::default();
        let full = panics.catch(|| is_sound.then(|| demux.snapshot())).flatten();
        let mut last = full.unwrap_or_else(|| Snapshot::of(demux.stats()));
        self.shared.count(&mut last.stats);
        panics.catch(|| drop(demux));
        self.shared.end(last, &mut panics);
        panics.resume();
    }
}

impl<D: Running<K, V>, K, V> Future for Task<D, K, V> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(demux) = &mut this.demux else { return Poll::Ready(()) };
        if demux.has_several_after_wait() {
            // Orders and questions wait with the items, so none of them overtakes an item.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.is_busy = true;
        this.clock.begin_poll(|time| demux.elapse(time));
        let answer = Pin::new(&mut *demux).poll(cx);
        this.clock.end_poll(demux.has_unflushed());
        // Whatever makes an item wait, and not wait any more, happens in this poll.
        let can_go_on = demux.can_go_on();
        if self.shared.is_asked.load(Relaxed) {
            self.answer();
        }
        let has_more_to_sweep = self.shared.watchlist.sweep_if_due();
        self.is_busy = false;
        if (has_more_to_sweep || can_go_on) && answer.is_pending() {
            cx.waker().wake_by_ref();
        }
        ready!(answer);
        self.end(Phase::Finished);
        Poll::Ready(())
    }
}

impl<D: Running<K, V>, K, V> Unpin for Task<D, K, V> {}

impl<D: Running<K, V>, K, V> Drop for Task<D, K, V> {
    fn drop(&mut self) {
        self.end(Phase::Gone);
    }
}

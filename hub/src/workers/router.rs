//! [`Router`]: the task that runs the demux, spawns workers, and ends idle ones if others need
//! their places.

use std::collections::VecDeque;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::guard::guarded;
use super::roster::{Roster, Start};

/// How long a worker must have been idle before another key may get its place.
///
/// With more busy keys than places, this bounds how often workers are made: as often as there are
/// places in this time. A worker costs some microseconds, and often a query for what it keeps in
/// memory, so less would make an input with too few places spend its time on workers. More would let
/// the input wait without need, because only what is in the backlog is handled in the meantime. With
/// enough places, the worker that has been idle longest has been so for much longer, and no key
/// waits.
const MOMENT: Duration = Duration::from_millis(10);

/// Runs until the demux has ended and no worker is left.
pub(super) struct Router<K: Hash + Eq, T, D, S> {
    demux: Option<Pin<Box<D>>>,
    roster: Arc<Roster<K, T>>,
    /// Spawns the task of a worker.
    spawn: S,
    places: Places,
    /// Dropped last.
    _end: End<K, T>,
}

impl<K: Hash + Eq, T, D, S> Router<K, T, D, S> {
    pub(super) fn new(demux: D, roster: Arc<Roster<K, T>>, spawn: S) -> Self {
        let end = End(Arc::clone(&roster));
        let places = Places { candidates: VecDeque::new(), timer: None };
        Self { demux: Some(Box::pin(demux)), roster, spawn, places, _end: end }
    }

    fn poll_demux(&mut self, cx: &mut Context<'_>)
    where
        D: Future,
    {
        let Some(demux) = &mut self.demux else { return };
        let answer = guarded(|| demux.as_mut().poll(cx));
        if matches!(answer, Ok(Poll::Pending)) {
            return;
        }
        if let Err(panic) = answer {
            self.roster.fail(panic);
        }
        let demux = self.demux.take();
        if let Err(panic) = guarded(|| drop(demux)) {
            self.roster.fail(panic);
        }
    }
}

impl<K, T, D, S> Future for Router<K, T, D, S>
where
    K: Hash + Eq + Clone,
    D: Future,
    S: Fn(Start<K, T>) -> AbortHandle,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.roster.register_router(cx);
        this.poll_demux(cx);
        while let Some(start) = this.roster.next_start() {
            let id = start.departure.id;
            let task = (this.spawn)(start);
            this.roster.set_task(id, &task);
        }
        this.places.free_some(&this.roster, cx);
        let is_over = this.demux.is_none() && this.roster.is_empty();
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<K: Hash + Eq, T, D, S> Unpin for Router<K, T, D, S> {}

/// Ends what only the router could have started.
struct End<K: Hash + Eq, T>(Arc<Roster<K, T>>);

impl<K: Hash + Eq, T> Drop for End<K, T> {
    fn drop(&mut self) {
        self.0.start_no_more();
    }
}

/// Finds workers that may end, while keys wait for a place.
struct Places {
    /// Workers that were idle when they were looked for: since when, and their numbers. The one that
    /// has been idle longest comes first. Those that were not idle then have been so for less long.
    candidates: VecDeque<(u64, u64)>,
    /// Until when no worker can be idle long enough.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Places {
    /// Ends as many workers as keys wait for a place, if that many have been idle long enough.
    fn free_some<K: Hash + Eq, T>(&mut self, roster: &Roster<K, T>, cx: &mut Context<'_>) {
        let Some(clock) = roster.office.idle_clock else { return };
        let mut wanted = roster.places_wanted();
        if wanted == 0 {
            self.timer = None;
            return;
        }
        loop {
            if let Some(timer) = &mut self.timer {
                if timer.as_mut().poll(cx).is_pending() {
                    return;
                }
                self.timer = None;
            }
            wanted -= self.end_candidates(roster, clock, wanted);
            if wanted == 0 {
                return;
            }
            let mut idle = roster.idle_workers();
            idle.sort_unstable();
            self.candidates = idle.into();
            let first = self.candidates.front().map(|&(since, _)| since);
            let due = first.map(|since| clock + Duration::from_millis(since) + MOMENT);
            let now = Instant::now();
            if due.is_none_or(|due| due > now) {
                self.timer = Some(Box::pin(sleep_until(due.unwrap_or(now + MOMENT))));
            }
        }
    }

    /// Ends up to `wanted` candidates that have been idle long enough. Returns how many.
    fn end_candidates<K: Hash + Eq, T>(
        &mut self,
        roster: &Roster<K, T>,
        clock: Instant,
        wanted: usize,
    ) -> usize {
        let mut ended = 0;
        while ended < wanted {
            let Some(&(since, id)) = self.candidates.front() else { break };
            if clock.elapsed() < Duration::from_millis(since) + MOMENT {
                break;
            }
            self.candidates.pop_front();
            if roster.end_idle(id, since) {
                ended += 1;
            }
        }
        ended
    }
}

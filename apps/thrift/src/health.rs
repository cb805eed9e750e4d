//! Whether a server is good. It is judged by its answers to calls, and by nothing else that it
//! sends.
//!
//! 1. An answer is good if it arrives within a deadline after its call got its place, and is well-formed.
//!    A call fails if it has no answer then, or one that is not. A call that was sent and whose future
//!    has ended before is judged in the same way (`unanswered`), but its answer is not read. So a server
//!    is judged neither by how long calls have waited for it, nor by what its callers expect: otherwise
//!    one that has hung, and for which many wait, would fail each of them, and get one at a time, as
//!    long as more calls come; and a caller with another version of the IDL would close the places of
//!    all others. That an answer has no result, as when a service returned null, or exceeds the limits
//!    of strings and containers, says as little as an exception. Finagle, too, counts each answer as a
//!    success unless it is configured otherwise
//!    (<https://twitter.github.io/finagle/docs/com/twitter/finagle/param/ResponseClassifier.html>).
//! 2. A good answer opens a place for [`Pool::round_robin`](crate::Pool::round_robin), and a failed
//!    call closes its place. Then at most a few more are open than the server has had calls at a time in
//!    the last minutes. At least one stays open. Thus a server that fails more calls than it answers
//!    soon gets one call at a time, and one that fails a few keeps what it needs for the others.
//!    [`Pool::fail_over`](crate::Pool::fail_over) tries a server that has no free place last.
//! 3. A server is silent when no good answer has arrived for nearly a deadline while calls waited, until
//!    one arrives. It gets one call at a time while another server of the pool is well. If none is,
//!    the calls are more likely the cause than the servers, and nothing is gained by holding them back:
//!    there is no server that they could go to instead. Envoy, too, does not look at the health of hosts
//!    when too few are healthy
//!    (<https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/panic_threshold>).
//!    All places but one are closed when a connection ends that failed more calls than it answered.
//! 4. A connection is closed when no good answer has arrived for a few deadlines while calls
//!    waited, or when no byte could be written while requests waited.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::client::Connection;
use crate::upstream::Occupied;

/// How many places stay open when a call fails, in addition to as many as there were calls at a time.
/// With none, calls that are about to fail could hold all open places, so that no call could show that
/// the server answers others. More of them would cost more calls at a server that answers none.
const SPARE: usize = 8;

/// For how long it counts how many calls a server had at a time: for this time, and at most twice as
/// long. A burst of calls once a minute, which is common, finds the places that the last one had,
/// although a call has failed in between. A server that begins to fail its calls costs as many more as
/// it had at a time then, even if it has fewer by now.
const RECENT: Duration = Duration::from_secs(60);

/// More places than a pool has, and so many that counting never overflows.
const ALL: usize = usize::MAX / 2;

/// A connection without a good answer for this many deadlines, while calls wait, is closed: its
/// peer is gone without a word, or hangs. One deadline may be a slow call, and two a slow call
/// behind another. With each further one, all calls on the connection are lost.
const SILENT_DEADLINES: u32 = 3;

/// How often per deadline a connection is checked for silence. It is closed up to one check early,
/// because a call may begin to wait just before a check. A server is silent one check before the
/// deadline, so that calls which reach their deadline are not followed by as many others.
const CHECKS: u32 = 8;

/// What is known of a server from all its calls. The connections of a pool to one server share it.
#[derive(Debug)]
pub(crate) struct Health {
    /// Open places.
    open: AtomicUsize,
    /// Calls that run.
    running: AtomicUsize,
    /// Most calls at a time, now and before: see `RECENT`.
    most: [AtomicUsize; 2],
    /// No call is answered.
    is_silent: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        let (running, most, is_silent) = Default::default();
        Self { open: AtomicUsize::new(ALL), running, most, is_silent }
    }
}

impl Health {
    /// Returns how many calls the server may get at a time, unless it is silent.
    pub(crate) fn open_places(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Closes all places but one.
    pub(crate) fn close_places(&self) {
        self.open.store(1, Relaxed);
    }

    /// Notes that no call is answered.
    fn set_silent(&self) {
        self.is_silent.store(true, Relaxed);
    }

    /// Returns `true` if no call has been answered for nearly a deadline.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Relaxed)
    }

    /// Returns `true` if the server may get another call now.
    pub(crate) fn has_free_place(&self) -> bool {
        self.running() < if self.is_silent() { 1 } else { self.open_places() }
    }

    /// Returns how many calls run.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Relaxed)
    }

    /// Forgets how many calls there were before.
    fn forget(&self) {
        let [now, before] = &self.most;
        before.store(now.swap(self.running(), Relaxed), Relaxed);
    }

    /// Notes that a call begins, which ends when the returned value is dropped.
    pub(crate) fn call(
        self: &Arc<Self>,
        begun: Instant,
        due: Instant,
        place: Option<Occupied>,
    ) -> Running {
        let running = self.running.fetch_add(1, Relaxed) + 1;
        if running > self.most[0].load(Relaxed) {
            self.most[0].fetch_max(running, Relaxed);
        }
        Running { health: Arc::clone(self), begun, due, place }
    }

    fn opened(&self) {
        self.open.fetch_add(1, Relaxed);
        if self.is_silent() {
            self.is_silent.store(false, Relaxed);
        }
    }

    /// Closes the place of a call. Returns `true` if it was the only one.
    fn closed(&self) -> bool {
        let [now, before] = self.most.each_ref().map(|most| most.load(Relaxed));
        let most = now.max(before) + SPARE;
        let close = |open: usize| Some((open.min(most) - 1).max(1));
        self.open.fetch_update(Relaxed, Relaxed, close) == Ok(1)
    }
}

/// A call that runs. It ends when this is dropped, and its clones.
pub(crate) struct Running {
    health: Arc<Health>,
    begun: Instant,
    /// When the server has had a deadline to answer it.
    pub(crate) due: Instant,
    /// Its place at the server.
    place: Option<Occupied>,
}

impl Running {
    /// Notes a good answer.
    pub(crate) fn answered(&self) {
        self.health.opened();
        if let Some(place) = &self.place {
            place.note_answer(self.begun.elapsed());
        }
    }

    /// Notes that the call failed. Returns `true` if the server had no other place: it failed the
    /// only call that it was to get.
    pub(crate) fn failed(&self) -> bool {
        self.health.closed()
    }
}

impl Clone for Running {
    fn clone(&self) -> Self {
        self.health.call(self.begun, self.due, self.place.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.health.running.fetch_sub(1, Relaxed);
    }
}

/// Which answers are in time. A call has the next id, so an answer with an id that was used more
/// than a deadline ago is late, and a repeated answer soon is.
#[derive(Debug, Default)]
pub(crate) struct InTime {
    /// The last id that was used a deadline ago.
    old: AtomicU64,
    /// Answers in time.
    count: AtomicU64,
}

impl InTime {
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Notes an answer, which may be late.
    pub(crate) fn answered(&self, id: i32) {
        if u64::try_from(id).is_ok_and(|id| id > self.old.load(Relaxed)) {
            self.count.fetch_add(1, Relaxed);
        }
    }
}

/// For how many checks there was no progress while something waited.
#[derive(Default)]
struct Stalled {
    checks: u32,
    progress: u64,
}

impl Stalled {
    fn check(&mut self, progress: u64, has_waited: bool) -> u32 {
        if progress != self.progress {
            self.checks = 0;
        } else if has_waited {
            self.checks += 1;
        }
        self.progress = progress;
        self.checks
    }
}

/// Completes with the reason when the connection is to be closed, by the fourth rule.
pub(crate) async fn silence(connection: &Connection, deadline: Duration) -> String {
    let (mut answers, mut writes) = (Stalled::default(), Stalled::default());
    let (mut calls, mut since) = (0, Instant::now());
    let mut ids = VecDeque::from([0; CHECKS as usize]);
    loop {
        // Not an interval: after the process was stopped, one check is due, and not all that were
        // missed.
        sleep((deadline / CHECKS).max(Duration::from_millis(1))).await;
        let in_time = &connection.in_time;
        let counts = connection.counts();
        let has_waited =
            counts.waiting > 0 || counts.calls != calls || !connection.unanswered.is_empty();
        calls = counts.calls;
        for call in connection.unanswered.take_overdue(Instant::now()) {
            connection.expired(&call);
        }
        let unanswered = answers.check(in_time.count(), has_waited);
        let outbox = &connection.outbox;
        let unwritten = writes.check(outbox.progress(), outbox.is_waiting());
        if unanswered.max(unwritten) + 1 >= CHECKS {
            connection.health.set_silent();
        }
        if since.elapsed() >= RECENT {
            connection.health.forget();
            since = Instant::now();
        }
        if unanswered >= CHECKS * SILENT_DEADLINES {
            return format!(
                "no call was answered in time for {SILENT_DEADLINES} deadlines of {deadline:?}"
            );
        }
        if unwritten >= CHECKS * SILENT_DEADLINES {
            return format!(
                "no byte could be written for {SILENT_DEADLINES} deadlines of {deadline:?}"
            );
        }
        ids.push_back(connection.used_ids());
        if let Some(old) = ids.pop_front() {
            in_time.old.store(old, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(health: &Arc<Health>) -> Running {
        health.call(Instant::now(), Instant::now(), None)
    }

    #[test]
    fn a_server_that_fails_its_calls_gets_one_at_a_time() {
        let health = Arc::<Health>::default();
        let running = (0..100).map(|_| call(&health)).collect::<Vec<_>>();
        for (running, left) in running.into_iter().zip((0..100).rev()) {
            running.failed();
            assert_eq!(health.open_places(), SPARE + left);
        }
        for _ in 1..SPARE {
            assert!(!call(&health).failed());
        }
        assert_eq!(health.open_places(), 1);
        assert!(call(&health).failed(), "it had one place");
        assert_eq!(health.open_places(), 1);
        assert_eq!(health.running(), 0);
    }

    /// Few calls before a burst, of which none is answered.
    #[test]
    fn a_server_that_fails_a_few_calls_keeps_places_for_as_many_as_it_has_had() {
        let health = Arc::<Health>::default();
        let burst = || (0..100).map(|_| call(&health)).collect::<Vec<_>>();
        burst().iter().for_each(Running::answered);
        for _ in 0..SPARE {
            call(&health).failed();
        }
        assert_eq!(health.open_places(), 100);
        health.forget();
        call(&health).failed();
        assert_eq!(health.open_places(), 99);
        burst().iter().for_each(Running::answered);
        assert!(health.open_places() > 100);
        // After a while, it has had none.
        health.forget();
        health.forget();
        call(&health).failed();
        assert_eq!(health.open_places(), SPARE);
    }

    #[test]
    fn a_server_is_silent_until_it_answers() {
        let health = Arc::<Health>::default();
        health.set_silent();
        assert!(health.has_free_place());
        let running = call(&health);
        assert!(!health.has_free_place());
        running.failed();
        assert!(health.is_silent());
        running.answered();
        assert!(!health.is_silent() && health.has_free_place());
    }

    #[test]
    fn answers_open_places_again() {
        let health = Arc::<Health>::default();
        health.close_places();
        let mut at_once = Vec::new();
        for _ in 0..6 {
            let calls = (0..health.open_places()).map(|_| call(&health)).collect::<Vec<_>>();
            at_once.push(calls.len());
            calls.iter().for_each(Running::answered);
        }
        assert_eq!(at_once, [1, 2, 4, 8, 16, 32]);
    }

    #[test]
    fn a_server_that_answers_more_calls_than_it_fails_keeps_its_places() {
        let health = Arc::<Health>::default();
        // All that run are about to fail, and others are answered.
        let mut running = (0..50).map(|_| call(&health)).collect::<VecDeque<_>>();
        for _ in 0..1000 {
            running.pop_front().unwrap().failed();
            running.push_back(call(&health));
            for _ in 0..2 {
                assert!(health.open_places() > running.len(), "no place is free");
                call(&health).answered();
            }
        }
    }

    #[test]
    fn an_answer_that_is_old_does_not_count() {
        let in_time = InTime::default();
        for id in [1, 1, 7] {
            in_time.answered(id);
        }
        in_time.old.store(7, Relaxed);
        for id in [1, 7, -1] {
            in_time.answered(id);
        }
        assert_eq!(in_time.count(), 3);
        in_time.answered(8);
        assert_eq!(in_time.count(), 4);
    }
}

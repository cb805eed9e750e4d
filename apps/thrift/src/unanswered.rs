//! Calls that were sent and whose futures were dropped, or have ended because they had waited for a
//! place: they are still with the server.
//!
//! 1. Such a call runs, and keeps its place at the server, until it is answered, the server has had a
//!    deadline for it, or the connection is closed. Then it is judged like any other (`health`).
//! 2. A call is here before its caller stops to receive, so the answer reaches one of them. What is
//!    taken out is judged once.
//! 3. They take bounded memory ([`MOST`]). A call for which there is no room is not judged.
//! 4. The lock guards the table only. Calls are dropped after it is released, because that frees
//!    their places and wakes those that wait for one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::health::Running;

/// How many calls are kept for a connection: they take about one MiB. It is many times the places
/// of a server in a pool, so a call of `round_robin` keeps its place. More than that are dropped
/// within a deadline only if a server leaves them all unanswered; then those that are here show it.
/// Whether there is room does not depend on what becomes of a call, so they are a fair sample.
const MOST: usize = 1 << 14;

#[derive(Default)]
pub(crate) struct Unanswered(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// By their sequence ids.
    calls: BTreeMap<i32, Running>,
    is_closed: bool,
}

impl Unanswered {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call, if there is room and the connection is open.
    pub(crate) fn add(&self, id: i32, call: Running) {
        let mut table = self.lock();
        if table.is_closed || table.calls.len() >= MOST {
            drop(table); // before `call`
        } else {
            table.calls.insert(id, call);
        }
    }

    /// Takes out the call with this id.
    pub(crate) fn take(&self, id: i32) -> Option<Running> {
        self.lock().calls.remove(&id)
    }

    /// Takes out the calls whose deadline has passed.
    pub(crate) fn take_overdue(&self, now: Instant) -> Vec<Running> {
        let mut table = self.lock();
        let overdue = table.calls.iter().filter(|(_, call)| call.due <= now);
        let ids = overdue.map(|(&id, _)| id).collect::<Vec<_>>();
        ids.iter().filter_map(|id| table.calls.remove(id)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().calls.is_empty()
    }

    /// Takes out all calls, and takes no more.
    pub(crate) fn close(&self) -> BTreeMap<i32, Running> {
        let mut table = self.lock();
        table.is_closed = true;
        std::mem::take(&mut table.calls)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::health::Health;

    #[test]
    fn calls_are_taken_out_once_and_at_their_deadlines() {
        let health = Arc::<Health>::default();
        let unanswered = Unanswered::default();
        let now = Instant::now();
        let at = |secs| now + Duration::from_secs(secs);
        for (id, due) in [(1, 9), (2, 8), (3, 7), (4, 6), (5, 5)] {
            unanswered.add(id, health.call(now, at(due), None));
        }
        assert!(unanswered.take_overdue(at(4)).is_empty());
        assert!(unanswered.take(4).is_some());
        assert!(unanswered.take(4).is_none());
        assert_eq!(unanswered.take_overdue(at(7)).len(), 2, "3 and 5");
        assert!(unanswered.take_overdue(at(7)).is_empty());
        assert_eq!(health.running(), 2);
        assert_eq!(unanswered.close().len(), 2);
        unanswered.add(6, health.call(now, at(10), None));
        assert!(unanswered.is_empty(), "the connection is closed");
        assert_eq!(health.running(), 0);
    }

    #[test]
    fn calls_take_bounded_memory() {
        let health = Arc::<Health>::default();
        let unanswered = Unanswered::default();
        let now = Instant::now();
        for id in (1..).take(MOST + 10) {
            unanswered.add(id, health.call(now, now, None));
        }
        assert_eq!(health.running(), MOST);
        assert_eq!(unanswered.take_overdue(now).len(), MOST);
        assert_eq!(health.running(), 0);
    }
}

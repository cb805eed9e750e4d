//! Limits of the memory that clients hold in a server, in bytes, for each connection and for all.
//!
//! 1. Memory is acquired before the bytes arrive: a frame is read only when there is room for it,
//!    for its call, and for an answer of the same length.
//! 2. Memory is released when the bytes are freed, not earlier: a [`Held`] is dropped with them.
//! 3. There are no deadlocks. A connection waits for its own room while it holds nothing for this
//!    call, and then for the shared room while it holds only its own, which no other connection
//!    needs. Semaphores are fair.
//! 4. An answer that is longer than its call never waits, because it exists already: it gets room
//!    from a part reserved for answers, or the call is refused.
//! 5. Each connection has [`OWN`] bytes that no other connection can use. Small calls continue when
//!    the shared room is used up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// Overhead of a call beside its bytes: a task, its envelope (a name of up to a KiB is copied), and
/// an answer that is a little longer than its call. A call of `later` without a text was measured
/// at 1.3 KiB without optimisation.
pub(crate) const CALL: usize = 4 * 1024;

/// Overhead of an answer beside its bytes until it is written. Measured: about 700 bytes.
const ANSWER: usize = 1024;

/// Bytes that are reserved for each connection: enough for sixteen small calls. They amount to 64
/// MiB for a thousand connections.
pub(crate) const OWN: usize = 64 * 1024;

/// An amount of memory, divided into a part that frames wait for and a part reserved for answers.
#[derive(Debug)]
struct Room {
    calls: Semaphore,
    answers: AtomicUsize,
}

impl Room {
    /// Reserves a quarter for answers that are longer than their calls.
    fn new(bytes: usize) -> Self {
        let answers = bytes / 4;
        let calls = (bytes - answers).min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Self { calls: Semaphore::new(calls), answers: AtomicUsize::new(answers) }
    }

    fn try_answer(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.answers.fetch_update(Relaxed, Relaxed, less).is_ok()
    }
}

/// The memory of all connections.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    all: Arc<Room>,
    each: usize,
    longest: usize,
}

/// The memory of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Account(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    own: Semaphore,
    each: Room,
    all: Arc<Room>,
}

impl Memory {
    /// Limits each connection to `each` bytes and all connections to `all` bytes.
    pub(crate) fn new(each: usize, all: usize) -> Self {
        let room = Room::new(all);
        // A frame that exceeds the room for calls would wait forever.
        let calls = Room::new(each).calls.available_permits().min(room.calls.available_permits());
        Self { all: Arc::new(room), each, longest: calls.saturating_sub(CALL) / 2 }
    }

    /// Returns the length of the longest frame that there can be room for.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn account(&self) -> Account {
        let (each, all) = (Room::new(self.each), Arc::clone(&self.all));
        Account(Arc::new(Rooms { own: Semaphore::new(OWN), each, all }))
    }
}

impl Account {
    /// Waits until there is room for a call of `length` bytes.
    pub(crate) async fn hold(&self, length: usize) -> Held {
        let bytes = length.saturating_mul(2).saturating_add(CALL);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Rooms { own, each, all } = &*self.0;
        let mine = each.calls.acquire_many(permits).await;
        let (of_own, of_all) = tokio::select! {
            biased;
            // Larger calls exceed the reserved bytes and use the shared room only.
            permit = own.acquire_many(permits), if bytes <= OWN => {
                keep(permit);
                (bytes, 0)
            }
            permit = all.calls.acquire_many(permits) => {
                keep(permit);
                (0, bytes)
            }
        };
        keep(mine);
        Held { rooms: Arc::clone(&self.0), of_own, of_all, of_answers: 0 }
    }
}

/// Forgets the permits; a [`Held`] returns them. The semaphores are never closed.
fn keep(permits: Result<SemaphorePermit<'_>, AcquireError>) {
    if let Ok(permits) = permits {
        permits.forget();
    }
}

/// Memory that is held for a call, and then for its answer.
#[derive(Debug)]
pub(crate) struct Held {
    rooms: Arc<Rooms>,
    of_own: usize,
    of_all: usize,
    of_answers: usize,
}

impl Held {
    /// Replaces the room held for the call by room for an answer of `length` bytes. Returns `false`
    /// if there is not enough.
    pub(crate) fn answer(&mut self, length: usize) -> bool {
        let held = self.of_own + self.of_all;
        let bytes = length.saturating_add(ANSWER);
        let Some(more) = bytes.checked_sub(held) else {
            let spare = held - bytes;
            let of_all = spare.min(self.of_all);
            self.give_back(spare - of_all, of_all);
            return true;
        };
        let Rooms { each, all, .. } = &*self.rooms;
        if !each.try_answer(more) {
            return false;
        }
        if !all.try_answer(more) {
            each.answers.fetch_add(more, Relaxed);
            return false;
        }
        self.of_answers += more;
        true
    }

    fn give_back(&mut self, of_own: usize, of_all: usize) {
        let Rooms { own, each, all } = &*self.rooms;
        own.add_permits(of_own);
        all.calls.add_permits(of_all);
        each.calls.add_permits(of_own + of_all);
        self.of_own -= of_own;
        self.of_all -= of_all;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(self.of_own, self.of_all);
        self.rooms.each.answers.fetch_add(self.of_answers, Relaxed);
        self.rooms.all.answers.fetch_add(self.of_answers, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const EACH: usize = 1 << 20;
    const ALL: usize = 4 << 20;

    fn all_released(memory: &Memory, account: &Account) -> bool {
        let Rooms { own, each, all } = &*account.0;
        let fresh = (Room::new(memory.each), Room::new(ALL));
        own.available_permits() == OWN
            && each.calls.available_permits() == fresh.0.calls.available_permits()
            && all.calls.available_permits() == fresh.1.calls.available_permits()
            && each.answers.load(Relaxed) == fresh.0.answers.load(Relaxed)
            && all.answers.load(Relaxed) == fresh.1.answers.load(Relaxed)
    }

    #[test]
    fn the_longest_frame_has_room_and_a_second_waits_for_it() {
        let memory = Memory::new(EACH, ALL);
        let account = memory.account();
        let first = account
            .hold(memory.longest())
            .now_or_never()
            .expect("there is no room for the first frame");
        assert!(account.hold(memory.longest()).now_or_never().is_none());
        let mut second = Box::pin(account.hold(memory.longest()));
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        drop(second.now_or_never().expect("the room of the first frame was not released"));
        assert!(all_released(&memory, &account));
    }

    #[test]
    fn a_cancelled_wait_holds_nothing() {
        let memory = Memory::new(EACH, ALL);
        let accounts = [(); 8].map(|()| memory.account());
        let held = accounts.each_ref().map(|of| of.hold(memory.longest()).now_or_never());
        assert_eq!(
            held.iter().flatten().count(),
            4,
            "a quarter of each room is reserved for answers"
        );
        // The first four wait for their own room, the others for the shared room.
        for account in &accounts {
            assert!(account.hold(memory.longest()).now_or_never().is_none());
        }
        drop(held);
        assert!(accounts.iter().all(|account| all_released(&memory, account)));
    }

    #[test]
    fn small_calls_continue_when_the_shared_room_is_used_up() {
        let memory = Memory::new(EACH, ALL);
        let mut greedy = Vec::new();
        for _ in 0..=ALL / EACH {
            let account = memory.account();
            for length in [60_000, 1_000, 0] {
                greedy.extend(std::iter::from_fn(|| account.hold(length).now_or_never()));
            }
        }
        let account = memory.account();
        let small = std::iter::from_fn(|| account.hold(100).now_or_never()).collect::<Vec<_>>();
        assert_eq!(small.len(), OWN / (CALL + 200));
        assert!(account.hold(60_000).now_or_never().is_none());
        drop((greedy, small));
        assert!(all_released(&memory, &account));
    }

    #[test]
    fn an_answer_holds_its_length_instead_of_its_call() {
        let memory = Memory::new(EACH, ALL);
        let account = memory.account();
        let mut held = account.hold(100_000).now_or_never().unwrap();
        assert!(held.answer(1_000));
        assert_eq!((held.of_own, held.of_all, held.of_answers), (0, 1_000 + ANSWER, 0));
        assert!(held.answer(151_000), "longer than its call");
        assert_eq!(held.of_answers, 150_000);

        let mut small = account.hold(1).now_or_never().unwrap();
        assert!(!small.answer(EACH), "an answer of {EACH} bytes got room");
        assert!(small.answer(100), "no room for the exception that replaces it");
        drop((held, small));
        assert!(all_released(&memory, &account));
    }

    /// A waiting frame takes all released room for calls, but none of the room reserved for
    /// answers.
    #[test]
    fn a_waiting_frame_takes_no_room_from_answers() {
        let memory = Memory::new(EACH, ALL);
        let account = memory.account();
        let mut held = account.hold(memory.longest()).now_or_never().unwrap();
        let mut waits = Box::pin(account.hold(memory.longest()));
        assert!((&mut waits).now_or_never().is_none());
        assert!(held.answer(2 * memory.longest() + EACH / 8));
        drop((waits, held));
        assert!(all_released(&memory, &account));
    }
}

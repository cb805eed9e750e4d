//! Memory that clients hold in a server, in bytes: of each connection, and of all together.
//!
//! 1. Bytes are held before they are there: a frame is not read until there is room for it, for the
//!    call it makes, and for an answer of the same length.
//! 2. Room is given back when the bytes are freed, not before: a [`Held`] is dropped with them.
//! 3. Waiting is for one thing at a time and in turn. A connection waits for its own room while it
//!    holds nothing for this call, and for the room of all while it holds its own, which is not
//!    needed by any other connection. So there is no cycle.
//! 4. An answer that is longer than its call never waits, since it is there already: it gets room
//!    from a part that no frame may use, or the call is refused.
//! 5. A connection has [`OWN`] bytes that no other can use. Small calls go on when the rest is used
//!    up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// What a call costs beside its bytes: a task, its envelope (a name has up to a KiB, and is
/// copied), and an answer that is a little longer than its call. A call of `later` without a text
/// was measured at 1.3 KiB without optimisation.
pub(crate) const CALL: usize = 4 * 1024;

/// What an answer costs beside its bytes while it waits to be written. Measured: about 700 bytes.
const ANSWER: usize = 1024;

/// Bytes of a connection that no other can use: sixteen small calls. A thousand connections hold 64
/// MiB of these.
pub(crate) const OWN: usize = 64 * 1024;

/// Room for bytes: what frames may wait for, and what only answers may have.
#[derive(Debug)]
struct Room {
    calls: Semaphore,
    answers: AtomicUsize,
}

impl Room {
    /// A quarter is for answers that are longer than their calls: frames cannot use it up.
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

/// The room of all connections.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    all: Arc<Room>,
    each: usize,
    longest: usize,
}

/// The room of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Account(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    own: Semaphore,
    each: Room,
    all: Arc<Room>,
}

impl Memory {
    /// Room for so many bytes of `each` connection, and of `all`.
    pub(crate) fn new(each: usize, all: usize) -> Self {
        let room = Room::new(all);
        // A frame for which there can never be room would wait for ever.
        let calls = Room::new(each).calls.available_permits().min(room.calls.available_permits());
        Self { all: Arc::new(room), each, longest: calls.saturating_sub(CALL) / 2 }
    }

    /// The longest frame that there can be room for.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn account(&self) -> Account {
        let (each, all) = (Room::new(self.each), Arc::clone(&self.all));
        Account(Arc::new(Rooms { own: Semaphore::new(OWN), each, all }))
    }
}

impl Account {
    /// Waits until there is room for a call of so many bytes.
    pub(crate) async fn hold(&self, length: usize) -> Held {
        let bytes = length.saturating_mul(2).saturating_add(CALL);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Rooms { own, each, all } = &*self.0;
        let mine = each.calls.acquire_many(permits).await;
        let (of_own, of_all) = tokio::select! {
            biased;
            // Not worth a wait if it can never come.
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

/// Leaves the permits to a [`Held`], which gives them back. The semaphores are never closed.
fn keep(permits: Result<SemaphorePermit<'_>, AcquireError>) {
    if let Ok(permits) = permits {
        permits.forget();
    }
}

/// Room that is held for a call, and then for its answer.
#[derive(Debug)]
pub(crate) struct Held {
    rooms: Arc<Rooms>,
    of_own: usize,
    of_all: usize,
    of_answers: usize,
}

impl Held {
    /// Holds room for an answer of so many bytes, instead of its call. Returns `false` if there is
    /// none.
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

    fn all_is_back(memory: &Memory, account: &Account) -> bool {
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
        let first = account.hold(memory.longest()).now_or_never().expect("no room for the first");
        assert!(account.hold(memory.longest()).now_or_never().is_none());
        let mut second = Box::pin(account.hold(memory.longest()));
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        drop(second.now_or_never().expect("its room is not given back"));
        assert!(all_is_back(&memory, &account));
    }

    #[test]
    fn a_wait_that_is_given_up_keeps_nothing() {
        let memory = Memory::new(EACH, ALL);
        let accounts = [(); 8].map(|()| memory.account());
        let held = accounts.each_ref().map(|of| of.hold(memory.longest()).now_or_never());
        assert_eq!(held.iter().flatten().count(), 4, "all is a quarter less, each is too");
        // These wait for their own room, and these for that of all.
        for account in &accounts {
            assert!(account.hold(memory.longest()).now_or_never().is_none());
        }
        drop(held);
        assert!(accounts.iter().all(|account| all_is_back(&memory, account)));
    }

    #[test]
    fn small_calls_go_on_when_all_is_used_up() {
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
        assert!(all_is_back(&memory, &account));
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
        assert!(!small.answer(EACH), "there is no room for it");
        assert!(small.answer(100), "and that is said in few bytes");
        drop((held, small));
        assert!(all_is_back(&memory, &account));
    }

    /// A reader that waits takes all room that comes. None of it was for longer answers.
    #[test]
    fn a_frame_that_waits_takes_no_room_from_answers() {
        let memory = Memory::new(EACH, ALL);
        let account = memory.account();
        let mut held = account.hold(memory.longest()).now_or_never().unwrap();
        let mut waits = Box::pin(account.hold(memory.longest()));
        assert!((&mut waits).now_or_never().is_none());
        assert!(held.answer(2 * memory.longest() + EACH / 8));
        drop((waits, held));
        assert!(all_is_back(&memory, &account));
    }
}

//! Memory that clients hold in a server, in bytes: of each connection, and of all together.
//!
//! 1. Bytes are held before they are there: a frame is not read until there is room for it, for the
//!    call it makes, and for an answer of the same length.
//! 2. Room is given back when the bytes are freed, not before: a [`Held`] is dropped with them.
//! 3. Waiting is for one thing at a time and in turn. A connection waits for its own room while it
//!    holds nothing for this call, and for the room of all while it holds its own, which is not needed
//!    by any other connection. So there is no cycle.
//! 4. An answer that is longer than its call never waits, since it is there already: it gets room from
//!    a part that no frame may use, or the call is refused.
//! 5. A connection has [`OWN`] bytes that no other can use. Small calls go on when the rest is used up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;

/// What a call costs beside its bytes: a task, the envelope, and the room of a small answer. Measured:
/// a call of `later` without a text takes 1.1 KiB. The rest is for an answer that is longer than its
/// call, as most are that have a list in them; a call that needs more is refused only if there is none.
pub(crate) const CALL: usize = 4 * 1024;

/// Bytes of a connection that no other can use: sixteen small calls. A thousand connections hold 64 MiB
/// of these.
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
                permit.into_iter().for_each(|permit| permit.forget());
                (bytes, 0)
            }
            permit = all.calls.acquire_many(permits) => {
                permit.into_iter().for_each(|permit| permit.forget());
                (0, bytes)
            }
        };
        mine.into_iter().for_each(|permit| permit.forget());
        Held { rooms: Arc::clone(&self.0), of_own, of_all, of_answers: 0 }
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
    /// Holds room for an answer of so many bytes, instead of its call. Returns `false` if there is none.
    pub(crate) fn answer(&mut self, length: usize) -> bool {
        let held = self.of_own + self.of_all;
        // What an answer costs beside its bytes is a small part of what a call does.
        let bytes = length.saturating_add(CALL / 8);
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

//! The connections of a server, the places that they take, and which of them are closed for others.
//!
//! A new connection lacks a place when all of them are taken, or a file when the process has too many
//! open ones. Then another connection is closed, if one may be: the first in this order.
//!
//! 1. One whose client is gone, while calls that it has left behind are still read, or wait for a turn.
//!    These calls are dropped. Up to a limit, such connections take no place (`Connections::outlasting`),
//!    and those whose sockets are closed have no file: to close these makes no room.
//! 2. One whose client has shut down its side, although its calls may be running: nearly all of these
//!    clients have left.
//! 3. One that is idle.
//!
//! Of several, it is the one of which this has been true for longest.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection::Peer;

/// How often all connections are looked at. What depends on it may take that much longer.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Whether a client is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Present,
    /// Its client is gone, and what it had sent is still read.
    Gone(Instant),
    /// Its socket is closed. One-way calls may be running, or wait for a turn.
    Closed(Instant),
}

/// Why a connection may be closed for another one, in order, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closable {
    Gone(Instant),
    HalfClosed(Instant),
    Idle(Instant),
}

/// Closes a connection for another one.
fn close(peer: &Peer, why: Closable) {
    match why {
        Closable::Gone(_) => peer.cut_off(),
        Closable::HalfClosed(_) => {
            peer.cut_off();
            peer.leave(false);
        }
        Closable::Idle(_) => peer.stop.cancel(),
    }
}

/// What a new connection lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lack {
    Place,
    File,
}

#[derive(Debug)]
struct Entry {
    peer: Peer,
    place: OwnedSemaphorePermit,
    /// Its place is one of those for connections whose clients are gone.
    outlasts: bool,
    state: State,
}

impl Entry {
    fn closable(&self, lack: Lack, now: Instant) -> Option<Closable> {
        match self.state {
            State::Present => {
                let half_closed = || self.peer.half_closed_since(now).map(Closable::HalfClosed);
                let idle = || self.peer.replaceable_since(LOOK, now).map(Closable::Idle);
                half_closed().or_else(idle)
            }
            State::Gone(since) | State::Closed(since) => {
                let has_it = match lack {
                    Lack::Place => !self.outlasts && !self.peer.has_begun_one_way(),
                    Lack::File => matches!(self.state, State::Gone(_)),
                };
                (has_it && !self.peer.is_cut_off()).then_some(Closable::Gone(since))
            }
        }
    }
}

/// The connections of a server by their ids.
#[derive(Debug)]
pub(crate) struct Connections {
    entries: Mutex<HashMap<u64, Entry>>,
    /// Places of connections whose clients are gone, but whose one-way calls are running.
    outlasting: Arc<Semaphore>,
}

impl Connections {
    /// Up to this many connections whose clients are gone have a place of their own.
    pub(crate) fn new(outlasting: usize) -> Self {
        let entries = Mutex::default();
        Self { entries, outlasting: Arc::new(Semaphore::new(outlasting)) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a connection to the closure, if its client is not known to be gone.
    pub(crate) fn with(&self, id: u64, f: impl FnOnce(&Peer)) {
        let entries = self.lock();
        let entry = entries.get(&id).filter(|entry| entry.state == State::Present);
        if let Some(Entry { peer, .. }) = entry {
            f(peer);
        }
    }

    /// Notes that the client of a connection is gone.
    pub(crate) fn leave(&self, id: u64) {
        self.free_place(id, State::Gone(Instant::now()));
    }

    /// Notes that the socket of a connection is closed.
    pub(crate) fn close(&self, id: u64) {
        self.free_place(id, State::Closed(Instant::now()));
    }

    /// Frees the place of a connection, unless too many others have calls that go on.
    fn free_place(&self, id: u64, state: State) {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(&id) else { return };
        entry.state = state;
        if !entry.outlasts
            && let Ok(other) = Arc::clone(&self.outlasting).try_acquire_owned()
        {
            entry.place = other;
            entry.outlasts = true;
        }
    }

    /// Returns a connection and why it may be closed; `None` if it may not.
    fn closable(&self, id: u64, lack: Lack, now: Instant) -> Option<(Peer, Closable)> {
        let entries = self.lock();
        let entry = entries.get(&id)?;
        Some((entry.peer.clone(), entry.closable(lack, now)?))
    }

    /// Closes the connections that have been idle for this long.
    pub(crate) fn close_idle(&self, least: Duration) {
        for Entry { peer, state, .. } in self.lock().values() {
            if *state == State::Present
                && peer.idle_since().is_some_and(|since| since.elapsed() >= least)
            {
                peer.stop.cancel();
            }
        }
    }
}

/// A place that a connection takes until its task ends.
pub(crate) struct Seat {
    connections: Arc<Connections>,
    id: u64,
}

impl Seat {
    pub(crate) fn take(
        connections: Arc<Connections>,
        id: u64,
        peer: Peer,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let entry = Entry { peer, place, outlasts: false, state: State::Present };
        connections.lock().insert(id, entry);
        Self { connections, id }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let entry = self.connections.lock().remove(&self.id);
        drop(entry); // not under the lock
    }
}

/// Closes connections for others that lack the same.
///
/// All connections are looked at once between two calls of [`forget`](Self::forget), and not for each new
/// one: that would take longer than a client takes to connect.
#[derive(Debug)]
pub(crate) struct Room {
    lack: Lack,
    /// Those that could be closed when they were looked at.
    found: Option<VecDeque<u64>>,
}

impl Room {
    pub(crate) fn new(lack: Lack) -> Self {
        Self { lack, found: None }
    }

    /// Has all connections looked at once more, when one is to be closed.
    pub(crate) fn forget(&mut self) {
        self.found = None;
    }

    /// Closes one connection, if one may be closed. Idle ones may be only if they can be judged now.
    pub(crate) fn make(&mut self, among: &Connections, judges_idle: bool, now: Instant) {
        let found = self.found.get_or_insert_with(|| find(among, self.lack, now));
        while let Some(id) = found.front() {
            let closable = among.closable(*id, self.lack, now); // it may have a call by now
            if matches!(closable, Some((_, Closable::Idle(_)))) && !judges_idle {
                return;
            }
            found.pop_front();
            if let Some((peer, why)) = closable {
                close(&peer, why);
                return;
            }
        }
    }
}

/// Returns the connections that may be closed, in order.
fn find(among: &Connections, lack: Lack, now: Instant) -> VecDeque<u64> {
    let may_be_closed = |(id, entry): (&u64, &Entry)| Some((entry.closable(lack, now)?, *id));
    let mut found: Vec<_> = among.lock().iter().filter_map(may_be_closed).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections with seats in places that are all taken.
    struct Full {
        connections: Arc<Connections>,
        places: Arc<Semaphore>,
        seats: Vec<Seat>,
        peers: Vec<Peer>,
    }

    impl Full {
        fn of(peers: impl IntoIterator<Item = Peer>, outlasting: usize) -> Self {
            let peers: Vec<_> = peers.into_iter().collect();
            let connections = Arc::new(Connections::new(outlasting));
            let places = Arc::new(Semaphore::new(peers.len()));
            let seats = peers.iter().zip(0..).map(|(peer, id)| {
                let place = Arc::clone(&places).try_acquire_owned().unwrap();
                Seat::take(Arc::clone(&connections), id, peer.clone(), place)
            });
            Self { seats: seats.collect(), connections, places, peers }
        }

        /// The numbers of those that were closed.
        fn closed(&self) -> Vec<usize> {
            let is_closed = |peer: &Peer| peer.is_cut_off() || peer.stop.is_cancelled();
            (0..self.peers.len()).filter(|n| is_closed(&self.peers[*n])).collect()
        }
    }

    fn begun() -> (Instant, impl Fn(u64) -> Instant) {
        let begun = Instant::now();
        (begun, move |seconds| begun + Duration::from_secs(seconds))
    }

    #[test]
    fn connections_are_closed_for_others_in_order() {
        let (begun, after) = begun();
        let full = Full::of(
            [
                Peer::waiting(after(2), None),
                Peer::waiting(begun, None),
                Peer::waiting(begun, Some(after(4))),
                Peer::waiting(begun, Some(after(3))),
                Peer::waiting(begun, None),
                Peer::waiting(after(9), None), // just now
            ],
            9,
        );
        full.connections.leave(4);
        let (mut files, mut room) = (Room::new(Lack::File), Room::new(Lack::Place));
        // Only a file is to be had from one that is gone.
        files.make(&full.connections, true, after(9));
        assert_eq!(full.closed(), [4]);
        for closed in [&[3, 4][..], &[2, 3, 4], &[1, 2, 3, 4], &[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]] {
            room.make(&full.connections, true, after(9));
            assert_eq!(full.closed(), closed);
        }
    }

    #[test]
    fn idle_connections_are_not_closed_for_others_after_a_pause() {
        let (begun, after) = begun();
        let peers = [Peer::waiting(begun, None), Peer::waiting(begun, Some(begun))];
        let full = Full::of(peers, 9);
        let mut room = Room::new(Lack::Place);
        for _ in 0..3 {
            room.make(&full.connections, false, after(9));
            assert_eq!(full.closed(), [1]);
        }
        room.make(&full.connections, true, after(9));
        assert_eq!(full.closed(), [0, 1]);
    }

    #[test]
    fn all_connections_are_looked_at_once_for_many_new_ones() {
        let (begun, after) = begun();
        let full = Full::of([(); 4].map(|()| Peer::waiting(begun, None)), 9);
        let mut room = Room::new(Lack::Place);
        room.make(&full.connections, true, after(9));
        // What was found then is looked at again, because it may have a call by now.
        let _call = full.peers[1].activity().wait_for_memory();
        full.connections.leave(2);
        let late = Peer::waiting(begun, None);
        let place = Arc::clone(&full.places).try_acquire_owned().unwrap();
        let seat = Seat::take(Arc::clone(&full.connections), 4, late.clone(), place);
        for _ in 0..9 {
            room.make(&full.connections, true, after(9));
            assert_eq!(full.closed(), [0, 3]);
            assert!(!late.stop.is_cancelled());
        }
        room.forget();
        room.make(&full.connections, true, after(9));
        assert!(late.stop.is_cancelled());
        drop(seat);
    }

    #[test]
    fn clients_that_are_gone_have_so_many_places_of_their_own() {
        let mut full = Full::of([(); 3].map(|()| Peer::waiting(Instant::now(), None)), 1);
        full.connections.leave(0);
        full.connections.close(0);
        assert_eq!(full.places.available_permits(), 1);
        full.connections.leave(1);
        assert_eq!(full.places.available_permits(), 1, "it keeps its place");
        full.seats.remove(0);
        assert_eq!(full.places.available_permits(), 1);
        full.connections.close(1);
        assert_eq!(full.places.available_permits(), 2);
        full.seats.clear();
        assert_eq!(full.places.available_permits(), 3);
        assert!(full.connections.lock().is_empty());
    }

    #[test]
    fn clients_that_are_gone_and_have_a_place_of_others_make_room_unless_their_calls_are_running() {
        let (begun, after) = begun();
        let full = Full::of([(); 4].map(|()| Peer::waiting(begun, None)), 1);
        for gone in [0, 1, 2] {
            full.connections.leave(gone);
        }
        full.connections.close(2);
        let _call = full.peers[1].begin_one_way();
        let mut room = Room::new(Lack::Place);
        for closed in [&[2][..], &[2, 3], &[2, 3]] {
            room.make(&full.connections, true, after(9));
            assert_eq!(full.closed(), closed);
        }
    }
}

//! [`Groups`]: which writers of a hub share a log.

use std::any::TypeId;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use stream_demux::Lease;
use tokio::io::AsyncWrite;

use super::{Limits, Writer, Writers};

/// A table has room for at least this many keys without shrinking.
const KEYS_KEPT: usize = 64;

/// The logs of a hub, by key. Each exists while it has a writer.
///
/// A sink is attached under the lock: when a call returns, the sink of its writer is attached, also
/// if another call has made it. Keys are hashed and compared under it, too.
pub(crate) struct Groups<K>(Arc<Table<K>>);

type Table<K> = Mutex<HashMap<K, Vec<Entry>>>;

struct Entry {
    kind: Kind,
    /// Gone with the last writer.
    group: Weak<Group>,
}

/// Writers of a key that agree in this share a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The type of the encoder.
    pub(crate) encoder: TypeId,
    pub(crate) limits: Limits,
}

/// What the writers of a log own together.
pub(super) struct Group {
    writers: Writers,
    /// The hub drops the sink with it.
    _lease: Lease,
    /// Removes the entry when it is dropped. In a mutex, because keys need not be `Sync`.
    _place: Mutex<Box<dyn Place>>,
}

/// The place of a group in a table.
trait Place: Send {}

struct PlaceOf<K: Hash + Eq> {
    key: K,
    table: Weak<Table<K>>,
}

impl<K: Hash + Eq + Send> Place for PlaceOf<K> {}

impl<K> Groups<K> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(HashMap::new())))
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Groups<K> {
    /// Adds a writer to the log of its kind. If there is none, `attach` makes it. What it returns last
    /// is dropped after the lock is released.
    pub(crate) fn join<W: AsyncWrite, R>(
        &self,
        key: K,
        kind: Kind,
        io: W,
        attach: impl FnOnce(K) -> (Writers, Lease, R),
    ) -> Writer<W> {
        // Dropped after the lock is released, also if a key panics: a group takes the lock if this is
        // the last reference.
        let mut failed = Vec::new();
        let made;
        let mut table = lock(&self.0);
        for entry in table.get(&key).into_iter().flatten() {
            if entry.kind != kind {
                continue;
            }
            let Some(group) = entry.group.upgrade() else { continue };
            if !group.writers.have_failed() {
                return group.writers.join(io).member(group);
            }
            failed.push(group);
        }
        let (writers, lease, refused) = attach(key.clone());
        let place = PlaceOf { key: key.clone(), table: Arc::downgrade(&self.0) };
        let place = Mutex::new(Box::new(place) as Box<dyn Place>);
        made = Arc::new(Group { writers, _lease: lease, _place: place });
        let entry = Entry { kind, group: Arc::downgrade(&made) };
        let writer = made.writers.join(io).member(Arc::clone(&made));
        match table.get_mut(&key) {
            Some(entries) => entries.push(entry),
            None => drop(table.insert(key, vec![entry])),
        }
        drop(table);
        drop(refused);
        drop(failed);
        writer
    }
}

impl<K: Hash + Eq> Drop for PlaceOf<K> {
    fn drop(&mut self) {
        let Some(shared) = self.table.upgrade() else { return };
        let mut table = lock(&shared);
        let Some(entries) = table.get_mut(&self.key) else { return };
        entries.retain(|entry| entry.group.strong_count() > 0);
        let emptied = if entries.is_empty() { table.remove_entry(&self.key) } else { None };
        // Twice the room that is needed, so that shrinking costs little for each that goes.
        if table.capacity() / 8 > table.len().max(KEYS_KEPT) {
            let room = table.len() * 2;
            table.shrink_to(room);
        }
        drop(table);
        // The key is dropped without the lock.
        drop(emptied);
    }
}

fn lock<K>(table: &Table<K>) -> MutexGuard<'_, HashMap<K, Vec<Entry>>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

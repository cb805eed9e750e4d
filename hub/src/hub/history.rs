//! [`History`]: the last items of keys, for subscriptions that come later.
//!
//! The task of the hub writes it, and reads it for each subscription that asks for a replay. So an
//! item is in the history exactly if the task has read it by then. Which item was read last is
//! known by its number, and a sink that begins with a replay takes no item up to that one.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Mutex;

use super::shared::lock;

/// The end of a list.
const NONE: usize = usize::MAX;

pub(super) struct History<K, V> {
    /// How many items of a key are kept, and of how many keys.
    items: usize,
    keys: usize,
    state: Mutex<State<K, V>>,
}

struct State<K, V> {
    /// Indices of `entries`.
    table: HashMap<K, usize>,
    entries: Vec<Entry<K, V>>,
    /// The entries whose last item came last, and first.
    newest: usize,
    oldest: usize,
    /// How many items there are.
    kept: usize,
}

struct Entry<K, V> {
    key: K,
    items: VecDeque<V>,
    /// The next entries in the order of their last items.
    newer: usize,
    older: usize,
}

/// An entry, and its key in the table.
type Forgotten<K, V> = (Entry<K, V>, Option<(K, usize)>);

impl<K, V> History<K, V> {
    pub(super) fn new(items: usize, keys: usize) -> Self {
        let state = State {
            table: HashMap::new(),
            entries: Vec::new(),
            newest: NONE,
            oldest: NONE,
            kept: 0,
        };
        Self { items, keys, state: Mutex::new(state) }
    }

    /// How many items are kept, and of how many keys.
    pub(super) fn len(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.kept, state.entries.len())
    }

    /// Forgets everything. Returns the keys and the items, to be dropped one by one.
    pub(super) fn clear(
        &self,
    ) -> (impl Iterator<Item = K> + use<K, V>, impl Iterator<Item = V> + use<K, V>) {
        let empty = Self::new(self.items, self.keys).state;
        let State { table, entries, .. } =
            std::mem::replace(&mut *lock(&self.state), into_inner(empty));
        let pairs = entries.into_iter().map(|entry| (entry.key, entry.items));
        let (keys, items): (Vec<_>, Vec<_>) = pairs.unzip();
        (keys.into_iter().chain(table.into_keys()), items.into_iter().flatten())
    }
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<K: Hash + Eq + Clone, V: Clone> History<K, V> {
    /// Appends an item. If there are too many keys, forgets the one that got none for longest.
    pub(super) fn push(&self, key: &K, item: V) {
        let mut state = lock(&self.state);
        let known = state.table.get(key).copied();
        let (index, forgotten) = match known {
            Some(index) => (index, None),
            None if state.entries.len() < self.keys => (state.add(key), None),
            None => state.reuse_oldest(key),
        };
        state.make_newest(index);
        let entry = &mut state.entries[index];
        let first = if entry.items.len() == self.items { entry.items.pop_front() } else { None };
        entry.items.push_back(item);
        state.kept += usize::from(first.is_none());
        drop(state);
        drop(forgotten);
        drop(first);
    }

    /// Returns `true` if the last item of all has this key.
    pub(super) fn is_newest(&self, key: &K) -> bool {
        let state = lock(&self.state);
        state.table.get(key).is_some_and(|index| *index == state.newest)
    }

    /// Returns clones of the last items of a key, the oldest first.
    pub(super) fn last(&self, key: &K, items: usize) -> Vec<V> {
        let state = lock(&self.state);
        let Some(&index) = state.table.get(key) else { return Vec::new() };
        let all = &state.entries[index].items;
        all.range(all.len().saturating_sub(items)..).cloned().collect()
    }
}

impl<K: Hash + Eq + Clone, V> State<K, V> {
    /// Adds an entry that is in no list.
    fn add(&mut self, key: &K) -> usize {
        let index = self.entries.len();
        self.table.insert(key.clone(), index);
        let items = VecDeque::new();
        self.entries.push(Entry { key: key.clone(), items, newer: NONE, older: NONE });
        index
    }

    /// Gives the oldest entry to another key. Returns what it had, to be dropped.
    fn reuse_oldest(&mut self, key: &K) -> (usize, Option<Forgotten<K, V>>) {
        let index = self.oldest;
        let Self { table, entries, kept, .. } = self;
        let Entry { newer, older, .. } = entries[index];
        let entry = Entry { key: key.clone(), items: VecDeque::new(), newer, older };
        let old = std::mem::replace(&mut entries[index], entry);
        let old_key = table.remove_entry(&old.key);
        table.insert(key.clone(), index);
        *kept -= old.items.len();
        (index, Some((old, old_key)))
    }

    fn make_newest(&mut self, index: usize) {
        if self.newest == index {
            return;
        }
        let Entry { newer, older, .. } = self.entries[index];
        if newer != NONE {
            self.entries[newer].older = older;
            if older == NONE {
                self.oldest = newer;
            } else {
                self.entries[older].newer = newer;
            }
        }
        self.entries[index].newer = NONE;
        self.entries[index].older = self.newest;
        if self.newest == NONE {
            self.oldest = index;
        } else {
            let newest = self.newest;
            self.entries[newest].newer = index;
        }
        self.newest = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_that_got_items_last_have_their_last_items() {
        let history = History::new(2, 3);
        // A model: the keys in the order of their last items.
        let mut model = Vec::<(u32, Vec<u32>)>::new();
        let mut seed = 1_u32;
        for n in 0..5_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = (seed >> 16) % 5;
            history.push(&key, n);
            let known = model.iter().position(|(known, _)| *known == key);
            let mut items = known.map_or(Vec::new(), |index| model.remove(index).1);
            items.push(n);
            items.drain(..items.len().saturating_sub(2));
            model.push((key, items));
            model.drain(..model.len().saturating_sub(3));
            for key in 0..5 {
                let items = model.iter().find(|(known, _)| *known == key);
                let items = items.map_or(&[][..], |(_, items)| &items[..]);
                assert_eq!(history.last(&key, 2), items);
                assert_eq!(history.last(&key, 1), items[items.len().saturating_sub(1)..]);
                assert_eq!(history.is_newest(&key), model.last().is_some_and(|last| last.0 == key));
            }
            let kept = model.iter().map(|(_, items)| items.len()).sum::<usize>();
            assert_eq!(history.len(), (kept, model.len()));
        }
        let (kept, _) = history.len();
        let (keys, items) = history.clear();
        assert_eq!((keys.count(), items.count()), (2 * 3, kept));
        assert_eq!(history.len(), (0, 0));
    }
}

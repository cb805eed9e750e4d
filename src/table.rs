//! Key to slots: the one place that keeps the two indices, the slab and the groups in step. It polls
//! nothing and calls no hook.
//!
//! 1. Every slot is in the slab. Between two orders, one that receives is found through `receiving`,
//!    one that leaves through `leaving`; none through both.
//! 2. An index holds one entry for a key: the first of those that share it. The others hang on it,
//!    in the order in which they came, by `prev` and `next`; only then are they `GROUPED`.
//! 3. A slot is unlinked before it leaves the slab or changes its stage: an index that grows hashes
//!    the keys of all its entries.
//! 4. `catch_all` names a slot that receives.
//!
//! A key is stored once, in its slot, and never cloned.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::ops::{Index, IndexMut};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use slab::Slab;

use crate::key::sealed::Directory;
use crate::slot::{Farewell, NONE, Slot};

pub(crate) struct Table<K, S, V, B> {
    slots: Slab<Slot<K, S, V>>,
    receiving: HashTable<u32>,
    leaving: HashTable<u32>,
    hasher: B,
    /// How many slots receive.
    len: usize,
    catch_all: Option<usize>,
}

impl<K, S, V, B> Table<K, S, V, B> {
    pub(crate) fn new(hasher: B) -> Self {
        Self {
            slots: Slab::new(),
            receiving: HashTable::new(),
            leaving: HashTable::new(),
            hasher,
            len: 0,
            catch_all: None,
        }
    }

    /// The same, empty, with another hasher.
    pub(crate) fn with_hasher<B2>(self, hasher: B2) -> Table<K, S, V, B2> {
        debug_assert!(self.slots.is_empty());
        Table::new(hasher)
    }

    /// How many slots receive.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Is every slot gone, also those that were leaving?
    pub(crate) fn is_vacant(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many slots there are, in every stage.
    pub(crate) fn tenants(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut Slot<K, S, V>> {
        self.slots.get_mut(slot)
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Slot<K, S, V>> {
        self.slots.get(slot)
    }

    /// Who receives what matches no key.
    pub(crate) fn catch_all(&self) -> Option<usize> {
        self.catch_all
    }

    pub(crate) fn set_catch_all(&mut self, slot: usize) {
        self.catch_all = Some(slot);
    }

    /// The next in line of those that share the key of `slot`.
    pub(crate) fn next(&self, slot: usize) -> Option<usize> {
        let (_, next) = self.slots[slot].links();
        (next != NONE).then_some(next as usize)
    }

    /// Those that share a key, from `first` on.
    pub(crate) fn group(&self, first: Option<usize>) -> impl Iterator<Item = usize> {
        core::iter::successors(first, |&slot| self.next(slot))
    }

    /// Gives a new slot an index, and nobody the means to find it: [`link`](Self::link) does that.
    pub(crate) fn insert(&mut self, slot: Slot<K, S, V>) -> usize {
        self.slots.insert(slot)
    }

    /// Drops all slots, and frees what they were kept in.
    pub(crate) fn clear(&mut self) {
        self.slots = Slab::new();
        self.receiving = HashTable::new();
        self.leaving = HashTable::new();
        self.len = 0;
        self.catch_all = None;
    }
}

impl<K, S, V, B> Table<K, S, V, B>
where
    K: Hash + Eq,
    B: BuildHasher,
{
    /// The first of those that are leaving under `key`.
    pub(crate) fn find_leaving(&self, key: &K) -> Option<usize> {
        find(&self.leaving, &self.slots, &self.hasher, key)
    }

    /// The first of those that receive under the key of `slot`.
    pub(crate) fn first_like(&self, slot: usize) -> Option<usize> {
        self.find(self.slots[slot].key())
    }

    /// Lets `slot` be found in the index of its stage, after those that are there under its key.
    pub(crate) fn link(&mut self, slot: usize) {
        let Self { slots, hasher, .. } = self;
        let receives = slots[slot].receives();
        self.len += usize::from(receives);
        let index = if receives { &mut self.receiving } else { &mut self.leaving };
        let hash = hasher.hash_one(slots[slot].key());
        let same = |&other: &u32| slots[other as usize].key() == slots[slot].key();
        match index.entry(hash, same, |&other| hasher.hash_one(slots[other as usize].key())) {
            Entry::Vacant(entry) => {
                entry.insert(narrow(slot));
            }
            Entry::Occupied(entry) => {
                let first = *entry.get() as usize;
                append(slots, first, slot);
            }
        }
    }

    /// Lets `slot` no longer be found.
    fn unlink(&mut self, slot: usize) {
        let Self { slots, hasher, .. } = self;
        let receives = slots[slot].receives();
        self.len -= usize::from(receives);
        let index = if receives { &mut self.receiving } else { &mut self.leaving };
        let hash = hasher.hash_one(slots[slot].key());
        let same = |&other: &u32| slots[other as usize].key() == slots[slot].key();
        let Ok(mut entry) = index.find_entry(hash, same) else {
            unreachable!("a linked key has an entry, unless its `Hash` or `Eq` is inconsistent");
        };
        if slots[slot].is_grouped() {
            let first = cut_out(slots, *entry.get() as usize, slot);
            *entry.get_mut() = narrow(first);
        } else {
            entry.remove();
        }
    }

    /// From now on `slot` receives nothing and is on its way out.
    pub(crate) fn leave(&mut self, slot: usize, why: Farewell) {
        self.unlink(slot);
        if self.catch_all == Some(slot) {
            self.catch_all = None;
        }
        self.slots[slot].set_leaving(why);
        self.link(slot);
    }

    /// Takes `slot` out altogether.
    pub(crate) fn remove(&mut self, slot: usize) -> Slot<K, S, V> {
        self.unlink(slot);
        if self.catch_all == Some(slot) {
            self.catch_all = None;
        }
        self.slots.remove(slot)
    }
}

impl<K, S, V, B> Directory<K> for Table<K, S, V, B>
where
    B: BuildHasher,
{
    /// The first of those that receive under `key`.
    #[inline]
    fn find<Q>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        find(&self.receiving, &self.slots, &self.hasher, key)
    }
}

impl<K, S, V, B> Index<usize> for Table<K, S, V, B> {
    type Output = Slot<K, S, V>;

    #[inline]
    fn index(&self, slot: usize) -> &Self::Output {
        &self.slots[slot]
    }
}

impl<K, S, V, B> IndexMut<usize> for Table<K, S, V, B> {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut Self::Output {
        &mut self.slots[slot]
    }
}

#[inline]
fn find<K, S, V, Q>(
    index: &HashTable<u32>,
    slots: &Slab<Slot<K, S, V>>,
    hasher: &impl BuildHasher,
    key: &Q,
) -> Option<usize>
where
    K: Borrow<Q>,
    Q: Hash + Eq + ?Sized,
{
    let same = |&slot: &u32| slots[slot as usize].key().borrow() == key;
    index.find(hasher.hash_one(key), same).map(|&slot| slot as usize)
}

/// Indices fit: `Ready::seat` refuses those that do not.
#[expect(clippy::cast_possible_truncation, reason = "checked when the slot was seated")]
fn narrow(slot: usize) -> u32 {
    slot as u32
}

/// Hangs `slot` on the group that starts with `first`.
fn append<K, S, V>(slots: &mut Slab<Slot<K, S, V>>, first: usize, slot: usize) {
    let last = if slots[first].is_grouped() { slots[first].links().0 as usize } else { first };
    slots[last].set_next(narrow(slot));
    slots[slot].set_prev(narrow(last));
    slots[slot].set_next(NONE);
    slots[first].set_prev(narrow(slot));
    slots[first].set_grouped(true);
    slots[slot].set_grouped(true);
}

/// Takes `slot` out of the group that starts with `first`, and tells who is the first of the rest.
fn cut_out<K, S, V>(slots: &mut Slab<Slot<K, S, V>>, first: usize, slot: usize) -> usize {
    let (prev, next) = slots[slot].links();
    let first = if slot == first {
        next as usize
    } else {
        slots[prev as usize].set_next(next);
        first
    };
    // The successor, or the first if the last one goes, has a new predecessor.
    let heir = if next == NONE { first } else { next as usize };
    slots[heir].set_prev(prev);
    slots[slot].set_grouped(false);
    slots[slot].set_next(NONE);
    let alone = slots[first].links().1 == NONE;
    slots[first].set_grouped(!alone);
    first
}

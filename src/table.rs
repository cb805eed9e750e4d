//! Key to slots: the one place that keeps the two indices, the slab and the groups in step. It polls
//! nothing and calls no hook.
//!
//! 1. Every slot is in the slab. Between two orders, one that receives is found through `receiving`,
//!    one that leaves through `leaving`; none through both.
//! 2. An index holds one entry for a key: the first slot of those that share it. If there ever was a
//!    second one, they are a group, whose members know their place in it.
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

use crate::group::Group;
use crate::key::sealed::Directory;
use crate::slot::{Farewell, Slot};

pub(crate) struct Table<K, S, V, B> {
    slots: Slab<Slot<K, S, V>>,
    groups: Slab<Group>,
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
            groups: Slab::new(),
            receiving: HashTable::new(),
            leaving: HashTable::new(),
            hasher,
            len: 0,
            catch_all: None,
        }
    }

    /// The same, empty, with another hasher.
    pub(crate) fn with_hasher<B2>(self, hasher: B2) -> Table<K, S, V, B2> {
        let Self { slots, groups, receiving, leaving, hasher: _, len, catch_all } = self;
        debug_assert!(slots.is_empty());
        Table { slots, groups, receiving, leaving, hasher, len, catch_all }
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

    pub(crate) fn group(&self, group: usize) -> &Group {
        &self.groups[group]
    }

    pub(crate) fn group_mut(&mut self, group: usize) -> &mut Group {
        &mut self.groups[group]
    }

    /// All slots, and one group.
    pub(crate) fn slots_and_group(
        &mut self,
        group: usize,
    ) -> (&mut Slab<Slot<K, S, V>>, &mut Group) {
        (&mut self.slots, &mut self.groups[group])
    }

    /// The first member of `group` that waits for its copy of the item that is held.
    pub(crate) fn first_waiting(&mut self, group: usize) -> Option<usize> {
        let Self { slots, groups, .. } = self;
        groups[group].first_waiting(|slot| slots[slot].is_waiting())
    }

    /// Gives a new slot an index, and nobody the means to find it: [`link`](Self::link) does that.
    pub(crate) fn insert(&mut self, slot: Slot<K, S, V>) -> usize {
        self.slots.insert(slot)
    }

    /// Drops all slots, and frees what they were kept in.
    pub(crate) fn clear(&mut self) {
        self.slots = Slab::new();
        self.groups = Slab::new();
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

    /// Makes room for `slots` slots: neither the slab nor an index moves before there are more.
    ///
    /// An index gets twice the room. Nearly full, `hashbrown` marks most entries that are removed as
    /// deleted instead of empty, and goes through the whole table when it has run out of empty ones.
    pub(crate) fn reserve(&mut self, slots: usize) {
        let Self { slots: slab, receiving, leaving, hasher, .. } = self;
        slab.reserve(slots.saturating_sub(slab.len()));
        for index in [receiving, leaving] {
            let room = slots.saturating_mul(2).saturating_sub(index.len());
            index.reserve(room, |&slot| hasher.hash_one(slab[slot as usize].key()));
        }
    }

    /// Lets `slot` be found in the index of its stage, after those that are there under its key.
    pub(crate) fn link(&mut self, slot: usize) {
        let Self { slots, groups, hasher, .. } = self;
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
                let group = slots[first]
                    .group()
                    .map_or_else(|| groups.insert(Group::new()), |(group, _)| group);
                if !slots[first].is_grouped() {
                    join(slots, groups, group, first);
                }
                join(slots, groups, group, slot);
            }
        }
    }

    /// Lets `slot` no longer be found.
    fn unlink(&mut self, slot: usize) {
        let Self { slots, groups, hasher, .. } = self;
        let receives = slots[slot].receives();
        self.len -= usize::from(receives);
        let mut first = None;
        if let Some((id, position)) = slots[slot].group() {
            let group = &mut groups[id];
            let was_first = group.head() == Some(slot);
            group.remove(position);
            slots[slot].set_group(None);
            first = group.head();
            if first.is_none() {
                groups.remove(id);
            }
            if !was_first {
                return;
            }
        }
        let index = if receives { &mut self.receiving } else { &mut self.leaving };
        let hash = hasher.hash_one(slots[slot].key());
        let same = |&other: &u32| slots[other as usize].key() == slots[slot].key();
        let Ok(mut entry) = index.find_entry(hash, same) else {
            unreachable!("a linked key has an entry, unless its `Hash` or `Eq` is inconsistent");
        };
        match first {
            Some(first) => *entry.get_mut() = narrow(first),
            None => drop(entry.remove()),
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

/// Lets `slot` be the last member of a group.
fn join<K, S, V>(
    slots: &mut Slab<Slot<K, S, V>>,
    groups: &mut Slab<Group>,
    group: usize,
    slot: usize,
) {
    let place = |position: usize| Some((narrow(group), narrow(position)));
    let moved = |slot: u32, position| slots[slot as usize].set_group(place(position));
    let position = groups[group].push(narrow(slot), moved);
    slots[slot].set_group(place(position));
}

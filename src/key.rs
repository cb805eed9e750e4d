//! How the key of an item is found: [`ByValue`], [`ByRef`] and the hashers.

use core::borrow::Borrow;
use core::fmt;
use core::hash::{BuildHasher, Hash, Hasher};
use core::marker::PhantomData;

use crate::order::Attach;

/// The key function of [`demux_by`](crate::DemuxStreamExt::demux_by).
#[derive(Clone, Copy)]
pub struct ByValue<F>(F);

/// The key function of [`demux_by_ref`](crate::DemuxStreamExt::demux_by_ref).
pub struct ByRef<F, Q: ?Sized>(F, PhantomData<fn(&Q)>);

impl<F> ByValue<F> {
    pub(crate) fn new(key: F) -> Self {
        Self(key)
    }
}

impl<F, Q: ?Sized> ByRef<F, Q> {
    pub(crate) fn new(key: F) -> Self {
        Self(key, PhantomData)
    }
}

impl<F> fmt::Debug for ByValue<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByValue")
    }
}

impl<F, Q: ?Sized> fmt::Debug for ByRef<F, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByRef")
    }
}

/// The key function of a demux that [attaches on demand](crate::Demux::or_attach_with).
#[derive(Clone, Copy)]
pub struct OrAttach<F, C> {
    key: F,
    attach: C,
}

impl<F, C> OrAttach<F, C> {
    pub(crate) fn new(key: F, attach: C) -> Self {
        Self { key, attach }
    }
}

impl<F, C> fmt::Debug for OrAttach<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OrAttach")
    }
}

/// Sealed by its module: the key functions are those above.
pub(crate) mod sealed {
    use super::{Attach, Borrow, Hash};

    /// Where keys are looked up.
    pub trait Directory<K> {
        /// What is found.
        type Slot<'a>
        where
            Self: 'a;

        /// A slot with this key.
        fn find<Q>(&mut self, key: &Q) -> Option<Self::Slot<'_>>
        where
            K: Borrow<Q>,
            Q: Hash + Eq + ?Sized;
    }

    /// Finds the slot for an item.
    pub trait FindByKey<V, K> {
        /// Returns the slot with the key of an item, and the key unless it is a part of the item:
        /// if the slot is looked up again, the key function is not called a second time.
        fn find_in<'a, D>(
            &mut self,
            directory: &'a mut D,
            item: &V,
        ) -> (Option<D::Slot<'a>>, Option<K>)
        where
            D: Directory<K>;
    }

    /// Attaches a sink for an item that matches no key.
    pub trait AttachOnDemand<V, K, S> {
        fn attach_for(&mut self, item: &V) -> Option<Attach<K, S>>;
    }
}

use sealed::{AttachOnDemand, Directory, FindByKey};

impl<V, K, S, F> AttachOnDemand<V, K, S> for ByValue<F> {
    #[inline]
    fn attach_for(&mut self, _: &V) -> Option<Attach<K, S>> {
        None
    }
}

impl<V, K, S, F, Q: ?Sized> AttachOnDemand<V, K, S> for ByRef<F, Q> {
    #[inline]
    fn attach_for(&mut self, _: &V) -> Option<Attach<K, S>> {
        None
    }
}

impl<V, K, S, F, C> AttachOnDemand<V, K, S> for OrAttach<F, C>
where
    C: FnMut(&V) -> Option<Attach<K, S>>,
{
    fn attach_for(&mut self, item: &V) -> Option<Attach<K, S>> {
        (self.attach)(item)
    }
}

impl<V, K, F, C> FindByKey<V, K> for OrAttach<F, C>
where
    F: FindByKey<V, K>,
{
    #[inline]
    fn find_in<'a, D>(&mut self, directory: &'a mut D, item: &V) -> (Option<D::Slot<'a>>, Option<K>)
    where
        D: Directory<K>,
    {
        self.key.find_in(directory, item)
    }
}

impl<V, K, F> FindByKey<V, K> for ByValue<F>
where
    F: FnMut(&V) -> K,
    K: Hash + Eq,
{
    #[inline]
    fn find_in<'a, D>(&mut self, directory: &'a mut D, item: &V) -> (Option<D::Slot<'a>>, Option<K>)
    where
        D: Directory<K>,
    {
        let key = (self.0)(item);
        (directory.find(&key), Some(key))
    }
}

impl<V, K, F, Q> FindByKey<V, K> for ByRef<F, Q>
where
    F: for<'a> FnMut(&'a V) -> &'a Q,
    K: Borrow<Q>,
    Q: Hash + Eq + ?Sized,
{
    #[inline]
    fn find_in<'a, D>(&mut self, directory: &'a mut D, item: &V) -> (Option<D::Slot<'a>>, Option<K>)
    where
        D: Directory<K>,
    {
        (directory.find((self.0)(item)), None)
    }
}

/// The default hasher for keys.
///
/// It is fast, but does not withstand keys that were chosen to collide. For untrusted keys, set
/// another one with [`with_hasher`](crate::Demux::with_hasher), such as `std::hash::RandomState`.
///
/// At present this is the default hasher of `hashbrown`. Only its speed and that it needs no `std`
/// are guaranteed.
#[derive(Clone, Debug, Default)]
pub struct DefaultHashBuilder(hashbrown::DefaultHashBuilder);

impl BuildHasher for DefaultHashBuilder {
    type Hasher = DefaultHasher;

    #[inline]
    fn build_hasher(&self) -> DefaultHasher {
        DefaultHasher(self.0.build_hasher())
    }
}

/// The [`Hasher`] of [`DefaultHashBuilder`].
#[derive(Clone)]
pub struct DefaultHasher(<hashbrown::DefaultHashBuilder as BuildHasher>::Hasher);

impl fmt::Debug for DefaultHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DefaultHasher")
    }
}

// Each integer is passed on as such: the defaults of `Hasher` would turn it into a slice of bytes,
// which costs more than all the rest of a look-up.
impl Hasher for DefaultHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0.finish()
    }
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }
    #[inline]
    fn write_u8(&mut self, i: u8) {
        self.0.write_u8(i);
    }
    #[inline]
    fn write_u16(&mut self, i: u16) {
        self.0.write_u16(i);
    }
    #[inline]
    fn write_u32(&mut self, i: u32) {
        self.0.write_u32(i);
    }
    #[inline]
    fn write_u64(&mut self, i: u64) {
        self.0.write_u64(i);
    }
    #[inline]
    fn write_u128(&mut self, i: u128) {
        self.0.write_u128(i);
    }
    #[inline]
    fn write_usize(&mut self, i: usize) {
        self.0.write_usize(i);
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    /// Users never hold one; the names appear in the types of demuxes.
    #[test]
    fn key_functions_are_named_and_not_shown() {
        assert_eq!(format!("{:?}", ByValue::new(|item: &u32| *item)), "ByValue");
        assert_eq!(format!("{:?}", ByRef::<_, u32>::new(())), "ByRef");
        assert_eq!(format!("{:?}", OrAttach::new((), ())), "OrAttach");
    }

    #[test]
    fn keys_of_any_type_hash_apart() {
        fn apart<T: Hash>(one: T, other: T) -> bool {
            let hasher = DefaultHashBuilder::default();
            hasher.hash_one(one) != hasher.hash_one(other)
        }
        assert!(apart(1_u8, 2) && apart(1_u16, 2) && apart(1_u32, 2) && apart(1_u64, 2));
        assert!(apart(1_u128, 2) && apart(1_usize, 2) && apart("one", "two"));
    }
}

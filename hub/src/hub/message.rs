//! [`Message`]: an item on its way through the demux.

/// An item with the key that it was published under.
///
/// Only the original has the key: the demux looks it up once, and the copies for further
/// subscribers do without, so a copy costs no clone of the key.
#[derive(Debug)]
pub(super) struct Message<K, V> {
    key: Option<K>,
    pub(super) item: V,
    /// Set when the task of the hub reads it. They increase.
    pub(super) number: u64,
}

impl<K, V> Message<K, V> {
    pub(super) fn new(key: K, item: V) -> Self {
        Self { key: Some(key), item, number: 0 }
    }

    /// The key of an original.
    pub(super) fn key(&self) -> &K {
        self.key.as_ref().expect("the demux looks up originals only")
    }

    /// Returns the key, unless this is a copy, and the item.
    pub(super) fn into_parts(self) -> (Option<K>, V) {
        (self.key, self.item)
    }
}

impl<K, V: Clone> Clone for Message<K, V> {
    fn clone(&self) -> Self {
        Self { key: None, item: self.item.clone(), number: self.number }
    }
}

//! The entry point of the crate: [`DemuxStreamExt`].

use core::borrow::Borrow;
use core::hash::Hash;

use futures_core::Stream;

use crate::demux::Demux;
use crate::key::{ByRef, ByValue};
use crate::order::{Attachable, IntoOrder, Orders};

/// An extension trait for [`Stream`]s that splits them by key.
pub trait DemuxStreamExt: Stream {
    /// Splits this stream into many sinks by a key that is computed from each item.
    ///
    /// `key` returns the key of an item, and is called once for each. `orders` is a stream of
    /// [orders](crate::Order) that
    /// attach and detach sinks at any time; its items are `(key, sink)`, [`Attach`](crate::Attach)
    /// or [`Order`](crate::Order).
    ///
    /// The key is returned by value, for example a number, an id or a tuple. If the key is a part
    /// of the item that you would have to clone, borrow it with
    /// [`demux_by_ref`](Self::demux_by_ref): `demux_by(|m| m.topic.as_str(), …)` does not
    /// compile ("lifetime may not live long enough").
    ///
    /// To use a receiver of tokio as `orders`, wrap it, for example in
    /// `tokio_stream::wrappers::UnboundedReceiverStream`. For a receiver of flume, call
    /// `into_stream`. If several threads send orders, another channel than tokio's is better for
    /// them. See [Channels](crate::guide::channels).
    ///
    /// If others choose the keys, add [`with_hasher`](Demux::with_hasher)`(RandomState::new())`.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// let (fizz, fizzes) = mpsc::unbounded();
    /// let orders = stream::iter([(0, fizz)]);
    ///
    /// let totals = block_on(stream::iter(1..=10).demux_by(|n| n % 3, orders));
    /// assert_eq!(block_on(fizzes.collect::<Vec<_>>()), [3, 6, 9]);
    /// assert_eq!(totals.unmatched, 7);
    /// ```
    fn demux_by<F, O>(self, key: F, orders: O) -> Demux<Self, ByValue<F>, O>
    where
        Self: Sized,
        F: FnMut(&Self::Item) -> <O::Order as IntoOrder>::Key,
        O: Orders,
        O::Order: IntoOrder<Key: Hash + Eq, Sink: Attachable<Self::Item>>,
    {
        Demux::new(self, ByValue::new(key), orders)
    }

    /// Splits this stream into many sinks by a key that is borrowed from each item.
    ///
    /// The key of an item is neither cloned nor allocated. As with the methods of `HashMap`, the
    /// key type of the orders may be any type that implements [`Borrow`] for the type of the
    /// borrowed key, such as `String` for `str`.
    ///
    /// `key` is called again for an item whose key is not attached, if orders are applied before
    /// its fate is decided: the demux cannot keep the key, because it is a part of the item. Apart
    /// from that, this method is the same as [`demux_by`](Self::demux_by).
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, channel::mpsc, executor::block_on, stream};
    /// use stream_demux::DemuxStreamExt;
    ///
    /// struct Message { topic: String, text: &'static str }
    ///
    /// let message = |topic: &str, text| Message { topic: topic.to_owned(), text };
    /// let input = stream::iter([message("sea", "calm"), message("sky", "grey")]);
    /// let (sink, sky) = mpsc::unbounded();
    /// let orders = stream::iter([("sky".to_owned(), sink)]);
    ///
    /// block_on(input.demux_by_ref(|message| message.topic.as_str(), orders));
    /// let texts = block_on(sky.map(|message| message.text).collect::<Vec<_>>());
    /// assert_eq!(texts, ["grey"]);
    /// ```
    fn demux_by_ref<F, O, Q>(self, key: F, orders: O) -> Demux<Self, ByRef<F, Q>, O>
    where
        Self: Sized,
        F: for<'a> FnMut(&'a Self::Item) -> &'a Q,
        O: Orders,
        O::Order: IntoOrder<Key: Hash + Eq + Borrow<Q>, Sink: Attachable<Self::Item>>,
        Q: Hash + Eq + ?Sized,
    {
        Demux::new(self, ByRef::new(key), orders)
    }
}

impl<St: Stream> DemuxStreamExt for St {}

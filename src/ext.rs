//! The door: [`DemuxStreamExt`].

use core::borrow::Borrow;
use core::hash::Hash;

use futures_core::Stream;

use crate::demux::Demux;
use crate::key::{ByRef, ByValue};
use crate::order::{Attachable, IntoOrder};

/// Splits a stream by key.
pub trait DemuxStreamExt: Stream {
    /// Splits this stream into many sinks, by the key that `key` makes of each item. Which sink has
    /// which key is up to `orders`, at any time.
    ///
    /// The key is returned by value: a number, an id, a tuple. One that would have to be cloned from
    /// the item is better borrowed, with [`demux_by_ref`](Self::demux_by_ref): here `|m| m.topic.as_str()`
    /// is refused with "lifetime may not live long enough".
    ///
    /// `orders` is a `Stream`: a tokio receiver wants `tokio_stream::wrappers::UnboundedReceiverStream`
    /// or its like around it, a flume receiver its `into_stream`.
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
        F: FnMut(&Self::Item) -> <O::Item as IntoOrder>::Key,
        O: Stream,
        O::Item: IntoOrder<Key: Hash + Eq, Sink: Attachable<Self::Item>>,
    {
        Demux::new(self, ByValue::new(key), orders)
    }

    /// Splits this stream into many sinks, by a key that is borrowed from each item: no clone, no
    /// allocation. As with a `HashMap`, the keys of the orders need only be borrowable as it.
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
        O: Stream,
        O::Item: IntoOrder<Key: Hash + Eq + Borrow<Q>, Sink: Attachable<Self::Item>>,
        Q: Hash + Eq + ?Sized,
    {
        Demux::new(self, ByRef::new(key), orders)
    }
}

impl<St: Stream> DemuxStreamExt for St {}

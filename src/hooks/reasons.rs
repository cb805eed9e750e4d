//! What the hooks are passed: the [`Recipient`], and why something [ended](Detached) or was
//! [discarded](Discarded).

use core::fmt;

/// The attachment that a hook is called for, identified by its key and its tag.
#[derive(Debug)]
#[non_exhaustive]
pub struct Recipient<'a, K> {
    /// The key that the sink is attached under.
    pub key: &'a K,
    /// The number set with [`Attach::tag`](crate::Attach::tag); 0 by default.
    pub tag: u64,
}

// Not derived: a derived impl would ask for `K: Copy`.
impl<K> Clone for Recipient<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Recipient<'_, K> {}

/// Why an attachment ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Detached<E> {
    /// The input ended or [`Order::Finish`](crate::Order::Finish) was applied. Its queue was sent
    /// and its sink closed.
    Finished,
    /// An order or [`Lease::detach`](crate::Lease::detach) detached it. Its queue was sent and its
    /// sink closed.
    Requested,
    /// Another attachment took its key and its queue. Its sink was closed.
    Replaced,
    /// It reached its [limit](crate::Attach::limit). Its queue was sent and its sink closed.
    Limited,
    /// An order or a dropped lease evicted it. Its sink was dropped.
    Evicted,
    /// Its queue overflowed under [`Overflow::Evict`](crate::Overflow::Evict). Its sink was
    /// dropped.
    Overflowed,
    /// Its key was taken and [`keep_existing`](crate::Attach::keep_existing) was set. Its sink was
    /// closed.
    Refused,
    /// Its sink made no progress for as many ticks as its [stall
    /// time-out](crate::Attach::stall_timeout) allows, while an item, a flush or a close was
    /// pending. Its sink was dropped.
    Stalled,
    /// No item came for as many ticks as its [idle time-out](crate::Attach::idle_timeout) allows:
    /// its sink was closed.
    Idle,
    /// Its sink failed with this error and was dropped.
    Failed(E),
}

impl<E> Detached<E> {
    /// Returns the name of the reason in snake case, for labels of metrics and fields of logs.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux::Detached;
    ///
    /// assert_eq!(Detached::<()>::Requested.as_str(), "requested");
    /// assert_eq!(Detached::Failed("broken pipe").as_str(), "failed");
    /// ```
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Requested => "requested",
            Self::Replaced => "replaced",
            Self::Limited => "limited",
            Self::Evicted => "evicted",
            Self::Overflowed => "overflowed",
            Self::Refused => "refused",
            Self::Stalled => "stalled",
            Self::Idle => "idle",
            Self::Failed(_) => "failed",
        }
    }
}

/// The same as [`as_str`](Detached::as_str). The error of a sink is not shown.
impl<E> fmt::Display for Detached<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why an item was not sent to an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Discarded {
    /// [`Hooks::admit`](crate::Hooks::admit) returned `false`.
    NotAdmitted,
    /// The queue was full; see [`Overflow`](crate::Overflow). Or, with
    /// [`multicast`](crate::Demux::multicast), a queue that was taken over has more items than the
    /// [`limit`](crate::Attach::limit) of the new attachment allows.
    Overflowed,
    /// The attachment was evicted while the item waited for it.
    Evicted,
    /// The sink failed while the item waited for it.
    Failed,
    /// A newer item took its place in the queue; see
    /// [`Overflow::Conflate`](crate::Overflow::Conflate).
    Conflated,
}

impl Discarded {
    /// Returns the name of the reason in snake case, for labels of metrics and fields of logs.
    ///
    /// # Examples
    ///
    /// ```
    /// use stream_demux::Discarded;
    ///
    /// assert_eq!(Discarded::NotAdmitted.as_str(), "not_admitted");
    /// assert_eq!(Discarded::NotAdmitted.to_string(), "not_admitted");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAdmitted => "not_admitted",
            Self::Overflowed => "overflowed",
            Self::Evicted => "evicted",
            Self::Failed => "failed",
            Self::Conflated => "conflated",
        }
    }
}

/// The same as [`as_str`](Discarded::as_str).
impl fmt::Display for Discarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

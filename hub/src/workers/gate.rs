//! The streams that the demux of the workers reads: [`Gate`] and [`Ticks`].

use std::hash::Hash;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use stream_demux::Order;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::roster::Roster;
use crate::inbox::InboxSink;

/// The input, until it ends or is not to be read any more.
///
/// An item that would need one worker too many comes back, as unmatched, and is given out again
/// when a worker has ended. The input is not read in the meantime.
pub(super) struct Gate<K, St: Stream> {
    input: Option<Pin<Box<St>>>,
    roster: Arc<Roster<K, St::Item>>,
}

impl<K, St: Stream> Gate<K, St> {
    pub(super) fn new(input: St, roster: Arc<Roster<K, St::Item>>) -> Self {
        Self { input: Some(Box::pin(input)), roster }
    }
}

impl<K: Hash + Eq, St: Stream> Stream for Gate<K, St> {
    type Item = St::Item;

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<St::Item>> {
        let this = &mut *self;
        if this.roster.has_returned() {
            return this.roster.poll_returned(cx);
        }
        let Some(input) = &mut this.input else { return Poll::Ready(None) };
        if !this.roster.is_stopping() {
            match input.as_mut().poll_next(cx) {
                Poll::Ready(Some(item)) => {
                    this.roster.count_received();
                    return Poll::Ready(Some(item));
                }
                Poll::Pending if this.roster.wait_for_input(cx) => return Poll::Pending,
                Poll::Pending | Poll::Ready(None) => {}
            }
        }
        this.input = None;
        Poll::Ready(None)
    }
}

impl<K, St: Stream> Unpin for Gate<K, St> {}

/// The orders: a tick now and then, if idle workers are to end.
pub(super) struct Ticks<K, T> {
    /// Created by the first poll, in the task.
    ticker: Option<Interval>,
    period: Option<Duration>,
    of: PhantomData<fn() -> (K, T)>,
}

impl<K, T> Ticks<K, T> {
    pub(super) fn new(period: Option<Duration>) -> Self {
        Self { ticker: None, period, of: PhantomData }
    }
}

impl<K, T> Stream for Ticks<K, T> {
    type Item = Order<K, InboxSink<T>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(period) = self.period else { return Poll::Ready(None) };
        let ticker = self.ticker.get_or_insert_with(|| {
            let mut ticker = interval(period);
            ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticker
        });
        ticker.poll_tick(cx).map(|_| Some(Order::Tick))
    }
}

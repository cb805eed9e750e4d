//! The streams that the demux of the workers reads: [`KeyedInput`] and [`Ticks`].

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use stream_demux::Order;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::mail::MailSink;
use super::roster::Roster;

/// The input, each item with its key, until it ends or is not to be read any more.
///
/// It is not read while the backlog is full.
pub(super) struct KeyedInput<K, St: Stream, F> {
    input: Option<Pin<Box<St>>>,
    /// Called once for each item.
    key: F,
    roster: Arc<Roster<K, St::Item>>,
}

impl<K, St: Stream, F> KeyedInput<K, St, F> {
    pub(super) fn new(input: St, key: F, roster: Arc<Roster<K, St::Item>>) -> Self {
        Self { input: Some(Box::pin(input)), key, roster }
    }
}

impl<K, St: Stream, F: Fn(&St::Item) -> K> Stream for KeyedInput<K, St, F> {
    type Item = (K, St::Item);

    #[inline]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<(K, St::Item)>> {
        let this = &mut *self;
        let Some(input) = &mut this.input else { return Poll::Ready(None) };
        if !this.roster.is_stopping() {
            // While the backlog is full, a stop is noticed as well.
            if this.roster.office.backlog.poll_room(cx).is_ready() {
                match input.as_mut().poll_next(cx) {
                    Poll::Ready(Some(item)) => {
                        this.roster.count_received();
                        return Poll::Ready(Some(((this.key)(&item), item)));
                    }
                    Poll::Ready(None) => {
                        this.input = None;
                        return Poll::Ready(None);
                    }
                    Poll::Pending => {}
                }
            }
            // The router has registered for a stop before it polled the demux.
            if !this.roster.is_stopping() {
                return Poll::Pending;
            }
        }
        this.input = None;
        Poll::Ready(None)
    }
}

impl<K, St: Stream, F> Unpin for KeyedInput<K, St, F> {}

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
    type Item = Order<K, MailSink<T>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(period) = self.period else { return Poll::Ready(None) };
        let ticker = self.ticker.get_or_insert_with(|| {
            let mut ticker = interval(period);
            ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticker
        });
        ready!(ticker.poll_tick(cx));
        Poll::Ready(Some(Order::Tick))
    }
}

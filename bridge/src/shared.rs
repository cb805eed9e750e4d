//! [`Shared`]: what the handles, the hub and the connections of a bridge share.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::sync::watch;

use crate::arrivals::Arrivals;
use crate::event::{Event, Key};
use crate::settings::Settings;
use crate::status::Status;
use crate::table::Table;

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) table: Table,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) status: watch::Sender<Status>,
    has_ended: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(settings: Settings, is_local: bool) -> Arc<Self> {
        let arrivals = Arrivals::new(settings.arrivals);
        let status = watch::Sender::new(Status::default());
        let has_ended = watch::Sender::new(false);
        Arc::new(Self { settings, table: Table::new(is_local), arrivals, status, has_ended })
    }

    /// Ends the bridge: the input of the hub ends, and no join waits any longer.
    pub(crate) fn end(&self) {
        self.has_ended.send_replace(true);
        self.arrivals.close();
        self.table.close();
    }

    /// Waits until the bridge has ended.
    pub(crate) async fn ended(&self) {
        // The sender is not dropped while this waits.
        let _ = self.has_ended.subscribe().wait_for(|has_ended| *has_ended).await;
    }
}

/// The input of the hub: what has come from the engine.
pub(crate) struct Input(pub(crate) Arc<Shared>);

/// What is for no subscriber is skipped. After this many, other tasks get their turn.
const SKIPPED: usize = 128;

impl Stream for Input {
    type Item = (Key, Event);

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<(Key, Event)>> {
        for _ in 0..SKIPPED {
            let Some(arrived) = ready!(self.0.arrivals.poll_pop(cx)) else {
                return Poll::Ready(None);
            };
            if let Some(event) = self.0.table.apply(arrived) {
                return Poll::Ready(Some((Arc::clone(&event.key), event)));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The hub has ended, whatever the reason.
impl Drop for Input {
    fn drop(&mut self) {
        self.0.end();
    }
}

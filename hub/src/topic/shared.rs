//! What the sink and the readers of a topic share.
//!
//! Everything is behind one lock. Under it, items are moved, segments are cloned and wakers are kept.
//! Items are cloned and dropped, and tasks are woken, after it is released.
//!
//! The topic of a key of a hub belongs to the key's readers: it takes no reader after its last one
//! has left. A subscription that comes then makes a new one, so a reader never joins a topic whose
//! sink is about to be dropped.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use stream_demux::Lease;

use super::log::Log;
use super::of_hub::Handover;
use super::sleepers::Sleepers;
use super::taken::Room;
use crate::life::Life;
use crate::read::End;

#[derive(Debug)]
pub(super) struct Shared<T> {
    pub(super) capacity: usize,
    /// The hub that the topic belongs to.
    pub(super) hub: Option<Arc<Life>>,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
pub(super) struct State<T> {
    pub(super) log: Log<T>,
    /// The readers that wait for the next flush. Each has taken all that came before it slept.
    pub(super) sleepers: Sleepers,
    /// How many items have come since the sleepers were woken.
    pub(super) unflushed: usize,
    /// Why no more items will come, if the sink is gone.
    pub(super) end: Option<End>,
    /// Room that no reader uses.
    pub(super) rooms: Vec<Room<T>>,
    /// The attachment of the sink to a hub, until the last reader leaves.
    pub(super) lease: Option<Lease>,
    /// How many readers are about to leave, because an inbox gets what comes next.
    pub(super) moving: usize,
    /// These readers.
    pub(super) handovers: Vec<Weak<Handover<T>>>,
    /// How many subscribers the hub has because of this topic, apart from its sink.
    counted: i64,
}

impl<T> Shared<T> {
    pub(super) fn new(capacity: usize, hub: Option<Arc<Life>>) -> Arc<Self> {
        let capacity = capacity.max(1);
        let state = State {
            log: Log::new(capacity),
            sleepers: Sleepers::default(),
            unflushed: 0,
            end: None,
            rooms: Vec::new(),
            lease: None,
            moving: 0,
            handovers: Vec::new(),
            counted: 0,
        };
        Arc::new(Self { capacity, hub, state: Mutex::new(state) })
    }

    /// Nothing that can panic runs under the lock but the `clone` of a waker, before anything is
    /// changed. So a poisoned lock is used on.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readers have come or gone, or the topic has ended: tells the hub.
    pub(super) fn count(&self, state: &mut State<T>) {
        let Some(hub) = &self.hub else { return };
        let counted = match state.subscribers() {
            Some(subscribers) => i64::try_from(subscribers).unwrap_or(i64::MAX) - 1,
            None => 0,
        };
        let more = counted - std::mem::replace(&mut state.counted, counted);
        if more != 0 {
            hub.counts.members.fetch_add(more, Relaxed);
        }
    }
}

impl<T> State<T> {
    /// How many readers are there to stay, unless the topic is over.
    pub(super) fn subscribers(&self) -> Option<usize> {
        let readers = self.log.readers();
        if readers == 0 || self.end.is_some() { None } else { Some(readers - self.moving) }
    }
}

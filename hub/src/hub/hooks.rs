//! [`Events`]: the closures of a hub, called by its demux.

use std::fmt;

use stream_demux::{Detached, Discarded, Hooks, Recipient};

use super::message::Message;
use super::sink::SinkError;

type OnUnmatched<K, V> = Box<dyn FnMut(K, V) + Send>;
type OnDetached<K> = Box<dyn FnMut(Recipient<'_, K>, Detached<SinkError>) + Send>;
type OnDiscarded<K, V> = Box<dyn FnMut(Recipient<'_, K>, V, Discarded) + Send>;
type OnInterest<K> = Box<dyn FnMut(&K, bool) + Send>;

pub(super) struct Events<K, V> {
    pub(super) unmatched: Option<OnUnmatched<K, V>>,
    pub(super) detached: Option<OnDetached<K>>,
    pub(super) discarded: Option<OnDiscarded<K, V>>,
    pub(super) interest: Option<OnInterest<K>>,
}

impl<K, V> Default for Events<K, V> {
    fn default() -> Self {
        Self { unmatched: None, detached: None, discarded: None, interest: None }
    }
}

impl<K, V> Hooks<K, Message<K, V>, SinkError> for Events<K, V> {
    fn unmatched(&mut self, message: Message<K, V>) {
        // A copy is unmatched only if it was beyond the limit of its subscriber.
        if let (Some(call), (Some(key), item)) = (&mut self.unmatched, message.into_parts()) {
            call(key, item);
        }
    }

    fn detached(&mut self, to: Recipient<'_, K>, why: Detached<SinkError>) {
        if let Some(call) = &mut self.detached {
            call(to, why);
        }
    }

    fn discarded(&mut self, to: Recipient<'_, K>, message: Message<K, V>, why: Discarded) {
        if let Some(call) = &mut self.discarded {
            call(to, message.into_parts().1, why);
        }
    }

    fn key_attached(&mut self, key: &K) {
        if let Some(call) = &mut self.interest {
            call(key, true);
        }
    }

    fn key_detached(&mut self, key: &K) {
        if let Some(call) = &mut self.interest {
            call(key, false);
        }
    }
}

impl<K, V> fmt::Debug for Events<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unmatched, detached, discarded, interest } = self;
        f.debug_struct("Events")
            .field("unmatched", &unmatched.is_some())
            .field("detached", &detached.is_some())
            .field("discarded", &discarded.is_some())
            .field("interest", &interest.is_some())
            .finish()
    }
}

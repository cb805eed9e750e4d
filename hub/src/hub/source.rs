//! [`Source`]: what a subscription reads: a topic, an inbox, or the one after the other.

use std::sync::Arc;
use std::task::{Context, Poll};

use crate::inbox::Inbox;
use crate::read::{End, Lagged, Receive};
use crate::topic::{CloneSome, Cursor, Handover, Reading};

#[derive(Debug)]
pub(super) struct Source<V> {
    /// What comes from here comes before what is in the inbox.
    topic: Option<Reading<V>>,
    /// There is one, unless there is a topic.
    inbox: Option<Inbox<V>>,
    /// How many items were lost in a topic that is read to its end.
    lost: u64,
}

impl<V> Source<V> {
    pub(super) fn of_topic(cursor: Cursor<V>, clone: CloneSome<V>) -> Self {
        Self { topic: Some(Reading::new(cursor, clone)), inbox: None, lost: 0 }
    }

    pub(super) fn of_inbox(inbox: Inbox<V>) -> Self {
        Self { topic: None, inbox: Some(inbox), lost: 0 }
    }

    /// Begins to move from the topic to an inbox.
    pub(super) fn move_to(&mut self, inbox: Inbox<V>) -> Option<Arc<Handover<V>>> {
        self.inbox = Some(inbox);
        self.topic.as_mut().map(Reading::begin_move)
    }

    pub(super) fn end(&self) -> Option<End> {
        match (&self.inbox, &self.topic) {
            (Some(inbox), Some(topic)) => inbox.end().filter(|_| topic.is_over()),
            (Some(inbox), None) => inbox.end(),
            (None, Some(topic)) => topic.end(),
            (None, None) => Some(End::Closed),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.topic.as_ref().map_or(0, Reading::len) + self.inbox.as_ref().map_or(0, Inbox::len)
    }

    pub(super) fn lost(&self) -> u64 {
        let topic = self.topic.as_ref().map_or(0, Reading::lost);
        self.lost + topic + self.inbox.as_ref().map_or(0, Inbox::lost)
    }

    /// Forgets the topic when it is read to its end.
    fn forget_topic(&mut self) {
        if let Some(topic) = self.topic.take_if(|topic| topic.is_done()) {
            self.lost += topic.lost();
        }
    }
}

impl<V> Receive for Source<V> {
    type Item = V;

    fn has_taken(&self) -> bool {
        self.topic.as_ref().is_some_and(Reading::has_taken)
            || self.inbox.as_ref().is_some_and(Inbox::has_taken)
    }

    #[inline]
    fn pop_ready(&mut self) -> Option<V> {
        match &mut self.topic {
            Some(topic) => topic.pop_ready(),
            None => self.inbox.as_mut()?.pop_ready(),
        }
    }

    fn next_taken(&mut self) -> Option<Result<V, Lagged>> {
        if let Some(topic) = &mut self.topic {
            if let Some(next) = topic.next_taken() {
                return Some(next);
            }
        }
        self.inbox.as_mut()?.next_taken()
    }

    fn take(&mut self) {
        // The inbox first: what the topic has had before that is read before it.
        if let Some(inbox) = &mut self.inbox {
            inbox.take();
        }
        if let Some(topic) = &mut self.topic {
            // If there is nothing, the caller notices.
            let _ = topic.take(None);
            self.forget_topic();
        }
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(topic) = &mut self.topic else {
            return self.inbox.as_mut().map_or(Poll::Ready(()), |inbox| inbox.poll_take(cx));
        };
        let Some(inbox) = &mut self.inbox else { return topic.take(Some(cx.waker())) };
        // The inbox first, as in `take`.
        let from_inbox = inbox.poll_take(cx);
        let from_topic = topic.take(Some(cx.waker()));
        if topic.has_taken() || inbox.has_taken() {
            return Poll::Ready(());
        }
        // Without anything to read, both have ended, or the topic has handed over.
        self.forget_topic();
        if from_topic.is_ready() { from_inbox } else { Poll::Pending }
    }
}

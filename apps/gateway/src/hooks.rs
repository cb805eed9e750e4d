//! The hooks of the demux: rate limits, counters, notices to clients, bindings.

use std::collections::HashMap;
use std::sync::Arc;

use stream_demux::{Detached, Discarded, Hooks, Recipient};

use crate::board::Board;
use crate::interest::{Cause, Interest, Interruption};
use crate::message::{Key, Message};
use crate::outlet::Gone;
use crate::subscription::{Ending, Registry, Terms};

pub struct GatewayHooks {
    pub board: Arc<Board>,
    /// Subscriptions that are not attached yet.
    pub registry: Arc<Registry>,
    /// Attached subscriptions by tag: looked up for each copy, and used only by the demux.
    pub attached: HashMap<u64, Arc<Terms>>,
    /// The keys that the queue is bound to, with a broker.
    pub interest: Option<Arc<Interest>>,
}

impl GatewayHooks {
    /// Tells the clients of some keys that messages may be missing, or ends their subscriptions.
    pub fn tell(&self, Interruption { keys, cause }: Interruption) {
        let concerned = self.attached.values().filter(|terms| keys.contains(&terms.key));
        match cause {
            Cause::Gap { number, told } => {
                concerned.for_each(|terms| terms.tell_gap(number));
                let _ = told.send(());
            }
            Cause::Forbidden => concerned.for_each(|terms| terms.forbid()),
        }
    }
}

impl Hooks<Key, Message, Gone> for GatewayHooks {
    fn admit(&mut self, to: Recipient<'_, Key>, message: &Message) -> bool {
        self.attached.get(&to.tag).is_none_or(|terms| terms.admits(message))
    }

    fn attached(&mut self, to: Recipient<'_, Key>) {
        let delivered = self.board.attached(to.key);
        if let Some(terms) = self.registry.remove(to.tag) {
            terms.count_in(delivered);
            let number = self.interest.as_ref().map_or(0, |interest| interest.want(to.key));
            if let Some(history) = &self.board.history {
                terms.replay(history, number);
            }
            self.attached.insert(to.tag, Arc::clone(&terms));
            match &self.interest {
                Some(interest) => interest.notify_when_bound(terms),
                None => terms.subscribed(None, number),
            }
        }
    }

    fn detached(&mut self, to: Recipient<'_, Key>, why: Detached<Gone>) {
        self.board.detached(to.key, &why);
        if let Some(terms) = self.attached.remove(&to.tag) {
            if let Some(interest) = &self.interest {
                interest.remove(&terms);
                // Not in `key_detached`, which is not called for a subscription that was cancelled
                // before it was attached and has taken no key.
                interest.unwant(to.key);
            }
            terms.ended(match why {
                Detached::Requested => Ending::Requested,
                Detached::Evicted if terms.is_forbidden() => Ending::Forbidden,
                Detached::Overflowed => Ending::TooSlow,
                Detached::Evicted if terms.is_too_slow() => Ending::TooSlow,
                _ => Ending::Gone,
            });
        }
    }

    fn unmatched(&mut self, message: Message) {
        self.board.unmatched();
        if let Some(interest) = &self.interest {
            interest.recheck(message.key());
        }
        message.settle();
    }

    fn discarded(&mut self, to: Recipient<'_, Key>, message: Message, why: Discarded) {
        self.board.discarded(to.key, why);
        let terms = self.attached.get(&to.tag);
        if let Some(terms) = terms.filter(|_| why != Discarded::NotAdmitted) {
            terms.release(&message);
        }
        let is_policy = match why {
            Discarded::NotAdmitted | Discarded::Overflowed => true,
            Discarded::Evicted => terms.is_some_and(|terms| terms.is_too_slow()),
            _ => false,
        };
        let is_older = terms.is_some_and(|terms| terms.is_older(&message));
        if is_older || why == Discarded::Conflated {
            message.settle(); // older than the subscription, or replaced: not a loss
        } else if is_policy {
            message.settle();
            if let Some(terms) = terms {
                terms.count_loss(why != Discarded::NotAdmitted || terms.was_full());
            }
        } else {
            message.lose(); // the connection has ended
        }
    }

    fn blocked(&mut self, on: Recipient<'_, Key>) {
        let client = self.attached.get(&on.tag).map(|terms| terms.client);
        self.board.blocked(Some((Some(Key::clone(on.key)), client)));
    }

    fn unblocked(&mut self, _: Recipient<'_, Key>) {
        self.board.blocked(None);
    }
}

//! [`Subscription`]: what a subscriber reads; and [`Keys`], by which its keys change meanwhile.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_core::Stream;
use stream_demux_hub::{End, Hub, Lagged, SubscriptionKeys, SubscriptionReader, Terms};
use tokio::runtime::Handle;

use crate::bridge::SubscribeError;
use crate::event::{Event, Key, What};
use crate::lock::lock;
use crate::shared::Shared;
use crate::table::{Joiner, Outcome};

/// What a [`Subscription`] gets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Received {
    /// An item.
    Item {
        /// The key that it was published under.
        key: Key,
        /// The bytes that were published.
        item: Bytes,
    },
    /// The engine has confirmed the subscription to a key that was [added](Keys::add): what is
    /// published from now on is received, or missing items are told.
    Joined(Key),
    /// This number of items of any of the keys is missing here: this subscription was too slow. A
    /// [`Gap`](Self::Gap) that was dropped is counted, too, and is told before the next item of its
    /// key.
    Lagged(u64),
    /// An unknown number of items of this key may be missing here: the connection to the engine was
    /// broken, and the key is subscribed again. Nothing is missing from now on, so this is when to
    /// read the current state from where you keep it.
    Gap(Key),
    /// The engine refuses to subscribe to this key. Each new connection tries again; when one
    /// succeeds, the subscription gets a [`Joined`](Self::Joined) or a [`Gap`](Self::Gap).
    Refused {
        /// The key.
        key: Key,
        /// What the engine has answered.
        reason: Arc<str>,
    },
}

/// A stream of what is published under some keys.
///
/// [`Bridge::subscribe`](crate::Bridge::subscribe) and
/// [`Bridge::subscription`](crate::Bridge::subscription) create it.
///
/// * Items of one key come in the order in which the engine has accepted them.
/// * All keys share one buffer, whose size and policy the [`Terms`] set. To them, a
///   [`Gap`](Received::Gap) is an item: it counts towards a [limit](Terms::limit), and takes the
///   place of the item that waits under [`Conflate`](stream_demux_hub::Overflow::Conflate), which
///   may be obsolete then.
/// * It ends when the bridge has ended and everything is read, or when the hub gives the subscriber
///   up. [`end`](Self::end) tells why.
/// * Dropping it leaves: keys without another subscriber in this process are unsubscribed.
pub struct Subscription {
    inner: Arc<Inner>,
    /// Read without the lock of `inner`: it drops the wakers of readers.
    events: SubscriptionReader<Key, Event>,
    /// What was read, and is told after the news and behind its gap.
    read: Option<Result<Event, Lagged>>,
}

/// Adds keys to a [`Subscription`] and removes them, while another task reads it.
///
/// A clone is for the same subscription. When the subscription is dropped, nothing can be added.
#[derive(Clone)]
pub struct Keys {
    inner: Arc<Inner>,
}

struct Inner {
    id: u64,
    shared: Arc<Shared>,
    runtime: Handle,
    state: Mutex<State>,
}

struct State {
    /// There until the subscription is dropped.
    open: Option<Open>,
    keys: HashMap<Key, Seen>,
    /// Keys whose `news` the reader does not know.
    news: BTreeSet<Key>,
    reader: Option<Waker>,
    joins: u64,
}

/// How keys are added and removed at the hub.
struct Open {
    keys: SubscriptionKeys<Key, Event>,
    hub: WeakHub,
}

/// Subscriptions do not keep a bridge alive.
pub(crate) type WeakHub = Weak<Hub<Key, Event>>;

/// What a subscription knows of one of its keys.
struct Seen {
    /// Distinguishes this addition of the key from earlier ones.
    join: u64,
    is_joined: bool,
    /// The newest connection of which the reader knows what is missing before it.
    epoch: u64,
    news: Option<Outcome>,
}

impl Subscription {
    pub(crate) fn new(hub: &Arc<Hub<Key, Event>>, shared: Arc<Shared>, terms: Terms) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let (events, keys) = hub.subscribe_with([], terms).split();
        let state = State {
            open: Some(Open { keys, hub: Arc::downgrade(hub) }),
            keys: HashMap::new(),
            news: BTreeSet::new(),
            reader: None,
            joins: 0,
        };
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let inner = Inner { id, shared, runtime: Handle::current(), state: Mutex::new(state) };
        Self { inner: Arc::new(inner), events, read: None }
    }

    /// Returns a handle that adds and removes keys.
    pub fn keys(&self) -> Keys {
        Keys { inner: Arc::clone(&self.inner) }
    }

    /// Waits for what comes next. Returns `None` when the subscription has [ended](Self::end).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
    pub async fn recv(&mut self) -> Option<Received> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Waits until there is something to read, and appends up to `limit` of it to `buffer`.
    ///
    /// Returns how many were appended: 0 if the subscription has ended, or if `limit` is 0.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, nothing was taken.
    pub async fn recv_many(&mut self, buffer: &mut Vec<Received>, limit: usize) -> usize {
        if limit == 0 {
            return 0;
        }
        let before = buffer.len();
        poll_fn(|cx| {
            while buffer.len() - before < limit {
                match self.poll_recv(cx) {
                    Poll::Ready(Some(received)) => buffer.push(received),
                    Poll::Ready(None) => break,
                    Poll::Pending if buffer.len() > before => break,
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(buffer.len() - before)
        })
        .await
    }

    /// Returns why no more items will come, as soon as that is certain. There may still be some to
    /// read.
    pub fn end(&self) -> Option<End> {
        self.events.end()
    }

    /// Returns how many items this subscription has lost so far because it was too slow.
    pub fn lost(&self) -> u64 {
        self.events.lost()
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        loop {
            let mut has_ended = false;
            let mut waker = None;
            if self.read.is_none() {
                match Pin::new(&mut self.events).poll_next(cx) {
                    Poll::Ready(Some(read)) => self.read = Some(read),
                    Poll::Ready(None) => has_ended = true,
                    Poll::Pending => waker = Some(cx.waker().clone()),
                }
            }
            let mut state = lock(&self.inner.state);
            if let Some(received) = state.tell_news().or_else(|| state.receive(&mut self.read)) {
                return Poll::Ready(Some(received));
            }
            if has_ended {
                return Poll::Ready(None);
            }
            if waker.is_some() {
                // Also woken by news, and when the keys change.
                let replaced = std::mem::replace(&mut state.reader, waker);
                drop(state);
                drop(replaced);
                return Poll::Pending;
            }
            drop(state);
            // What is for no key of the subscription.
            self.read = None;
        }
    }

    /// Adds keys and waits until the engine has confirmed all of them.
    pub(crate) async fn join(&mut self, keys: Vec<Key>) -> Result<(), SubscribeError> {
        let mut pending = self.inner.add(keys);
        poll_fn(|cx| {
            while pending > 0 {
                match self.inner.poll_news(cx) {
                    Poll::Ready((_, Outcome::Joined(_))) => pending -= 1,
                    Poll::Ready((key, Outcome::Refused(reason))) => {
                        return Poll::Ready(Err(SubscribeError::Refused { key, reason }));
                    }
                    Poll::Ready((_, Outcome::Closed)) => {
                        return Poll::Ready(Err(SubscribeError::Closed));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }
}

impl Stream for Subscription {
    type Item = Received;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        self.get_mut().poll_recv(cx)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = lock(&self.inner.state);
        let open = state.open.take();
        let keys = std::mem::take(&mut state.keys);
        state.news.clear();
        let reader = state.reader.take();
        drop(state);
        drop((open, reader));
        for (key, seen) in keys {
            if !seen.is_joined {
                self.inner.shared.table.forget(&key, self.inner.id);
            }
        }
    }
}

impl Keys {
    /// Adds a key, on the terms of the subscription. Returns `false` if the subscription has it, or
    /// is gone.
    ///
    /// The subscription gets a [`Joined`](Received::Joined) when the engine has confirmed the key.
    /// Items may come before that. While the engine is away, the key waits for it.
    pub fn add(&self, key: impl Into<Key>) -> bool {
        self.inner.add(vec![key.into()]) > 0
    }

    /// Removes a key. Returns `false` if the subscription does not have it.
    ///
    /// No more items of it are received, not even those that wait in the buffer. If the key is added
    /// again, those that still wait there are received.
    pub fn remove(&self, key: &str) -> bool {
        self.inner.remove(key)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        lock(&self.inner.state).keys.len()
    }

    /// Returns `true` if the subscription has no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if the subscription has this key.
    pub fn contains(&self, key: &str) -> bool {
        lock(&self.inner.state).keys.contains_key(key)
    }
}

impl Inner {
    /// Adds those keys that are new. Returns how many.
    fn add(self: &Arc<Self>, keys: Vec<Key>) -> usize {
        let mut state = lock(&self.state);
        let State { open: Some(open), keys: known, joins, reader, .. } = &mut *state else {
            return 0;
        };
        let Some(hub) = open.hub.upgrade() else { return 0 };
        let mut added = Vec::new();
        for key in keys {
            if known.contains_key(&key) {
                continue;
            }
            *joins += 1;
            let seen = Seen { join: *joins, is_joined: false, epoch: 0, news: None };
            known.insert(Arc::clone(&key), seen);
            // A key that reached its limit may still be known to the hub's subscription.
            open.keys.add(Arc::clone(&key));
            added.push((key, *joins));
        }
        let reader = reader.take();
        drop(state);
        wake(reader);
        let count = added.len();
        if count > 0 {
            self.join_when_attached(Hub::clone(&hub), added);
        }
        count
    }

    /// The hub attaches in a later turn of its task. Until it has done so, the key may look live
    /// because of a subscriber that is about to leave.
    fn join_when_attached(self: &Arc<Self>, hub: Hub<Key, Event>, added: Vec<(Key, u64)>) {
        let this = Arc::downgrade(self);
        self.runtime.spawn(async move {
            // Answered at the end of a turn, after the orders before it.
            hub.stats().await;
            let Some(this) = this.upgrade() else { return };
            for (key, join) in added {
                let joiner: Arc<dyn Joiner> = Arc::clone(&this) as _;
                this.shared.table.join(&key, this.id, join, Arc::downgrade(&joiner));
            }
        });
    }

    fn remove(&self, key: &str) -> bool {
        let mut state = lock(&self.state);
        let State { open: Some(open), keys, news, reader, .. } = &mut *state else { return false };
        let Some((key, seen)) = keys.remove_entry(key) else { return false };
        news.remove(&key);
        open.keys.remove(&key);
        if keys.capacity() / 8 > keys.len().max(KEYS_KEPT) {
            keys.shrink_to(keys.len() * 2);
        }
        let reader = reader.take();
        drop(state);
        wake(reader);
        if !seen.is_joined {
            self.shared.table.forget(&key, self.id);
        }
        true
    }

    fn poll_news(&self, cx: &mut Context<'_>) -> Poll<(Key, Outcome)> {
        let waker = cx.waker().clone();
        let mut state = lock(&self.state);
        if let Some(news) = state.take_news() {
            return Poll::Ready(news);
        }
        let replaced = state.reader.replace(waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

/// Tables of keys keep room for this many.
const KEYS_KEPT: usize = 16;

impl State {
    fn take_news(&mut self) -> Option<(Key, Outcome)> {
        let key = self.news.pop_first()?;
        let news = self.keys.get_mut(&key)?.news.take()?;
        Some((key, news))
    }

    fn tell_news(&mut self) -> Option<Received> {
        loop {
            match self.take_news()? {
                (key, Outcome::Joined(_)) => return Some(Received::Joined(key)),
                (key, Outcome::Refused(reason)) => return Some(Received::Refused { key, reason }),
                // The events end, too.
                (_, Outcome::Closed) => {}
            }
        }
    }

    /// Returns what the reader gets for what was read from the hub, and takes it, or leaves it to
    /// be told behind its gap. What is for no key is also left: it is dropped without the lock.
    ///
    /// A gap of which the reader knows is not told again, and neither is one before the key was
    /// joined. If the event of a gap was dropped because the reader was slow, the next item has the
    /// number of a later connection.
    fn receive(&mut self, read: &mut Option<Result<Event, Lagged>>) -> Option<Received> {
        let event = match read {
            Some(Ok(event)) => event,
            Some(Err(Lagged(lost))) => {
                let lost = *lost;
                *read = None;
                return Some(Received::Lagged(lost));
            }
            None => return None,
        };
        // Otherwise the key was removed, and this was on its way.
        let seen = self.keys.get_mut(&event.key)?;
        let is_told = seen.is_joined && event.epoch > seen.epoch;
        // While a key is refused, items go on missing: the gap is told when it is allowed again.
        if !matches!(event.what, What::Refused(_)) {
            seen.epoch = seen.epoch.max(event.epoch);
            if is_told {
                return Some(Received::Gap(Arc::clone(&event.key)));
            }
        }
        let Event { key, what, .. } = read.take()?.ok()?;
        match what {
            What::Item(item) => Some(Received::Item { key, item }),
            // Those that have not joined are told as the others that wait. To those that joined by
            // this connection, it has said that before.
            What::Refused(reason) => is_told.then_some(Received::Refused { key, reason }),
            What::Gap => None,
        }
    }
}

impl Joiner for Inner {
    fn waits_for(&self, key: &Key, join: u64) -> bool {
        let state = lock(&self.state);
        state.keys.get(key).is_some_and(|seen| seen.join == join && !seen.is_joined)
    }

    fn settle(&self, key: &Key, join: u64, outcome: Outcome) {
        let mut state = lock(&self.state);
        let Some(seen) = state.keys.get_mut(key).filter(|seen| seen.join == join) else { return };
        if let Outcome::Joined(epoch) = outcome {
            seen.is_joined = true;
            // The connection may have broken and come back in the meantime.
            seen.epoch = seen.epoch.max(epoch);
        }
        seen.news = Some(outcome);
        state.news.insert(Arc::clone(key));
        let reader = state.reader.take();
        drop(state);
        wake(reader);
    }
}

fn wake(reader: Option<Waker>) {
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.inner.state);
        f.debug_struct("Subscription").field("keys", &Names(&state.keys)).finish_non_exhaustive()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.inner.state);
        f.debug_tuple("Keys").field(&Names(&state.keys)).finish()
    }
}

struct Names<'a>(&'a HashMap<Key, Seen>);

impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::pin::pin;
    use std::task::Wake;

    use super::*;

    struct Test(State);

    impl Test {
        /// A subscription to "tea" that has not joined.
        fn new() -> Self {
            let seen = Seen { join: 1, is_joined: false, epoch: 0, news: None };
            Self(State {
                open: None,
                keys: HashMap::from([(Key::from("tea"), seen)]),
                news: BTreeSet::new(),
                reader: None,
                joins: 1,
            })
        }

        fn join(&mut self, epoch: u64) {
            let seen = self.0.keys.get_mut("tea").unwrap();
            seen.is_joined = true;
            seen.epoch = seen.epoch.max(epoch);
        }

        /// What the reader gets, in one word each.
        fn receive(&mut self, epoch: u64, what: What) -> Vec<&'static str> {
            let mut read = Some(Ok(Event { key: "tea".into(), epoch, what }));
            let name = |received: Received| match received {
                Received::Item { .. } => "item",
                Received::Gap(_) => "gap",
                Received::Refused { .. } => "refused",
                _ => "other",
            };
            std::iter::from_fn(|| self.0.receive(&mut read)).map(name).collect()
        }

        fn item(&mut self, epoch: u64) -> Vec<&'static str> {
            self.receive(epoch, What::Item(Bytes::new()))
        }
    }

    #[test]
    fn what_comes_before_the_join_is_true_is_not_taken_for_a_gap() {
        let mut test = Test::new();
        assert_eq!(test.item(1), ["item"]);
        assert_eq!(test.receive(2, What::Gap), [""; 0]);
        assert_eq!(test.receive(2, What::Refused("no".into())), [""; 0]);
        // The connection broke while the join was on its way, and the reader was faster.
        test.join(1);
        assert_eq!(test.item(2), ["item"]);
        assert_eq!(test.receive(3, What::Gap), ["gap"]);
        assert_eq!(test.item(3), ["item"]);
    }

    #[test]
    fn refusal_before_the_join_is_not_told_after_it() {
        let mut test = Test::new();
        test.join(2);
        assert_eq!(test.receive(1, What::Refused("no".into())), [""; 0]);
        assert_eq!(test.receive(2, What::Refused("no".into())), [""; 0]);
        assert_eq!(test.item(2), ["item"]);
        assert_eq!(test.receive(3, What::Refused("no".into())), ["refused"]);
    }

    #[test]
    fn gap_is_told_once_for_each_connection_even_if_its_event_was_dropped() {
        let mut test = Test::new();
        test.join(1);
        assert_eq!(test.item(1), ["item"]);
        assert_eq!(test.item(3), ["gap", "item"]);
        assert_eq!(test.receive(3, What::Gap), [""; 0]);
        assert_eq!(test.receive(4, What::Gap), ["gap"]);
        // Refused by a connection, and allowed by the same one when another subscriber asked.
        assert_eq!(test.receive(5, What::Refused("no".into())), ["refused"]);
        assert_eq!(test.receive(5, What::Gap), ["gap"]);
    }

    #[test]
    fn nothing_is_received_of_a_key_that_was_removed() {
        let mut test = Test::new();
        test.join(1);
        test.0.keys.clear();
        assert_eq!(test.item(1), [""; 0]);
    }

    /// Part of a waker or an item of a user. When it is dropped, it uses the subscription.
    struct Nosy(Keys);

    impl Drop for Nosy {
        fn drop(&mut self) {
            self.0.len();
        }
    }

    impl Wake for Nosy {
        fn wake(self: Arc<Self>) {
            self.0.len();
        }
    }

    impl AsRef<[u8]> for Nosy {
        fn as_ref(&self) -> &[u8] {
            b"hello"
        }
    }

    fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(waker))
    }

    /// In another thread, because it hangs if it fails. Meanwhile, no task runs.
    fn does_not_hang(work: impl FnOnce() + Send + 'static) {
        let (done, is_done) = std::sync::mpsc::channel();
        let runtime = Handle::current();
        std::thread::spawn(move || {
            let _runtime = runtime.enter();
            work();
            done.send(())
        });
        if is_done.recv_timeout(std::time::Duration::from_secs(30)).is_err() {
            // A panic would drop the runtime, which can hang as well, and would not be printed.
            std::io::stderr().write_all(b"a waker or an item hangs, or panics\n").unwrap();
            std::process::abort();
        }
    }

    #[tokio::test]
    async fn waker_may_use_the_subscription_when_it_is_replaced_or_woken() {
        let bridge = crate::Bridge::local();
        let mut tea = bridge.subscribe("tea").await.unwrap();
        let mut joining = bridge.subscription(Terms::new());
        let nosy = |keys: Keys| Waker::from(Arc::new(Nosy(keys)));
        does_not_hang(move || {
            let keys = tea.keys();
            for _ in 0..2 {
                assert!(poll(&mut pin!(tea.recv()), &nosy(keys.clone())).is_pending());
            }
            keys.add("coffee");
            let keys = joining.keys();
            let mut joined = pin!(joining.join(vec!["milk".into()]));
            for _ in 0..2 {
                assert!(poll(&mut joined, &nosy(keys.clone())).is_pending());
            }
        });
    }

    #[tokio::test]
    async fn item_may_use_the_subscription_when_it_is_dropped() {
        let bridge = crate::Bridge::local();
        let mut client = bridge.subscribe_with(["tea"], Terms::new()).await.unwrap();
        let item = Bytes::from_owner(Nosy(client.keys()));
        bridge.publish("tea", item).await.unwrap();
        bridge.stats().await;
        assert!(client.keys().remove("tea"));
        does_not_hang(move || {
            assert!(poll(&mut pin!(client.recv()), Waker::noop()).is_pending());
        });
    }

    #[test]
    fn subscription_is_sent_and_shared() {
        fn check<T: Send + Sync + Unpin>() {}
        check::<Subscription>();
        check::<Keys>();
    }
}

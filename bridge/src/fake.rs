//! An engine without a network, and what a bridge does when it misbehaves.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout};

use crate::arrivals::Arrival;
use crate::bridge::{Bridge, Builder, PublishError, SubscribeError};
use crate::engine::{Claim, Connection, Engine, Failure, Line, Subscriber};
use crate::event::Key;
use crate::lock::lock;
use crate::subscription::{Received, Subscription};

/// What happens to a connection for subscriptions.
#[derive(Debug, Clone, Copy)]
enum Plan {
    Works,
    PanicsAtOnce,
    PanicsWhenTold,
    Hangs,
    Refuses,
}

struct Fake {
    plans: Mutex<VecDeque<Plan>>,
    /// Each connection for subscriptions, and when it was made.
    made: UnboundedSender<(Subscriber, Instant)>,
    panics: Arc<tokio::sync::Notify>,
}

impl Engine for Fake {
    type Line = FakeLine;

    async fn connect(
        &self,
        subscriber: Option<Subscriber>,
    ) -> Result<Connection<FakeLine>, Failure> {
        let Some(to) = &subscriber else {
            return Ok(connection(subscriber, Box::pin(pending())));
        };
        self.made.send((to.clone(), Instant::now())).unwrap();
        let plan = lock(&self.plans).pop_front().unwrap_or(Plan::Works);
        match plan {
            Plan::Works => Ok(connection(subscriber, Box::pin(pending()))),
            Plan::PanicsAtOnce => panic!("planned: while it connects"),
            Plan::PanicsWhenTold => {
                let panics = Arc::clone(&self.panics);
                let driver = async move {
                    panics.notified().await;
                    panic!("planned: while it is connected");
                };
                Ok(connection(subscriber, Box::pin(driver)))
            }
            Plan::Hangs => pending().await,
            Plan::Refuses => Err(Failure::Refused("no".into())),
        }
    }
}

fn connection(
    subscriber: Option<Subscriber>,
    driver: std::pin::Pin<Box<dyn Future<Output = Arc<str>> + Send>>,
) -> Connection<FakeLine> {
    let reads = Arc::new(AtomicU64::new(0));
    Connection { line: FakeLine { subscriber, reads: Arc::clone(&reads) }, driver, reads }
}

#[derive(Clone)]
struct FakeLine {
    subscriber: Option<Subscriber>,
    reads: Arc<AtomicU64>,
}

impl FakeLine {
    fn say(&self, key: &str, arrival: Arrival) {
        let Subscriber { arrivals, epoch } = self.subscriber.as_ref().unwrap();
        arrivals.push(*epoch, key.into(), arrival);
    }
}

impl Line for FakeLine {
    fn subscribe(&self, key: &str) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        self.say(key, Arrival::Subscribed);
        async { Ok(()) }
    }

    fn unsubscribe(&self, key: &str) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        self.say(key, Arrival::Unsubscribed);
        async { Ok(()) }
    }

    fn publish(
        &self,
        _: &str,
        _: &Bytes,
        _: Claim,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        std::future::ready(Ok(()))
    }

    /// Is answered as long as the engine is used for publishing.
    fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        if self.subscriber.is_none() {
            self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        async { Ok(()) }
    }
}

struct Test {
    bridge: Bridge,
    made: UnboundedReceiver<(Subscriber, Instant)>,
    panics: Arc<tokio::sync::Notify>,
}

impl Test {
    fn new(plans: impl IntoIterator<Item = Plan>) -> Self {
        Self::with(Bridge::builder(), plans)
    }

    fn with(settings: Builder, plans: impl IntoIterator<Item = Plan>) -> Self {
        let (sender, made) = unbounded_channel();
        let panics = Arc::<tokio::sync::Notify>::default();
        let plans = Mutex::new(plans.into_iter().collect());
        let fake = Fake { plans, made: sender, panics: Arc::clone(&panics) };
        Self { bridge: settings.start(fake), made, panics }
    }
}

async fn next(subscription: &mut Subscription) -> Received {
    // In paused time, this passes when nothing else can happen.
    let received = timeout(Duration::from_secs(3_600), subscription.recv()).await;
    received.expect("something comes").expect("it has not ended")
}

#[tokio::test(start_paused = true)]
async fn task_of_a_connection_that_panics_is_replaced_and_the_gap_is_told() {
    let mut test = Test::new([Plan::PanicsAtOnce, Plan::PanicsWhenTold, Plan::PanicsAtOnce]);
    let mut tea = test.bridge.subscribe("tea").await.unwrap();
    test.made.recv().await.unwrap();
    let (engine, _) = test.made.recv().await.unwrap();
    engine.arrivals.push(engine.epoch, "tea".into(), Arrival::Item("before".into()));
    test.panics.notify_one();
    let item = |item: &'static str| Received::Item { key: "tea".into(), item: item.into() };
    assert_eq!(next(&mut tea).await, item("before"));
    assert_eq!(next(&mut tea).await, Received::Gap("tea".into()));
    let error = test.bridge.status().borrow().receiving.error.clone().unwrap();
    assert_eq!(&*error, "the task of the connection has panicked");
    test.made.recv().await.unwrap();
    let (engine, _) = test.made.recv().await.unwrap();
    engine.arrivals.push(engine.epoch, "tea".into(), Arrival::Item("after".into()));
    assert_eq!(next(&mut tea).await, item("after"));
}

#[tokio::test(start_paused = true)]
async fn item_behind_a_gap_is_not_received_if_its_key_is_removed_in_between() {
    let mut test = Test::new([Plan::PanicsWhenTold]);
    let terms = crate::Terms::new().buffer(1);
    let mut slow = test.bridge.subscribe_with(["tea"], terms).await.unwrap();
    test.made.recv().await.unwrap();
    test.panics.notify_one();
    let (engine, _) = test.made.recv().await.unwrap();
    // The gap waits in the buffer, and makes room for this item, before which it is told then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    engine.arrivals.push(engine.epoch, "tea".into(), Arrival::Item("after".into()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(next(&mut slow).await, Received::Lagged(1));
    assert_eq!(next(&mut slow).await, Received::Gap("tea".into()));
    assert!(slow.keys().remove("tea"));
    slow.keys().add("coffee");
    assert_eq!(next(&mut slow).await, Received::Joined("coffee".into()));
    test.bridge.shutdown(Duration::ZERO).await;
    assert_eq!(slow.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn silent_engine_is_replaced_and_a_reason_is_given() {
    let mut test = Test::new([]);
    let mut tea = test.bridge.subscribe("tea").await.unwrap();
    let (_, first) = test.made.recv().await.unwrap();
    assert_eq!(next(&mut tea).await, Received::Gap("tea".into()));
    let (_, second) = test.made.recv().await.unwrap();
    let time = second - first;
    assert!(time >= Duration::from_secs(8) && time < Duration::from_secs(9), "{time:?}");
    let status = test.bridge.status().borrow().clone();
    assert_eq!(status.receiving.error.as_deref(), Some("the engine has said nothing for 8s"));
    assert_eq!((status.receiving.breaks, status.publishing.breaks), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn engine_that_hangs_or_refuses_is_asked_less_and_less_often() {
    let plans = [Plan::Hangs, Plan::Refuses, Plan::Refuses, Plan::Refuses, Plan::Works];
    let mut test = Test::new(plans);
    test.bridge.subscribe("tea").await.unwrap();
    let mut times = Vec::new();
    for _ in plans {
        times.push(test.made.recv().await.unwrap().1);
    }
    let delays: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(delays[0] > Duration::from_secs(5), "the time-out, and a delay: {delays:?}");
    for (n, delay) in (1..).zip(&delays[1..]) {
        let whole = Duration::from_millis(100 << n);
        assert!(*delay >= whole / 2 && *delay <= whole + Duration::from_millis(2), "{delays:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_that_no_clock_shows_is_never_over() {
    let settings: [fn(Builder, Duration) -> Builder; 4] = [
        Builder::publish_timeout,
        Builder::connect_timeout,
        Builder::heartbeat,
        |builder, time| builder.reconnect_delay(Duration::ZERO, time),
    ];
    for (n, set) in settings.into_iter().enumerate() {
        let test = Test::with(set(Bridge::builder(), Duration::MAX), [Plan::PanicsWhenTold]);
        let mut tea = test.bridge.subscribe("tea").await.unwrap();
        test.bridge.publish("tea", "hello").await.unwrap();
        assert_eq!(test.bridge.status().borrow().publishing.breaks, 0, "setting {n}");
        test.panics.notify_one();
        assert_eq!(next(&mut tea).await, Received::Gap("tea".into()), "setting {n}");
        assert_eq!(test.bridge.status().borrow().receiving.breaks, 1, "setting {n}");
        test.bridge.shutdown(Duration::MAX).await;
    }
    // With the longest delay, it does not connect again, and goes on.
    let delays = Bridge::builder().reconnect_delay(Duration::MAX, Duration::ZERO);
    let test = Test::with(delays, [Plan::PanicsWhenTold]);
    let mut tea = test.bridge.subscribe("tea").await.unwrap();
    test.panics.notify_one();
    assert!(timeout(Duration::from_secs(3_600), tea.recv()).await.is_err());
    test.bridge.publish("tea", "hello").await.unwrap();

    let bridge = Bridge::builder().publish_timeout(Duration::MAX).local();
    bridge.publish("tea", "hello").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn end_of_the_bridge_is_told_to_all_that_wait() {
    let test = Test::new([Plan::Hangs, Plan::Hangs]);
    let bridge = &test.bridge;
    let mut added = bridge.subscription(crate::Terms::new());
    added.keys().add("tea");
    let waiting = tokio::spawn({
        let bridge = bridge.clone();
        async move { bridge.subscribe("tea").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    bridge.shutdown(Duration::ZERO).await;
    assert_eq!(waiting.await.unwrap().unwrap_err(), SubscribeError::Closed);
    assert_eq!(bridge.subscribe("tea").await.unwrap_err(), SubscribeError::Closed);
    assert_eq!(bridge.publish("tea", "hello").await, Err(PublishError::Closed));
    assert_eq!(added.recv().await, None);
}

#[tokio::test]
async fn bridge_without_an_engine_joins_at_once_and_loses_nothing() {
    let bridge = Bridge::local();
    let mut tea = bridge.subscribe("tea").await.unwrap();
    let mut client = bridge.subscription(crate::Terms::new());
    let keys = client.keys();
    keys.add("tea");
    assert_eq!(client.recv().await, Some(Received::Joined("tea".into())));
    let tea_key = Key::from("tea");
    for n in 0..100_u8 {
        bridge.publish("tea", vec![n]).await.unwrap();
        let item = Received::Item { key: Arc::clone(&tea_key), item: vec![n].into() };
        assert_eq!(tea.recv().await.as_ref(), Some(&item));
        assert_eq!(client.recv().await, Some(item));
    }
    assert!(keys.remove("tea"));
    bridge.publish("tea", "unheard").await.unwrap();
    keys.add("coffee");
    assert_eq!(client.recv().await, Some(Received::Joined("coffee".into())));
    drop(bridge);
    assert_eq!(client.recv().await, None);
}

#[tokio::test]
async fn subscription_whose_limit_is_reached_before_it_has_joined_does_not_wait() {
    let bridge = Bridge::local();
    let limited = bridge.subscription(crate::Terms::new().limit(1));
    limited.keys().add("tea");
    for _ in 0..10 {
        bridge.publish("tea", "hello").await.unwrap();
    }
    let mut limited = limited;
    let first = limited.recv().await.unwrap();
    let second = limited.recv().await.unwrap();
    assert!([first, second].contains(&Received::Joined("tea".into())));
}

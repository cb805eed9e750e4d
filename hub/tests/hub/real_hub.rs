//! Hubs on tokio's runtimes.

use std::time::Duration;

use futures::executor::block_on;
use stream_demux_hub::{End, Hub, Terms};
use tokio::task::{JoinSet, yield_now};

use crate::runtimes::{RUNTIMES, run, runtime, within_a_minute};

#[test]
fn every_subscriber_gets_every_item_of_its_key() {
    for workers in RUNTIMES {
        let sum = run(workers, async {
            let hub = Hub::new();
            let mut readers = JoinSet::new();
            for n in 0..1_000_u64 {
                let mut items = hub.subscribe(n % 50);
                readers.spawn(async move {
                    let mut next = n % 50;
                    while let Some(item) = items.recv().await {
                        assert_eq!(item, Ok(next));
                        next += 50;
                    }
                    next / 50
                });
            }
            for n in 0..1_000 {
                hub.publish(n % 50, n).await.unwrap();
            }
            drop(hub);
            readers.join_all().await.into_iter().sum::<u64>()
        });
        assert_eq!(sum, 20_000);
    }
}

#[test]
fn thousands_of_subscriptions_come_and_go() {
    for workers in RUNTIMES {
        run(workers, async {
            let hub = Hub::<u64, u64>::new();
            let mut clients = JoinSet::new();
            for client in 0..20 {
                let hub = hub.clone();
                clients.spawn(async move {
                    for n in 0..500 {
                        let keys = [client % 3, 100 + n % 7, 200 + client];
                        let mut subscription = hub.subscribe_with(keys, Terms::new().buffer(8));
                        hub.publish(200 + client, n).await.unwrap();
                        // Only this client uses the key, so its item comes first of those with this
                        // number.
                        let got = loop {
                            match subscription.recv().await.expect("the hub runs") {
                                Ok(got) if got == n => break got,
                                _ => {}
                            }
                        };
                        assert_eq!(got, n);
                        subscription.remove(&(100 + n % 7));
                        if n % 5 == 0 {
                            yield_now().await;
                        }
                    }
                });
            }
            clients.join_all().await;
            let report = hub.shutdown(Duration::from_secs(60)).await;
            let totals = report.stats.totals;
            assert_eq!((totals.received, totals.attached), (10_000, 30_000));
            assert_eq!((totals.detached, totals.queued, report.stats.waiting), (30_000, 0, 0));
        });
    }
}

#[test]
fn runtime_that_shuts_down_ends_the_hub() {
    within_a_minute(|| {
        for workers in RUNTIMES {
            let runtime = runtime(workers);
            let (hub, mut subscription, next) = runtime.block_on(async {
                let hub = Hub::new();
                let subscription = hub.subscribe("a");
                hub.publish("a", 1).await.unwrap();
                let next = hub.next("b");
                while subscription.is_empty() {
                    yield_now().await;
                }
                (hub, subscription, next)
            });
            drop(runtime);
            assert!(block_on(hub.publish("a", 2)).is_err());
            assert_eq!(block_on(subscription.recv()), Some(Ok(1)));
            assert_eq!(block_on(subscription.recv()), None);
            assert_eq!((subscription.end(), block_on(next)), (Some(End::Aborted), None));
            assert_eq!(block_on(hub.stats()).totals.delivered, 1);
            // `shutdown` has a timer, so it needs a runtime, and any will do.
            let other = crate::runtimes::runtime(0);
            let report = other.block_on(hub.shutdown(Duration::from_secs(60)));
            assert_eq!((report.stats.totals.delivered, report.hung.len()), (1, 0));
        }
    });
}

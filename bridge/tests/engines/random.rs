//! Random outages: no item is lost without a word.

use std::collections::HashMap;
use std::time::Duration;

use stream_demux_bridge::{Bridge, PublishError, Received, Subscription, Terms};
use test_servers::Server;
use tokio::time::{sleep, timeout};

use crate::common::{Proxy, WATCHDOG, patient};
use crate::engine::{Engine, with_each_engine};

with_each_engine! {
    every_item_is_received_or_its_loss_is_told,
}

/// What the publisher knows of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Accepted,
    InDoubt,
    NotSent,
}

/// What a subscriber got: items by their numbers, and gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Got {
    Item(usize),
    Gap,
}

/// Publishes a number after the other until it is told to stop. Returns the fate of each.
async fn publish(bridge: Bridge, mut stop: tokio::sync::oneshot::Receiver<()>) -> Vec<Fate> {
    let mut fates = Vec::new();
    while stop.try_recv().is_err() {
        fates.push(match bridge.publish("tea", fates.len().to_string()).await {
            Ok(()) => Fate::Accepted,
            Err(PublishError::InDoubt(_)) => Fate::InDoubt,
            Err(PublishError::NotSent(_)) => Fate::NotSent,
            Err(other) => panic!("{other}"),
        });
        tokio::task::yield_now().await;
    }
    fates
}

async fn read(mut subscription: Subscription) -> Vec<Got> {
    let mut got = Vec::new();
    loop {
        match timeout(WATCHDOG, subscription.recv()).await.expect("the last item comes") {
            Some(Received::Item { item, .. }) if item == "last" => return got,
            Some(Received::Item { item, .. }) => {
                got.push(Got::Item(std::str::from_utf8(&item).unwrap().parse().unwrap()));
            }
            Some(Received::Gap(_)) => got.push(Got::Gap),
            other => panic!("{other:?}"),
        }
    }
}

/// Between two items without a gap, only items are missing that were not accepted.
fn check(got: &[Got], fates: &[Fate]) {
    let (mut next, mut has_gap) = (0, false);
    let missing = |from: usize, to: usize| {
        (from..to).filter(|n| fates[*n] == Fate::Accepted).collect::<Vec<_>>()
    };
    for entry in got {
        match *entry {
            Got::Gap => has_gap = true,
            Got::Item(n) => {
                assert!(n >= next, "{n} comes after {next}: twice, or not in order");
                assert_ne!(fates[n], Fate::NotSent, "{n} was certainly not published");
                let lost = missing(next, n);
                assert!(has_gap || lost.is_empty(), "lost without a word: {lost:?}");
                (next, has_gap) = (n + 1, false);
            }
        }
    }
    let lost = missing(next, fates.len());
    assert!(has_gap || lost.is_empty(), "lost at the end without a word: {lost:?}");
}

/// Ten runs of a few outages each: the server is killed, shut down or paused, the network is cut
/// for the one that publishes or for the one that subscribes.
async fn every_item_is_received_or_its_loss_is_told<E: Engine>() {
    let mut outages = HashMap::<u8, u32>::new();
    for run in 0..10 {
        let seed = fastrand::u64(..);
        println!("run {run}: seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let Some(mut server) = Server::<E>::start(&[]) else { return };
        let (near, far) = (Proxy::start(server.port).await, Proxy::start(server.port).await);
        let settings = || {
            patient()
                .heartbeat(Duration::from_millis(100))
                .connect_timeout(Duration::from_millis(500))
                .publish_timeout(Duration::from_millis(300))
        };
        let publisher = E::bridge(settings(), near.port).unwrap();
        let subscriber = E::bridge(settings(), far.port).unwrap();
        // Never too slow: what is missing was lost on the way.
        let terms = Terms::new().buffer(1_000_000);
        let subscription = subscriber.subscribe_with(["tea"], terms).await.unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let publishing = tokio::spawn(publish(publisher.clone(), stopped));
        let reading = tokio::spawn(read(subscription));
        for _ in 0..random.u8(1..=3) {
            sleep(Duration::from_millis(random.u64(20..200))).await;
            let time = Duration::from_millis(random.u64(0..300));
            let kind = random.u8(0..6);
            *outages.entry(kind).or_default() += 1;
            match kind {
                0 => {
                    server.kill();
                    sleep(time).await;
                    server.restart();
                }
                1 => {
                    server.shut_down();
                    sleep(time).await;
                    server.restart();
                }
                2 => {
                    server.pause();
                    sleep(time * 3).await;
                    server.resume();
                }
                3 => {
                    near.cut();
                    sleep(time).await;
                    near.open();
                }
                4 => {
                    far.cut();
                    sleep(time).await;
                    far.open();
                }
                _ => {
                    far.freeze();
                    sleep(time * 3).await;
                    far.open();
                }
            }
        }
        sleep(Duration::from_millis(random.u64(0..100))).await;
        stop.send(()).unwrap();
        let fates = publishing.await.unwrap();
        // The subscription is there again, or this is told by a gap.
        let ending = async {
            let mut last = tokio::time::interval(Duration::from_millis(50));
            while !reading.is_finished() {
                last.tick().await;
                let _ = publisher.publish("tea", "last").await;
            }
        };
        timeout(WATCHDOG, ending).await.expect("the last item comes");
        let got = reading.await.unwrap();
        let items = got.iter().filter(|got| matches!(got, Got::Item(_))).count();
        println!("  {} published, {items} received, {} gaps", fates.len(), got.len() - items);
        assert!(items > 0);
        check(&got, &fates);
    }
    println!("outages by kind: {outages:?}");
}

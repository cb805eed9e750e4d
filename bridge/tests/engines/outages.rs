//! The lines of the table in the README of `apps/chat`.

use std::time::{Duration, Instant};

use stream_demux_bridge::{Key, Overflow, PublishError, Received, Subscription, Terms};
use test_servers::Server;
use tokio::time::timeout;

use crate::common::{Proxy, WATCHDOG, connected, eventually, item, next, patient, publish, quick};
use crate::engine::{Engine, with_each_engine};

with_each_engine! {
    engine_is_killed,
    engine_is_restarted_empty,
    engine_is_paused_for_a_moment,
    engine_is_paused_for_long,
    network_is_cut,
    network_is_cut_without_a_word,
    subscriber_joins_during_the_outage,
    engine_drops_a_slow_consumer,
    hub_that_waits_for_a_subscriber_is_not_mistaken_for_a_silent_engine,
    slow_subscriber_is_told_how_much_it_missed_and_others_miss_nothing,
    gap_that_a_slow_subscriber_dropped_is_told_before_the_next_item,
    crowd_of_publishers_to_a_paused_engine_gets_its_answers_in_time,
}

fn gap(key: &str) -> Received {
    Received::Gap(key.into())
}

/// Reads until the next gap. Returns the items before it.
async fn until_gap(subscription: &mut Subscription) -> Vec<String> {
    let mut items = Vec::new();
    loop {
        match next(subscription).await {
            Received::Item { item, .. } => items.push(String::from_utf8(item.to_vec()).unwrap()),
            Received::Gap(_) => return items,
            other => panic!("{other:?}"),
        }
    }
}

async fn engine_is_killed<E: Engine>() {
    let Some(mut server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(patient(), server.port).unwrap();
    let there = E::bridge(quick(), server.port).unwrap();
    let mut tea = here.subscribe("tea").await.unwrap();
    let mut both = here.subscribe_with(["tea", "coffee"], Terms::new()).await.unwrap();
    let mut witness = here.subscribe("tea").await.unwrap();
    there.publish("tea", "before").await.unwrap();
    // The engine may be killed before it has sent what it has accepted.
    assert_eq!(next(&mut witness).await, item("tea", "before"));

    server.kill();
    connected(&here, false).await;
    connected(&there, false).await;
    let error = there.publish("tea", "meanwhile").await.unwrap_err();
    assert!(matches!(error, PublishError::NotSent(_)), "{error}");
    assert!(error.to_string().contains("Connection refused"), "{error}");

    // It waits for the connection, and is published then.
    let waiting = tokio::spawn({
        let here = here.clone();
        async move { here.publish("coffee", "as soon as possible").await }
    });
    server.restart();
    waiting.await.unwrap().unwrap();
    connected(&there, true).await;

    // In its place: after the last item before, and before the first one after.
    assert_eq!(next(&mut tea).await, item("tea", "before"));
    assert_eq!(next(&mut tea).await, gap("tea"));
    publish(&there, "tea", "after").await;
    assert_eq!(next(&mut tea).await, item("tea", "after"));

    // A subscription to several keys is told of each.
    assert_eq!(next(&mut both).await, item("tea", "before"));
    let mut gaps = Vec::new();
    while gaps.len() < 2 {
        if let Received::Gap(key) = next(&mut both).await {
            gaps.push(key);
        }
    }
    gaps.sort();
    assert_eq!(gaps, [Key::from("coffee"), Key::from("tea")]);
}

async fn engine_is_restarted_empty<E: Engine>() {
    let Some(mut server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(patient(), server.port).unwrap();
    let mut tea = here.subscribe("tea").await.unwrap();
    here.publish("tea", "before").await.unwrap();
    server.shut_down();
    server.restart();
    assert_eq!(until_gap(&mut tea).await, ["before"]);
    assert_eq!(server.subscribers("tea"), 1);
    publish(&here, "tea", "after").await;
    assert_eq!(next(&mut tea).await, item("tea", "after"));
}

async fn engine_is_paused_for_a_moment<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(patient(), server.port).unwrap();
    let mut tea = here.subscribe("tea").await.unwrap();
    here.publish("tea", "0").await.unwrap();
    server.pause();
    let publishing = tokio::spawn({
        let here = here.clone();
        async move {
            for n in 1..=100 {
                here.publish("tea", n.to_string()).await.unwrap();
            }
        }
    });
    let waiting = tokio::spawn({
        let here = here.clone();
        async move { here.subscribe("coffee").await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!publishing.is_finished());
    assert!(!waiting.is_finished(), "a join is not true before the engine says so");
    server.resume();
    publishing.await.unwrap();
    waiting.await.unwrap().unwrap();
    for n in 0..=100 {
        assert_eq!(next(&mut tea).await, item("tea", n.to_string()));
    }
    assert_eq!(here.status().borrow().receiving.breaks, 0);
}

async fn engine_is_paused_for_long<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(quick(), server.port).unwrap();
    let mut tea = here.subscribe("tea").await.unwrap();
    publish(&here, "tea", "before").await;
    server.pause();
    let error = here.publish("tea", "meanwhile").await.unwrap_err();
    assert!(error.is_in_doubt(), "{error}");
    connected(&here, false).await;
    let reason = here.status().borrow().receiving.error.clone().unwrap();
    assert!(reason.contains("has said nothing for 2s"), "{reason}");
    server.resume();
    // The engine may have sent what it was in doubt about, by the old connection or the new one.
    let mut before = until_gap(&mut tea).await;
    before.retain(|item| item != "meanwhile");
    assert_eq!(before, ["before"]);
}

async fn network_is_cut<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let proxy = Proxy::start(server.port).await;
    let here = E::bridge(patient(), proxy.port).unwrap();
    let there = E::bridge(patient(), server.port).unwrap();
    let mut near = here.subscribe("tea").await.unwrap();
    let mut far = there.subscribe("tea").await.unwrap();
    there.publish("tea", "before").await.unwrap();
    assert_eq!(next(&mut near).await, item("tea", "before"));
    proxy.cut();
    connected(&here, false).await;
    there.publish("tea", "meanwhile").await.unwrap();
    proxy.open();
    assert_eq!(next(&mut near).await, gap("tea"));
    there.publish("tea", "after").await.unwrap();
    assert_eq!(next(&mut near).await, item("tea", "after"));
    // The other server has lost nothing, and is told nothing.
    for expected in ["before", "meanwhile", "after"] {
        assert_eq!(next(&mut far).await, item("tea", expected));
    }
}

async fn network_is_cut_without_a_word<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let proxy = Proxy::start(server.port).await;
    let here = E::bridge(quick(), proxy.port).unwrap();
    let there = E::bridge(patient(), server.port).unwrap();
    let mut near = here.subscribe("tea").await.unwrap();
    proxy.freeze();
    there.publish("tea", "meanwhile").await.unwrap();
    connected(&here, false).await;
    // A time-out of one second ends attempts to connect through this.
    let error = here.publish("tea", "from here").await.unwrap_err();
    assert!(matches!(error, PublishError::NotSent(_)), "{error}");
    proxy.open();
    until_gap(&mut near).await;
    eventually("the old connection is gone", || server.subscribers("tea") == 1).await;
}

async fn subscriber_joins_during_the_outage<E: Engine>() {
    let Some(mut server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(patient(), server.port).unwrap();
    let mut old = here.subscribe("tea").await.unwrap();
    server.kill();
    connected(&here, false).await;

    let mut client = here.subscription(Terms::new());
    client.keys().add("tea");
    client.keys().add("coffee");
    let joining = here.subscribe("tea");
    tokio::pin!(joining);
    assert!(timeout(Duration::from_millis(100), &mut joining).await.is_err());
    assert!(timeout(Duration::from_millis(10), client.recv()).await.is_err());

    server.restart();
    let mut new = timeout(WATCHDOG, joining).await.unwrap().unwrap();
    let mut joined = [next(&mut client).await, next(&mut client).await];
    joined.sort_by_key(|received| *received == Received::Joined("tea".into()));
    assert_eq!(joined, [Received::Joined("coffee".into()), Received::Joined("tea".into())]);
    here.publish("tea", "hello").await.unwrap();
    // Only the one that was there before may have missed something.
    assert_eq!(next(&mut old).await, gap("tea"));
    for room in [&mut old, &mut new, &mut client] {
        assert_eq!(next(room).await, item("tea", "hello"));
    }
}

async fn engine_drops_a_slow_consumer<E: Engine>() {
    let Some(server) = Server::<E>::start(E::IMPATIENT) else { return };
    let here = E::bridge(patient().arrivals(16 * 1_024), server.port).unwrap();
    let there = E::bridge(patient(), server.port).unwrap();
    let terms = Terms::new().buffer(1).overflow(Overflow::Wait);
    let mut slow = here.subscribe_with(["tea"], terms).await.unwrap();
    let mut other = here.subscribe("coffee").await.unwrap();

    // The hub waits for the slow one, the bridge for the hub, and the engine for the bridge: until
    // it has had enough.
    let line = |n: u32| format!("{n} {}", "x".repeat(4_096));
    let mut published = 0;
    let deadline = Instant::now() + WATCHDOG;
    while server.subscribers("tea") > 0 {
        assert!(Instant::now() < deadline, "the engine keeps everything");
        for _ in 0..200 {
            there.publish("tea", line(published)).await.unwrap();
            published += 1;
        }
    }
    // Everything up to the gap comes in order, and nothing behind it is missing.
    let items = until_gap(&mut slow).await;
    assert!(!items.is_empty() && items.len() < published as usize);
    for (n, item) in (0..).zip(&items) {
        assert!(item.starts_with(&format!("{n} ")), "item {n} is missing");
    }
    assert_eq!(next(&mut other).await, gap("coffee"));
    there.publish("tea", "after").await.unwrap();
    assert_eq!(next(&mut slow).await, item("tea", "after"));
}

async fn hub_that_waits_for_a_subscriber_is_not_mistaken_for_a_silent_engine<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(quick().arrivals(4_096), server.port).unwrap();
    let there = E::bridge(patient(), server.port).unwrap();
    let terms = Terms::new().buffer(1).overflow(Overflow::Wait);
    let mut slow = here.subscribe_with(["tea"], terms).await.unwrap();
    for n in 0..100 {
        there.publish("tea", format!("{n} {}", "x".repeat(1_000))).await.unwrap();
    }
    let breaks = here.status().borrow().receiving.breaks;
    // Twice the patience for an engine.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(here.status().borrow().receiving.breaks, breaks);
    for n in 0..100 {
        let Received::Item { item, .. } = next(&mut slow).await else { panic!("item {n}") };
        assert!(item.starts_with(format!("{n} ").as_bytes()));
    }
}

async fn slow_subscriber_is_told_how_much_it_missed_and_others_miss_nothing<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(patient(), server.port).unwrap();
    let mut slow = here.subscribe_with(["tea"], Terms::new().buffer(10)).await.unwrap();
    let mut fast = here.subscribe("tea").await.unwrap();
    for n in 0..100 {
        here.publish("tea", n.to_string()).await.unwrap();
        assert_eq!(next(&mut fast).await, item("tea", n.to_string()));
    }
    let (mut lost, mut received) = (0, 0);
    while lost + received < 100 {
        match next(&mut slow).await {
            Received::Lagged(count) => lost += count,
            Received::Item { .. } => received += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lost + received, 100);
    assert!(lost >= 80, "{lost}");
}

async fn gap_that_a_slow_subscriber_dropped_is_told_before_the_next_item<E: Engine>() {
    let Some(mut server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(patient(), server.port).unwrap();
    let mut slow = here.subscribe_with(["tea"], Terms::new().buffer(2)).await.unwrap();
    let mut fast = here.subscribe("tea").await.unwrap();
    here.publish("tea", "before").await.unwrap();
    assert_eq!(next(&mut fast).await, item("tea", "before"));
    server.kill();
    server.restart();
    assert_eq!(next(&mut fast).await, gap("tea"));
    for n in 0..10 {
        here.publish("tea", n.to_string()).await.unwrap();
        assert_eq!(next(&mut fast).await, item("tea", n.to_string()));
    }
    assert!(matches!(next(&mut slow).await, Received::Lagged(_)));
    assert_eq!(next(&mut slow).await, gap("tea"));
    assert!(matches!(next(&mut slow).await, Received::Item { .. }));
}

async fn crowd_of_publishers_to_a_paused_engine_gets_its_answers_in_time<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    // The heartbeat does not notice it: the time-out of each publisher has to.
    let settings = patient().publish_timeout(Duration::from_millis(500)).publish_window(16);
    let here = E::bridge(settings, server.port).unwrap();
    connected(&here, true).await;
    server.pause();
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let here = here.clone();
        crowd.spawn(async move { here.publish("tea", vec![0; 1_000]).await });
    }
    let (mut unsent, mut in_doubt) = (0, 0);
    while let Some(answer) = timeout(WATCHDOG, crowd.join_next()).await.expect("all end") {
        match answer.unwrap().unwrap_err() {
            PublishError::NotSent(_) => unsent += 1,
            PublishError::InDoubt(_) => in_doubt += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(unsent + in_doubt, 1_000);
    assert!(unsent > 0, "no more than the window is sent at once: {in_doubt} in doubt");
    server.resume();
    publish(&here, "tea", "hello").await;
}

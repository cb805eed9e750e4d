//! When a join is true, and what is subscribed upstream.

use std::time::Duration;

use stream_demux_bridge::{Received, SubscribeError, Terms};
use test_servers::Server;
use tokio::time::timeout;

use crate::common::{WATCHDOG, connected, eventually, item, next, patient, quick};
use crate::engine::{Engine, with_each_engine};

with_each_engine! {
    what_another_process_publishes_after_a_subscription_is_received,
    subscriber_that_comes_while_the_last_one_leaves_misses_nothing,
    crowd_of_subscribers_is_one_subscription_until_the_last_has_left,
    key_that_the_last_subscriber_left_during_an_outage_is_not_subscribed_again,
    keys_change_while_nothing_reads_the_subscription,
    reader_that_waits_is_told_of_a_key_that_is_added_meanwhile,
    engine_that_refuses_a_key_is_asked_again_by_the_next_subscriber,
    subscription_that_is_given_up_while_it_waits_leaves_nothing_behind,
    last_handle_that_is_dropped_ends_subscriptions_and_connections,
}

async fn what_another_process_publishes_after_a_subscription_is_received<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(patient(), server.port).unwrap();
    let there = E::bridge(patient(), server.port).unwrap();
    for n in 0..100 {
        let key = format!("room {n}");
        let mut room = here.subscribe(&key).await.unwrap();
        there.publish(&key, "hello").await.unwrap();
        assert_eq!(next(&mut room).await, item(&key, "hello"));
    }
}

async fn subscriber_that_comes_while_the_last_one_leaves_misses_nothing<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let here = E::bridge(patient(), server.port).unwrap();
    let there = E::bridge(patient(), server.port).unwrap();
    let mut room = here.subscribe("tea").await.unwrap();
    for n in 0..500 {
        let leaving = tokio::spawn(async move { drop(room) });
        room = timeout(WATCHDOG, here.subscribe("tea")).await.unwrap().unwrap();
        there.publish("tea", n.to_string()).await.unwrap();
        assert_eq!(next(&mut room).await, item("tea", n.to_string()));
        leaving.await.unwrap();
    }
}

async fn crowd_of_subscribers_is_one_subscription_until_the_last_has_left<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let bridge = E::bridge(patient(), server.port).unwrap();
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(bridge.subscribe("tea").await.unwrap());
    }
    assert_eq!(server.subscribers("tea"), 1);

    bridge.publish("tea", "hello").await.unwrap();
    for room in &mut crowd {
        assert_eq!(next(room).await, item("tea", "hello"));
    }
    crowd.truncate(1);
    assert_eq!(server.subscribers("tea"), 1);
    drop(crowd);
    eventually("nothing is subscribed", || server.subscribers("tea") == 0).await;
}

async fn key_that_the_last_subscriber_left_during_an_outage_is_not_subscribed_again<E: Engine>() {
    let Some(mut server) = Server::<E>::start(&[]) else { return };
    let bridge = E::bridge(patient(), server.port).unwrap();
    let tea = bridge.subscribe("tea").await.unwrap();
    let mut coffee = bridge.subscribe("coffee").await.unwrap();
    server.kill();
    connected(&bridge, false).await;
    drop(tea);
    // The hub has noticed that it has left.
    bridge.stats().await;
    server.restart();
    assert_eq!(next(&mut coffee).await, Received::Gap("coffee".into()));
    assert_eq!(server.subscribers("coffee"), 1);
    // All keys are subscribed by one burst, in the order of their names.
    bridge.subscribe("zero").await.unwrap();
    assert_eq!(server.subscribers("tea"), 0);
}

async fn keys_change_while_nothing_reads_the_subscription<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let bridge = E::bridge(patient(), server.port).unwrap();
    let mut client = bridge.subscription(Terms::new().buffer(4));
    let keys = client.keys();
    for _ in 0..200 {
        assert!(keys.add("tea"));
        assert!(keys.add("coffee"));
        assert!(!keys.add("tea"));
        assert!(keys.remove("tea"));
        assert!(keys.remove("coffee"));
        assert!(!keys.remove("coffee"));
    }
    assert!(keys.is_empty());
    assert!(keys.add("tea"));
    assert_eq!(next(&mut client).await, Received::Joined("tea".into()));
    bridge.publish("tea", "hello").await.unwrap();
    assert_eq!(next(&mut client).await, item("tea", "hello"));
    eventually("coffee is not subscribed", || server.subscribers("coffee") == 0).await;
}

async fn reader_that_waits_is_told_of_a_key_that_is_added_meanwhile<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let bridge = E::bridge(patient(), server.port).unwrap();
    let mut client = bridge.subscribe("tea").await.unwrap();
    let keys = client.keys();
    let reading = tokio::spawn(async move { (next(&mut client).await, next(&mut client).await) });
    tokio::time::sleep(Duration::from_millis(50)).await;
    keys.add("coffee");
    eventually("coffee is subscribed", || server.subscribers("coffee") == 1).await;
    bridge.publish("coffee", "hello").await.unwrap();
    let (first, second) = timeout(WATCHDOG, reading).await.unwrap().unwrap();
    assert_eq!(first, Received::Joined("coffee".into()));
    assert_eq!(second, item("coffee", "hello"));
}

async fn engine_that_refuses_a_key_is_asked_again_by_the_next_subscriber<E: Engine>() {
    let Some(mut server) = Server::<E>::start(&[]) else { return };
    server.close();
    let bridge = E::bridge(patient(), server.port).unwrap();
    let refused = timeout(WATCHDOG, bridge.subscribe("closed.1")).await.unwrap();
    let Err(SubscribeError::Refused { key, reason }) = refused else { panic!("{refused:?}") };
    assert_eq!(&*key, "closed.1");
    assert!(reason.to_lowercase().contains("permissions"), "{reason}");
    let refused = bridge.publish("closed.1", "hello").await.unwrap_err();
    assert!(!refused.is_in_doubt(), "{refused}");

    // One that waits for it is told, and goes on waiting.
    let mut waiting = bridge.subscription(Terms::new());
    waiting.keys().add("closed.1");
    waiting.keys().add("open.1");
    let mut told = [next(&mut waiting).await, next(&mut waiting).await];
    told.sort_by_key(|received| matches!(received, Received::Joined(_)));
    assert_eq!(told[1], Received::Joined("open.1".into()));
    assert!(matches!(&told[0], Received::Refused { key, .. } if &**key == "closed.1"));
    // This one reads when it has joined. What the engine has said before that concerns it no more.
    let mut later = bridge.subscription(Terms::new());
    later.keys().add("closed.1");
    assert!(matches!(next(&mut waiting).await, Received::Refused { .. }));

    server.open();
    let mut room = timeout(WATCHDOG, bridge.subscribe("closed.1")).await.unwrap().unwrap();
    assert_eq!(next(&mut waiting).await, Received::Joined("closed.1".into()));
    bridge.publish("closed.1", "hello").await.unwrap();
    assert_eq!(next(&mut room).await, item("closed.1", "hello"));
    assert_eq!(next(&mut later).await, Received::Joined("closed.1".into()));
    assert_eq!(next(&mut later).await, item("closed.1", "hello"));
}

async fn subscription_that_is_given_up_while_it_waits_leaves_nothing_behind<E: Engine>() {
    let Some(mut server) = Server::<E>::start(&[]) else { return };
    server.kill();
    let bridge = E::bridge(quick(), server.port).unwrap();
    for _ in 0..20 {
        let waiting = bridge.subscribe("tea");
        assert!(timeout(Duration::from_millis(5), waiting).await.is_err());
    }
    bridge.stats().await;
    server.restart();
    bridge.subscribe("zero").await.unwrap();
    assert_eq!(server.subscribers("tea"), 0);
}

async fn last_handle_that_is_dropped_ends_subscriptions_and_connections<E: Engine>() {
    let Some(server) = Server::<E>::start(&[]) else { return };
    let bridge = E::bridge(patient(), server.port).unwrap();
    let mut room = bridge.subscribe("tea").await.unwrap();
    let waiting = room.keys();
    drop(bridge);
    assert_eq!(timeout(WATCHDOG, room.recv()).await.unwrap(), None);
    assert!(!waiting.add("coffee"));
    eventually("the bridge has disconnected", || server.connections() == 0).await;
}

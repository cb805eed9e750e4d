//! Subscriptions to the latest value.

mod common;

use common::{Client, Gateway, message, until};
use serde_json::{Value, json};

async fn latest(gateway: &Gateway, mut client: Client, key: &str, rate: u64) -> Client {
    client.send(json!({ "type": "subscribe", "key": key, "latest": true, "rate": rate })).await;
    assert_eq!(client.next().await["type"], "subscribed");
    assert_eq!(gateway.stats().await["totals"]["queued"], 0);
    client
}

fn number(reply: &Value) -> usize {
    reply["body"].as_str().unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Returns the numbers of the messages up to `last`, which must be the final one.
async fn read(client: &mut Client, last: usize) -> Vec<usize> {
    let mut got = Vec::new();
    while got.last() != Some(&last) {
        let reply = client.next().await;
        assert_eq!(reply["type"], "message", "unexpected: {reply}");
        got.push(number(&reply));
    }
    assert!(got.is_sorted(), "{got:?}");
    got
}

#[tokio::test]
async fn after_a_burst_and_silence_the_last_one_is_there() {
    let gateway = Gateway::start(&[]).await;
    let mut client = latest(&gateway, gateway.connect().await, "tea", 2).await;
    let mut all = gateway.subscriber("tea").await;
    for last in [29, 59] {
        for n in last - 29..=last {
            gateway.publish("tea", n.to_string()).await;
            assert_eq!(number(&all.next().await), n, "other clients are not held up");
        }
        let got = read(&mut client, last).await;
        assert!(got.len() < 15, "two a second: {got:?}");
    }
    let totals = gateway.stats().await["totals"].clone();
    assert!(totals["discarded"]["conflated"].as_u64().unwrap() >= 30, "{totals}");
    assert_eq!((&totals["queued"], &totals["lost"]), (&json!(0), &json!(0)));
    // A message that waits for the rate limit when the subscription ends is still sent.
    for n in 60..70 {
        gateway.publish("tea", n.to_string()).await;
        assert_eq!(number(&all.next().await), n);
    }
    client.send(json!({ "type": "unsubscribe", "key": "tea" })).await;
    read(&mut client, 69).await;
    assert_eq!(client.next().await["type"], "unsubscribed");
}

#[tokio::test]
async fn a_client_that_does_not_read_costs_one_message_under_any_policy() {
    for policy in ["wait", "drop-oldest", "drop-newest", "evict"] {
        let options = ["--overflow", policy, "--send-buffer", "8192", "--rate", "0"];
        let gateway = Gateway::start(&options).await;
        let slow = gateway.connect_narrow().await;
        let mut slow = latest(&gateway, slow, "tea", 1_000_000).await;
        let mut quick = gateway.subscriber("tea").await;
        for n in 0..200 {
            gateway.publish("tea", format!("{n} {}", "x".repeat(20_000))).await;
            assert_eq!(number(&quick.next().await), n);
        }
        assert_eq!(gateway.stats().await["totals"]["queued"], 1, "{policy}");
        let got = read(&mut slow, 199).await;
        assert!(got.len() < 100, "{policy}: {got:?}");
        gateway.publish("tea", "200").await;
        assert_eq!(slow.next().await, message("tea", "200"));
    }
}

#[tokio::test]
async fn the_last_one_arrives_also_if_the_client_has_its_share_waiting() {
    // An eighth of what is free: a few messages, which those of the other key use up.
    let options = ["--max-queued", "500000", "--send-buffer", "8192", "--rate", "0"];
    let gateway = Gateway::start(&options).await;
    let slow = gateway.connect_narrow().await;
    let mut slow = latest(&gateway, slow, "tea", 1_000_000).await;
    slow.subscribe("other").await;
    for n in 0..100 {
        gateway.publish("other", format!("{n} {}", "x".repeat(20_000))).await;
    }
    until("a loss", async || gateway.stats().await["totals"]["discarded"]["not_admitted"] != 0)
        .await;
    for n in 0..10 {
        gateway.publish("tea", format!("{n} {}", "x".repeat(20_000))).await;
    }
    until("all of them", async || gateway.stats().await["totals"]["received"] == 110).await;
    loop {
        let reply = slow.next().await;
        if reply["key"] == "tea" && number(&reply) == 9 {
            break;
        }
    }
}

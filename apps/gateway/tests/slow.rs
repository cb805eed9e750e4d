//! A client that does not read, under each policy: its losses, its notices, and the effect on
//! others.

mod common;

use common::{Client, Gateway, soon, until};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

const COUNT: u64 = 400;

/// Large bodies, so that sockets fill up soon.
fn body(n: u64) -> String {
    format!("{n} {}", "x".repeat(20_000))
}

fn number(reply: &Value) -> u64 {
    reply["body"].as_str().unwrap().split(' ').next().unwrap().parse().unwrap()
}

async fn start(policy: &str) -> (Gateway, Client, Client) {
    let options = ["--overflow", policy, "--buffer", "10", "--send-buffer", "8192", "--rate", "0"];
    let gateway = Gateway::start(&options).await;
    let mut slow = gateway.connect_narrow().await;
    slow.subscribe("tea").await;
    let quick = gateway.subscriber("tea").await;
    (gateway, slow, quick)
}

/// Publishes; the quick client reads each message before the next one is published.
async fn publish(gateway: &Gateway, quick: &mut Client) {
    for n in 0..COUNT {
        gateway.publish("tea", body(n)).await;
        assert_eq!(number(&quick.next().await), n);
    }
}

/// Reads what arrives for the slow client: the numbers of its messages and the number of lost ones,
/// until both add up, or the subscription is ended.
async fn read(slow: &mut Client) -> (Vec<u64>, u64, bool) {
    let (mut got, mut lost) = (Vec::new(), 0);
    while got.len() as u64 + lost < COUNT {
        let reply = slow.next().await;
        match reply["type"].as_str() {
            Some("message") => got.push(number(&reply)),
            Some("lost") => {
                assert_eq!(reply["reason"], "overflow");
                lost += reply["count"].as_u64().unwrap();
            }
            Some("unsubscribed") => {
                assert_eq!(reply["reason"], "too_slow");
                return (got, lost, true);
            }
            _ => panic!("{reply}"),
        }
    }
    (got, lost, false)
}

fn is_sorted(numbers: &[u64]) -> bool {
    numbers.windows(2).all(|pair| pair[0] < pair[1])
}

#[tokio::test]
async fn drop_oldest_keeps_the_last_ones() {
    let (gateway, mut slow, mut quick) = start("drop-oldest").await;
    publish(&gateway, &mut quick).await;
    let (got, lost, _) = read(&mut slow).await;
    assert!(is_sorted(&got) && lost > 0);
    assert_eq!(got[got.len() - 10..], (COUNT - 10..COUNT).collect::<Vec<_>>());
    assert_eq!(gateway.stats().await["totals"]["discarded"]["overflowed"], lost);
}

#[tokio::test]
async fn drop_newest_keeps_the_first_ones() {
    let (gateway, mut slow, mut quick) = start("drop-newest").await;
    publish(&gateway, &mut quick).await;
    let (got, lost, _) = read(&mut slow).await;
    assert_eq!(got, (0..COUNT - lost).collect::<Vec<_>>());
    assert!(lost > 0);
}

#[tokio::test]
async fn evict_ends_the_subscription_and_not_the_connection() {
    let (gateway, mut slow, mut quick) = start("evict").await;
    publish(&gateway, &mut quick).await;
    let (got, lost, ended) = read(&mut slow).await;
    assert_eq!(got, (0..got.len() as u64).collect::<Vec<_>>());
    assert!(ended);
    // The waiting messages, the one that did not fit, and what came before the next turn.
    assert!(lost >= 11, "{lost}");
    assert_eq!(gateway.stats().await["totals"]["discarded"]["overflowed"], lost);
    slow.subscribe("tea").await;
    gateway.publish("tea", body(7)).await;
    assert_eq!(number(&slow.next().await), 7);
}

#[tokio::test]
async fn wait_loses_nothing_blocks_all_and_names_the_client() {
    let (gateway, mut slow, mut quick) = start("wait").await;
    let url = gateway.url("/publish/tea");
    let publishing = tokio::spawn(async move {
        let client = reqwest::Client::new();
        for n in 0..COUNT {
            let answer = client.post(&url).body(body(n)).send().await.unwrap();
            assert_eq!(answer.status(), 202);
        }
    });
    let reading = tokio::spawn(async move {
        for n in 0..COUNT {
            assert_eq!(number(&quick.next().await), n);
        }
    });
    until("the wait", async || gateway.stats().await["blocked"]["key"] == "tea").await;
    let blocked = gateway.stats().await["blocked"]["client"].clone();
    let address = slow.0.get_ref().local_addr().unwrap().to_string();
    assert_eq!(blocked, address.as_str());
    assert!(!reading.is_finished());
    let (got, lost, _) = read(&mut slow).await;
    assert_eq!((got, lost), ((0..COUNT).collect::<Vec<_>>(), 0));
    soon("publishing", publishing).await.unwrap();
    soon("reading", reading).await.unwrap();
    until("the end of the wait", async || gateway.stats().await["blocked"].is_null()).await;
}

#[tokio::test]
async fn a_blocking_client_that_leaves_unblocks_the_input() {
    let (gateway, slow, mut quick) = start("wait").await;
    let url = gateway.url("/publish/tea");
    let publishing = tokio::spawn(async move {
        let client = reqwest::Client::new();
        for n in 0..COUNT {
            client.post(&url).body(body(n)).send().await.unwrap();
        }
    });
    let reading = tokio::spawn(async move {
        for n in 0..COUNT {
            assert_eq!(number(&quick.next().await), n);
        }
    });
    until("the wait", async || gateway.stats().await["blocked"]["key"] == "tea").await;
    drop(slow);
    soon("publishing", publishing).await.unwrap();
    soon("reading", reading).await.unwrap();
}

#[tokio::test]
async fn unflushed_messages_do_not_make_a_client_slow() {
    // A client may have 50 kB waiting; its socket takes more than all of it.
    let limits = ["--max-queued", "400000", "--overflow", "drop-newest", "--rate", "0"];
    let gateway = Gateway::start(&limits).await;
    let mut client = gateway.subscriber("tea").await;
    let line = json!({ "key": "tea", "body": "x".repeat(10_000) }).to_string() + "\n";
    let (status, reply) = gateway.ask(Method::POST, "/publish", &[], line.repeat(10)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{reply}");
    for _ in 0..10 {
        let reply = client.next().await;
        assert_eq!(reply["type"], "message", "{reply}");
    }
}

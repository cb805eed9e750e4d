//! Clients that reconnect, and the messages kept for them.

mod common;

use common::{Client, Gateway, soon, until};
use serde_json::{Value, json};

/// Subscribes; returns the first answer, the positions of the messages after it, and the last
/// answer.
async fn come_back(client: &mut Client, request: Value) -> (Value, Vec<u64>, Value) {
    client.send(request).await;
    let (first, mut got) = (client.next().await, Vec::new());
    loop {
        let reply = client.next().await;
        match reply["type"].as_str() {
            Some("message") => got.push(reply["at"].as_u64().unwrap()),
            _ => return (first, got, reply),
        }
    }
}

fn since(key: &str, at: u64, epoch: &Value) -> Value {
    json!({ "type": "subscribe", "key": key, "since": at, "epoch": epoch })
}

#[tokio::test]
async fn a_client_that_reconnects_gets_missed_and_then_new_messages() {
    let gateway = Gateway::start(&["--history", "3"]).await;
    let mut client = gateway.connect().await;
    client.send(json!({ "type": "subscribe", "key": "tea" })).await;
    let reply = client.next().await;
    let epoch = reply["epoch"].clone();
    assert_eq!((reply["at"].as_u64(), epoch.as_str().map(str::len)), (Some(0), Some(16)));
    for n in 1..=5 {
        gateway.publish("tea", n.to_string()).await;
        let expected = json!({ "type": "message", "key": "tea", "body": n.to_string(), "at": n });
        assert_eq!(client.next().await, expected);
    }
    gateway.publish("other", "1").await;
    for (request, after, has_gap, last) in [
        (since("tea", 2, &epoch), 2, false, 5),
        (since("tea", 4, &epoch), 4, false, 5),
        (since("tea", 5, &epoch), 5, false, 5),
        (since("tea", 1, &epoch), 2, true, 5),
        // Of another run, without an epoch, or from the future.
        (since("tea", 4, &json!("another")), 2, true, 5),
        (since("tea", 4, &Value::Null), 2, true, 5),
        (since("tea", 6, &epoch), 2, true, 5),
        // All kept messages.
        (since("tea", 0, &Value::Null), 2, true, 5),
        (since("other", 0, &Value::Null), 0, false, 1),
        (since("nothing", 0, &epoch), 0, false, 0),
        (since("nothing", 7, &epoch), 0, true, 0),
        // Only the last message.
        (json!({ "type": "subscribe", "key": "tea", "since": 0, "latest": true }), 4, false, 5),
    ] {
        let mut client = gateway.connect().await;
        let (first, got, reply) = come_back(&mut client, request.clone()).await;
        let history = json!({
            "type": "history", "key": request["key"], "epoch": epoch, "at": after, "gap": has_gap,
        });
        assert_eq!((first, got), (history, (after + 1..=last).collect()), "{request}");
        assert_eq!((&reply["at"], &reply["epoch"]), (&json!(last), &epoch), "{reply}");
    }
    let mut back = gateway.connect().await;
    assert_eq!(come_back(&mut back, since("tea", 4, &epoch)).await.1, [5]);
    gateway.publish("tea", "6").await;
    assert_eq!(back.next().await["at"], 6);
    let stats = gateway.stats().await;
    assert_eq!((&stats["history"]["epoch"], &stats["history"]["keys"]), (&epoch, &json!(2)));
    let tea = stats["keys"].as_array().unwrap().iter().find(|key| key["key"] == "tea").unwrap();
    assert_eq!((&tea["at"], &tea["kept"]), (&json!(6), &json!(3)));
}

#[tokio::test]
async fn nothing_is_missed_and_nothing_comes_twice_while_messages_come() {
    const COUNT: u64 = 3_000;
    let options = ["--history", "5000", "--rate", "0", "--buffer", "5000"];
    let gateway = Gateway::start(&options).await;
    let url = gateway.url("/publish/tea");
    let publishing = tokio::spawn(async move {
        let client = reqwest::Client::new();
        for _ in 0..COUNT {
            assert_eq!(client.post(&url).body("x").send().await.unwrap().status(), 202);
        }
    });
    let (mut at, mut epoch, mut times) = (0, Value::Null, 0);
    while at < COUNT {
        let mut client = gateway.connect().await;
        client.send(since("tea", at, &epoch)).await;
        // Each time a little later.
        for _ in 0..=times % 23 {
            if at == COUNT {
                break;
            }
            let reply = client.next().await;
            match reply["type"].as_str() {
                Some("message") => assert_eq!(reply["at"], at + 1, "after {times} times"),
                Some("history") => {
                    assert_eq!((&reply["at"], &reply["gap"]), (&json!(at), &json!(false)));
                }
                Some("subscribed") => assert!(reply["at"].as_u64() <= Some(at)),
                _ => panic!("{reply}"),
            }
            if let Some(new) = reply.get("epoch") {
                epoch = new.clone();
            }
            at = at.max(reply["at"].as_u64().unwrap());
        }
        times += 1;
    }
    assert!(times > 20, "{times}");
    soon("publishing", publishing).await.unwrap();
}

#[tokio::test]
async fn a_long_replay_goes_as_fast_as_it_is_read_and_does_not_block_others() {
    let options = ["--history", "100", "--send-buffer", "8192", "--rate", "0", "--overflow"];
    for policy in ["wait", "drop-oldest", "evict"] {
        let gateway = Gateway::start(&[&options[..], &[policy]].concat()).await;
        let mut quick = gateway.subscriber("tea").await;
        for _ in 0..100 {
            gateway.publish("tea", "x".repeat(20_000)).await;
            quick.next().await;
        }
        let mut slow = gateway.connect_narrow().await;
        slow.send(since("tea", 0, &Value::Null)).await;
        until("the subscription", async || gateway.stats().await["subscriptions"] == 2).await;
        gateway.publish("tea", "the last").await;
        assert_eq!(quick.next().await["at"], 101, "{policy}");
        for at in 1..=101 {
            let mut reply = slow.next().await;
            while reply["type"] != "message" {
                reply = slow.next().await;
            }
            assert_eq!(reply["at"], at, "{policy}");
        }
    }
}

#[tokio::test]
async fn keys_chosen_by_clients_use_at_most_a_quarter_of_max_queued() {
    let gateway = Gateway::start(&["--history", "10", "--max-queued", "100000"]).await;
    gateway.publish("tea", "x").await;
    for n in 0..100 {
        gateway.publish(&format!("new {n}"), "x".repeat(n)).await;
    }
    let history = gateway.stats().await["history"].clone();
    let (keys, bytes) = (history["keys"].as_u64().unwrap(), history["bytes"].as_u64().unwrap());
    assert!(bytes <= 25_000 && (10..40).contains(&keys), "{history}");
    // The first key was removed, and its positions continue above.
    let mut client = gateway.connect().await;
    let (first, got, reply) = come_back(&mut client, since("tea", 0, &history["epoch"])).await;
    assert_eq!((got, &first["gap"], &first["at"]), (vec![], &json!(true), &reply["at"]));
    let at = reply["at"].as_u64().unwrap();
    assert!(at >= 1, "{reply}");
    // Also with a message that is larger than the limit of all kept ones.
    for (body, at) in [("y".to_owned(), at + 1), ("x".repeat(60_000), at + 2)] {
        gateway.publish("tea", body).await;
        assert_eq!(client.next().await["at"], at);
    }
    assert!(gateway.stats().await["history"]["bytes"].as_u64().unwrap() <= 25_000);
}

#[tokio::test]
async fn without_history_there_are_no_positions_and_since_is_an_error() {
    let gateway = Gateway::start(&[]).await;
    let mut client = gateway.subscriber("tea").await;
    gateway.publish("tea", "x").await;
    assert_eq!(client.next().await.get("at"), None);
    client.send(json!({ "type": "subscribe", "key": "b", "since": 1 })).await;
    let reply = client.next().await;
    assert_eq!((&reply["error"], &reply["key"]), (&json!("no_history"), &json!("b")));
    assert_eq!(gateway.stats().await["history"], Value::Null);
    let gateway = Gateway::start(&["--history", "1"]).await;
    let mut client = gateway.connect().await;
    for request in [json!({ "epoch": "x" }), json!({ "since": -1 }), json!({ "since": "1" })] {
        let mut request = request;
        (request["type"], request["key"]) = ("subscribe".into(), "k".into());
        client.send(request.clone()).await;
        assert_eq!(client.next().await["error"], "bad_request", "{request}");
    }
}

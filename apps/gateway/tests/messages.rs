//! Publishing, subscribing, rate limits and shutdown.

mod common;

use std::collections::HashMap;
use std::time::Duration;

use common::{Gateway, message, soon, until};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

#[tokio::test]
async fn a_message_goes_to_the_subscribers_of_its_key_only() {
    let gateway = Gateway::start(&[]).await;
    let mut one = gateway.subscriber("tea").await;
    let mut two = gateway.subscriber("tea").await;
    let mut three = gateway.subscriber("a/b c").await;
    gateway.publish("tea", "1").await;
    gateway.publish("a%2Fb%20c", "2").await;
    gateway.publish("nobody's", "3").await;
    gateway.publish("tea", vec![0xff, 0]).await;
    for client in [&mut one, &mut two] {
        assert_eq!(client.next().await, message("tea", "1"));
        assert_eq!(
            client.next().await,
            json!({ "type": "message", "key": "tea", "base64": "/wA=" })
        );
    }
    assert_eq!(three.next().await, message("a/b c", "2"));
    let totals = gateway.stats().await["totals"].clone();
    assert_eq!((&totals["received"], &totals["delivered"]), (&json!(4), &json!(5)));
    assert_eq!((&totals["unmatched"], &totals["copies"]), (&json!(1), &json!(2)));
}

#[tokio::test]
async fn one_connection_holds_many_keys_and_lets_them_go_one_by_one() {
    let gateway = Gateway::start(&[]).await;
    let mut client = gateway.connect().await;
    for key in ["a", "b", "c"] {
        client.subscribe(key).await;
    }
    let mut other = gateway.subscriber("b").await;
    client.send(json!({ "type": "unsubscribe", "key": "b" })).await;
    assert_eq!(
        client.next().await,
        json!({ "type": "unsubscribed", "key": "b", "reason": "requested" })
    );
    for key in ["a", "b", "c"] {
        gateway.publish(key, "x").await;
    }
    assert_eq!(client.next().await, message("a", "x"));
    assert_eq!(client.next().await, message("c", "x"));
    assert_eq!(other.next().await, message("b", "x"));
    // Unsubscribed and subscribed again at once: each message arrives once.
    client.send(json!({ "type": "unsubscribe", "key": "a" })).await;
    client.send(json!({ "type": "subscribe", "key": "a" })).await;
    assert_eq!(client.next().await["type"], "unsubscribed");
    assert_eq!(client.next().await["type"], "subscribed");
    gateway.publish("a", "y").await;
    gateway.publish("c", "z").await;
    assert_eq!(client.next().await, message("a", "y"));
    assert_eq!(client.next().await, message("c", "z"));
}

#[tokio::test]
async fn unsubscribe_right_after_subscribe_is_answered_and_the_key_is_free_again() {
    let gateway = Gateway::start(&[]).await;
    let mut client = gateway.connect().await;
    for round in 0..50 {
        let keys: Vec<_> = (0..50).map(|key| format!("{round}.{key}")).collect();
        for what in ["subscribe", "unsubscribe"] {
            client.send(json!({ "type": what, "keys": keys })).await;
        }
        let mut left = keys.len();
        while left > 0 {
            match client.next().await["type"].as_str() {
                Some("unsubscribed") => left -= 1,
                Some("subscribed") => {}
                other => panic!("{other:?}"),
            }
        }
    }
    client.subscribe("0.0").await;
    let stats = gateway.stats().await;
    assert_eq!(stats["subscriptions"], 1);
}

#[tokio::test]
async fn json_comes_as_json_and_bytes_as_bytes() {
    let gateway = Gateway::start(&["--history", "9"]).await;
    let mut text = gateway.subscriber("tea").await;
    let json = [("content-type", "application/json; charset=utf-8")];
    for (body, status) in [(r#"{"a": [1.0]}"#, 202), (r#"{"a":"#, 400), ("1,2", 400)] {
        let (is, reply) = gateway.ask(Method::POST, "/publish/tea", &json, body).await;
        assert_eq!(is.as_u16(), status, "{body}: {reply}");
        assert!(status == 202 || reply["error"] == "bad_json", "{reply}");
    }
    gateway.publish("tea", "no { JSON").await;
    gateway.publish("tea", vec![0xff, b'\n']).await;
    let expected = [
        json!({ "json": { "a": [1.0] } }),
        json!({ "body": "no { JSON" }),
        json!({ "base64": "/wo=" }),
    ];
    for (mut expected, at) in expected.into_iter().zip(1..) {
        (expected["type"], expected["key"], expected["at"]) =
            ("message".into(), "tea".into(), at.into());
        assert_eq!(text.next().await, expected);
    }
    // With replayed and new messages.
    let mut binary = gateway.connect().await;
    let request = json!({ "type": "subscribe", "key": "tea", "binary": true, "since": 0 });
    binary.send(request).await;
    assert_eq!(binary.next().await["type"], "history");
    for (body, at) in [(&br#"{"a": [1.0]}"#[..], 1), (b"no { JSON", 2), (b"\xff\n", 3), (b"", 4)] {
        if at == 4 {
            assert_eq!(binary.next().await["type"], "subscribed");
            gateway.publish("tea", "").await;
        }
        let frame = binary.frame().await.unwrap().unwrap();
        assert!(frame.is_binary());
        let line = format!("{{\"type\":\"message\",\"key\":\"tea\",\"at\":{at}}}\n");
        assert_eq!(frame.into_data(), [line.as_bytes(), body].concat());
    }
}

#[tokio::test]
async fn a_killed_client_leaves_nothing_behind() {
    let gateway = Gateway::start(&[]).await;
    let client = gateway.subscriber("tea").await;
    let mut polite = gateway.subscriber("tea").await;
    polite.0.close(None).await.unwrap();
    drop(client); // like a client that was killed
    until("the end of both", async || {
        let stats = gateway.stats().await;
        stats["connections"] == 0 && stats["subscriptions"] == 0
    })
    .await;
    gateway.publish("tea", "x").await;
    until("the message", async || gateway.stats().await["totals"]["unmatched"] == 1).await;
}

#[tokio::test]
async fn a_silent_client_is_dropped_and_one_that_answers_pings_is_not() {
    let gateway = Gateway::start(&["--ping", "0.2"]).await;
    let _silent = gateway.subscriber("tea").await; // is not read, so pings are not answered
    let mut lively = gateway.subscriber("tea").await;
    let reading = tokio::spawn(async move { lively.frame().await.is_some() });
    until("the end of the silent one", async || gateway.stats().await["connections"] == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await; // five ping timeouts: the other client stays
    gateway.publish("tea", "x").await;
    assert!(soon("reading", reading).await.unwrap());
}

#[tokio::test]
async fn each_subscription_has_its_limit_and_losses_are_reported() {
    let gateway = Gateway::start(&["--rate", "50"]).await;
    let mut client = gateway.connect().await;
    for (key, asks, gets) in [("less", 5, 5), ("more", 500, 50)] {
        client.send(json!({ "type": "subscribe", "key": key, "rate": asks })).await;
        assert_eq!(client.next().await, json!({ "type": "subscribed", "key": key, "rate": gets }));
    }
    client.send(json!({ "type": "subscribe", "key": "as it is" })).await;
    assert_eq!(client.next().await["rate"], 50);
    for n in 0..40 {
        gateway.publish("less", n.to_string()).await;
    }
    gateway.publish("more", "last").await;
    let (mut got, mut lost, mut other) = (0, 0, 0);
    while got + lost < 40 {
        let reply = client.next().await;
        match reply["type"].as_str() {
            Some("message") if reply["key"] == "less" => got += 1,
            Some("message") => other += 1,
            Some("lost") => {
                assert_eq!((&reply["key"], &reply["reason"]), (&json!("less"), &json!("rate")));
                lost += reply["count"].as_u64().unwrap();
            }
            _ => panic!("{reply}"),
        }
    }
    assert!(got >= 5 && lost > 0, "{got} and {lost}");
    assert_eq!(other, 1);
    let stats = gateway.stats().await;
    assert_eq!(stats["totals"]["discarded"]["not_admitted"], lost);
    let (_, metrics) = gateway.ask(Method::GET, "/metrics", &[], "").await;
    let line = format!("gateway_discarded_total{{reason=\"not_admitted\"}} {lost}\n");
    assert!(metrics.as_str().unwrap().contains(&line), "{metrics}");
}

#[tokio::test]
async fn on_sigterm_accepted_messages_are_delivered_and_clients_are_closed() {
    let gateway = Gateway::start(&[]).await;
    let client = gateway.subscriber("tea").await;
    let idle = gateway.connect().await;
    for n in 0..100 {
        gateway.publish("tea", n.to_string()).await;
    }
    gateway.terminate();
    let (reply, code) = client.rest().await;
    let expected: Vec<_> = (0..100).map(|n| message("tea", &n.to_string())).collect();
    assert_eq!(reply, expected);
    assert_eq!(code, Some(CloseCode::Away));
    assert_eq!(idle.rest().await.1, Some(CloseCode::Away));
    let (status, log) = gateway.wait().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        log.trim_end().lines().last().unwrap().contains("stopped received=100 delivered=100"),
        "{log}"
    );
}

#[tokio::test]
async fn on_sigterm_a_client_that_does_not_read_is_cut_off_and_logged() {
    let options =
        ["--drain", "0.3", "--overflow", "wait", "--buffer", "1", "--send-buffer", "4096"];
    let gateway = Gateway::start(&options).await;
    let mut client = gateway.connect_narrow().await;
    client.subscribe("tea").await;
    let url = gateway.url("/publish/tea");
    let publishing = tokio::spawn(async move {
        let client = reqwest::Client::new();
        while client.post(&url).body("x".repeat(60_000)).send().await.is_ok() {}
    });
    until("the wait", async || gateway.stats().await["blocked"]["key"] == "tea").await;
    gateway.terminate();
    let (status, log) = gateway.wait().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("cut off") && log.contains("stuck=1"), "{log}");
    publishing.abort();
}

#[tokio::test]
async fn the_demo_makes_up_messages() {
    let gateway = Gateway::start(&["--demo", "500"]).await;
    let mut client = gateway.subscriber("demo.tea").await;
    let reply = client.next().await;
    assert_eq!(reply["key"], "demo.tea");
    let (status, health) = gateway.ask(Method::GET, "/healthz", &[], "").await;
    let expected = json!({ "status": "ok", "source": "up", "publishing": "up" });
    assert_eq!((status, health), (StatusCode::OK, expected));
}

#[tokio::test]
async fn the_demo_keeps_the_order_of_each_key() {
    let gateway = Gateway::start(&["--demo", "100000", "--rate", "0", "--overflow", "wait"]).await;
    let mut client = gateway.subscriber("demo.tea").await;
    let mut last = 0;
    for _ in 0..20_000 {
        let reply = client.next().await;
        // The body is "cup 30 of tea".
        let number = reply["body"].as_str().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        assert!(number > last, "{number} after {last}");
        last = number;
    }
}

#[tokio::test]
async fn the_keys_of_one_client_share_its_socket_and_each_keeps_its_order() {
    let options = ["--overflow", "wait", "--buffer", "3", "--send-buffer", "8192", "--rate", "0"];
    let gateway = Gateway::start(&options).await;
    let mut client = gateway.connect_narrow().await;
    let keys: Vec<String> = (0..20).map(|n| format!("key {n}")).collect();
    for key in &keys {
        client.subscribe(key).await;
    }
    let urls: Vec<String> =
        keys.iter().map(|key| gateway.url(&format!("/publish/{key}"))).collect();
    let publishing = tokio::spawn(async move {
        let client = reqwest::Client::new();
        for n in 0..50 {
            for url in &urls {
                let body = format!("{n} {}", "x".repeat(5_000));
                assert_eq!(client.post(url).body(body).send().await.unwrap().status(), 202);
            }
        }
    });
    // It starts to read when all posts are blocked.
    until("the wait", async || !gateway.stats().await["blocked"].is_null()).await;
    let mut next = HashMap::new();
    for _ in 0..50 * keys.len() {
        let reply = client.next().await;
        let key = reply["key"].as_str().unwrap().to_owned();
        let n: u64 = reply["body"].as_str().unwrap().split(' ').next().unwrap().parse().unwrap();
        let expected = next.entry(key).or_insert(0);
        assert_eq!(n, *expected, "{}", reply["key"]);
        *expected += 1;
    }
    soon("publishing", publishing).await.unwrap();
}

#[tokio::test]
async fn during_sigterm_exactly_the_accepted_messages_are_delivered() {
    let gateway = Gateway::start(&["--rate", "0", "--overflow", "wait"]).await;
    let client = gateway.subscriber("tea").await;
    let receiving = tokio::spawn(client.rest());
    let url = gateway.url("/publish/tea");
    let publishers: Vec<_> = (0..200)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move {
                let (client, mut taken) = (reqwest::Client::new(), 0);
                while let Ok(answer) = client.post(&url).body("x").send().await {
                    match answer.status() {
                        StatusCode::ACCEPTED => taken += 1,
                        refused => {
                            assert_eq!(refused, StatusCode::SERVICE_UNAVAILABLE);
                            break;
                        }
                    }
                }
                taken
            })
        })
        .collect();
    until("some messages", async || {
        gateway.stats().await["totals"]["delivered"].as_u64() > Some(500)
    })
    .await;
    gateway.terminate();
    let mut taken = 0;
    for publisher in publishers {
        taken += soon("a publisher", publisher).await.unwrap();
    }
    let (reply, code) = soon("the rest", receiving).await.unwrap();
    assert_eq!((reply.len(), code), (taken, Some(CloseCode::Away)));
    assert_eq!(gateway.wait().await.0.code(), Some(0));
}

#[tokio::test]
async fn requests_sent_at_once_are_all_answered_in_order_whatever_comes_last() {
    let gateway = Gateway::start(&[]).await;
    let post = |n: usize| {
        let body = "x".repeat(n % 7);
        let length = body.len();
        format!(
            "POST /publish/{n} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    };
    let posts: String = (0..300).map(post).collect();
    let upgrade = "GET /ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    for (last, answer) in [
        (String::new(), None),
        ("GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".into(), Some("200")),
        ("GET /healthz HTTP/1.0\r\n\r\n".into(), Some("200")),
        ("no HTTP\r\n\r\n".into(), Some("400")),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(101)), Some("431")),
        (upgrade.into(), Some("101")),
    ] {
        let expected = 300 + usize::from(answer.is_some());
        let mut socket = TcpStream::connect(gateway.address).await.unwrap();
        socket.write_all((posts.clone() + &last).as_bytes()).await.unwrap();
        // The connection stays open, so its end does not flush the answers.
        let mut all = Vec::new();
        let heads = loop {
            let heads = String::from_utf8_lossy(&all);
            let heads: Vec<_> =
                heads.split("HTTP/1.").skip(1).map(|head| head[2..5].to_owned()).collect();
            if heads.len() >= expected {
                break heads;
            }
            let count = soon("an answer", socket.read_buf(&mut all)).await.unwrap();
            assert!(count > 0, "{last:.50}: {} answers", heads.len());
        };
        assert!(heads[..300].iter().all(|status| status == "202"), "{heads:?}");
        assert_eq!(heads.get(300).map(String::as_str), answer, "{last:.50}");
        let all = String::from_utf8_lossy(&all);
        let keys: Vec<usize> = all
            .split("\"key\":\"")
            .skip(1)
            .map(|rest| rest[..rest.find('"').unwrap()].parse().unwrap())
            .collect();
        assert!(keys.iter().copied().eq(0..300), "{keys:?}");
    }
}

#[tokio::test]
async fn a_batch_is_many_messages_in_order() {
    let gateway =
        Gateway::start(&["--rate", "0", "--overflow", "wait", "--max-batch", "200000"]).await;
    let mut tea = gateway.subscriber("tea").await;
    let mut other = gateway.subscriber("a \"b\"").await;
    let batch = "{\"key\":\"tea\",\"body\":\"1\"}\r\n\n{\"base64\":\"/wA=\",\"key\":\"tea\"}\n \n\
                 {\"key\":\"a \\\"b\\\"\",\"body\":\"\\u00e9\"}\n{\"key\":\"nobody\",\"body\":\"\"}";
    let (status, reply) = gateway.ask(Method::POST, "/publish", &[], batch).await;
    assert_eq!((status, reply), (StatusCode::ACCEPTED, json!({ "taken": 4 })));
    assert_eq!(tea.next().await, message("tea", "1"));
    assert_eq!(tea.next().await["base64"], "/wA=");
    assert_eq!(other.next().await, message("a \"b\"", "é"));
    // More messages than fit into the demux's channel.
    let line = |n: u32| json!({ "key": "tea", "body": n.to_string() }).to_string() + "\n";
    let batch: String = (0..5_000).map(line).collect();
    let posted = gateway.ask(Method::POST, "/publish", &[], batch);
    let read = async {
        for n in 0..5_000 {
            assert_eq!(tea.next().await, message("tea", &n.to_string()));
        }
    };
    let ((status, reply), ()) = futures::join!(posted, read);
    assert_eq!((status, reply), (StatusCode::ACCEPTED, json!({ "taken": 5_000 })));
    let (_, metrics) = gateway.ask(Method::GET, "/metrics", &[], "").await;
    let line = "gateway_published_total{result=\"ok\"} 5004";
    assert!(metrics.as_str().unwrap().contains(line), "{metrics}");
}

//! What concerns NATS only: subjects, limits of the server, and how it ends.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use stream_demux_bridge::{Bridge, Bytes, PublishError, Received, SubscribeError, Terms};
use test_servers::{Nats, Server};
use tokio::time::timeout;

use crate::common::{Proxy, WATCHDOG, connected, eventually, item, next, patient, publish};
use crate::engine::Engine;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_is_never_a_wildcard_and_any_key_can_be_used() {
    let Some(server) = Server::<Nats>::start(&[]) else { return };
    let here = patient().nats(&server.url()).unwrap();
    let there = Nats::bridge(patient(), server.port).unwrap();
    let keys = [
        "a.b",
        "*",
        ">",
        "a.*",
        "a.>",
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        " ",
        "%",
        "%2a",
        "%25",
        "$SYS.>",
        "$JS.API.INFO",
        "a\r\nPING\r\n",
        "\t",
        "ü.日本",
        "A.B",
    ];
    let mut subscriptions = Vec::new();
    for key in keys {
        subscriptions.push(here.subscribe(key).await.unwrap());
    }
    for key in keys {
        there.publish(key, format!("to {key:?}")).await.unwrap();
    }
    // Each gets what is published under its key, and nothing else before that or after it.
    for key in keys {
        there.publish(key, "last").await.unwrap();
    }
    for (key, subscription) in keys.iter().zip(&mut subscriptions) {
        assert_eq!(next(subscription).await, item(key, format!("to {key:?}")));
        assert_eq!(next(subscription).await, item(key, "last"));
    }
    for bridge in [here, there] {
        let status = bridge.status().borrow().clone();
        assert_eq!((status.receiving.breaks, status.publishing.breaks), (0, 0), "{status:?}");
    }
}

/// Whatever a program of another kind publishes: with a place for answers, and with headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_clients_of_the_server_are_heard() {
    let Some(server) = Server::<Nats>::start(&[]) else { return };
    let here = Nats::bridge(patient(), server.port).unwrap();
    let mut tea = here.subscribe("chat.tea").await.unwrap();
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).unwrap();
    let text = "CONNECT {\"headers\":true,\"verbose\":false}\r\n\
        PUB chat.tea 5\r\nplain\r\n\
        PUB chat.tea answers.here 5\r\nasked\r\n\
        HPUB chat.tea 18 24\r\nNATS/1.0\r\na: b\r\n\r\nheaded\r\nPING\r\n";
    socket.write_all(text.as_bytes()).unwrap();
    for text in ["plain", "asked", "headed"] {
        assert_eq!(next(&mut tea).await, item("chat.tea", text));
    }
    // A bridge is heard, too, under the subject that is its key.
    socket.write_all(b"SUB chat.coffee 1\r\nPING\r\n").unwrap();
    eventually("it is subscribed", || server.subscribers("chat.coffee") == 1).await;
    here.publish("chat.coffee", "hello").await.unwrap();
    socket.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut heard = String::new();
    while !heard.ends_with("MSG chat.coffee 1 5\r\nhello\r\n") {
        let mut bytes = [0; 1];
        socket.read_exact(&mut bytes).unwrap();
        heard.push(bytes[0].into());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn item_or_key_that_is_too_long_is_refused_and_nothing_breaks() {
    let Some(server) = Server::<Nats>::start(&["max_payload: 1000"]) else { return };
    let here = Nats::bridge(patient(), server.port).unwrap();
    let mut tea = here.subscribe("tea").await.unwrap();
    let error = here.publish("tea", vec![0; 1_001]).await.unwrap_err();
    assert!(matches!(error, PublishError::Refused(_)), "{error}");
    assert!(error.to_string().contains("1001 bytes"), "{error}");
    here.publish("tea", vec![b'x'; 1_000]).await.unwrap();
    assert_eq!(next(&mut tea).await, item("tea", "x".repeat(1_000)));

    let longest = "x".repeat(4_000);
    let mut room = here.subscribe(&longest).await.unwrap();
    here.publish(&longest, "hello").await.unwrap();
    assert_eq!(next(&mut room).await, item(&longest, "hello"));
    let longer = format!("{longest}x");
    let error = here.publish(&longer, "hello").await.unwrap_err();
    assert!(matches!(error, PublishError::Refused(_)), "{error}");
    let refused = here.subscribe(&longer).await;
    assert!(matches!(refused, Err(SubscribeError::Refused { .. })), "{refused:?}");

    let status = here.status().borrow().clone();
    assert_eq!((status.receiving.breaks, status.publishing.breaks), (0, 0), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn item_that_was_not_sent_when_the_connection_broke_waits_for_the_next_one() {
    let Some(server) = Server::<Nats>::start(&[]) else { return };
    let proxy = Proxy::start(server.port).await;
    let settings = patient()
        .heartbeat(Duration::from_secs(1))
        .connect_timeout(Duration::from_secs(1))
        .publish_timeout(Duration::MAX);
    let here = Nats::bridge(settings, proxy.port).unwrap();
    connected(&here, true).await;
    proxy.freeze();
    // Four times what the buffers of two sockets hold.
    let item = Bytes::from(vec![0; 200 * 1_024]);
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let here = here.clone();
        let item = item.clone();
        crowd.spawn(async move { here.publish("tea", item).await });
    }
    connected(&here, false).await;
    proxy.open();
    let mut accepted = 0;
    while let Some(answer) = timeout(WATCHDOG, crowd.join_next()).await.expect("all end") {
        match answer.unwrap() {
            Ok(()) => accepted += 1,
            Err(error) => assert!(error.is_in_doubt(), "{error}"),
        }
    }
    assert!(accepted > 100, "{accepted} of 300");
    assert!(accepted < 300, "nothing was sent to the connection that broke");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_that_the_server_revokes_is_told() {
    let Some(mut server) = Server::<Nats>::start(&[]) else { return };
    let here = Nats::bridge(patient(), server.port).unwrap();
    let mut closed = here.subscribe("closed.1").await.unwrap();
    let mut open = here.subscribe("open.1").await.unwrap();
    server.close();
    assert!(matches!(next(&mut closed).await, Received::Refused { .. }));
    assert_eq!(next(&mut open).await, Received::Gap("open.1".into()));
    // The next connection tries again.
    server.open();
    let all = here.subscription(Terms::new());
    all.keys().add("closed.1");
    assert_eq!(next(&mut closed).await, Received::Gap("closed.1".into()));
    publish(&here, "closed.1", "after").await;
    assert_eq!(next(&mut closed).await, item("closed.1", "after"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_of_subscriptions_is_told_to_the_subscriber_that_reaches_it() {
    let Some(server) = Server::<Nats>::start(&["max_subscriptions: 2"]) else { return };
    let here = Nats::bridge(patient(), server.port).unwrap();
    let tea = here.subscribe("tea").await.unwrap();
    let mut coffee = here.subscribe("coffee").await.unwrap();
    let refused = timeout(WATCHDOG, here.subscribe("water")).await.unwrap();
    let Err(SubscribeError::Refused { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("subscriptions exceeded"), "{reason}");
    drop(tea);
    eventually("one has left", || server.subscribers("tea") == 0).await;
    here.subscribe("water").await.unwrap();
    here.publish("coffee", "hello").await.unwrap();
    assert_eq!(next(&mut coffee).await, item("coffee", "hello"));
}

/// A server that is going to end closes its connections one after the other. Until then, they work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_a_lame_duck_is_used_until_it_closes_the_connection() {
    let options = ["lame_duck_duration: \"30s\"", "lame_duck_grace_period: \"1s\""];
    let Some(mut server) = Server::<Nats>::start(&options) else { return };
    let here = Nats::bridge(patient(), server.port).unwrap();
    let mut tea = here.subscribe("tea").await.unwrap();
    connected(&here, true).await;
    server.signal("USR2");
    publish(&here, "tea", "before").await;
    assert_eq!(next(&mut tea).await, item("tea", "before"));
    connected(&here, false).await;
    server.wait();
    server.restart();
    assert_eq!(next(&mut tea).await, Received::Gap("tea".into()));
    publish(&here, "tea", "after").await;
    assert_eq!(next(&mut tea).await, item("tea", "after"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_is_used_and_a_wrong_one_is_a_reason() {
    let Some(server) = Server::<Nats>::start(&[]) else { return };
    let right = patient().nats(&format!("nats://ann:tea@127.0.0.1:{}", server.port)).unwrap();
    timeout(WATCHDOG, right.subscribe("tea")).await.unwrap().unwrap();
    let wrong = patient().nats(&format!("nats://ann:milk@127.0.0.1:{}", server.port)).unwrap();
    let mut status = wrong.status();
    let told = status.wait_for(|status| status.receiving.error.is_some());
    let error = timeout(WATCHDOG, told).await.unwrap().unwrap().receiving.error.clone().unwrap();
    assert!(error.contains("Authorization Violation"), "{error}");
    let unsent = wrong.publish("tea", "hello");
    assert!(timeout(Duration::from_millis(100), unsent).await.is_err(), "it waits");
}

#[tokio::test]
async fn something_else_at_the_port_is_a_reason() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answering = tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let _ = socket.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let bridge = Nats::bridge(patient(), port).unwrap();
    let mut status = bridge.status();
    let told = status.wait_for(|status| status.receiving.error.is_some());
    let error = timeout(WATCHDOG, told).await.unwrap().unwrap().receiving.error.clone().unwrap();
    assert!(error.contains("HTTP/1.1 400"), "{error}");
    answering.abort();
}

#[tokio::test]
async fn url_that_cannot_be_used_is_an_error_at_once() {
    for (url, reason) in [("tls://127.0.0.1/", "TLS"), ("http://127.0.0.1/", "nats://")] {
        let error = Bridge::nats(url).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

//! What concerns Redis only.

use std::time::Duration;

use stream_demux_bridge::Bridge;
use test_servers::{Redis, Server};

use crate::common::{item, next, patient, publish};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_that_allows_no_pings_is_alive_all_the_same() {
    let Some(server) = Server::<Redis>::start(&[]) else { return };
    let () = server.command(&["ACL", "SETUSER", "default", "-ping"]);
    let here = patient().heartbeat(Duration::from_millis(300)).redis(&server.url()).unwrap();
    let mut tea = here.subscribe("tea").await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    publish(&here, "tea", "hello").await;
    assert_eq!(next(&mut tea).await, item("tea", "hello"));
    let status = here.status().borrow().clone();
    assert_eq!((status.receiving.breaks, status.publishing.breaks), (0, 0), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_of_subscribers_sends_one_command() {
    let Some(server) = Server::<Redis>::start(&[]) else { return };
    let bridge = patient().redis(&server.url()).unwrap();
    let mut crowd = Vec::new();
    for _ in 0..100 {
        crowd.push(bridge.subscribe("tea").await.unwrap());
    }
    let calls: String = server.command(&["INFO", "commandstats"]);
    let subscribed = calls.lines().find(|line| line.starts_with("cmdstat_subscribe:")).unwrap();
    assert!(subscribed.starts_with("cmdstat_subscribe:calls=1,"), "{subscribed}");
}

#[tokio::test]
async fn url_that_cannot_be_used_is_an_error_at_once() {
    for (url, reason) in [("rediss://127.0.0.1/", "TLS"), ("http://127.0.0.1/", "URL")] {
        let error = Bridge::redis(url).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

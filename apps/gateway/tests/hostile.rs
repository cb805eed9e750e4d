//! Clients that try to exhaust memory, connections and time: all of them stay within bounds.

mod common;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use common::{Client, Gateway, PROGRAM, soon, until};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

/// Sends `count` requests and reads nothing.
async fn unread(gateway: &Gateway, path: &str, count: usize) -> TcpStream {
    let mut socket = TcpStream::connect(gateway.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    // It may have been refused, or the socket buffer may be full.
    let _ = socket.try_write(request.repeat(count).as_bytes());
    let _ = socket.flush().await;
    socket
}

#[tokio::test]
async fn clients_that_do_not_read_answers_block_others_only_briefly() {
    let gateway = Gateway::start(&["--max-connections", "100", "--send-buffer", "8192"]).await;
    let mut sockets = Vec::new();
    for _ in 0..400 {
        sockets.push(unread(&gateway, "/page.js", 300).await);
    }
    // WebSockets have places of their own.
    let mut client = gateway.subscriber("tea").await;
    let memory = gateway.memory();
    assert!(memory < 60, "{memory} MiB: the answers are 12 kB each, and a request has 45 bytes");
    until("a place", async || {
        let (status, _) = gateway.ask(Method::POST, "/publish/tea", &[], "x").await;
        status == StatusCode::ACCEPTED
    })
    .await;
    assert_eq!(client.next().await["body"], "x");
    drop(sockets);
}

#[tokio::test]
async fn stats_list_some_keys_and_the_sum_of_the_others() {
    let gateway = Gateway::start(&[]).await;
    let mut clients = Vec::new();
    for n in 0..5 {
        let mut client = gateway.connect().await;
        for key in 0..100 {
            client.subscribe(&format!("{n} {key} {}", "\"".repeat(200))).await;
        }
        clients.push(client);
    }
    for n in 0..3 {
        gateway.publish(&format!("busy {n}"), "x").await;
    }
    let stats = gateway.stats().await;
    let keys = stats["keys"].as_array().unwrap();
    assert_eq!((keys.len(), &stats["other"]["keys"]), (100, &json!(403)));
    assert_eq!(stats["other"]["subscribers"], 403);
    let busy = keys.iter().filter(|key| key["received"] == 1).count();
    assert_eq!(busy, 3, "those of which something was received come first");
    // Requests at the same time share one answer, even if it is not read.
    let before = gateway.memory();
    let mut sockets = Vec::new();
    for _ in 0..100 {
        sockets.push(unread(&gateway, "/stats", 100).await);
    }
    gateway.subscriber("tea").await; // most requests have been handled by now
    let after = gateway.memory();
    assert!(after < before + 100, "{before} MiB before, {after} MiB after");
    drop(clients);
}

#[tokio::test]
async fn batches_that_trickle_hold_up_no_others() {
    let gateway = Gateway::start(&["--max-batch", "100000"]).await;
    let mut client = gateway.subscriber("tea").await;
    let head = "POST /publish HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n";
    let line = json!({ "key": "tea", "body": "x" }).to_string();
    // At first with one byte each, then with as many bytes as there may be of all batches.
    for sent in [1, 25_000] {
        let mut trickling = Vec::new();
        for _ in 0..64 {
            let mut socket = TcpStream::connect(gateway.address).await.unwrap();
            socket.write_all(head.as_bytes()).await.unwrap();
            socket.write_all(&vec![b' '; sent]).await.unwrap();
            trickling.push(socket);
        }
        tokio::time::sleep(Duration::from_millis(200)).await; // until they are read
        let start = Instant::now();
        for _ in 0..20 {
            let (status, reply) = gateway.ask(Method::POST, "/publish", &[], line.clone()).await;
            assert_eq!((status, &reply["taken"]), (StatusCode::ACCEPTED, &json!(1)), "{reply}");
            assert_eq!(client.next().await["body"], "x");
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{sent}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn large_batches_that_are_not_finished_hold_up_no_small_ones() {
    let gateway = Gateway::start(&["--max-batch", "100000", "--max-body", "1000"]).await;
    let head = "POST /publish HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n";
    let mut unfinished = Vec::new();
    for _ in 0..40 {
        let mut socket = TcpStream::connect(gateway.address).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(&vec![b'\n'; 90_000]).await.unwrap();
        unfinished.push(socket);
    }
    tokio::time::sleep(Duration::from_millis(200)).await; // until they are read
    let line = json!({ "key": "tea", "body": "x" }).to_string();
    for _ in 0..5 {
        let (status, reply) = gateway.ask(Method::POST, "/publish", &[], line.clone()).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{reply}");
    }
    // They are given up after 10 s: the small ones have not waited for that.
    for socket in &unfinished {
        let answer = socket.try_read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(answer, Err(ErrorKind::WouldBlock), "a large one was answered first");
    }
}

/// Posts 40 MB of control characters on twenty keys of one client that reads nothing.
async fn memory_after_a_flood(policy: &str) -> (Gateway, Client, u64) {
    let limits = ["--max-queued", "8000000", "--rate", "0", "--send-buffer", "8192"];
    let gateway = Gateway::start(&[&["--overflow", policy][..], &limits].concat()).await;
    let mut slow = gateway.connect_narrow().await;
    for key in 0..20 {
        slow.subscribe(&format!("{key}")).await;
    }
    let mut client = gateway.subscriber("other").await;
    let web = reqwest::Client::new();
    for n in 0..640 {
        let url = gateway.url(&format!("/publish/{}", n % 20));
        let sent = web.post(url).body(vec![1; 64 * 1024]).send();
        // Under `wait`, posts are blocked sooner or later.
        if tokio::time::timeout(Duration::from_secs(1), sent).await.is_err() {
            break;
        }
    }
    if policy != "wait" {
        gateway.publish("other", "x").await;
        assert_eq!(client.next().await["body"], "x");
    }
    let memory = gateway.memory();
    (gateway, slow, memory)
}

#[tokio::test]
async fn bytes_that_wait_for_a_client_are_bounded() {
    for policy in ["drop-oldest", "drop-newest", "evict"] {
        let (_gateway, mut slow, memory) = memory_after_a_flood(policy).await;
        assert!(memory < 40, "{policy}: {memory} MiB");
        let reply = slow.next().await;
        assert!(reply["base64"].is_string(), "{reply:.100}");
    }
}

#[tokio::test]
async fn bytes_that_wait_for_all_clients_are_bounded_under_wait() {
    let (gateway, mut slow, memory) = memory_after_a_flood("wait").await;
    // In addition to the queues: 256 messages of 87,436 bytes that wait for the demux.
    assert!(memory < 70, "{memory} MiB");
    until("the wait", async || !gateway.stats().await["blocked"].is_null()).await;
    let blocked = gateway.stats().await["blocked"].clone();
    assert_eq!((&blocked["key"], &blocked["client"]), (&json!(null), &json!(null)));
    let reading = tokio::spawn(async move { while slow.frame().await.is_some() {} });
    until("the end of the wait", async || gateway.stats().await["blocked"].is_null()).await;
    reading.abort();
}

#[tokio::test]
async fn an_idle_websocket_costs_little_memory() {
    let gateway = Gateway::start(&[]).await;
    let mut clients = vec![gateway.connect().await];
    let before = gateway.proc("status", "VmRSS:");
    for _ in 0..400 {
        clients.push(gateway.connect().await);
    }
    let each = (gateway.proc("status", "VmRSS:") - before) / 400;
    assert!(each < 40, "{each} KiB");
}

#[tokio::test]
async fn a_silent_client_is_dropped_after_three_unanswered_pings() {
    let gateway = Gateway::start(&["--ping", "0.5"]).await;
    let mut client = gateway.connect().await;
    // On the TCP level: the WebSocket library would answer pings.
    let mut bytes = Vec::new();
    let end = client.0.get_mut().read_to_end(&mut bytes);
    soon("the end", end).await.unwrap();
    assert_eq!(bytes, [0x89, 0].repeat(3));
}

#[tokio::test]
async fn a_gateway_that_was_stopped_for_longer_than_three_pings_keeps_its_clients() {
    let gateway = Gateway::start(&["--ping", "1"]).await;
    let mut reading = Vec::new();
    for _ in 0..20 {
        let mut client = gateway.subscriber("tea").await;
        reading.push(tokio::spawn(async move {
            // Answers pings, until the message is there and for some pings more.
            assert_eq!(client.next().await["body"], "x");
            let silence = tokio::time::timeout(Duration::from_secs(5), client.frame()).await;
            assert!(silence.is_err(), "{silence:?}");
            client
        }));
    }
    for _ in 0..2 {
        gateway.kill("-STOP");
        tokio::time::sleep(Duration::from_secs(5)).await;
        gateway.kill("-CONT");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    gateway.publish("tea", "x").await;
    let mut clients = Vec::new();
    for client in reading {
        clients.push(soon("the message", client).await.expect("it stays connected"));
    }
    assert_eq!(gateway.stats().await["connections"], 20);
}

#[tokio::test]
async fn while_draining_new_connections_are_answered_and_it_ends_in_time() {
    let options = ["--drain", "1", "--overflow", "wait", "--buffer", "1", "--send-buffer", "4096"];
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
    until("draining", async || {
        let (status, reply) = gateway.ask(Method::GET, "/healthz", &[], "").await;
        status == StatusCode::SERVICE_UNAVAILABLE && reply["status"] == "draining"
    })
    .await;
    let (status, reply) = gateway.ask(Method::POST, "/publish/tea", &[], "x").await;
    assert_eq!((status.as_u16(), &reply["error"]), (503, &json!("draining")));
    let (status, reply) = gateway.ask(Method::GET, "/ws", &[], "").await;
    assert_eq!((status.as_u16(), &reply["error"]), (503, &json!("draining")));
    let limit = Duration::from_secs(4); // --drain, and 3 s to end
    let (status, log) = tokio::time::timeout(limit, gateway.wait()).await.expect("it ends");
    assert!(status.success() && log.contains("stuck=1"), "{log}");
    publishing.abort();
}

#[tokio::test]
async fn the_limit_of_open_files_is_raised_or_named() {
    let shell = |limits: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limits}; exec \"$0\" \"$@\""), PROGRAM]);
        command
    };
    let gateway = Gateway::start_by(shell("ulimit -Sn 100"), &["--max-connections", "500"]).await;
    assert!(gateway.proc("limits", "Max open files") > 1000);
    let gateway = Gateway::start_by(shell("ulimit -n 100"), &["--max-connections", "500"]).await;
    gateway.terminate();
    let (_, log) = soon("the end", gateway.wait()).await;
    assert!(log.contains("--max-connections needs more open files"), "{log}");
}

/// A full pipe blocks the thread that writes to it. It takes 64 KiB, and a client that comes and goes makes two lines of
/// more than 80 bytes.
#[tokio::test]
async fn log_that_nobody_reads_holds_up_nothing() {
    let gateway = Gateway::start(&["--log", "debug"]).await;
    for _ in 0..600 {
        drop(gateway.connect().await);
    }
    let mut client = gateway.subscriber("tea").await;
    gateway.publish("tea", "x").await;
    assert_eq!(client.next().await["body"], "x");
    gateway.terminate();
    assert!(gateway.wait_without_reading().await.success());
}

#[tokio::test]
async fn log_says_how_many_lines_were_left_out() {
    let mut gateway = Gateway::start(&["--log", "debug"]).await;
    // More than the pipe and the queue take.
    for _ in 0..1_200 {
        drop(gateway.connect().await);
    }
    let mut log = gateway.log();
    let count = "lines were left out: the log was not read count=";
    loop {
        let line = soon("the count", log.next_line()).await.unwrap().expect("the log goes on");
        if line.contains(count) {
            break;
        }
    }
}

#[tokio::test]
async fn a_program_that_may_open_too_few_files_says_so_and_fails() {
    // The port is taken: with enough files, that is the error.
    let gateway = Gateway::start(&[]).await;
    let mut errors = Vec::new();
    for files in 5..20 {
        let mut command = Command::new("sh");
        let run = format!("ulimit -n {files}; exec {PROGRAM} --listen {}", gateway.address);
        let run = soon("the exit", command.args(["-c", &run]).output()).await.unwrap();
        let error = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(1), "{files}: {error}");
        assert!(
            error.starts_with("gateway: cannot ") && error.lines().count() == 1,
            "{files}: {error}"
        );
        errors.push(error);
    }
    assert!(errors[0].contains("open files"), "{errors:?}");
    assert!(errors[14].starts_with("gateway: cannot listen on"), "{errors:?}");
}

#[tokio::test]
async fn connections_to_the_broker_that_end_start_no_other_runtime() {
    // It would be started when a connection first ends, and panic for good if there are no more files.
    let broker = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("amqp://{}", broker.local_addr().unwrap());
    let gateway = Gateway::start(&["--amqp", &uri]).await;
    let mut last = None;
    for _ in 0..3 {
        drop(last.take());
        let (mut socket, _) = soon("a connection", broker.accept()).await.unwrap();
        soon("the header", socket.read_exact(&mut [0; 8])).await.unwrap();
        last = Some(socket);
    }
    let threads = gateway.threads();
    assert!(threads.iter().any(|name| name.contains("lapin")), "{threads:?}");
    assert!(threads.iter().all(|name| !name.contains("compat")), "{threads:?}");
}

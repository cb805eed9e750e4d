//! Invalid input of every kind gets a clear answer and does not affect others.

mod common;

use common::{Client, Gateway, message, until};
use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

fn error(reply: &Value) -> &str {
    assert!(reply["message"].as_str().is_some_and(|text| !text.is_empty()), "{reply}");
    reply["error"].as_str().unwrap()
}

#[tokio::test]
async fn invalid_requests_get_an_error_with_its_reason() {
    let gateway = Gateway::start(&["--max-body", "1000"]).await;
    let long = format!("/publish/{}", "k".repeat(256));
    for (method, path, body, status, code) in [
        (Method::POST, "/publish/", "x", 400, "bad_key"),
        (Method::POST, "/publish", "x", 400, "bad_json"),
        (Method::POST, "/publish", "", 400, "bad_request"),
        (Method::POST, "/publish/a%00b", "x", 400, "bad_key"),
        (Method::POST, "/publish/a%0Ab", "x", 400, "bad_key"),
        (Method::POST, "/publish/%FF", "x", 400, "bad_key"),
        (Method::POST, "/publish/%zz", "x", 400, "bad_key"),
        (Method::POST, "/publish/a%", "x", 400, "bad_key"),
        (Method::POST, "/publish/a%4", "x", 400, "bad_key"),
        (Method::POST, &long, "x", 400, "bad_key"),
        (Method::POST, "/publish/demo.*", "x", 400, "bad_key"),
        (Method::POST, "/publish/k", &"x".repeat(1001), 413, "too_large"),
        (Method::GET, "/publish/k", "", 405, "method_not_allowed"),
        (Method::POST, "/stats", "", 405, "method_not_allowed"),
        (Method::GET, "/nothing", "", 404, "not_found"),
        (Method::GET, "/ws", "", 426, "upgrade_required"),
    ] {
        let (is, reply) = gateway.ask(method, path, &[], body.to_owned()).await;
        assert_eq!((is.as_u16(), error(&reply)), (status, code), "{path}");
    }
    // The maximum lengths are accepted.
    gateway.publish(&"k".repeat(255), "x".repeat(1000)).await;
    // A body of unknown length is found too large while it is received.
    let chunks =
        futures::stream::iter(["x".repeat(600), "x".repeat(600)]).map(Ok::<_, std::io::Error>);
    let body = reqwest::Body::wrap_stream(chunks);
    let (status, reply) = gateway.ask(Method::POST, "/publish/k", &[], body).await;
    assert_eq!((status, error(&reply)), (StatusCode::PAYLOAD_TOO_LARGE, "too_large"));
    assert_eq!(gateway.stats().await["totals"]["received"], 1);
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let gateway = Gateway::start(&[]).await;
    let mut client = gateway.subscriber("tea").await;
    assert!(gateway.raw(b"nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let broken = b"POST /publish/tea HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf";
    let answer = gateway.raw(broken).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("\"bad_request\""), "{answer}");
    let handshake = b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                      sec-websocket-version: 8\r\nsec-websocket-key: eA==\r\n\r\n";
    let answer = gateway.raw(handshake).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("\"bad_request\""), "{answer}");
    gateway.publish("tea", "x").await;
    assert_eq!(client.next().await, message("tea", "x"));
}

#[tokio::test]
async fn requests_that_have_no_place_are_the_last_of_their_connection() {
    let gateway = Gateway::start(&[]).await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    for (path, answers) in [("/ws", 1), ("/healthz", 3)] {
        let answer = gateway.raw(get(path).repeat(3).as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), answers, "{answer}");
    }
    // Errors that hyper answers by itself.
    let many = get("/").replace("\r\n\r\n", &format!("{}\r\n\r\n", "\r\na: b".repeat(101)));
    for (request, status) in [("nonsense\r\n\r\n", 400), (&many, 431)] {
        let answer = gateway.raw(request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
}

#[tokio::test]
async fn invalid_messages_get_an_error_and_the_connection_stays() {
    let gateway = Gateway::start(&["--max-subscriptions", "2"]).await;
    let mut client = gateway.subscriber("a").await;
    for (text, code) in [
        ("{", "bad_json"),
        ("", "bad_json"),
        ("[]", "bad_request"),
        ("{}", "bad_request"),
        (r#"{"type":"dance"}"#, "bad_request"),
        (r#"{"type":"dance"} x"#, "bad_json"),
        (r#"["unsubscribe","a",null]"#, "bad_request"),
        (r#"["subscribe","k",null,null,false,false,null,null]"#, "bad_request"),
        (r#"{"type":"subscribe","type":"unsubscribe","key":"a"}"#, "bad_request"),
        (r#"{"type":"unsubscribe","key":"b","key":"a"}"#, "bad_request"),
        (r#"{"type":"unsubscribe","key":"b","\u006bey":"a"}"#, "bad_request"),
        (r#"{"type":"subscribe"}"#, "bad_request"),
        (r#"{"type":"subscribe","key":7}"#, "bad_request"),
        (r#"{"type":"subscribe","key":"k","colour":"red"}"#, "bad_request"),
        (r#"{"type":"subscribe","key":"k","rate":0}"#, "bad_request"),
        (r#"{"type":"subscribe","key":"k","rate":-1}"#, "bad_request"),
        (r#"{"type":"subscribe","key":"k","rate":1.5}"#, "bad_request"),
        (r#"{"type":"subscribe","keys":[]}"#, "bad_request"),
        (r#"{"type":"subscribe","keys":["k",7]}"#, "bad_request"),
        (r#"{"type":"subscribe","key":"k","keys":["k"]}"#, "bad_request"),
        (r#"{"type":"unsubscribe","keys":["b"],"rate":1}"#, "bad_request"),
        (r#"{"type":"subscribe","key":""}"#, "bad_key"),
        (r#"{"type":"subscribe","key":"demo.*"}"#, "bad_key"),
        (r#"{"type":"subscribe","key":"room/#"}"#, "bad_key"),
        (r#"{"type":"subscribe","key":"a\u0000"}"#, "bad_key"),
        (r#"{"type":"subscribe","key":"a"}"#, "already_subscribed"),
        (r#"{"type":"unsubscribe","key":"b"}"#, "not_subscribed"),
    ] {
        client.send_frame(Message::text(text)).await;
        let reply = client.next().await;
        assert_eq!((reply["type"].as_str(), error(&reply)), (Some("error"), code), "{text}");
    }
    // These have no wildcard word, so they are keys.
    for key in ["b*", "#1 b", "b"] {
        client.subscribe(key).await;
        client.send(json!({ "type": "unsubscribe", "key": key })).await;
        assert_eq!(client.next().await["type"], "unsubscribed");
    }
    client.subscribe("b").await;
    client.send(json!({ "type": "subscribe", "key": "c" })).await;
    let reply = client.next().await;
    assert_eq!((error(&reply), &reply["key"]), ("too_many_subscriptions", &json!("c")));
    gateway.publish("a", "x").await;
    assert_eq!(client.next().await, message("a", "x"));
}

#[tokio::test]
async fn of_several_keys_each_is_answered_as_if_it_came_alone() {
    let gateway = Gateway::start(&["--max-subscriptions", "5"]).await;
    let mut client = gateway.connect().await;
    for key in ["x", "y", "z"] {
        client.subscribe(key).await;
    }
    let keys = json!(["a", "", "a", "b", "c"]);
    client.send(json!({ "type": "subscribe", "keys": keys, "rate": 5 })).await;
    let (mut subscribed, mut errors) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let reply = client.next().await;
        match reply["error"].as_str() {
            Some(code) => errors.push((code.to_owned(), reply["key"].clone())),
            None => subscribed.push((reply["key"].clone(), reply["rate"].clone())),
        }
    }
    assert_eq!(subscribed, [(json!("a"), json!(5)), (json!("b"), json!(5))]);
    let expected = [("bad_key", ""), ("already_subscribed", "a"), ("too_many_subscriptions", "c")];
    assert_eq!(errors, expected.map(|(code, key)| (code.to_owned(), json!(key))));
    gateway.publish("b", "x").await;
    assert_eq!(client.next().await, message("b", "x"));
    client.send(json!({ "type": "unsubscribe", "keys": ["a", "c", "b"] })).await;
    let mut reply = [client.next().await, client.next().await, client.next().await];
    reply.sort_by_key(|reply| reply["key"].to_string());
    let kinds = reply.map(|reply| reply["type"].as_str().unwrap().to_owned());
    assert_eq!(kinds, ["unsubscribed", "unsubscribed", "error"]);
}

#[tokio::test]
async fn more_keys_than_a_client_may_subscribe_to_are_refused_as_one() {
    let gateway = Gateway::start(&[]).await;
    let mut client = gateway.connect().await;
    for kind in ["subscribe", "unsubscribe"] {
        for (count, answers) in [(100, 100), (101, 1), (1016, 1)] {
            client.send(json!({ "type": kind, "keys": vec![""; count] })).await;
            client.send(json!({ "type": "unsubscribe", "key": "the end" })).await;
            let mut got = Vec::new();
            loop {
                let reply = client.next().await;
                if reply["key"] == "the end" {
                    break;
                }
                got.push(error(&reply).to_owned());
            }
            let code = match kind {
                _ if answers == 1 => "too_many_subscriptions",
                "subscribe" => "bad_key",
                _ => "not_subscribed",
            };
            assert_eq!(got, vec![code; answers], "{kind} {count}");
        }
    }
}

#[tokio::test]
async fn protocol_errors_close_with_a_code() {
    let gateway = Gateway::start(&[]).await;
    let long = json!({ "type": "subscribe", "key": "k".repeat(5000) }).to_string();
    for (frame, code) in [
        (Message::binary(vec![1, 2, 3]), CloseCode::Unsupported),
        (Message::text(long), CloseCode::Size),
        (Message::text("x".repeat(100_000)), CloseCode::Size),
    ] {
        let mut client = gateway.subscriber("a").await;
        client.send_frame(frame).await;
        assert_eq!(client.rest().await.1, Some(code));
    }
    // Text that is not UTF-8, and a frame that is not masked.
    for (bytes, code) in [
        (&[0x81, 0x82, 0, 0, 0, 0, 0xff, 0xff][..], CloseCode::Invalid),
        (&[0x81, 0x01, b'x'][..], CloseCode::Protocol),
    ] {
        let mut client = gateway.subscriber("a").await;
        client.0.get_mut().write_all(bytes).await.unwrap();
        assert_eq!(client.rest().await.1, Some(code));
    }
    until("the end of all", async || gateway.stats().await["subscriptions"] == 0).await;
}

#[tokio::test]
async fn a_client_that_pings_without_reading_is_not_read_from() {
    let gateway = Gateway::start(&[]).await;
    let mut client = gateway.connect_narrow().await;
    // 125 bytes, with a mask of zeros.
    let ping = [&[0x89, 0xfd, 0, 0, 0, 0][..], &[b'x'; 125]].concat();
    let pings = ping.repeat(1000);
    let socket = client.0.get_mut();
    let taken = async {
        for _ in 0..400 {
            socket.write_all(&pings).await.unwrap();
        }
    };
    // The two kernels buffer far less. The write must stay pending, not only be slow.
    let limit = std::time::Duration::from_secs(5);
    assert!(tokio::time::timeout(limit, taken).await.is_err(), "50 MB of pings were taken");
    gateway.subscriber("a").await;
}

#[tokio::test]
async fn a_handshake_must_be_one() {
    let gateway = Gateway::start(&[]).await;
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
    for (lines, status) in [
        ("host: 127.0.0.1\r\nconnection: upgrade\r\nKEY", 101),
        ("host: 127.0.0.1\r\nconnection: keep-alive\r\nconnection: Upgrade\r\nKEY", 101),
        ("connection: upgrade\r\nKEY", 400),
        ("host: 127.0.0.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nKEY", 400),
        ("host: 127.0.0.1\r\nconnection: upgrade\r\nKEY\r\nKEY", 400),
        ("host: 127.0.0.1\r\nconnection: upgrade\r\nsec-websocket-key: eA==", 400),
        ("host: 127.0.0.1\r\nconnection: upgrade\r\nsec-websocket-key: no, not this", 400),
        ("host: 127.0.0.1\r\nconnection: upgrade", 400),
    ] {
        let lines = lines.replace("KEY", key);
        let request = format!(
            "GET /ws HTTP/1.1\r\n{lines}\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n"
        );
        let answer = gateway.raw(request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{lines}: {answer}");
        assert!(status == 101 || answer.contains("\"bad_request\""), "{answer}");
    }
}

#[tokio::test]
async fn a_header_of_which_one_is_used_may_not_be_repeated() {
    let options = ["--token", "secret", "--allow-origin", "https://friend.example"];
    let gateway = Gateway::start(&options).await;
    let allowed = "authorization: Bearer secret\r\ncontent-length: 1";
    // The lines that hyper refuses itself have no body.
    for (once, again, code) in [
        ("origin: https://friend.example", "origin: https://evil.example", "bad_request"),
        ("content-type: text/plain", "content-type: application/json", "bad_request"),
        ("x: y", "authorization: Bearer other", "bad_request"),
        ("x: y", "host: elsewhere", "bad_request"),
        ("x: y", "content-length: 2", ""),
    ] {
        let ask = async |lines: &str| {
            let head = "POST /publish/k HTTP/1.1\r\nhost: localhost";
            gateway.raw(format!("{head}\r\n{allowed}\r\n{lines}\r\n\r\n1").as_bytes()).await
        };
        let answer = ask(once).await;
        assert!(answer.starts_with("HTTP/1.1 202"), "{once}: {answer}");
        for lines in [format!("{once}\r\n{again}"), format!("{again}\r\n{once}")] {
            let answer = ask(&lines).await;
            assert!(
                answer.starts_with("HTTP/1.1 400") && answer.contains(code),
                "{lines}: {answer}"
            );
            assert_eq!(answer.contains("nosniff"), !code.is_empty(), "{lines}: {answer}");
        }
    }
    let version = "sec-websocket-version: 13\r\n";
    let handshake = format!(
        "GET /ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{version}"
    );
    for (again, status) in [("", 101), (version, 400), ("sec-websocket-version: 8\r\n", 400)] {
        let answer = gateway.raw(format!("{handshake}{again}\r\n").as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{again}: {answer}");
    }
}

#[tokio::test]
async fn a_length_beyond_the_limit_is_too_large_and_no_length_is_invalid() {
    let gateway = Gateway::start(&["--max-body", "1000"]).await;
    // The client has ended its request, so that the gateway does not wait for more.
    for (length, status) in [
        ("1001", 413),
        ("1000000000000", 413),
        (&(u64::MAX - 2).to_string(), 413),
        ("18446744073709551616", 400),
        (&"9".repeat(100), 400),
        ("0x10", 400),
        ("-1", 400),
        ("+1", 400),
        ("1, 1", 400),
        ("", 400),
        ("1000", 400), // it ends early
    ] {
        for path in ["/publish/k", "/publish"] {
            let head =
                format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
            let answer = gateway.raw(head.as_bytes()).await;
            // A batch may be larger.
            let status = if path == "/publish" && length == "1001" { 400 } else { status };
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
            assert!(status == 400 || answer.contains("\"too_large\""), "{head}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_body_is_taken_only_if_it_is_not_encoded() {
    let gateway = Gateway::start(&[]).await;
    let mut client = gateway.subscriber("k").await;
    let body = "1\r\nx\r\n0\r\n\r\n";
    // hyper answers the last three, without a body.
    for (codings, status, code, answers) in [
        ("transfer-encoding: chunked", 202, "", 2),
        ("transfer-encoding: , Chunked", 202, "", 2),
        ("transfer-encoding: gzip, chunked", 501, "\"not_implemented\"", 1),
        ("transfer-encoding: gzip\r\ntransfer-encoding: chunked", 501, "\"not_implemented\"", 1),
        ("transfer-encoding: identity;a=b, chunked", 501, "\"not_implemented\"", 1),
        ("transfer-encoding: chunked, chunked", 400, "\"bad_request\"", 1),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked", 400, "\"bad_request\"", 1),
        ("transfer-encoding: gzip", 400, "", 1),
        ("transfer-encoding: chunked, gzip", 400, "", 1),
        ("transfer-encoding: chunked;a=b", 400, "", 1),
    ] {
        let request = format!("POST /publish/k HTTP/1.1\r\nhost: x\r\n{codings}\r\n\r\n{body}");
        // The second request is not answered if the connection is closed.
        let answer = gateway.raw(request.repeat(2).as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{codings}: {answer}");
        assert!(answer.contains(code), "{codings}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), answers, "{codings}: {answer}");
        assert_eq!(answer.contains("connection: close"), status != 202, "{codings}: {answer}");
        // Also on a connection that has been used.
        let get = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let answer = gateway.raw(format!("{get}{request}{request}").as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), answers + 1, "{codings}: {answer}");
    }
    gateway.publish("k", "the end").await;
    for body in ["x"; 8].into_iter().chain(["the end"]) {
        assert_eq!(client.next().await, message("k", body));
    }
}

#[tokio::test]
async fn pages_of_allowed_sites_may_ask_first_and_read_the_answer() {
    let gateway = Gateway::start(&["--allow-origin", "https://friend.example"]).await;
    for (origin, is_allowed) in [("https://friend.example", true), ("https://evil.example", false)]
    {
        for (request, status) in [
            (
                "OPTIONS /publish/k HTTP/1.1\r\naccess-control-request-method: POST\r\n\
              access-control-request-headers: authorization",
                200,
            ),
            ("POST /publish/k HTTP/1.1\r\ncontent-length: 0", if is_allowed { 202 } else { 403 }),
        ] {
            let request = format!("{request}\r\nhost: localhost\r\norigin: {origin}\r\n\r\n");
            let answer = gateway.raw(request.as_bytes()).await.to_lowercase();
            assert!(answer.starts_with(&format!("http/1.1 {status}")), "{answer}");
            let allows = format!("access-control-allow-origin: {origin}\r\n");
            assert_eq!(answer.contains(&allows), is_allowed, "{answer}");
            assert!(status != 200 || answer.contains("authorization"), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_name_that_was_made_to_mean_this_machine_reads_nothing() {
    let gateway = Gateway::start(&["--allow-origin", "https://proxy.example"]).await;
    for (host, status) in [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("proxy.example", 200),
        ("evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
    ] {
        for path in ["/stats", "/metrics"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
            let answer = gateway.raw(request.as_bytes()).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_client_that_is_still_sending_a_large_body_gets_the_error() {
    let gateway = Gateway::start(&["--max-body", "1000"]).await;
    let size = 20_000_000;
    let head = format!("POST /publish/k HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n");
    let answer = gateway.raw(&[head.as_bytes(), &vec![b'x'; size]].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("\"too_large\""), "{answer}");
    // A client that sends `Expect: 100-continue` gets the error before it sends the body.
    let waiting = head.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    assert!(gateway.raw(waiting.as_bytes()).await.starts_with("HTTP/1.1 413"));
}

async fn origin(gateway: &Gateway, host: &str, origin: &str) -> String {
    let request = format!(
        "GET /ws HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let answer = gateway.raw(request.as_bytes()).await;
    answer.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn pages_of_other_sites_may_not_connect_unless_they_are_allowed() {
    let gateway = Gateway::start(&["--allow-origin", "https://Friend.example/"]).await;
    let host = gateway.address.to_string();
    assert_eq!(origin(&gateway, &host, &format!("http://{host}")).await, "101");
    assert_eq!(origin(&gateway, "localhost:8080", "http://localhost:8080").await, "101");
    assert_eq!(origin(&gateway, &host, "https://friend.example").await, "101");
    for foreign in [
        "https://evil.example",
        "http://127.0.0.1:1",
        "null",
        "https://friend.example.evil.example",
    ] {
        assert_eq!(origin(&gateway, &host, foreign).await, "403", "{foreign}");
    }
    // A foreign name that resolves to this machine.
    assert_eq!(origin(&gateway, "evil.example:8080", "http://evil.example:8080").await, "403");
    let evil = [("origin", "https://evil.example")];
    let (status, reply) = gateway.ask(Method::POST, "/publish/k", &evil, "x").await;
    assert_eq!((status, error(&reply)), (StatusCode::FORBIDDEN, "bad_origin"));

    let gateway = Gateway::start(&["--allow-origin", "*"]).await;
    let host = gateway.address.to_string();
    assert_eq!(origin(&gateway, &host, "https://evil.example").await, "101");
}

#[tokio::test]
async fn publishing_requires_the_token_if_there_is_one() {
    let gateway = Gateway::start(&["--token", "secret"]).await;
    for (headers, status) in [
        (vec![], 401),
        (vec![("authorization", "secret")], 401),
        (vec![("authorization", "Bearer Secret")], 401),
        (vec![("authorization", "Bearer secret ")], 202), // the space is not part of the header
        (vec![("authorization", "Bearer secre")], 401),
        (vec![("authorization", "Bearer secret")], 202),
        (vec![("authorization", "bearer secret")], 202),
    ] {
        let (is, reply) = gateway.ask(Method::POST, "/publish/k", &headers, "x").await;
        assert_eq!(is.as_u16(), status, "{headers:?}: {reply}");
        assert!(status == 202 || error(&reply) == "unauthorized");
    }
    gateway.subscriber("k").await;
}

#[tokio::test]
async fn no_more_connections_than_are_allowed() {
    let gateway = Gateway::start(&["--max-connections", "2"]).await;
    let one = gateway.subscriber("a").await;
    let _two = gateway.subscriber("a").await;
    let host = gateway.address.to_string();
    assert_eq!(origin(&gateway, &host, &format!("http://{host}")).await, "503");
    drop(one);
    until("the place", async || gateway.stats().await["connections"] == 1).await;
    let _: Client = gateway.subscriber("a").await;
}

#[tokio::test]
async fn a_wrong_command_line_is_explained() {
    for options in [
        &["--overflow", "sometimes"][..],
        &["--allow-origin", "evil"],
        &["--amqp", "http://x"],
        &["--demo", "0"],
        &["--demo", "4000000000"],
        &["--ping", "0"],
        &["--token", ""],
        &["--read-key", "short"],
        &["--topic", "--key-header", "k"],
        &["--nonsense"],
    ] {
        let run = std::process::Command::new(env!("CARGO_BIN_EXE_gateway"))
            .args(options)
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(2), "{options:?}");
        let reply = String::from_utf8(run.stderr).unwrap();
        assert!(reply.contains("error:") && !reply.contains("panicked"), "{reply}");
    }
    let gateway = Gateway::start(&[]).await;
    let address = gateway.address.to_string();
    let taken = ["--listen", &address];
    let run =
        std::process::Command::new(env!("CARGO_BIN_EXE_gateway")).args(taken).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    let reply = String::from_utf8(run.stderr).unwrap();
    assert!(reply.starts_with(&format!("gateway: cannot listen on {address}: ")), "{reply}");
}

#[tokio::test]
async fn of_a_batch_with_a_mistake_nothing_is_taken_and_the_line_is_named() {
    let options = ["--max-body", "10", "--max-batch", "1000", "--token", "secret"];
    let gateway = Gateway::start(&options).await;
    let mut client = gateway.subscriber("tea").await;
    let token = ("authorization", "Bearer secret");
    let good = "{\"key\":\"tea\",\"body\":\"x\"}\n";
    let long = format!("{{\"key\":\"{}\",\"body\":\"\"}}", "k".repeat(256));
    for (line, status, code) in [
        ("tea hello", 400, "bad_json"),
        ("{\"key\":\"tea\",\"body\":\"x\"", 400, "bad_json"),
        ("{\"key\":\"tea\"}", 400, "bad_request"),
        ("{\"key\":\"tea\",\"body\":\"\",\"rate\":1}", 400, "bad_request"),
        ("{\"key\":\"tea\",\"base64\":\"*\"}", 400, "bad_request"),
        ("{\"key\":\"\",\"body\":\"x\"}", 400, "bad_key"),
        ("{\"key\":\"\\n\",\"body\":\"x\"}", 400, "bad_key"),
        (&long, 400, "bad_key"),
        ("{\"key\":\"tea\",\"body\":\"12345678901\"}", 413, "too_large"),
    ] {
        let batch = format!("{good}\n{line}\n{good}no JSON");
        let (got, reply) = gateway.ask(Method::POST, "/publish", &[token], batch).await;
        assert_eq!((got.as_u16(), error(&reply)), (status, code), "{line}: {reply}");
        assert_eq!((&reply["line"], &reply["taken"]), (&json!(3), &json!(0)), "{reply}");
        let message = reply["message"].as_str().unwrap();
        assert!(message.starts_with("line 3: "), "{message}");
        assert!(message.ends_with("; nothing was taken"), "{message}");
    }
    for (headers, batch, status, code) in [
        (&[token][..], good.repeat(50), 413, "too_large"),
        (&[token], " \n\n".into(), 400, "bad_request"),
        (&[], good.into(), 401, "unauthorized"),
        (&[token, ("origin", "http://elsewhere")], good.into(), 403, "bad_origin"),
    ] {
        let (got, reply) = gateway.ask(Method::POST, "/publish", headers, batch).await;
        assert_eq!((got.as_u16(), error(&reply)), (status, code), "{reply}");
        assert_eq!((&reply["line"], &reply["taken"]), (&json!(null), &json!(0)), "{reply}");
    }
    // Nothing of the refused batches was published, and posts still work.
    let last = "{\"key\":\"tea\",\"body\":\"last\"}";
    let (got, _) = gateway.ask(Method::POST, "/publish", &[token], last).await;
    assert_eq!(got, StatusCode::ACCEPTED);
    assert_eq!(client.next().await, message("tea", "last"));
}

#[tokio::test]
async fn a_partly_taken_batch_lists_the_lines_that_failed() {
    let options = ["--overflow", "wait", "--buffer", "1", "--rate", "0", "--send-buffer", "4096"];
    let gateway = Gateway::start(&options).await;
    let mut slow = gateway.connect_narrow().await;
    slow.subscribe("tea").await;
    let line = json!({ "key": "tea", "body": "x".repeat(1000) }).to_string() + "\n";
    let (status, reply) = gateway.ask(Method::POST, "/publish", &[], line.repeat(1000)).await;
    assert_eq!((status.as_u16(), error(&reply)), (408, "timeout"), "{reply:.200}");
    let (taken, first) = (reply["taken"].as_u64().unwrap(), reply["line"].as_u64().unwrap());
    assert_eq!(first, taken + 1, "in order");
    let failed: Vec<u64> = serde_json::from_value(reply["failed"].clone()).unwrap();
    assert!(failed.iter().copied().eq(first..=1000), "{reply:.200}");
    for _ in 0..taken {
        assert_eq!(slow.next().await["key"], "tea");
    }
    gateway.publish("tea", "next").await;
    assert_eq!(slow.next().await, message("tea", "next"));
}

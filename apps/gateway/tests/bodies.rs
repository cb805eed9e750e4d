//! Bodies of every shape, published in every way, for every kind of reader: live, `latest` and from
//! the history, as text and as binary frames.

mod common;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use common::{Client, Gateway, soon};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

const JSON: (&str, &str) = ("content-type", "application/json");

/// A generator of numbers, the same in each run.
struct Random(u64);

impl Random {
    /// Returns a number below `most`.
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % most
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.below(40);
        let special = b"\"\\{}[]:,\n\r\t\0\x1b\x7f\xc3\xa9\xff null";
        (0..length).map(|_| special[self.below(special.len())]).collect()
    }

    fn json(&mut self, depth: usize) -> String {
        let space = self.one(&["", "", " ", "\r\n\t "]);
        let value = match self.below(if depth == 0 { 6 } else { 8 }) {
            0 => "null".to_owned(),
            1 => self.one(&["true", "false"]).to_owned(),
            2 => self.one(&["0", "-0", "1.0", "1e2", "-1.5E-3", "18446744073709551615"]).to_owned(),
            3 => self
                .one(&["\"\"", "\"null\"", "\"\\u0000\\n\\\"\\\\\"", "\"\\ud83d\\ude00\""])
                .into(),
            4 => Value::from(String::from_utf8_lossy(&self.bytes())).to_string(),
            5 => {
                self.one(&["[]", "{}", "[null]", "{\"json\":null}", "{\"body\":1,\"at\":9}"]).into()
            }
            6 => {
                let items: Vec<_> = (0..self.below(4)).map(|_| self.json(depth - 1)).collect();
                format!("[{}]", items.join(","))
            }
            _ => {
                let names = ["a", "json", "body", "base64", "key", "redelivered", ""];
                let fields: Vec<_> = (0..self.below(4))
                    .map(|_| format!("\"{}\":{}", self.one(&names), self.json(depth - 1)))
                    .collect();
                format!("{{{}}}", fields.join(","))
            }
        };
        format!("{space}{value}{space}")
    }
}

/// A published body, and whether it was declared as JSON.
#[derive(Debug, Clone)]
struct Body {
    bytes: Vec<u8>,
    is_json: bool,
}

fn bodies(random: &mut Random) -> Vec<Body> {
    let texts =
        ["", "null", "}", ",\"at\":7}", "\"", "\\", "\n", "\u{2028}é", "\0\0\0", "{\"json\":null}"];
    let of = |is_json| move |text: &str| Body { bytes: text.into(), is_json };
    let mut all: Vec<_> = texts.into_iter().map(of(false)).collect();
    let json =
        ["null", " null", "null\n", "\r\n\tnull \n", "true", "0", "\"\"", "[]", "{}", "\"}\""];
    all.extend(json.into_iter().map(of(true)));
    all.push(of(true)(&["[".repeat(126), "]".repeat(126)].concat()));
    all.push(Body { bytes: vec![0xff, b'\n', 0], is_json: false });
    all.push(Body { bytes: vec![b'x'; 60_000], is_json: false });
    for _ in 0..100 {
        all.push(Body { bytes: random.bytes(), is_json: false });
        all.push(of(true)(&random.json(4)));
    }
    all
}

/// Publishes it as a post, or as a line of a batch.
async fn publish(gateway: &Gateway, key: &str, body: &Body, random: &mut Random) {
    let Body { bytes, is_json } = body;
    let text = str::from_utf8(bytes).ok();
    let (status, reply) = match (random.below(2), text) {
        (0, _) => {
            let path = format!("/publish/{}", utf8_percent_encode(key, NON_ALPHANUMERIC));
            let headers = [JSON];
            let headers = if *is_json { &headers[..] } else { &[] };
            gateway.ask(Method::POST, &path, headers, bytes.clone()).await
        }
        // A line has no line ends, and no white space around JSON is part of the value.
        (_, Some(text)) if *is_json && text.trim() == text && !text.contains('\n') => {
            let line = format!("{{\"key\":{},\"json\":{text}}}", Value::from(key));
            gateway.ask(Method::POST, "/publish", &[], line).await
        }
        (_, Some(text)) if !is_json => {
            let line = json!({ "key": key, "body": text }).to_string();
            gateway.ask(Method::POST, "/publish", &[], line).await
        }
        _ if !is_json => {
            let line = json!({ "key": key, "base64": BASE64_STANDARD.encode(bytes) }).to_string();
            gateway.ask(Method::POST, "/publish", &[], line).await
        }
        _ => {
            let path = format!("/publish/{}", utf8_percent_encode(key, NON_ALPHANUMERIC));
            gateway.ask(Method::POST, &path, &[JSON], bytes.clone()).await
        }
    };
    assert_eq!(status, StatusCode::ACCEPTED, "{body:?}: {reply}");
}

/// Reads the next message, which must be this one.
async fn hears(client: &mut Client, key: &str, body: &Body, who: &str) {
    let frame = client.frame().await.unwrap_or_else(|| panic!("{who} is gone: {body:?}"));
    match frame.unwrap_or_else(|error| panic!("{who}: {error}: {body:?}")) {
        Message::Text(text) => {
            let reply: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&reply["type"], &reply["key"]), (&json!("message"), &json!(key)), "{who}");
            if body.is_json {
                let sent: Value = serde_json::from_slice(&body.bytes).unwrap();
                assert_eq!(reply.get("json"), Some(&sent), "{who}");
            } else {
                let bytes = match (reply["body"].as_str(), reply["base64"].as_str()) {
                    (Some(text), None) => text.as_bytes().to_vec(),
                    (None, Some(base64)) => BASE64_STANDARD.decode(base64).unwrap(),
                    _ => panic!("{who}: {reply}"),
                };
                assert_eq!(bytes, body.bytes, "{who}");
            }
        }
        Message::Binary(frame) => {
            let end = frame.iter().position(|byte| *byte == b'\n').expect("a line of JSON");
            let head: Value = serde_json::from_slice(&frame[..end]).unwrap();
            assert_eq!((&head["type"], &head["key"]), (&json!("message"), &json!(key)), "{who}");
            for name in ["body", "base64", "json"] {
                assert_eq!(head.get(name), None, "{who}");
            }
            assert_eq!(frame[end + 1..], body.bytes, "{who}");
        }
        other => panic!("{who}: {other:?}"),
    }
}

/// Subscribes, and reads until the messages come.
async fn reader(gateway: &Gateway, key: &str, options: Value) -> Client {
    let mut request = options;
    (request["type"], request["key"]) = ("subscribe".into(), key.into());
    let mut client = gateway.connect().await;
    let first = if request["since"].is_null() { "subscribed" } else { "history" };
    client.send(request).await;
    assert_eq!(client.next().await["type"], first);
    client
}

#[tokio::test]
async fn every_kind_of_reader_gets_every_shape_of_body_as_it_was_published() {
    let gateway = Gateway::start(&["--rate", "0", "--history", "1000"]).await;
    let mut random = Random(1);
    for key in ["tea", "a \"key\" \\ é\u{2028}"] {
        let bodies = bodies(&mut random);
        let mut live = Vec::new();
        for latest in [false, true] {
            for binary in [false, true] {
                let options = json!({ "latest": latest, "binary": binary });
                live.push((reader(&gateway, key, options.clone()).await, options.to_string()));
            }
        }
        for body in &bodies {
            publish(&gateway, key, body, &mut random).await;
            for (client, who) in &mut live {
                hears(client, key, body, who).await;
            }
        }
        for binary in [false, true] {
            let options = json!({ "binary": binary, "since": 0 });
            let mut client = reader(&gateway, key, options.clone()).await;
            for body in &bodies {
                hears(&mut client, key, body, &options.to_string()).await;
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_asks_for_bytes_survives_a_null_and_so_does_the_gateway() {
    let gateway = Gateway::start(&["--history", "9"]).await;
    let mut live = reader(&gateway, "tea", json!({ "binary": true })).await;
    let (status, _) = gateway.ask(Method::POST, "/publish/tea", &[JSON], "null").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let batch = r#"{"key":"tea","json":null}"#;
    let (status, _) = gateway.ask(Method::POST, "/publish", &[], batch).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let null = |at| {
        let frame = format!("{{\"type\":\"message\",\"key\":\"tea\",\"at\":{at}}}\nnull");
        Message::binary(frame.into_bytes())
    };
    for at in 1..=2 {
        assert_eq!(live.frame().await.unwrap().unwrap(), null(at));
    }
    let mut kept = reader(&gateway, "tea", json!({ "binary": true, "since": 0 })).await;
    for at in 1..=2 {
        assert_eq!(kept.frame().await.unwrap().unwrap(), null(at));
    }
    drop((live, kept));
    soon("their places", async { while gateway.stats().await["connections"] != 0 {} }).await;
}

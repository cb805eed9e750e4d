//! Permission to read: tokens that are valid, invalid and expired.

mod common;

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use common::{Client, Gateway, message, soon};
use hmac::{Hmac, Mac};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

const KEY: &str = "the key of the tests, 32 bytes or more";

/// Signs a token without the library that the gateway verifies it with.
fn sign(header: &Value, claims: &Value, key: &str) -> String {
    sign_text(&header.to_string(), &claims.to_string(), key)
}

/// Signs a token whose parts need not be JSON.
fn sign_text(header: &str, claims: &str, key: &str) -> String {
    let signed = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap().chain_update(&signed);
    format!("{signed}.{}", BASE64.encode(mac.finalize().into_bytes()))
}

fn token(claims: &Value) -> String {
    sign(&json!({ "alg": "HS256", "typ": "JWT" }), claims, KEY)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

async fn start() -> Gateway {
    Gateway::start(&["--read-key", KEY]).await
}

/// Connects with the token in the header or in the address.
async fn connect(gateway: &Gateway, token: &str, by_header: bool) -> Client {
    let query = if by_header { String::new() } else { format!("?a=b&token={token}") };
    let url = format!("ws://{}/ws{query}", gateway.address);
    let mut request = url.into_client_request().unwrap();
    if by_header {
        let value = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
    }
    let socket = TcpStream::connect(gateway.address).await.unwrap();
    let asked = tokio_tungstenite::client_async(request, socket);
    Client(soon("the handshake", asked).await.unwrap().0)
}

#[tokio::test]
async fn a_token_is_for_the_keys_and_prefixes_that_it_lists() {
    let gateway = start().await;
    let claims = json!({ "exp": now() + 60, "keys": ["tea", "room.*"], "sub": "x", "aud": ["y"] });
    for by_header in [true, false] {
        let mut client = connect(&gateway, &token(&claims), by_header).await;
        for key in ["tea", "room.1", "room."] {
            client.subscribe(key).await;
        }
        for key in ["coffee", "tea2", "te", "room", "Tea"] {
            client.send(json!({ "type": "subscribe", "key": key })).await;
            let reply = client.next().await;
            assert_eq!((&reply["error"], &reply["key"]), (&json!("forbidden"), &json!(key)));
        }
        for key in ["coffee", "room.1"] {
            gateway.publish(key, "x").await;
        }
        assert_eq!(client.next().await, message("room.1", "x"));
    }
    let mut all =
        connect(&gateway, &token(&json!({ "exp": 253_402_300_799.5, "keys": ["*"] })), true).await;
    all.subscribe("coffee").await;
}

#[tokio::test]
async fn other_claims_and_headers_are_ignored_whatever_they_are() {
    let gateway = start().await;
    let deep: Value = serde_json::from_str(&["[".repeat(100), "]".repeat(100)].concat()).unwrap();
    for other in [json!([]), json!({}), json!(null), json!(7), json!([{ "a": [1] }]), deep] {
        let mut claims = json!({ "exp": now() + 60, "keys": ["tea"] });
        let mut header = json!({ "alg": "HS256" });
        for name in ["sub", "iss", "aud", "iat", "jti", "roles"] {
            claims[name] = other.clone();
        }
        for name in ["typ", "kid", "cty", "x"] {
            header[name] = other.clone();
        }
        let mut client = connect(&gateway, &sign(&header, &claims, KEY), true).await;
        client.subscribe("tea").await;
    }
}

#[tokio::test]
async fn a_token_that_is_missing_expired_or_forged_is_refused() {
    let gateway = start().await;
    let good = json!({ "exp": now() + 60, "keys": ["tea"] });
    let signed = token(&good);
    let (body, tag) = signed.rsplit_once('.').unwrap();
    let (head, _) = body.split_once('.').unwrap();
    let more = BASE64.encode(json!({ "exp": now() + 60, "keys": ["*"] }).to_string());
    let none = BASE64.encode(json!({ "alg": "none" }).to_string());
    let alg = |alg: &str| sign(&json!({ "alg": alg }), &good, KEY);
    let claims = |claims: Value| token(&claims);
    let twice = format!(r#"{{"exp":{0},"exp":{0},"keys":["tea"]}}"#, now() + 60);
    for (token, code) in [
        (String::new(), "unauthorized"),
        ("a.b.c".to_owned(), "unauthorized"),
        (
            sign(&json!({ "alg": "HS256" }), &good, "another key, which is as long as it"),
            "unauthorized",
        ),
        (format!("{body}."), "unauthorized"),
        (body.to_owned(), "unauthorized"),
        (format!("{head}.{more}.{tag}"), "unauthorized"),
        (format!("{none}.{more}."), "unauthorized"),
        (format!("{none}.{more}.{tag}"), "unauthorized"),
        (alg("RS256"), "unauthorized"),
        (alg("HS512"), "unauthorized"),
        (alg("hs256"), "unauthorized"),
        (claims(json!({ "exp": now() - 1, "keys": ["tea"] })), "token_expired"),
        (claims(json!({ "exp": now() + 60, "nbf": now() + 30, "keys": ["tea"] })), "unauthorized"),
        (claims(json!({ "exp": now() + 60, "nbf": "soon", "keys": ["tea"] })), "unauthorized"),
        (claims(json!({ "keys": ["tea"] })), "unauthorized"),
        (claims(json!({ "exp": "never", "keys": ["tea"] })), "unauthorized"),
        (claims(json!({ "exp": -1, "keys": ["tea"] })), "token_expired"),
        (claims(json!({ "exp": null, "keys": ["tea"] })), "unauthorized"),
        (claims(json!(["exp", "keys"])), "unauthorized"),
        (claims(json!([now() + 60, null, ["tea"]])), "unauthorized"),
        (sign(&json!(["HS256", null]), &good, KEY), "unauthorized"),
        (sign(&json!({ "alg": "HS256", "crit": null }), &good, KEY), "unauthorized"),
        (sign_text(r#"{"alg":"none","alg":"HS256"}"#, &good.to_string(), KEY), "unauthorized"),
        (sign_text(r#"{"alg":"HS256"}"#, &twice, KEY), "unauthorized"),
        (sign(&json!({ "alg": "HS256", "crit": ["b64"] }), &good, KEY), "unauthorized"),
        (sign(&json!({ "typ": "JWT" }), &good, KEY), "unauthorized"),
        (format!("{signed}="), "unauthorized"),
        (format!("{signed}.x"), "unauthorized"),
        (claims(json!({ "exp": now() + 60 })), "unauthorized"),
        (claims(json!({ "exp": now() + 60, "keys": "*" })), "unauthorized"),
    ] {
        let bearer = format!("Bearer {token}");
        for (path, headers) in [
            ("/ws".to_owned(), vec![("authorization", &*bearer)]),
            (format!("/ws?token={token}"), vec![]),
        ] {
            let (status, reply) = gateway.ask(Method::GET, &path, &headers, "").await;
            assert_eq!((status.as_u16(), &reply["error"]), (401, &json!(code)), "{token}: {reply}");
        }
    }
    let (status, reply) = gateway.ask(Method::GET, "/ws", &[], "").await;
    assert_eq!((status.as_u16(), &reply["error"]), (401, &json!("unauthorized")));
    // A token for reading is not valid for publishing.
    gateway.publish("tea", "x").await;
}

#[tokio::test]
async fn a_client_that_sends_several_tokens_is_refused() {
    let gateway = start().await;
    let [one, two] =
        ["tea", "coffee"].map(|key| token(&json!({ "exp": now() + 60, "keys": [key] })));
    let (one_header, two_header) = (format!("Bearer {one}"), format!("Bearer {two}"));
    let basic = ("authorization", "Basic dXNlcjpwYXNz");
    for (path, headers, status) in [
        (format!("/ws?token={one}&token={two}"), vec![], 400),
        (format!("/ws?token={two}"), vec![("authorization", &*one_header)], 400),
        ("/ws".into(), vec![("authorization", &*one_header), ("authorization", &two_header)], 400),
        // These have one, and reach the handshake.
        (format!("/ws?token={one}"), vec![basic], 426),
        (format!("/ws?a=b&token={one}&a=c"), vec![], 426),
    ] {
        let (got, reply) = gateway.ask(Method::GET, &path, &headers, "").await;
        assert_eq!(got.as_u16(), status, "{path} {headers:?}: {reply}");
        assert!(status == 426 || reply["error"] == "bad_request", "{reply}");
    }
}

#[tokio::test]
async fn a_client_is_disconnected_when_its_token_expires() {
    let gateway = start().await;
    let claims = json!({ "exp": now() + 2, "keys": ["tea"] });
    let mut client = connect(&gateway, &token(&claims), false).await;
    client.subscribe("tea").await;
    gateway.publish("tea", "x").await;
    let (reply, code) = client.rest().await;
    assert_eq!((reply, code), (vec![message("tea", "x")], Some(CloseCode::Library(4401))));
    let (status, reply) =
        gateway.ask(Method::GET, &format!("/ws?token={}", token(&claims)), &[], "").await;
    assert_eq!((status.as_u16(), &reply["error"]), (401, &json!("token_expired")));
}

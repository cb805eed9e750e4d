//! A message, its copies, and when it is acknowledged.
//!
//! A copy is [settled](Message::settle) when it was flushed to a socket, discarded by policy, or
//! had no subscription. A copy that is only dropped is not settled: its client's connection broke,
//! or the gateway stops or panics. When the last copy is dropped, the message is acknowledged if
//! all copies were settled, and requeued otherwise. So a missing call to `settle` leads to a
//! redelivery, not to a loss.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::ws::Utf8Bytes;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::budget::{Budget, Charge};

/// Bytes counted for a message beside its text and its key, for the entries in queues.
const OVERHEAD: usize = 256;

pub type Key = Arc<str>;

/// One copy of a message. Copies share the contents.
pub struct Message {
    shared: Arc<Shared>,
    settled: bool,
}

struct Shared {
    key: Key,
    /// The JSON for clients, built once for all of them by the task that receives the message, to
    /// keep this work out of the demux task.
    frame: Utf8Bytes,
    /// The binary form, built when the first client needs it.
    binary: OnceLock<Bytes>,
    delivery: Option<Delivery>,
    /// Counts the bytes while the message waits for clients or is kept.
    charge: Option<Charge>,
    is_kept: bool,
    /// The position, from 1; 0 if there is none.
    at: u64,
}

/// A delivery that the broker waits to be settled.
pub struct Delivery {
    tag: u64,
    redelivered: bool,
    again: AtomicBool,
    fates: mpsc::UnboundedSender<Fate>,
}

/// The result of a delivery.
pub struct Fate {
    pub tag: u64,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Acknowledge,
    /// A client may not have received it: requeue.
    Repeat,
    /// The message cannot be used: reject.
    Refuse,
}

impl Message {
    #[cfg(test)]
    pub fn new(key: Key, body: &[u8], delivery: Option<Delivery>) -> Self {
        Self::of(key, body, false, delivery)
    }

    /// Creates a message. JSON bodies must be [checked](check_json).
    pub fn of(key: Key, body: &[u8], is_json: bool, delivery: Option<Delivery>) -> Self {
        let is_again = delivery.as_ref().is_some_and(|delivery| delivery.redelivered);
        let frame = to_json(&key, body, is_json, is_again).into();
        let (binary, charge) = (OnceLock::new(), None);
        Self::from(Shared { key, frame, binary, delivery, charge, is_kept: false, at: 0 })
    }

    fn from(shared: Shared) -> Self {
        Self { shared: Arc::new(shared), settled: false }
    }

    /// Sets the position. Has an effect only before the message is cloned.
    pub fn stamp(&mut self, at: u64) {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            let json = shared.frame.as_str();
            shared.frame = format!("{},\"at\":{at}}}", &json[..json.len() - 1]).into();
            shared.at = at;
        }
    }

    /// Returns a copy for the history, which does not delay the acknowledgement.
    pub fn to_keep(&self, budget: &Arc<Budget>) -> Self {
        let (key, frame) = (Key::clone(&self.shared.key), self.frame());
        let charge = Some(budget.charge(self.size()));
        let (binary, delivery, at) = (OnceLock::new(), None, self.at());
        Self::from(Shared { key, frame, binary, delivery, charge, is_kept: true, at })
    }

    pub fn at(&self) -> u64 {
        self.shared.at
    }

    pub fn is_kept(&self) -> bool {
        self.shared.is_kept
    }

    /// Returns the bytes that all copies together use.
    pub fn size(&self) -> usize {
        self.shared.frame.as_str().len() + self.shared.key.len() + OVERHEAD
    }

    /// Counts the message until its last copy is dropped. Has an effect only before it is cloned.
    pub fn charge_to(&mut self, budget: &Arc<Budget>) {
        let charge = budget.charge(self.size());
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.charge = Some(charge);
        }
    }

    pub fn key(&self) -> &str {
        &self.shared.key
    }

    /// Marks this copy as delivered, or as not to be delivered.
    pub fn settle(mut self) {
        self.settled = true;
    }

    /// Returns the message as JSON.
    pub fn frame(&self) -> Utf8Bytes {
        self.shared.frame.clone()
    }

    /// Returns a line of JSON, followed by the body as it was published.
    pub fn binary(&self) -> Bytes {
        let make = || to_binary(&self.shared.frame).into();
        // Do not cache it for kept messages: it would double their memory.
        if self.is_kept() { make() } else { self.shared.binary.get_or_init(make).clone() }
    }
}

impl Clone for Message {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), settled: false }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(delivery) = &self.shared.delivery
            && !self.settled
        {
            // The drop of the last copy sees it, as the reference count orders it.
            delivery.again.store(true, Relaxed);
        }
    }
}

/// A message in JSON.
#[derive(Serialize, Deserialize)]
struct Out<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    redelivered: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<u64>,
}

/// Returns the message as JSON. Most texts need no escapes and are copied, which takes a fraction
/// of the time of [`serialize`].
fn to_json(key: &str, body: &[u8], is_json: bool, redelivered: bool) -> String {
    let again = if redelivered { ",\"redelivered\":true" } else { "" };
    let head = "{\"type\":\"message\",\"key\":";
    match str::from_utf8(body) {
        // With the white space around it, for clients that get binary frames.
        Ok(text) if is_json => {
            [head, &Value::from(key).to_string(), ",\"json\":", text, again, "}"].concat()
        }
        Ok(text) if is_plain(body) && is_plain(key.as_bytes()) => {
            [head, "\"", key, "\",\"body\":\"", text, "\"", again, "}"].concat()
        }
        _ => serialize(key, body, redelivered),
    }
}

/// Returns `true` if the text is ASCII and needs no escapes in a JSON string.
pub fn is_plain(text: &[u8]) -> bool {
    // Without branches, so that this is compiled to vector instructions.
    let escaped = text.iter().fold(0, |escaped, byte| {
        let is_printable = matches!(byte, b' '..=b'~');
        escaped | u8::from(!is_printable) | u8::from(*byte == b'"') | u8::from(*byte == b'\\')
    });
    escaped == 0
}

/// Returns a text or bytes as JSON. A text that would more than double in length as a JSON string,
/// because of control characters, is encoded in base64, so that the output is never much larger
/// than the input.
fn serialize(key: &str, body: &[u8], redelivered: bool) -> String {
    let escaped: usize = body.iter().map(|byte| escaped_length(*byte)).sum();
    let text = str::from_utf8(body).ok().filter(|_| escaped <= 2 * body.len());
    let base64 = text.is_none().then(|| BASE64_STANDARD.encode(body).into());
    let length = base64.as_ref().map_or(escaped, |base64: &Cow<'_, str>| base64.len());
    let mut frame = Vec::with_capacity(length + key.len() + OVERHEAD);
    let (key, body) = (key.into(), text.map(Cow::from));
    let out = Out { r#type: "message", key, body, base64, json: None, redelivered, at: None };
    serde_json::to_writer(&mut frame, &out).expect("strings and a flag are JSON");
    String::from_utf8(frame).expect("JSON is UTF-8")
}

/// Built from the JSON, so that messages without binary clients need no other copy.
fn to_binary(frame: &str) -> Vec<u8> {
    let mut out: Out<'_> = serde_json::from_str(frame).expect("it was made by this program");
    let (body, base64, json) = (out.body.take(), out.base64.take(), out.json.take());
    let mut binary = serde_json::to_vec(&out).expect("strings and numbers are JSON");
    binary.push(b'\n');
    match (body, base64, json) {
        (Some(text), _, _) => binary.extend_from_slice(text.as_bytes()),
        (_, Some(base64), _) => BASE64_STANDARD
            .decode_vec(base64.as_bytes(), &mut binary)
            .expect("it was made by this program"),
        (_, _, json) => {
            let json = json.map_or("", RawValue::get);
            binary.extend_from_slice(with_white_space(frame, json).as_bytes());
        }
    }
    binary
}

/// Returns this part of the frame with the white space around it: the frame has no other.
fn with_white_space<'a>(frame: &'a str, part: &str) -> &'a str {
    let is_white = |text: &char| matches!(text, ' ' | '\n' | '\r' | '\t');
    let start = part.as_ptr().addr() - frame.as_ptr().addr();
    let (before, after) = (&frame[..start], &frame[start + part.len()..]);
    let start = start - before.chars().rev().take_while(is_white).count();
    let end = frame.len() - after.len() + after.chars().take_while(is_white).count();
    &frame[start..end]
}

/// Returns `true` if the content type is JSON.
pub fn is_json_type(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// Checks that clients can parse this JSON within a message, which adds one level: at most 127
/// levels, all escapes are characters, and all numbers fit into 64 bits or a float. Needs no more
/// memory than a copy.
pub fn check_json(body: &[u8]) -> serde_json::Result<()> {
    let json: &RawValue = serde_json::from_slice(body)?; // a single value
    let deeper = format!("[{json}]");
    let mut all = serde_json::Deserializer::from_str(&deeper);
    serde_transcode::transcode(&mut all, &mut serde_json::Serializer::new(io::sink()))
}

fn escaped_length(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        ..0x20 => 6,
        _ => 1,
    }
}

impl Delivery {
    pub fn new(tag: u64, redelivered: bool, fates: mpsc::UnboundedSender<Fate>) -> Self {
        Self { tag, redelivered, again: AtomicBool::new(false), fates }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // The receiver is gone if the connection to the broker is: the broker then redelivers by
        // itself.
        let verdict = if *self.again.get_mut() { Verdict::Repeat } else { Verdict::Acknowledge };
        let _ = self.fates.send(Fate { tag: self.tag, verdict });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered() -> (Message, mpsc::UnboundedReceiver<Fate>) {
        let (fates, received) = mpsc::unbounded_channel();
        let delivery = Delivery::new(7, false, fates);
        (Message::new("key".into(), b"body", Some(delivery)), received)
    }

    #[test]
    fn the_fate_is_sent_when_the_last_copy_is_dropped() {
        let (message, mut received) = delivered();
        let copy = message.clone();
        message.settle();
        assert!(received.try_recv().is_err());
        copy.settle();
        assert!(matches!(received.try_recv(), Ok(Fate { tag: 7, verdict: Verdict::Acknowledge })));
    }

    #[test]
    fn it_comes_again_if_one_copy_was_dropped() {
        let (message, mut received) = delivered();
        drop(message.clone());
        message.settle();
        assert!(matches!(received.try_recv(), Ok(Fate { tag: 7, verdict: Verdict::Repeat })));
    }

    #[test]
    fn bytes_that_are_not_text_are_written_in_base64() {
        let message = Message::new("k\"".into(), &[0xff, 0x00], None);
        assert_eq!(message.frame().as_str(), r#"{"type":"message","key":"k\"","base64":"/wA="}"#);
        let message = Message::new("k".into(), b"abcdef\n\x01", None);
        assert_eq!(
            message.frame().as_str(),
            r#"{"type":"message","key":"k","body":"abcdef\n\u0001"}"#
        );
        let message = Message::new("k".into(), b"\x01\x01a", None);
        assert_eq!(message.frame().as_str(), r#"{"type":"message","key":"k","base64":"AQFh"}"#);
    }

    #[test]
    fn a_plain_text_is_written_as_serde_does() {
        let all: Vec<_> = (0..=u8::MAX).map(|byte| vec![b'a', byte, b'b']).collect();
        let long = [b'x'; 1_000].to_vec();
        for body in all.into_iter().chain([vec![], long, "é".into()]) {
            for key in ["tea", "\"", "\\", "\u{e9}", ""] {
                for again in [false, true] {
                    assert_eq!(to_json(key, &body, false, again), serialize(key, &body, again));
                }
            }
        }
    }

    #[test]
    fn json_is_passed_on_as_it_is_unless_clients_could_not_parse_it() {
        let body = br#" {"a": [1.0, "\u00e4"]} "#;
        let message = Message::of("k".into(), body, true, None);
        let expected = r#"{"type":"message","key":"k","json": {"a": [1.0, "\u00e4"]} }"#;
        assert_eq!(message.frame().as_str(), expected);
        let deep = |depth| [vec![b'['; depth], vec![b']'; depth]].concat();
        for body in [&body[..], b"0", b"\"\"", b"null", &deep(126)] {
            assert!(check_json(body).is_ok());
            let message = Message::of("k".into(), body, true, None);
            assert!(serde_json::from_str::<serde_json::Value>(&message.frame()).is_ok());
        }
        let (too_deep, much_too_deep) = (deep(127), deep(100_000));
        for body in [
            &b""[..],
            b"{",
            b"1,2",
            b"1],[2",
            b"1}, {\"key\":1",
            b"1 2",
            b"\xff",
            b"\"\xff\"",
            b"NaN",
            b"1e999",
            b"\"\\ud800\"",
            &too_deep,
            &much_too_deep,
        ] {
            assert!(check_json(body).is_err(), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn a_binary_message_is_a_json_line_and_the_published_body() {
        let long = [b'\x01'; 99];
        let bodies = [&b"text\n\"\\"[..], b"", b"\xff\x00\n", &long, b"{\"a\": 1}", b"\n {}\r\t "];
        for (body, is_json) in bodies.into_iter().flat_map(|body| [(body, false), (body, true)]) {
            let is_json = is_json && check_json(body).is_ok();
            let mut message = Message::of("k\"\n".into(), body, is_json, None);
            let (line, at) = (&br#"{"type":"message","key":"k\"\n""#[..], &br#","at":7"#[..]);
            message.stamp(7);
            assert_eq!(message.binary(), [line, at, b"}\n", body].concat());
        }
    }
}

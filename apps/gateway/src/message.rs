//! A message, its copies, and when it is acknowledged.
//!
//! A copy is [settled](Message::settle) when it was flushed to a socket, discarded by policy, or
//! had no subscription, and [lost](Message::lose) when its client's connection ended first. A copy
//! that is only dropped is neither: the gateway stops or panics. When the last copy is dropped, the
//! message is requeued if one copy was only dropped. So a missing call leads to a redelivery, not to
//! a loss.
//!
//! A message is not requeued for a lost copy, unless the gateway is stopping: the client has no
//! subscription any more that could get it, and all others would get it again. Otherwise a client
//! that breaks its connection again and again makes the others hear a message each time.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::ws::Utf8Bytes;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::value::RawValue;

use crate::budget::{Budget, Charge};
use crate::deliveries::{Fate, Fates};

/// Bytes counted for a message beside its text and its key, for the entries in queues.
const OVERHEAD: usize = 256;

pub type Key = Arc<str>;

/// In tests, sending a message of a key that begins so panics.
#[cfg(test)]
pub const PLANTED: &str = "planted";

/// One copy of a message. Copies share the contents.
pub struct Message {
    shared: Arc<Shared>,
    /// The broker waits for this copy. `None` without a broker, and for a copy that was
    /// [given up](Message::give_up).
    delivery: Option<Arc<Delivery>>,
    end: End,
    /// It counts as waiting for its client.
    counts: bool,
}

/// What has become of a copy.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Unknown,
    Settled,
    Lost,
}

struct Shared {
    key: Key,
    /// The JSON for clients, built once for all of them by the task that receives the message, to
    /// keep this work out of the demux task.
    frame: Utf8Bytes,
    body: Body,
    /// The binary form, built when the first client needs it.
    binary: OnceLock<Bytes>,
    /// Counts the bytes while the message waits for clients or is kept.
    charge: Option<Charge>,
    is_kept: bool,
    /// The position, from 1; 0 if there is none.
    at: u64,
}

/// Where the body is in the frame.
///
/// It is noted when the frame is made. To find it by parsing the frame would need a distinction of
/// `null` from a missing body, and white space around JSON, which a parser does not report.
#[derive(Debug, Clone, PartialEq)]
struct Body {
    form: Form,
    /// The bytes of the field with its name and the comma before it: `,"json":1`.
    field: Range<usize>,
    /// The bytes of its value.
    value: Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// A JSON string.
    Text,
    /// A JSON string with bytes in base64.
    Base64,
    /// Any JSON, with the white space around it.
    Json,
}

/// A delivery that the broker waits to be settled.
pub struct Delivery {
    tag: u64,
    redelivered: bool,
    /// The [tick](crate::waiting) in which the message was routed.
    tick: AtomicU8,
    /// A copy was dropped without an outcome.
    again: AtomicBool,
    /// A copy was lost with the connection of its client.
    lost: AtomicBool,
    fates: Arc<Fates>,
}

/// What is done with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Acknowledge,
    /// The connection of a client ended first: acknowledge, or requeue if the gateway is stopping.
    Lost,
    /// The gateway may not have handled it: requeue.
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
        let (frame, body) = to_json(&key, body, is_json, is_again);
        let shared = Shared {
            key,
            frame: frame.into(),
            body,
            binary: OnceLock::new(),
            charge: None,
            is_kept: false,
            at: 0,
        };
        let delivery = delivery.map(Arc::new);
        Self { shared: Arc::new(shared), delivery, end: End::Unknown, counts: true }
    }

    /// Sets the position. Has an effect only before the message is cloned.
    pub fn stamp(&mut self, at: u64) {
        if let Some(shared) = Arc::get_mut(&mut self.shared)
            && let Some(json) = shared.frame.as_str().strip_suffix('}')
        {
            // At the end, so that the body stays where it is.
            shared.frame = format!("{json},\"at\":{at}}}").into();
            shared.at = at;
        }
    }

    /// Returns a copy for the history, which does not delay the acknowledgement.
    pub fn to_keep(&self, budget: &Arc<Budget>) -> Self {
        let shared = Shared {
            key: Key::clone(&self.shared.key),
            frame: self.shared.frame.clone(),
            body: self.shared.body.clone(),
            binary: OnceLock::new(),
            charge: Some(budget.charge(self.size())),
            is_kept: true,
            at: self.at(),
        };
        Self { shared: Arc::new(shared), delivery: None, end: End::Unknown, counts: false }
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

    /// Called when the demux takes the message, in this tick.
    pub fn mark_routed(&self, tick: u8) {
        if let Some(delivery) = &self.delivery {
            delivery.tick.store(tick, Relaxed);
            delivery.fates.deliveries.set_routed(delivery.tag);
        }
    }

    /// Returns the tick in which it was routed, if the broker waits for it.
    pub fn tick(&self) -> Option<u8> {
        self.delivery.as_ref().map(|delivery| delivery.tick.load(Relaxed))
    }

    /// Marks this copy as delivered, or as not to be delivered.
    pub fn settle(mut self) {
        self.end = End::Settled;
    }

    /// Marks this copy as lost: its client's connection ended before it was delivered.
    pub fn lose(mut self) {
        self.end = End::Lost;
    }

    /// Gives this copy up: it can still be sent, but does not delay the acknowledgement, nor count as
    /// waiting.
    pub fn give_up(mut self) -> Self {
        let given_up = Self {
            shared: Arc::clone(&self.shared),
            delivery: None,
            end: End::Unknown,
            counts: false,
        };
        self.end = End::Settled;
        given_up
    }

    /// Returns `true` if it counts as waiting for its client: it is not kept, and was not given up.
    pub fn counts(&self) -> bool {
        self.counts
    }

    /// Returns the message as JSON.
    pub fn frame(&self) -> Utf8Bytes {
        #[cfg(test)]
        assert!(!self.key().starts_with(PLANTED), "planted");
        self.shared.frame.clone()
    }

    /// Returns a line of JSON, followed by the body as it was published. Returns `None` if the
    /// message is malformed, which would be a fault of this program: it costs a client its
    /// connection, and the others nothing.
    pub fn binary(&self) -> Option<Bytes> {
        let shared = &*self.shared;
        if let Some(made) = shared.binary.get() {
            return Some(made.clone());
        }
        let made = Bytes::from(to_binary(&shared.frame, &shared.body)?);
        // Do not cache it for kept messages: it would double their memory.
        if self.is_kept() { Some(made) } else { Some(shared.binary.get_or_init(|| made).clone()) }
    }
}

impl Clone for Message {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            delivery: self.delivery.clone(),
            end: End::Unknown,
            counts: self.counts,
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(delivery) = &self.delivery {
            // The drop of the last copy sees it, as the reference count orders it.
            match self.end {
                End::Settled => {}
                End::Lost => delivery.lost.store(true, Relaxed),
                End::Unknown => delivery.again.store(true, Relaxed),
            }
        }
    }
}

/// The beginning of each message, up to its key, and up to a key that needs no escapes.
const HEAD: &str = r#"{"type":"message","key":"#;
const HEAD_TEXT: &str = r#"{"type":"message","key":""#;

/// Returns the message as JSON, and where the body is in it. Most texts need no escapes and are
/// copied, which takes a fraction of the time of [`serialize`].
fn to_json(key: &str, body: &[u8], is_json: bool, redelivered: bool) -> (String, Body) {
    match str::from_utf8(body) {
        // With the white space around it, for clients that get binary frames.
        Ok(text) if is_json => {
            let key = json_string(key);
            assemble([HEAD, &key, ""], Form::Json, [text, "", ""], redelivered)
        }
        Ok(text) if is_plain(body) && is_plain(key.as_bytes()) => {
            assemble([HEAD_TEXT, key, "\""], Form::Text, ["\"", text, "\""], redelivered)
        }
        _ => serialize(key, body, redelivered),
    }
}

/// Joins the pieces before the body, and those of the body.
fn assemble(head: [&str; 3], form: Form, body: [&str; 3], redelivered: bool) -> (String, Body) {
    let name = match form {
        Form::Text => ",\"body\":",
        Form::Base64 => ",\"base64\":",
        Form::Json => ",\"json\":",
    };
    let again = if redelivered { ",\"redelivered\":true" } else { "" };
    let length = |pieces: [&str; 3]| pieces.into_iter().map(str::len).sum::<usize>();
    let field = length(head);
    let value = field + name.len();
    let end = value + length(body);
    let frame = [head[0], head[1], head[2], name, body[0], body[1], body[2], again, "}"].concat();
    (frame, Body { form, field: field..end, value: value..end })
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
fn serialize(key: &str, body: &[u8], redelivered: bool) -> (String, Body) {
    let key = json_string(key);
    let head = [HEAD, &key, ""];
    let escaped: usize = body.iter().map(|byte| escaped_length(*byte)).sum();
    if escaped <= 2 * body.len()
        && let Ok(text) = str::from_utf8(body)
    {
        let text = json_string(text);
        return assemble(head, Form::Text, [&text, "", ""], redelivered);
    }
    let base64 = BASE64_STANDARD.encode(body);
    assemble(head, Form::Base64, ["\"", &base64, "\""], redelivered)
}

fn json_string(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

/// Built from the JSON, so that messages without binary clients need no other copy.
fn to_binary(frame: &str, Body { form, field, value }: &Body) -> Option<Vec<u8>> {
    let (before, after) = (frame.get(..field.start)?, frame.get(field.end..)?);
    let value = frame.get(value.clone())?;
    let body: Cow<'_, [u8]> = match form {
        Form::Json => Cow::Borrowed(value.as_bytes()),
        Form::Text => match value.strip_prefix('"')?.strip_suffix('"')? {
            text if text.contains('\\') => {
                Cow::Owned(serde_json::from_str::<String>(value).ok()?.into_bytes())
            }
            text => Cow::Borrowed(text.as_bytes()),
        },
        Form::Base64 => {
            let base64 = value.strip_prefix('"')?.strip_suffix('"')?;
            Cow::Owned(BASE64_STANDARD.decode(base64).ok()?)
        }
    };
    Some([before.as_bytes(), after.as_bytes(), b"\n", &body].concat())
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
    pub fn new(tag: u64, redelivered: bool, fates: Arc<Fates>) -> Self {
        Self {
            tag,
            redelivered,
            tick: AtomicU8::new(0),
            again: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            fates,
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let verdict = if *self.again.get_mut() {
            Verdict::Repeat
        } else if *self.lost.get_mut() {
            Verdict::Lost
        } else {
            Verdict::Acknowledge
        };
        self.fates.send(Fate { tag: self.tag, verdict });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn delivered() -> (Message, mpsc::UnboundedReceiver<Fate>) {
        let (fates, received) = Fates::channel(1);
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
    fn a_copy_that_is_lost_with_its_connection_is_told_apart() {
        let (message, mut received) = delivered();
        message.clone().lose();
        message.settle();
        assert!(matches!(received.try_recv(), Ok(Fate { tag: 7, verdict: Verdict::Lost })));
        let (message, mut received) = delivered();
        message.clone().lose();
        drop(message);
        assert!(matches!(received.try_recv(), Ok(Fate { tag: 7, verdict: Verdict::Repeat })));
    }

    #[test]
    fn a_copy_that_is_given_up_does_not_delay_the_acknowledgement_of_the_others() {
        let (message, mut received) = delivered();
        let given_up = message.clone().give_up();
        assert!(received.try_recv().is_err());
        drop(given_up.clone());
        message.settle();
        assert!(matches!(received.try_recv(), Ok(Fate { tag: 7, verdict: Verdict::Acknowledge })));
        assert!(given_up.frame().contains("body") && !given_up.counts());
        drop(given_up);
        assert!(received.try_recv().is_err());
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
            assert_eq!(message.binary().unwrap(), [line, at, b"}\n", body].concat());
        }
    }
}

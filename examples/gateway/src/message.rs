//! A message, its copies, and when the broker may forget it.
//!
//! A copy that was [settled](Message::settle) has met a fate that is known: it was flushed to a socket,
//! discarded by policy, or wanted by nobody. One that is merely dropped has not: its client's
//! connection broke, or the gateway stops, or panics. When the last copy is gone the broker is told
//! to forget the message if all of them were settled, and otherwise to deliver it again. What is
//! forgotten in the code comes again, then; it is not lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use axum::extract::ws::Utf8Bytes;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::budget::{Budget, Charge};

/// Of a message, beside its text and its key, in bytes: what the queues of its clients keep of it.
const OVERHEAD: usize = 256;

pub type Key = Arc<str>;

/// One copy of a message. The copies share the rest.
pub struct Message {
    shared: Arc<Shared>,
    settled: bool,
}

struct Shared {
    key: Key,
    /// What is written to clients, made once for all of them, and by the task that brings it: the demux
    /// has enough to do.
    frame: Utf8Bytes,
    delivery: Option<Delivery>,
    /// For as long as it waits for clients, or is kept.
    charge: Option<Charge>,
    is_kept: bool,
    /// Its position, from 1; 0 if it has none.
    at: u64,
}

/// What the broker waits to hear of.
pub struct Delivery {
    tag: u64,
    redelivered: bool,
    again: AtomicBool,
    fates: mpsc::UnboundedSender<Fate>,
}

/// What became of a delivery.
pub struct Fate {
    pub tag: u64,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Acknowledge,
    /// A client may not have got it: it is to be delivered again.
    Repeat,
    /// It cannot be used, now or later.
    Refuse,
}

impl Message {
    pub fn new(key: Key, body: &[u8], delivery: Option<Delivery>) -> Self {
        let is_again = delivery.as_ref().is_some_and(|delivery| delivery.redelivered);
        let frame = to_json(&key, body, is_again).into();
        Self::from(Shared { key, frame, delivery, charge: None, is_kept: false, at: 0 })
    }

    fn from(shared: Shared) -> Self {
        Self { shared: Arc::new(shared), settled: false }
    }

    /// Gives it its position, before there are copies.
    pub fn stamp(&mut self, at: u64) {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            let json = shared.frame.as_str();
            shared.frame = format!("{},\"at\":{at}}}", &json[..json.len() - 1]).into();
            shared.at = at;
        }
    }

    /// The same, for those that come later. The broker does not wait for it.
    pub fn to_keep(&self, budget: &Arc<Budget>) -> Self {
        let (key, frame) = (Key::clone(&self.shared.key), self.frame());
        let charge = Some(budget.charge(self.size()));
        Self::from(Shared { key, frame, delivery: None, charge, is_kept: true, at: self.at() })
    }

    pub fn at(&self) -> u64 {
        self.shared.at
    }

    pub fn is_kept(&self) -> bool {
        self.shared.is_kept
    }

    /// The bytes that it uses, all its copies together.
    pub fn size(&self) -> usize {
        self.shared.frame.as_str().len() + self.shared.key.len() + OVERHEAD
    }

    /// Counts it, before there are copies, until the last of them is gone.
    pub fn charge_to(&mut self, budget: &Arc<Budget>) {
        let charge = budget.charge(self.size());
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.charge = Some(charge);
        }
    }

    pub fn key(&self) -> &str {
        &self.shared.key
    }

    /// This copy is where it was meant to go, or not meant to go anywhere.
    pub fn settle(mut self) {
        self.settled = true;
    }

    /// The JSON of it.
    pub fn frame(&self) -> Utf8Bytes {
        self.shared.frame.clone()
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
            // Seen by the drop of the last copy, as reference counts order what comes before.
            delivery.again.store(true, Relaxed);
        }
    }
}

/// A text that JSON would make more than twice as long, because of control characters, is written as
/// bytes: what is sent is never much more than what came in.
fn to_json(key: &str, body: &[u8], redelivered: bool) -> String {
    #[derive(Serialize)]
    struct Out<'a> {
        r#type: &'a str,
        key: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        body: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        redelivered: bool,
    }
    let escaped: usize = body.iter().map(|byte| escaped_length(*byte)).sum();
    let text = str::from_utf8(body).ok().filter(|_| escaped <= 2 * body.len());
    let base64 = text.is_none().then(|| BASE64_STANDARD.encode(body));
    let length = base64.as_ref().map_or(escaped, String::len);
    let mut json = Vec::with_capacity(length + key.len() + OVERHEAD);
    let out = Out { r#type: "message", key, body: text, base64, redelivered };
    serde_json::to_writer(&mut json, &out).expect("strings and a flag are JSON");
    String::from_utf8(json).expect("JSON is UTF-8")
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
        // Nobody listens any more if the connection to the broker is gone: it delivers again by itself.
        let verdict = if *self.again.get_mut() { Verdict::Repeat } else { Verdict::Acknowledge };
        let _ = self.fates.send(Fate { tag: self.tag, verdict });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered() -> (Message, mpsc::UnboundedReceiver<Fate>) {
        let (fates, told) = mpsc::unbounded_channel();
        let delivery = Delivery::new(7, false, fates);
        (Message::new("key".into(), b"body", Some(delivery)), told)
    }

    #[test]
    fn the_broker_hears_of_it_when_the_last_copy_is_gone() {
        let (message, mut told) = delivered();
        let copy = message.clone();
        message.settle();
        assert!(told.try_recv().is_err());
        copy.settle();
        assert!(matches!(told.try_recv(), Ok(Fate { tag: 7, verdict: Verdict::Acknowledge })));
    }

    #[test]
    fn it_comes_again_if_one_copy_was_dropped() {
        let (message, mut told) = delivered();
        drop(message.clone());
        message.settle();
        assert!(matches!(told.try_recv(), Ok(Fate { tag: 7, verdict: Verdict::Repeat })));
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
}

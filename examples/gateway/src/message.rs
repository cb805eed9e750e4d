//! A message, its copies, and when the broker may forget it.
//!
//! A copy that was [settled](Message::settle) has met a fate that is known: it was flushed to a socket,
//! discarded by policy, or wanted by nobody. One that is merely dropped has not: its client's
//! connection broke, or the gateway stops, or panics. When the last copy is gone the broker is told
//! to forget the message if all of them were settled, and otherwise to deliver it again. What is
//! forgotten in the code comes again, then; it is not lost.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::ws::Utf8Bytes;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use tokio::sync::mpsc;

pub type Key = Arc<str>;

/// One copy of a message. The copies share the rest.
pub struct Message {
    shared: Arc<Shared>,
    settled: bool,
}

struct Shared {
    key: Key,
    body: Bytes,
    /// What is written to clients, made once for all of them.
    frame: OnceLock<Utf8Bytes>,
    delivery: Option<Delivery>,
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
    pub fn new(key: Key, body: Bytes, delivery: Option<Delivery>) -> Self {
        let shared = Shared { key, body, frame: OnceLock::new(), delivery };
        Self { shared: Arc::new(shared), settled: false }
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
        self.shared.frame.get_or_init(|| self.shared.to_json().into()).clone()
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

impl Shared {
    fn to_json(&self) -> String {
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
        let body = std::str::from_utf8(&self.body).ok();
        let base64 = body.is_none().then(|| BASE64_STANDARD.encode(&self.body));
        let redelivered = self.delivery.as_ref().is_some_and(|delivery| delivery.redelivered);
        let out = Out { r#type: "message", key: &self.key, body, base64, redelivered };
        serde_json::to_string(&out).expect("strings and a flag are JSON")
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
        (Message::new("key".into(), Bytes::from_static(b"body"), Some(delivery)), told)
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
        let message = Message::new("k\"".into(), Bytes::from_static(&[0xff, 0x00]), None);
        assert_eq!(message.frame().as_str(), r#"{"type":"message","key":"k\"","base64":"/wA="}"#);
        let message = Message::new("k".into(), Bytes::from_static(b"a\n"), None);
        assert_eq!(message.frame().as_str(), r#"{"type":"message","key":"k","body":"a\n"}"#);
    }
}

//! Verifiable messages: each has a header that identifies it and determines the rest.

use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Instant;

pub type Key = Arc<str>;

/// Quotes, backslashes, a control character, HTML special characters, two to four bytes of UTF-8.
const PATTERN: &str = "\"q\" \\b\\ \u{1}\n<b>&amp; é 漢 😀 ";
/// Every 16th message is not UTF-8.
const BINARY: usize = 16;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Identifies a message, and says when it was published.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    pub number: usize,
    /// Microseconds since the start of this process.
    pub sent: u64,
}

pub fn now() -> u64 {
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Returns the name of a key. Some names have characters that need escaping.
pub fn key(index: usize) -> Key {
    match index % 10 {
        3 => format!("größe {index}/a+b%20").into(),
        7 => format!("\"{index}\\ ?#").into(),
        _ => format!("k{index}").into(),
    }
}

/// Returns a body of about this size.
pub fn body(key: &str, number: usize, size: usize) -> Vec<u8> {
    let mut body = format!("{number} {} {size} {key}\n", now()).into_bytes();
    if number % BINARY == BINARY - 1 {
        body.extend([0xff, 0x00, 0xfe]);
    }
    while body.len() < size {
        body.extend(PATTERN.as_bytes());
    }
    body
}

/// Returns `None` if the body differs from what was published for this key.
pub fn check(key: &str, received: &[u8]) -> Option<Head> {
    let end = received.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&received[..end]).ok()?;
    let mut words = line.splitn(4, ' ');
    let number = words.next()?.parse().ok()?;
    let sent: u64 = words.next()?.parse().ok()?;
    let size: usize = words.next()?.parse().ok()?;
    let mut expected = format!("{number} {sent} {size} {key}\n").into_bytes();
    if number % BINARY == BINARY - 1 {
        expected.extend([0xff, 0x00, 0xfe]);
    }
    while expected.len() < size.min(received.len() + 1) {
        expected.extend(PATTERN.as_bytes());
    }
    (expected == received).then_some(Head { number, sent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_bodies_are_recognised() {
        for number in [0, 15, 31, 70_000] {
            for size in [0, 1, 200, 3000] {
                let key = key(number);
                let body = body(&key, number, size);
                assert!(body.len() >= size);
                assert_eq!(std::str::from_utf8(&body).is_err(), number % BINARY == BINARY - 1);
                assert_eq!(check(&key, &body).map(|head| head.number), Some(number));
            }
        }
    }

    #[test]
    fn anything_else_is_not() {
        let body = body("k1", 15, 200);
        assert_eq!(check("k2", &body), None);
        assert_eq!(check("k1", &body[..body.len() - 1]), None);
        assert_eq!(check("k1", &[&body[..], b" "].concat()), None);
        assert_eq!(check("k1", b""), None);
        assert_eq!(check("k1", b"not ours"), None);
        assert_eq!(check("k1", b"15 0 18446744073709551615 k1\n"), None);
        for at in 0..body.len() {
            let mut other = body.clone();
            other[at] ^= 0x40;
            let is_same = check("k1", &other).is_some_and(|head| head.number == 15);
            // Digits of the time are not covered by the check.
            assert!(!is_same || body[at].is_ascii_digit(), "at {at}");
        }
    }
}

//! Rewrites the bytes from the broker so that lapin can parse them safely.
//!
//! Publishers choose the properties and the routing key of their messages. lapin parses properties
//! recursively on a thread with a small stack, and fails the connection at the first byte that is
//! not UTF-8; the broker then redelivers the message. So properties are rewritten before lapin
//! reads them: only the header with the key and the fact that the body is JSON are kept. No
//! recursion is needed to find them, because every value that can be nested starts with its length.
//!
//! An unusable message loses its body, and the reason is put into its `type`. Publishers cannot
//! forge that, because their `type` is never kept.

use std::collections::HashMap;

use crate::message::is_json_type;

/// Bytes per read from the socket.
pub const CHUNK: usize = 64 * 1024;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
/// The length of a frame header: type, channel and size.
const OPENING: usize = 7;
const END: u8 = 0xce;
const BASIC: u16 = 60;
const DELIVER: u16 = 60;
/// Flags of properties, in the order of the properties.
const HAS_CONTENT_TYPE: u16 = 1 << 15;
const HAS_ENCODING: u16 = 1 << 14;
const HAS_HEADERS: u16 = 1 << 13;
const HAS_TYPE: u16 = 1 << 5;
const LONGEST_KEY: usize = 255;

/// The rules for messages.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The header with the key; `None` if the routing key is the key.
    pub key_header: Option<String>,
    pub max_body: usize,
}

pub struct Rewriter {
    rules: Rules,
    /// An incomplete frame.
    partial: Vec<u8>,
    /// Remaining bytes of the current frame, and whether they are passed on.
    rest: (usize, bool),
    /// By channel: why the current message is refused.
    refused: HashMap<u16, &'static str>,
    /// By channel: remaining bytes of the body of a refused message.
    unwanted: HashMap<u16, u64>,
}

impl Rewriter {
    pub fn new(rules: Rules) -> Self {
        let (refused, unwanted) = (HashMap::new(), HashMap::new());
        Self { rules, partial: Vec::new(), rest: (0, true), refused, unwanted }
    }

    pub fn rewrite(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        let mut take = |count: usize| bytes.split_off(..count.min(bytes.len())).unwrap_or_default();
        loop {
            let (rest, is_passed) = self.rest;
            let some = take(rest);
            if is_passed {
                out.extend_from_slice(some);
            }
            self.rest.0 -= some.len();
            self.partial.extend_from_slice(take(OPENING.saturating_sub(self.partial.len())));
            let Some(opening) = self.partial.first_chunk::<OPENING>() else { return };
            let [kind, a, b, size @ ..] = *opening;
            let (channel, size) = (u16::from_be_bytes([a, b]), u32::from_be_bytes(size) as usize);
            if kind == METHOD || kind == HEADER {
                let length = OPENING + size + 1;
                self.partial.extend_from_slice(take(length - self.partial.len()));
                if self.partial.len() < length {
                    return;
                }
                let frame = std::mem::take(&mut self.partial);
                let payload = &frame[OPENING..OPENING + size];
                let rewritten = match kind {
                    METHOD => self.method(channel, payload),
                    _ => self.header(channel, payload),
                };
                match rewritten {
                    Some(payload) => write_frame(out, kind, channel, &payload),
                    None => out.extend_from_slice(&frame),
                }
                self.partial = frame;
                self.partial.clear();
                self.partial.shrink_to(CHUNK);
                continue;
            }
            let is_unwanted = kind == BODY && self.skip(channel, size as u64);
            if !is_unwanted {
                out.extend_from_slice(&self.partial);
            }
            self.partial.clear();
            self.rest = (size + 1, !is_unwanted);
        }
    }

    /// Returns `true` if this is the body of a refused message.
    fn skip(&mut self, channel: u16, size: u64) -> bool {
        let Some(rest) = self.unwanted.get_mut(&channel) else { return false };
        *rest = rest.saturating_sub(size);
        if *rest == 0 {
            self.unwanted.remove(&channel);
        }
        true
    }

    /// Returns `None` if the frame needs no change.
    fn method(&mut self, channel: u16, payload: &[u8]) -> Option<Vec<u8>> {
        let mut fields = Fields(payload);
        if (fields.number()?, fields.number()?) != (BASIC, DELIVER) {
            return None;
        }
        let (_consumer, _tag, _redelivered) = (fields.short()?, fields.take(8)?, fields.take(1)?);
        let same = payload.len() - fields.0.len();
        let (exchange, key) = (fields.short()?, fields.short()?);
        self.refused.remove(&channel);
        let is_bad_key = str::from_utf8(key).is_err();
        if !is_bad_key && str::from_utf8(exchange).is_ok() {
            return None;
        }
        if is_bad_key && self.rules.key_header.is_none() {
            self.refused.insert(channel, "the routing key is not UTF-8");
        }
        let mut rewritten = payload[..same].to_vec();
        write_short(&mut rewritten, b""); // the exchange is not used
        write_short(&mut rewritten, if is_bad_key { b"" } else { key });
        Some(rewritten)
    }

    fn header(&mut self, channel: u16, payload: &[u8]) -> Option<Vec<u8>> {
        let mut fields = Fields(payload);
        if fields.number()? != BASIC {
            return None;
        }
        let _weight = fields.number()?;
        let size = u64::from_be_bytes(fields.take(8)?.try_into().ok()?);
        let (most, is_json) = (self.rules.max_body, fields.clone().read_json_type());
        let key = match &self.rules.key_header {
            Some(name) => find_key(fields, name.as_bytes()),
            None => Ok(None),
        };
        let why = match (self.refused.remove(&channel), &key) {
            (Some(why), _) => Some(why.to_owned()),
            (None, Err(why)) => Some((*why).to_owned()),
            _ if size > most as u64 => {
                Some(format!("it has {size} bytes, and --max-body is {most}"))
            }
            _ => None,
        };
        let mut rewritten = payload[..4].to_vec();
        if let Some(why) = why {
            if size > 0 {
                self.unwanted.insert(channel, size);
            }
            rewritten.extend_from_slice(&0_u64.to_be_bytes());
            rewritten.extend_from_slice(&HAS_TYPE.to_be_bytes());
            write_short(&mut rewritten, why.as_bytes());
        } else {
            rewritten.extend_from_slice(&size.to_be_bytes());
            let (mut flags, mut properties) = (0, Vec::new());
            if is_json {
                flags |= HAS_CONTENT_TYPE;
                write_short(&mut properties, b"application/json");
            }
            if let (Ok(Some(key)), Some(name)) = (key, &self.rules.key_header) {
                flags |= HAS_HEADERS;
                write_length(&mut properties, name.len() + 1 + 1 + 4 + key.len());
                write_short(&mut properties, name.as_bytes());
                properties.push(b'S');
                write_length(&mut properties, key.len());
                properties.extend_from_slice(key);
            }
            rewritten.extend_from_slice(&flags.to_be_bytes());
            rewritten.extend_from_slice(&properties);
        }
        Some(rewritten)
    }
}

/// Finds the value of this header in the properties.
fn find_key<'a>(mut fields: Fields<'a>, name: &[u8]) -> Result<Option<&'a [u8]>, &'static str> {
    const MALFORMED: &str = "its properties are malformed";
    let mut find = || {
        let flags = fields.flags()?;
        for flag in [HAS_CONTENT_TYPE, HAS_ENCODING] {
            if flags & flag != 0 {
                fields.short()?;
            }
        }
        if flags & HAS_HEADERS == 0 {
            return Some(None);
        }
        let mut table = Fields(fields.long()?);
        while !table.0.is_empty() {
            let (other, kind) = (table.short()?, table.take(1)?[0]);
            let value = table.value(kind)?;
            if other == name && kind == b'S' {
                return Some(Some(value));
            }
        }
        Some(None)
    };
    match find().ok_or(MALFORMED)? {
        Some(key) if key.len() > LONGEST_KEY => Err("the key is longer than 255 bytes"),
        Some(key) if str::from_utf8(key).is_err() => Err("the key is not UTF-8"),
        found => Ok(found),
    }
}

/// The unread part of encoded fields. All methods return `None` if it is too short.
#[derive(Clone)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        self.0.split_off(..count)
    }

    fn number(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// Reads the property flags.
    fn flags(&mut self) -> Option<u16> {
        let flags = self.number()?;
        let mut more = flags;
        while more & 1 == 1 {
            more = self.number()?;
        }
        Some(flags)
    }

    /// Returns `true` if the content type in these properties is JSON.
    fn read_json_type(mut self) -> bool {
        let has_type = self.flags().is_some_and(|flags| flags & HAS_CONTENT_TYPE != 0);
        has_type && self.short().is_some_and(is_json_type)
    }

    /// Reads a short string.
    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    /// Reads a long string, a table or an array.
    fn long(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
        self.take(length as usize)
    }

    /// Reads a value in a table, of any type that RabbitMQ supports.
    fn value(&mut self, kind: u8) -> Option<&'a [u8]> {
        match kind {
            b'S' | b'A' | b'F' | b'x' => self.long(),
            b'V' => self.take(0),
            b't' | b'b' | b'B' => self.take(1),
            b's' | b'u' => self.take(2),
            b'I' | b'i' | b'f' => self.take(4),
            b'D' => self.take(5),
            b'l' | b'L' | b'd' | b'T' => self.take(8),
            _ => None,
        }
    }
}

fn write_frame(out: &mut Vec<u8>, kind: u8, channel: u16, payload: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    write_length(out, payload.len());
    out.extend_from_slice(payload);
    out.push(END);
}

fn write_length(out: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).expect("it is shorter than the frame it was read from");
    out.extend_from_slice(&length.to_be_bytes());
}

/// Writes a short string, truncated to its maximum. The text is ASCII, or was read from a short
/// string.
fn write_short(out: &mut Vec<u8>, text: &[u8]) {
    let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
    out.push(length);
    out.extend_from_slice(&text[..length.into()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        write_frame(&mut frame, kind, 1, payload);
        frame
    }

    fn deliver(exchange: &[u8], key: &[u8]) -> Vec<u8> {
        let mut payload = vec![0, 60, 0, 60, 1, b'c', 0, 0, 0, 0, 0, 0, 0, 7, 0];
        write_short(&mut payload, exchange);
        write_short(&mut payload, key);
        frame(METHOD, &payload)
    }

    fn header(size: u64, flags: u16, properties: &[u8]) -> Vec<u8> {
        let mut payload = vec![0, 60, 0, 0];
        payload.extend(size.to_be_bytes());
        payload.extend(flags.to_be_bytes());
        payload.extend(properties);
        frame(HEADER, &payload)
    }

    fn table(entries: &[(&[u8], u8, &[u8])]) -> Vec<u8> {
        let mut inner = Vec::new();
        for (name, kind, value) in entries {
            write_short(&mut inner, name);
            inner.push(*kind);
            inner.extend(*value);
        }
        long(&inner)
    }

    fn long(bytes: &[u8]) -> Vec<u8> {
        let mut long = Vec::new();
        write_length(&mut long, bytes.len());
        long.extend(bytes);
        long
    }

    /// Returns nested arrays or tables, the innermost of which is empty.
    fn nested(depth: usize, kind: u8) -> Vec<u8> {
        let name: &[u8] = if kind == b'F' { b"\x01n" } else { b"" };
        let (level, mut value) = (4 + name.len() + 1, Vec::new());
        for inner in (0..depth).rev() {
            write_length(&mut value, inner * level);
            if inner > 0 {
                value.extend(name);
                value.push(kind);
            }
        }
        value
    }

    fn refused(why: &str) -> Vec<u8> {
        let mut properties = Vec::new();
        write_short(&mut properties, why.as_bytes());
        header(0, HAS_TYPE, &properties)
    }

    /// Rewrites the frames, and checks that the result does not depend on how the input is cut.
    fn rewrite(key_header: Option<&str>, frames: &[Vec<u8>]) -> Vec<u8> {
        let rules = Rules { key_header: key_header.map(str::to_owned), max_body: 10 };
        let all = frames.concat();
        let by = |length: usize| {
            let (mut rewriter, mut out) = (Rewriter::new(rules.clone()), Vec::new());
            all.chunks(length).for_each(|chunk| rewriter.rewrite(chunk, &mut out));
            out
        };
        let whole = by(all.len());
        for length in [1, 2, 7, 8, 64] {
            assert!(by(length) == whole, "in pieces of {length}");
        }
        whole
    }

    #[test]
    fn of_a_message_only_key_and_body_are_passed_on() {
        let kept = [frame(8, b""), deliver(b"e", b"key"), header(5, 0, b""), frame(BODY, b"hello")];
        assert_eq!(rewrite(None, &kept), kept.concat());
        let properties = [&[1, b't', 1, b'u'][..], &nested(3, b'A'), &[2]].concat();
        let flags = HAS_CONTENT_TYPE | HAS_ENCODING | HAS_HEADERS | 1 << 12;
        let frames = [kept[1].clone(), header(5, flags, &properties), kept[3].clone()];
        assert_eq!(rewrite(None, &frames), kept[1..].concat());
        // A protocol header of another version, and methods other than deliveries.
        assert_eq!(rewrite(None, &[b"AMQP\x00\x00\x09\x01".to_vec()]), b"AMQP\x00\x00\x09\x01");
        let other = frame(METHOD, b"\x00\x3c\x00\x50\xff");
        assert_eq!(rewrite(None, std::slice::from_ref(&other)), other);
    }

    #[test]
    fn json_content_type_is_kept() {
        let headers = table(&[(b"key", b'S', &long(b"tea"))]);
        let (delivery, body) = (deliver(b"e", b"k"), frame(BODY, b"{}"));
        for content_type in [&b"application/json"[..], b"Application/JSON ; charset=utf-8"] {
            let mut sent = vec![u8::try_from(content_type.len()).unwrap()];
            sent.extend_from_slice(content_type);
            let json = [&[16], &b"application/json"[..]].concat();
            let with = |flags, properties: &[u8]| {
                [delivery.clone(), header(2, flags, properties), body.clone()]
            };
            let rewritten =
                rewrite(None, &with(HAS_CONTENT_TYPE | 1 << 12, &[&sent, &[2][..]].concat()));
            assert_eq!(rewritten, with(HAS_CONTENT_TYPE, &json).concat());
            let flags = HAS_CONTENT_TYPE | HAS_HEADERS;
            let rewritten = rewrite(Some("key"), &with(flags, &[&sent, &headers[..]].concat()));
            assert_eq!(rewritten, with(flags, &[&json, &headers[..]].concat()).concat());
        }
    }

    #[test]
    fn nesting_as_deep_as_a_frame_admits_does_no_harm() {
        for (kind, depth) in [(b'A', 26_200), (b'F', 18_700)] {
            let deep = nested(depth, kind);
            assert!(deep.len() > 130_000, "RabbitMQ's frames have at most 131,072 bytes");
            let headers = table(&[(b"deep", kind, &deep), (b"key", b'S', &long(b"tea"))]);
            let frames =
                [deliver(b"e", b"k"), header(2, HAS_HEADERS, &headers), frame(BODY, b"ok")];
            let without = [deliver(b"e", b"k"), header(2, 0, b""), frame(BODY, b"ok")];
            assert!(rewrite(None, &frames) == without.concat());
            let kept = table(&[(b"key", b'S', &long(b"tea"))]);
            let with = [deliver(b"e", b"k"), header(2, HAS_HEADERS, &kept), frame(BODY, b"ok")];
            assert!(rewrite(Some("key"), &frames) == with.concat());
        }
    }

    #[test]
    fn invalid_utf8_is_not_passed_on() {
        let (good, body) = (deliver(b"e", b"k"), frame(BODY, b"ok"));
        for (flags, properties) in [
            (HAS_CONTENT_TYPE, vec![1, 0xff]),
            (1 << 3, vec![1, 0xff]), // app_id
            (HAS_HEADERS, table(&[(b"\xff", b'S', &long(b"x"))])),
        ] {
            let frames = [good.clone(), header(2, flags, &properties), body.clone()];
            let expected = [good.clone(), header(2, 0, b""), body.clone()];
            assert_eq!(rewrite(None, &frames), expected.concat());
        }
        let frames = [deliver(b"\xff", b"k"), header(2, 0, b""), body.clone()];
        let expected = [deliver(b"", b"k"), header(2, 0, b""), body.clone()];
        assert_eq!(rewrite(None, &frames), expected.concat());
        let frames = [deliver(b"e", b"\xff"), header(2, 0, b""), body, good.clone()];
        let expected = [deliver(b"", b""), refused("the routing key is not UTF-8"), good];
        assert_eq!(rewrite(None, &frames), expected.concat());
    }

    #[test]
    fn a_body_that_is_too_large_is_left_out() {
        let (first, half) = (deliver(b"e", b"k"), frame(BODY, b"123456"));
        let mut elsewhere = half.clone();
        elsewhere[2] = 2; // the channel
        let frames =
            [first.clone(), header(12, 0, b""), half.clone(), elsewhere.clone(), half.clone()];
        let next = [first.clone(), header(6, 0, b""), half];
        let why = refused("it has 12 bytes, and --max-body is 10");
        let expected = [&[first, why, elsewhere][..], &next].concat().concat();
        assert_eq!(rewrite(None, &[&frames[..], &next].concat()), expected);
    }

    #[test]
    fn a_key_in_a_header_must_be_one() {
        let found = |headers: &[u8]| {
            rewrite(Some("key"), &[deliver(b"e", b"\xff"), header(0, HAS_HEADERS, headers)])
        };
        let expected = |header: Vec<u8>| [deliver(b"", b""), header].concat();
        let good = table(&[(b"key", b'S', &long(b"tea"))]);
        assert_eq!(found(&good), expected(header(0, HAS_HEADERS, &good)));
        assert_eq!(found(&table(&[(b"key", b'I', &[0; 4])])), expected(header(0, 0, b"")));
        for (value, why) in [
            (long(b"\xff"), "the key is not UTF-8"),
            (long(&[b'k'; 256]), "the key is longer than 255 bytes"),
            (vec![0, 0, 0, 9], "its properties are malformed"),
        ] {
            assert_eq!(found(&table(&[(b"key", b'S', &value)])), expected(refused(why)));
        }
        assert_eq!(
            found(&table(&[(b"x", b'?', b"")])),
            expected(refused("its properties are malformed"))
        );
    }
}

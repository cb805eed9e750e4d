//! Cheap WebSocket clients: one thread, one task each, and payloads are not parsed. Each client has
//! one key, and detects missing messages by their numbers.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use memchr::memmem;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;

use crate::wire::{self, Stamp, Subscribing};

/// Counters over all clients.
pub struct Tally {
    start: Instant,
    pub confirmed: Cell<usize>,
    pub received: Cell<u64>,
    /// Missing, duplicated or reordered messages.
    pub wrong: Cell<u64>,
    /// Connections that ended, and why.
    pub ended: RefCell<Vec<String>>,
    /// Time from publishing to receiving in microseconds, if `times` is set.
    pub latencies: RefCell<Vec<u64>>,
    pub times: Cell<bool>,
    /// Notifies when this many messages were received.
    pub awaited: Cell<u64>,
    pub changed: Notify,
    buffer: RefCell<Box<[u8]>>,
}

impl Tally {
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            start: Instant::now(),
            confirmed: Cell::default(),
            received: Cell::default(),
            wrong: Cell::default(),
            ended: RefCell::default(),
            latencies: RefCell::default(),
            times: Cell::default(),
            awaited: Cell::new(u64::MAX),
            changed: Notify::new(),
            buffer: RefCell::new(vec![0; 64 * 1024].into()),
        })
    }

    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Records that a connection has ended.
    pub fn end(&self, why: String) {
        self.ended.borrow_mut().push(why);
        self.changed.notify_one();
    }

    fn confirm(&self) {
        self.confirmed.set(self.confirmed.get() + 1);
        self.changed.notify_one();
    }
}

/// One client and the state of its key.
pub struct Subscriber {
    tally: Rc<Tally>,
    subscribing: Subscribing,
    key: usize,
    stream: TcpStream,
    /// An incomplete frame.
    partial: Vec<u8>,
    next: u64,
    is_confirmed: bool,
}

impl Subscriber {
    /// Connects and subscribes, without waiting for the confirmation. `buffer` sets the receive
    /// buffer in the kernel.
    pub async fn connect(
        tally: &Rc<Tally>,
        to: SocketAddr,
        subscribing: Subscribing,
        key: usize,
        client: usize,
        buffer: Option<u32>,
    ) -> Result<Self, String> {
        let name = wire::key(key);
        let (path, protocol) = subscribing.path(&name);
        let open = async {
            let socket = TcpSocket::new_v4()?;
            if let Some(size) = buffer {
                socket.set_recv_buffer_size(size)?;
            }
            let mut stream = socket.connect(to).await?;
            stream.set_nodelay(true)?;
            let protocol = protocol
                .map(|name| format!("Sec-WebSocket-Protocol: {name}\r\n"))
                .unwrap_or_default();
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: {to}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{protocol}\r\n"
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            let head = loop {
                if stream.read_buf(&mut answer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if let Some(at) = memmem::find(&answer, b"\r\n\r\n") {
                    break at + 4;
                }
            };
            if !answer.starts_with(b"HTTP/1.1 101") {
                let answer = String::from_utf8_lossy(&answer).into_owned();
                return Err(io::Error::other(answer));
            }
            answer.drain(..head);
            for hello in subscribing.hello(&name, client) {
                stream
                    .write_all(&frame(if subscribing.is_binary() { 2 } else { 1 }, &hello))
                    .await?;
            }
            Ok::<_, io::Error>((stream, answer))
        };
        let (stream, partial) =
            open.await.map_err(|error| format!("no WebSocket to {to}{path}: {error}"))?;
        let tally = Rc::clone(tally);
        let mut subscriber =
            Self { tally, subscribing, key, stream, partial, next: 0, is_confirmed: false };
        if subscribing.confirmation().is_none() {
            subscriber.confirm();
        }
        Ok(subscriber)
    }

    fn confirm(&mut self) {
        self.is_confirmed = true;
        self.tally.confirm();
    }

    /// Receives until the connection ends.
    pub async fn run(mut self) {
        let ended = loop {
            match poll_fn(|cx| self.poll_read(cx)).await {
                Ok(0) => break "closed by the server".to_owned(),
                Ok(_) => {}
                Err(error) => break error.to_string(),
            }
        };
        self.tally.end(ended);
    }

    /// Reads into a buffer that all clients share.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let tally = Rc::clone(&self.tally);
        let mut shared = tally.buffer.borrow_mut();
        let mut buffer = ReadBuf::new(&mut shared);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        let count = buffer.filled().len();
        if self.partial.is_empty() {
            let rest = self.frames(buffer.filled());
            self.partial.extend(rest);
        } else {
            let mut all = std::mem::take(&mut self.partial);
            all.extend(buffer.filled());
            let rest = self.frames(&all).len();
            all.drain(..all.len() - rest);
            self.partial = all;
        }
        Poll::Ready(Ok(count))
    }

    /// Handles complete frames, and returns the rest.
    fn frames<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while let Some((opcode, payload, rest)) = split(bytes) {
            bytes = rest;
            match opcode {
                0..=2 => self.payload(payload),
                9 => drop(self.stream.try_write(&frame(10, payload))),
                _ => {}
            }
        }
        bytes
    }

    fn payload(&mut self, payload: &[u8]) {
        if !self.is_confirmed
            && self.subscribing.confirmation().is_some_and(|it| memmem::find(payload, it).is_some())
        {
            self.confirm();
        }
        let tally = Rc::clone(&self.tally);
        Stamp::find(payload, |stamp| {
            if stamp.key != self.key || stamp.number != self.next {
                tally.wrong.set(tally.wrong.get() + 1);
            }
            self.next = stamp.number + 1;
            let received = tally.received.get() + 1;
            tally.received.set(received);
            if tally.times.get() {
                tally.latencies.borrow_mut().push(tally.now().saturating_sub(stamp.sent));
            }
            if received >= tally.awaited.get() {
                tally.awaited.set(u64::MAX);
                tally.changed.notify_one();
            }
        });
    }
}

/// Returns a client frame with a short payload, masked with zeros.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let [high, low] = length.to_be_bytes();
    let mut all = vec![0x80 | opcode];
    if length < 126 {
        all.push(0x80 | low);
    } else {
        all.extend([0xfe, high, low]);
    }
    all.extend([0; 4]);
    all.extend(payload);
    all
}

/// Splits off a server's frame: opcode, payload and rest. Returns `None` if it is incomplete.
fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [first, second, rest @ ..] = bytes else { return None };
    let (length, rest) = match second & 0x7f {
        126 => {
            let (length, rest) = rest.split_first_chunk()?;
            (u64::from(u16::from_be_bytes(*length)), rest)
        }
        127 => {
            let (length, rest) = rest.split_first_chunk()?;
            (u64::from_be_bytes(*length), rest)
        }
        short => (u64::from(short), rest),
    };
    let (payload, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((first & 0x0f, payload, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_all_lengths_are_split_and_incomplete_ones_are_not() {
        for length in [0, 1, 125, 126, 65_535, 70_000] {
            let payload = vec![7; length];
            let mut bytes = vec![0x82];
            match length {
                0..126 => bytes.push(u8::try_from(length).unwrap()),
                126..65_536 => {
                    bytes.push(126);
                    bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
                }
                _ => {
                    bytes.push(127);
                    bytes.extend((length as u64).to_be_bytes());
                }
            }
            bytes.extend(&payload);
            for end in 0..bytes.len().min(20) {
                assert!(end == bytes.len() || split(&bytes[..end]).is_none());
            }
            bytes.extend([1, 2, 3]);
            assert_eq!(split(&bytes), Some((2, &payload[..], &[1, 2, 3][..])));
        }
    }
}

//! Publishes in a closed window: the number of messages in flight, as counted by the subscribers,
//! is bounded.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::subscriber::Tally;
use crate::wire::{Publishing, Stamp};

/// How long there may be no progress.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of messages in flight, and how many must arrive before more are sent.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub size: u64,
    pub refill: u64,
}

pub struct Publisher {
    tally: Rc<Tally>,
    publishing: Publishing,
    connections: Vec<Connection>,
    /// The next message number of each key.
    next: Vec<u64>,
    /// The number of subscribers of each key.
    fan_out: u64,
    published: u64,
}

#[derive(Default)]
struct Answers {
    good: Cell<u64>,
    /// Why the connection ended.
    ended: RefCell<Option<String>>,
}

struct Connection {
    writer: OwnedWriteHalf,
    /// Messages to be written together.
    due: Vec<Stamp>,
    expected: u64,
    answers: Rc<Answers>,
}

impl Publisher {
    /// Each key always uses the same connection.
    pub async fn connect(
        tally: &Rc<Tally>,
        to: SocketAddr,
        publishing: Publishing,
        connections: usize,
        keys: usize,
        fan_out: u64,
    ) -> Result<Self, String> {
        let mut all = Vec::new();
        for nth in 0..connections.min(keys) {
            let opened = timeout(TIMEOUT, Connection::open(to, publishing, nth)).await;
            all.push(
                opened.map_err(|_| {
                    format!("{to} does not complete the handshake of a publisher")
                })??,
            );
        }
        let tally = Rc::clone(tally);
        Ok(Self { tally, publishing, connections: all, next: vec![0; keys], fan_out, published: 0 })
    }

    /// Publishes `count` messages, round robin over the keys, and waits until all are received.
    pub async fn publish(
        &mut self,
        count: u64,
        Window { size, refill }: Window,
    ) -> Result<(), String> {
        let last = self.published + count;
        while self.published < last {
            let received = self.tally.received.get() / self.fan_out;
            let room = (size + received).saturating_sub(self.published);
            self.send(room.min(last - self.published)).await?;
            let target = self.published.saturating_sub(size - refill);
            self.received(if self.published == last { last } else { target }).await?;
        }
        Ok(())
    }

    /// Publishes at a fixed rate for a fixed time, and then waits until all messages are received.
    pub async fn publish_at(&mut self, rate: u32, duration: Duration) -> Result<(), String> {
        let start = Instant::now();
        let each = Duration::from_secs(1) / rate;
        for nth in 1..=rate * u32::try_from(duration.as_secs()).unwrap_or(u32::MAX) {
            self.send(1).await?;
            sleep_until(start + each * nth).await;
        }
        self.received(self.published).await
    }

    async fn send(&mut self, count: u64) -> Result<(), String> {
        let keys = self.next.len();
        let connections = self.connections.len();
        for _ in 0..count {
            let key = usize::try_from(self.published).unwrap_or(0) % keys;
            let stamp = Stamp { key, number: self.next[key], sent: self.tally.now() };
            self.next[key] += 1;
            self.published += 1;
            self.connections[key % connections].due.push(stamp);
        }
        for connection in &mut self.connections {
            connection.write(self.publishing).await?;
        }
        Ok(())
    }

    /// Waits until the subscribers have received all copies of the first `messages` messages.
    async fn received(&self, messages: u64) -> Result<(), String> {
        let wanted = messages * self.fan_out;
        loop {
            let received = self.tally.received.get();
            if received >= wanted {
                return Ok(());
            }
            self.tally.awaited.set(wanted);
            let changed = timeout(TIMEOUT, self.tally.changed.notified()).await;
            if let Some(ended) = self.tally.ended.borrow().first() {
                return Err(format!("a subscriber's connection: {ended}"));
            }
            if changed.is_err() && self.tally.received.get() == received {
                self.answers()?;
                return Err(format!("{} lost", wanted - received));
            }
        }
    }

    /// Returns the number of missing answers.
    fn answers(&self) -> Result<u64, String> {
        let mut missing = 0;
        for Connection { expected, answers, .. } in &self.connections {
            if let Some(ended) = &*answers.ended.borrow() {
                return Err(format!("a publisher's connection: {ended}"));
            }
            missing += expected - answers.good.get();
        }
        Ok(missing)
    }

    /// Waits for all answers, and fails unless all of them are good.
    pub async fn finish(self) -> Result<(), String> {
        let start = Instant::now();
        while self.answers()? > 0 {
            if start.elapsed() > TIMEOUT {
                return Err(format!("{} posts are not answered", self.answers()?));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

impl Connection {
    async fn open(to: SocketAddr, publishing: Publishing, nth: usize) -> Result<Self, String> {
        let opening = async {
            let stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            let (mut reader, mut writer) = stream.into_split();
            writer.write_all(&publishing.hello(nth)).await?;
            if let Some(welcome) = publishing.welcome() {
                let mut answer = Vec::new();
                while memmem::find(&answer, welcome).is_none() {
                    if reader.read_buf(&mut answer).await? == 0 {
                        return Err(std::io::Error::other(String::from_utf8_lossy(&answer)));
                    }
                }
            }
            Ok((reader, writer))
        };
        let (reader, writer) =
            opening.await.map_err(|error| format!("no connection to {to}: {error}"))?;
        let answers = Rc::<Answers>::default();
        spawn_local(read(reader, Rc::clone(&answers)));
        Ok(Self { writer, due: Vec::new(), expected: 0, answers })
    }

    async fn write(&mut self, publishing: Publishing) -> Result<(), String> {
        if self.due.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.expected += publishing.append(&self.due, &mut bytes);
        self.due.clear();
        self.writer.write_all(&bytes).await.map_err(|error| format!("publishing: {error}"))
    }
}

/// Counts HTTP answers until the end; all must be 2xx. Other protocols have no answers.
async fn read(mut reader: OwnedReadHalf, answers: Rc<Answers>) {
    const LINE: &[u8] = b"HTTP/1.1 ";
    let mut bytes = Vec::new();
    let ended = loop {
        match reader.read_buf(&mut bytes).await {
            Ok(0) => break "closed by the server".to_owned(),
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
        let mut end = 0;
        for at in memmem::find_iter(&bytes, LINE) {
            match bytes.get(at + LINE.len()) {
                Some(b'2') => answers.good.set(answers.good.get() + 1),
                Some(_) => {
                    *answers.ended.borrow_mut() =
                        Some(String::from_utf8_lossy(&bytes[at..]).into());
                    return;
                }
                None => break,
            }
            end = at + LINE.len();
        }
        // Keep a partial status line.
        bytes.drain(..end.max(bytes.len().saturating_sub(LINE.len())));
    };
    *answers.ended.borrow_mut() = Some(ended);
}

//! A server in the test process, and a service that answers when the test releases its calls.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test uses only some of it")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thrift::protocol::{TMessageType, TType};
use thrift_demux::demo::{Demo, Example, OneOfEach, Serve};
use thrift_demux::{
    Client, Error, Limits, Message, Options, Protocol, Report, Service, Settings, serve,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Time limit of a watchdog, which can only fail a test.
pub const LONG: Duration = Duration::from_secs(60);

/// Reads the next answer from a socket.
pub async fn answer(socket: &mut TcpStream) -> Message {
    let length = timeout(LONG, socket.read_u32()).await.expect("no answer arrived").unwrap();
    let mut frame = vec![0; length as usize];
    timeout(LONG, socket.read_exact(&mut frame)).await.expect("no answer arrived").unwrap();
    Message::open(&frame.into(), &Limits::default()).unwrap()
}

pub struct Server {
    pub address: SocketAddr,
    stop: CancellationToken,
    done: JoinHandle<Report>,
}

impl Server {
    pub async fn start(service: impl Service, settings: Settings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let done = tokio::spawn(serve(listener, service, settings, stop.clone()));
        Self { address, stop, done }
    }

    pub async fn example() -> Self {
        Self::start(Serve(Arc::new(Example::default())), Settings::default()).await
    }

    pub async fn client(&self, protocol: Protocol) -> Client {
        Client::connect(self.address, options(protocol)).await.unwrap()
    }

    pub async fn stop(self) -> Report {
        self.stop.cancel();
        timeout(LONG, self.done).await.expect("the server did not stop").unwrap()
    }
}

pub fn options(protocol: Protocol) -> Options {
    Options { protocol, ..Options::default() }
}

/// Frames as an untrusted client could write them.
pub mod raw {
    use thrift::protocol::{
        TBinaryOutputProtocol, TCompactOutputProtocol, TFieldIdentifier, TMessageIdentifier,
        TMessageType, TOutputProtocol, TType,
    };
    use thrift_demux::Protocol;

    pub type To<'a> = &'a mut dyn TOutputProtocol;

    /// Encodes a message, without the length of its frame.
    pub fn message(
        protocol: Protocol,
        name: &str,
        kind: TMessageType,
        id: i32,
        body: impl FnOnce(To<'_>),
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        let head = TMessageIdentifier::new(name, kind, id);
        let write = |to: To<'_>| {
            to.write_message_begin(&head).unwrap();
            body(to);
        };
        match protocol {
            Protocol::Binary => write(&mut TBinaryOutputProtocol::new(&mut bytes, true)),
            Protocol::Compact => write(&mut TCompactOutputProtocol::new(&mut bytes)),
        }
        bytes
    }

    /// Encodes `bytes` as a frame.
    pub fn frame(bytes: &[u8]) -> Vec<u8> {
        [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    }

    /// Encodes the frame of a call, whose arguments are written by `fields`.
    pub fn call(protocol: Protocol, name: &str, id: i32, fields: impl FnOnce(To<'_>)) -> Vec<u8> {
        frame(&message(protocol, name, TMessageType::Call, id, |to| {
            fields(to);
            to.write_field_stop().unwrap();
        }))
    }

    pub fn field(to: To<'_>, field_type: TType, id: i16) {
        to.write_field_begin(&TFieldIdentifier::new("", field_type, id)).unwrap();
    }

    pub fn string(to: To<'_>, id: i16, text: &str) {
        field(to, TType::String, id);
        to.write_string(text).unwrap();
    }
}

/// Waits until no call is attached.
pub async fn nothing_left(client: &Client) {
    let empty = async {
        while client.counts().waiting > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, empty)
        .await
        .unwrap_or_else(|_| panic!("calls are still attached: {:?}", client.counts()));
}

/// A call of `later` that waits for its release.
#[derive(Debug)]
pub struct Held {
    pub text: String,
    pub release: oneshot::Sender<()>,
}

/// Answers `later` when the test releases the call, and all other methods like the example.
pub struct Gate {
    arrivals: mpsc::UnboundedSender<Held>,
    /// The texts of answered calls, in the order of the answers.
    pub answered: Mutex<Vec<String>>,
    example: Example,
}

impl Gate {
    pub fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Held>) {
        let (arrivals, held) = mpsc::unbounded_channel();
        let gate = Self { arrivals, answered: Mutex::default(), example: Example::default() };
        (Arc::new(gate), held)
    }
}

/// What a service panics with, which panics when it is dropped.
struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("a service that panics");
    }
}

impl Demo for Gate {
    async fn ping(&self) -> Result<(), Error> {
        self.example.ping().await
    }
    async fn add(&self, left: i64, right: i64) -> Result<i64, Error> {
        if left == i64::MIN {
            std::panic::panic_any(Panics);
        }
        self.example.add(left, right).await
    }
    async fn echo(&self, text: String) -> Result<String, Error> {
        self.example.echo(text).await
    }
    async fn later(&self, text: String, _millis: i32) -> Result<String, Error> {
        let (release, released) = oneshot::channel();
        let shown: String = text.chars().take(100).collect(); // some are a megabyte
        let _ = self.arrivals.send(Held { text: shown.clone(), release });
        let _ = released.await;
        self.answered.lock().unwrap().push(shown);
        Ok(text)
    }
    async fn each(&self, value: OneOfEach) -> Result<OneOfEach, Error> {
        self.example.each(value).await
    }
    async fn sum(&self, values: Vec<i64>) -> Result<i64, Error> {
        self.example.sum(values).await
    }
    async fn count(&self, words: Vec<String>) -> Result<BTreeMap<String, i32>, Error> {
        self.example.count(words).await
    }
    async fn note(&self, text: String) {
        self.example.note(text).await;
    }
    async fn notes(&self) -> Result<i64, Error> {
        self.example.notes().await
    }
}

pub fn within(deadline: Duration) -> Options {
    Options { deadline, ..Options::default() }
}

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Reads the next request.
pub async fn request(socket: &mut (impl AsyncRead + Unpin)) -> Option<Message> {
    let length = socket.read_u32().await.ok()?;
    let mut frame = vec![0; length as usize];
    socket.read_exact(&mut frame).await.ok()?;
    Some(Message::open(&frame.into(), &Limits::default()).unwrap())
}

/// The answer to a request, with the result "an answer".
pub fn reply(to: &Message, id: i32) -> Vec<u8> {
    raw::frame(&raw::message(to.protocol, &to.name, TMessageType::Reply, id, |to| {
        raw::string(to, 0, "an answer");
        to.write_field_stop().unwrap();
    }))
}

/// The answer to a request, with the result 2.
pub fn two(to: &Message) -> Vec<u8> {
    raw::frame(&raw::message(to.protocol, &to.name, TMessageType::Reply, to.id, |to| {
        raw::field(to, TType::I64, 0);
        to.write_i64(2).unwrap();
        to.write_field_stop().unwrap();
    }))
}

/// Runs `script` for each connection, with its number. Returns the address and the number of
/// connections so far.
pub async fn scripted<F>(
    script: impl Fn(TcpStream, usize) -> F + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(script(socket, counter.fetch_add(1, SeqCst)));
        }
    });
    (address, connections)
}

/// Reads requests and answers none.
pub async fn reads_only(mut socket: TcpStream, _: usize) {
    while request(&mut socket).await.is_some() {}
}

/// Answers all requests.
pub async fn answers(mut socket: TcpStream, _: usize) {
    while let Some(call) = request(&mut socket).await {
        if socket.write_all(&reply(&call, call.id)).await.is_err() {
            break;
        }
    }
}

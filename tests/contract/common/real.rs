//! Real channels and runtimes, for tests that need tokio.
//!
//! Nothing here sleeps. Each program runs in a separate thread; if it takes more than a minute, the
//! test fails.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{self as std_mpsc, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use futures::channel::mpsc as futures_mpsc;
use futures::stream::BoxStream;
use futures::{Sink, SinkExt, Stream, StreamExt, future};
use stream_demux::{Detached, Discarded, Hooks, Overflow, Recipient, Totals};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec, LinesCodecError};
use tokio_util::sync::PollSender;

/// Time limit of a program.
const PATIENCE: Duration = Duration::from_secs(60);

/// The runtimes of tokio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    CurrentThread,
    Workers(usize),
}

pub const RUNTIMES: [Flavor; 4] =
    [Flavor::CurrentThread, Flavor::Workers(1), Flavor::Workers(2), Flavor::Workers(4)];

impl Flavor {
    pub fn runtime(self) -> Runtime {
        match self {
            Self::CurrentThread => Builder::new_current_thread().enable_io().build(),
            Self::Workers(n) => Builder::new_multi_thread().worker_threads(n).enable_io().build(),
        }
        .expect("cannot build a runtime")
    }

    /// Runs `program` to completion on this runtime.
    #[track_caller]
    pub fn run<F>(self, program: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.try_run(program).unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Runs `program` to completion on this runtime.
    ///
    /// # Errors
    ///
    /// Returns what happened if it panics or does not finish within a minute.
    pub fn try_run<F>(self, program: F) -> Result<F::Output, &'static str>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        within_a_minute(move || self.runtime().block_on(program))
    }
}

/// Runs a program in a thread of its own. A lost wake-up would let it wait forever.
///
/// # Errors
///
/// Returns what happened if it panics or does not finish within a minute.
pub fn within_a_minute<T: Send + 'static>(
    program: impl FnOnce() -> T + Send + 'static,
) -> Result<T, &'static str> {
    let (done, output) = std_mpsc::channel();
    let runner = thread::spawn(move || drop(done.send(program())));
    output.recv_timeout(PATIENCE).map_err(|error| match error {
        RecvTimeoutError::Disconnected => {
            drop(runner.join());
            "the program panicked"
        }
        RecvTimeoutError::Timeout => "the program did not finish",
    })
}

/// A tokio receiver as a stream.
pub struct Receiving<T>(pub mpsc::Receiver<T>);

impl<T> Stream for Receiving<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}

/// Creates a bounded channel of tokio. Returns its sender as a sink, and its receiver.
pub fn tokio_channel<T: Send + 'static>(room: usize) -> (PollSender<T>, mpsc::Receiver<T>) {
    let (sender, receiver) = mpsc::channel(room);
    (PollSender::new(sender), receiver)
}

/// The policies.
pub const POLICIES: [Overflow; 5] = [
    Overflow::Wait,
    Overflow::DropNewest,
    Overflow::DropOldest,
    Overflow::Evict,
    Overflow::Conflate,
];

/// How the sinks of a key share its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    Alone,
    Multicast,
    Balance,
}

/// A sink whose error is a string.
pub type BoxedSink<V> = Pin<Box<dyn Sink<V, Error = String> + Send>>;
/// The end of a pipe that takes items.
pub type Sending = BoxedSink<u32>;
/// The end of a pipe that returns them.
pub type Receipt = BoxStream<'static, u32>;

/// What connects two tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipe {
    /// A channel of tokio.
    Tokio,
    /// Two channels of tokio that get the same items: each item is two operations.
    Pair,
    /// A channel of `futures`, which never yields.
    Futures,
    /// Lines, through tokio's pipe in memory. Few items make a write.
    Duplex,
    /// Lines over a TCP connection. Few items make a write.
    Tcp,
}

impl Pipe {
    /// Opens a pipe with room for `room` items, and returns both ends. `Futures` has room for one
    /// more, and `Tcp` for what its buffers hold.
    pub async fn open(self, room: usize) -> (Sending, Receipt) {
        match self {
            Self::Tokio => {
                let (sink, receiver) = tokio_channel(room);
                (boxed(sink), Receiving(receiver).boxed())
            }
            Self::Pair => {
                let [(a, of_a), (b, of_b)] = [tokio_channel(room), tokio_channel(room)];
                let both = Receiving(of_a).zip(Receiving(of_b));
                let same = |(a, b)| if a == b { a } else { panic!("{a} and {b}") };
                (boxed(a.fanout(b)), both.map(same).boxed())
            }
            Self::Futures => {
                let (sink, receiver) = futures_mpsc::channel(room);
                (boxed(sink), receiver.boxed())
            }
            Self::Duplex => {
                let (writer, reader) = tokio::io::duplex(16 * room);
                (boxed(lines_to(writer)), lines_from(reader))
            }
            Self::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
                let address = listener.local_addr().expect("no address");
                // Tokio knows that a connection is writable once `connect` has returned.
                let writer = TcpStream::connect(address).await.expect("no connection");
                let (reader, _) = listener.accept().await.expect("no connection");
                (boxed(lines_to(writer)), lines_from(reader))
            }
        }
    }
}

/// Boxes a sink and converts its error to a string.
pub fn boxed<V: 'static>(sink: impl Sink<V, Error: Debug> + Send + 'static) -> BoxedSink<V> {
    Box::pin(sink.sink_map_err(|error| format!("{error:?}")))
}

/// Creates a sink that writes lines in `poll_ready`, without waiting for a flush.
fn lines_to(writer: impl AsyncWrite + Send) -> impl Sink<u32, Error = LinesCodecError> + Send {
    let mut lines = FramedWrite::new(writer, LinesCodec::new());
    lines.set_backpressure_boundary(8);
    lines.with(|n: u32| future::ok(n.to_string()))
}

fn lines_from(reader: impl AsyncRead + Send + 'static) -> Receipt {
    let lines = FramedRead::new(reader, LinesCodec::new());
    lines.map(|line| line.expect("cannot read").parse().expect("not a number")).boxed()
}

/// Hooks that count how items and attachments end, except for deliveries.
#[derive(Clone, Default)]
pub struct Fates(Arc<Mutex<BTreeMap<(&'static str, &'static str), usize>>>);

impl Fates {
    fn count(&self, what: &'static str, why: &'static str) {
        *model::lock(&self.0).entry((what, why)).or_default() += 1;
    }

    pub fn counts(&self) -> BTreeMap<(&'static str, &'static str), usize> {
        model::lock(&self.0).clone()
    }
}

impl<K, V, E> Hooks<K, V, E> for Fates {
    fn unmatched(&mut self, _: V) {
        self.count("unmatched", "");
    }
    fn discarded(&mut self, _: Recipient<'_, K>, _: V, why: Discarded) {
        self.count("discarded", why.as_str());
    }
    fn detached(&mut self, _: Recipient<'_, K>, why: Detached<E>) {
        self.count("detached", why.as_str());
    }
}

/// Asserts that the totals of a completed demux add up.
#[track_caller]
pub fn assert_settled(totals: Totals) {
    let Totals { received, copies, unmatched, delivered, discarded, lost, queued, .. } = totals;
    assert_eq!(received + copies, unmatched + delivered + discarded + lost, "{totals:?}");
    assert_eq!((queued, totals.attached), (0, totals.detached));
}

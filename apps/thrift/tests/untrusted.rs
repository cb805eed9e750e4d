//! Untrusted clients cannot exhaust the server's memory or sockets: they send without reading, stop
//! within a frame, reset their connections, or stay idle, while other clients are served.

mod common;

use std::future::{Future, pending};
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use allocation_counter::measure;
use async_compression::tokio::write::ZlibEncoder;
use common::{Gate, Held, LONG, Server, answer, raw};
use futures::future::join_all;
use thrift::ApplicationErrorKind;
use thrift::protocol::{TMessageType, TType};
use thrift_demux::demo::{Example, Serve};
use thrift_demux::{Error, Message, Protocol, Request, Service, Settings, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_util::bytes::Bytes;

const MIB: usize = 1 << 20;

/// A time-out that tests wait for. It is long enough for well-behaved clients on a busy machine.
const SHORT: Duration = Duration::from_secs(1);

fn example() -> Serve<Example> {
    Serve(Arc::new(Example::default()))
}

fn call(name: &str, id: i32, text: &str) -> Vec<u8> {
    raw::call(Protocol::Binary, name, id, |to| {
        raw::string(to, 1, text);
        if name == "later" {
            raw::field(to, TType::I32, 2);
            to.write_i32(0).unwrap(); // the gate ignores the delay
        }
    })
}

/// Repeats a call up to a buffer of 256 KiB, so that few writes are needed.
fn calls(name: &str, length: usize) -> Vec<u8> {
    let call = call(name, 1, &"x".repeat(length));
    call.repeat((MIB / 4).div_ceil(call.len()))
}

/// Runs a test on the current thread. Returns the peak of the allocated memory.
fn peak_memory<F: Future<Output = ()>>(test: F) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let used = measure(|| {
        runtime.block_on(async { timeout(LONG, test).await.expect("the test did not finish") });
    });
    usize::try_from(used.bytes_max).unwrap()
}

/// Writes `bytes` repeatedly until the server stops reading or `most` bytes are written. Returns
/// the number of bytes written.
async fn fill(socket: &TcpStream, bytes: &[u8], most: usize) -> usize {
    let (mut written, mut quiet) = (0, 0);
    while quiet < 300 && written < most {
        match socket.try_write(&bytes[written % bytes.len()..]) {
            Ok(count) => (written, quiet) = (written + count, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => quiet += 1,
            Err(error) => panic!("{error}"),
        }
        yield_now().await;
    }
    written
}

/// Limits of 4 MiB for each connection and 16 MiB for all.
fn small() -> Settings {
    Settings { memory: 16 * MIB, memory_each: 4 * MIB, ..Settings::default() }
}

/// What connections may hold in addition to the limits of [`small`]: 64 KiB reserved for each, as
/// much that is being written, and the buffers for reading and compression.
fn overhead(connections: usize) -> usize {
    connections * 256 * 1024 + MIB
}

/// Sends 300 MiB, or as much of it as the server reads, without answering any call.
fn sent_and_not_answered(length: usize) {
    let used = peak_memory(async {
        let (gate, mut held) = Gate::new();
        let server = Server::start(Serve(gate), small()).await;
        let requests = calls("later", length);
        let sockets = join_all((0..20).map(|_| TcpStream::connect(server.address))).await;
        let sockets = sockets.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        let counts = join_all(sockets.iter().map(|of| fill(of, &requests, 15 * MIB))).await;
        assert!(counts.iter().sum::<usize>() > 16 * MIB);
        // Another client is answered. An answer that needs shared room is sent when there is room
        // again.
        let quick = server.client(Protocol::Binary).await;
        assert_eq!(quick.add(1, 1).await.unwrap(), 2);
        drop(sockets);
        let release_all = tokio::spawn(async move { while held.recv().await.is_some() {} });
        assert_eq!(quick.echo("y".repeat(MIB)).await.unwrap().len(), MIB);
        drop(quick);
        server.stop().await;
        release_all.await.unwrap();
    });
    assert!(used < 16 * MIB + overhead(21), "{used} bytes held for calls in flight");
}

/// One client cannot use up the shared memory.
#[test]
fn calls_of_one_client_are_bounded() {
    for (name, length) in [("later", MIB), ("later", 50), ("echo", 20_000)] {
        let used = peak_memory(async {
            let (gate, _held) = Gate::new();
            let settings = Settings { in_flight: 1 << 16, memory: 64 * MIB, ..small() };
            let server = Server::start(Serve(gate), settings).await;
            let socket = TcpStream::connect(server.address).await.unwrap();
            fill(&socket, &calls(name, length), 50 * MIB).await;
            drop(socket);
            server.stop().await;
        });
        assert!(used < 4 * MIB + overhead(2) + 2 * MIB, "{used} bytes for {name} of {length}");
    }
}

#[test]
fn long_calls_in_flight_are_bounded() {
    sent_and_not_answered(MIB);
}

#[test]
fn short_calls_in_flight_are_bounded() {
    sent_and_not_answered(50);
}

/// 1.5 MB that inflate to 1.5 GB of calls of a megabyte each.
#[test]
fn calls_that_inflate_are_bounded() {
    let used = peak_memory(async {
        let (gate, _held) = Gate::new();
        let wrap = Arc::new(|from, to, framing: &_| Transport::zlib(from, to, framing));
        let server = Server::start(Serve(gate), Settings { wrap, ..small() }).await;
        let request = call("later", 1, &"x".repeat(MIB));
        let mut deflated = ZlibEncoder::new(Vec::new());
        for _ in 0..100 {
            deflated.write_all(&request).await.unwrap();
        }
        deflated.flush().await.unwrap();
        let deflated = deflated.into_inner();
        assert!(deflated.len() < 300_000, "{}", deflated.len());
        let mut sockets = Vec::new();
        for _ in 0..15 {
            let socket = TcpStream::connect(server.address).await.unwrap();
            fill(&socket, &deflated, deflated.len()).await;
            sockets.push(socket);
        }
        drop(sockets);
        server.stop().await;
    });
    assert!(used < 16 * MIB + overhead(16) + 2 * MIB, "{used} bytes held for calls in flight");
}

/// Twenty clients send without reading.
#[test]
fn answers_that_are_not_read_are_bounded() {
    for length in [100, 20_000, MIB] {
        let used = peak_memory(async {
            let server = Server::start(example(), small()).await;
            let requests = calls("echo", length);
            let sockets = join_all((0..20).map(|_| TcpStream::connect(server.address))).await;
            let sockets = sockets.into_iter().map(Result::unwrap).collect::<Vec<_>>();
            join_all(sockets.iter().map(|of| fill(of, &requests, 30 * MIB))).await;
            let quick = server.client(Protocol::Binary).await;
            assert_eq!(quick.add(1, 1).await.unwrap(), 2);
            drop((quick, sockets));
            server.stop().await;
        });
        assert!(used < 16 * MIB + overhead(21), "{used} bytes, answers of {length}");
    }
}

/// Incomplete frames hold little memory, and hold their room no longer than the time-out.
#[test]
fn incomplete_frames_release_their_room() {
    let reasons = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&reasons);
    let on_closed = Arc::new(move |_, reason: &str| log.lock().unwrap().push(reason.to_owned()));
    let used = peak_memory(async move {
        let settings = Settings { stall_timeout: SHORT, on_closed, ..small() };
        let server = Server::start(example(), settings).await;
        let mut halves = Vec::new();
        for _ in 0..20 {
            let mut socket = TcpStream::connect(server.address).await.unwrap();
            socket.write_all(&[&[0, 0x10, 0, 0][..], &vec![0; 100_000]].concat()).await.unwrap();
            halves.push(socket);
        }
        let quick = server.client(Protocol::Binary).await;
        assert_eq!(quick.add(1, 1).await.unwrap(), 2);
        assert_eq!(quick.echo("y".repeat(MIB)).await.unwrap().len(), MIB);
        for mut socket in halves {
            assert!(matches!(socket.read(&mut [0]).await, Ok(0) | Err(_)));
        }
        drop(quick);
        assert_eq!(server.stop().await.faulty, 20);
    });
    assert!(used < 8 * MIB, "{used} bytes held for 2 MB received");
    let reasons = reasons.lock().unwrap();
    assert_eq!(reasons[0], "a frame of 1048576 bytes took longer than 1s");
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_closed_and_its_room_released() {
    let (closed, mut reasons) = mpsc::unbounded_channel();
    let on_closed = Arc::new(move |_, reason: &str| closed.send(reason.to_owned()).unwrap());
    let settings = Settings { stall_timeout: SHORT, on_closed, ..small() };
    let server = Server::start(example(), settings).await;
    let request = call("echo", 1, &"x".repeat(MIB));
    let sockets = join_all((0..3).map(|_| TcpStream::connect(server.address))).await;
    for socket in sockets.iter().flatten() {
        // The server may close the connection before its buffers are full.
        let mut written = 0;
        while let Ok(()) =
            timeout(LONG, socket.writable()).await.expect("the connection was not closed")
        {
            match socket.try_write(&request[written % request.len()..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        let reason = timeout(LONG, reasons.recv()).await.unwrap().unwrap();
        assert_eq!(reason, "the client read no answers for 1s");
    }
    let quick = server.client(Protocol::Binary).await;
    assert_eq!(quick.echo("y".repeat(MIB)).await.unwrap().len(), MIB);
    assert_eq!(server.stop().await.faulty, 3);
}

/// Answers with a text of this length or, if it is 0, of the length given by the call's id.
struct Long(usize);

impl Service for Long {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        let id = request.message.id.unsigned_abs() as usize;
        let length = if self.0 == 0 { id } else { self.0 };
        let Message { protocol, name, id, .. } = &request.message;
        let answer = raw::message(*protocol, name, TMessageType::Reply, *id, |to| {
            raw::string(to, 0, &"x".repeat(length));
            to.write_field_stop().unwrap();
        });
        Ok(Some(answer.into()))
    }
}

/// A quarter of 4 MiB is reserved for answers that are longer than their calls.
#[tokio::test]
async fn an_answer_without_room_is_refused_and_the_next_is_sent() {
    let server = Server::start(Long(0), small()).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    for (length, refused) in [(3 * MIB, true), (MIB - 4096, false), (2 * MIB, true), (1, false)] {
        let request = call("echo", i32::try_from(length).unwrap(), "");
        socket.write_all(&request).await.unwrap();
        let message = answer(&mut socket).await;
        assert_eq!(message.kind == TMessageType::Exception, refused, "{length}");
    }
    server.stop().await;

    let server = Server::start(Long(3 * MIB), small()).await;
    let error = server.client(Protocol::Binary).await.echo("").await.unwrap_err();
    let Error::Refused(ApplicationErrorKind::InternalError, what) = error else {
        panic!("{error}")
    };
    assert_eq!(what, "no memory is left for an answer of 3145752 bytes");
    server.stop().await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits() {
    let settings = Settings { connections: 2, ..Settings::default() };
    let (service, mut held) = Gate::new();
    let server = Server::start(Serve(service), settings).await;
    let first = server.client(Protocol::Binary).await;
    let second = server.client(Protocol::Binary).await;
    // Both connections are busy, each with a call that is held.
    let mut one = Box::pin(first.later("", 0));
    assert!(futures::poll!(&mut one).is_pending());
    let first_call = timeout(LONG, held.recv()).await.expect("no call arrived").unwrap();
    let mut two = Box::pin(second.later("", 0));
    assert!(futures::poll!(&mut two).is_pending());
    let second_call = timeout(LONG, held.recv()).await.expect("no call arrived").unwrap();
    let third = server.client(Protocol::Binary).await;
    let mut waits = Box::pin(third.ping());
    for _ in 0..50 {
        first.ping().await.unwrap();
        assert!(futures::poll!(&mut waits).is_pending(), "a third connection is served");
    }
    second_call.release.send(()).unwrap();
    two.await.unwrap();
    drop(second);
    timeout(LONG, waits).await.expect("the third connection was not served").unwrap();
    first_call.release.send(()).unwrap();
    one.await.unwrap();
    drop((first, third));
    assert_eq!(server.stop().await.connections, 3);
}

#[tokio::test]
async fn the_delay_of_later_is_limited() {
    let server = Server::example().await;
    let client = server.client(Protocol::Compact).await;
    for millis in [60_001, i32::MAX] {
        let error = client.later("at last", millis).await.unwrap_err();
        let Error::Refused(ApplicationErrorKind::InternalError, what) = error else {
            panic!("{error}")
        };
        assert_eq!(what, format!("{millis} milliseconds, more than 60000"));
    }
    assert_eq!(client.later("at once", -1).await.unwrap(), "at once");
    server.stop().await;
}

/// Calls that never complete. A closed channel shows that a call was dropped.
struct Endless(mpsc::UnboundedSender<(TMessageType, mpsc::Sender<()>, mpsc::Receiver<()>)>);

impl Service for Endless {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        let (alive, dropped) = mpsc::channel(1);
        let _ = self.0.send((request.message.kind, alive.clone(), dropped));
        let _until_dropped = alive;
        pending().await
    }
}

/// Counts the calls, of which none waits, and each may compute for a while.
#[derive(Default, Clone)]
struct Counting(Arc<AtomicUsize>, Duration);

impl Service for Counting {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        self.0.fetch_add(1, SeqCst);
        let begun = Instant::now();
        while begun.elapsed() < self.1 {}
        request.unknown()
    }
}

/// So many clients send so many calls at once, and another one makes a call after so many of them. On
/// one thread, which does nothing else while it runs a call, and which looks for input after each.
fn calls_before_one_of_another_client(
    clients: usize,
    calls: usize,
    after: usize,
    each_takes: Duration,
) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let counts = Counting(Arc::default(), each_takes);
        let server = Server::start(counts.clone(), Settings::default()).await;
        let mut quiet = TcpStream::connect(server.address).await.unwrap();
        let mut busy = Vec::new();
        for _ in 0..clients {
            busy.push(TcpStream::connect(server.address).await.unwrap());
        }
        let requests = call("busy", 1, "").repeat(calls);
        join_all(busy.iter_mut().map(|busy| busy.write_all(&requests))).await;
        while counts.0.load(SeqCst) < after {
            yield_now().await;
        }
        let before = counts.0.load(SeqCst);
        quiet.write_all(&call("quiet", 2, "")).await.unwrap();
        answer(&mut quiet).await;
        let before = counts.0.load(SeqCst) - before;
        for busy in &mut busy {
            for _ in 0..calls {
                answer(busy).await;
            }
        }
        server.stop().await;
        before
    })
}

#[test]
fn clients_take_turns_however_many_calls_they_send_at_once() {
    let before = calls_before_one_of_another_client(1, 1000, 1, Duration::ZERO);
    // Four turns of eight.
    assert!(before <= 32, "{before} calls of the other client came first");
}

/// Their answers share a queue.
#[test]
fn answers_of_many_clients_take_turns_however_many_calls_they_send_at_once() {
    let before = calls_before_one_of_another_client(50, 400, 5000, Duration::ZERO);
    assert!(before <= 50 * 32, "{before} calls of the other clients came first");
}

/// Many answers could share the flushes, but each takes long to compute.
#[test]
fn answers_that_are_computed_are_written_soon_though_many_others_follow() {
    let before = calls_before_one_of_another_client(200, 100, 2000, Duration::from_micros(100));
    assert!(before <= 200 * 32, "{before} calls of the other clients came first");
}

/// A long call computes until a short one has begun, and is counted then.
struct Computing {
    short: Mutex<std::sync::mpsc::Receiver<()>>,
    begun: std::sync::mpsc::Sender<()>,
    computed: Arc<AtomicUsize>,
}

impl Service for Computing {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        if request.message.name == "long" {
            self.short.lock().unwrap().recv_timeout(LONG).expect("no short call begins");
            self.computed.fetch_add(1, SeqCst);
        } else {
            self.begun.send(()).unwrap();
        }
        request.unknown()
    }
}

/// The server has one thread, beside those for long calls.
#[tokio::test]
async fn a_call_that_takes_long_to_decode_delays_no_short_one() {
    let (begun, short) = std::sync::mpsc::channel();
    let computed = Arc::default();
    let service = Computing { short: Mutex::new(short), begun, computed: Arc::clone(&computed) };
    let server = Server::start(service, Settings::default()).await;
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    let mut quiet = TcpStream::connect(server.address).await.unwrap();
    let long = call("long", 1, &"x".repeat(20_000));
    busy.write_all(&long).await.unwrap();
    quiet.write_all(&call("short", 2, "")).await.unwrap();
    assert_eq!(answer(&mut quiet).await.id, 2);
    assert_eq!(answer(&mut busy).await.id, 1);
    // Other calls of its connection do not wait for it either.
    busy.write_all(&[long, call("short", 3, "")].concat()).await.unwrap();
    let mut ids = [answer(&mut busy).await.id, answer(&mut busy).await.id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 3]);
    assert_eq!(computed.load(SeqCst), 2);
    drop((busy, quiet));
    server.stop().await;
}

/// A service may use all threads that the runtime has for blocking work.
#[test]
fn a_long_call_needs_no_blocking_thread_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let blocking = tokio::task::spawn_blocking(move || released.recv());
        let server = Server::start(example(), Settings::default()).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all(&call("echo", 1, &"x".repeat(20_000))).await.unwrap();
        assert_eq!(answer(&mut client).await.kind, TMessageType::Reply);
        drop((client, release));
        assert!(blocking.await.unwrap().is_err());
        server.stop().await;
    });
}

async fn all_dropped(held: &mut mpsc::UnboundedReceiver<Held>, count: usize) {
    for _ in 0..count {
        let Held { mut release, .. } = timeout(LONG, held.recv()).await.unwrap().unwrap();
        timeout(LONG, release.closed()).await.expect("a call was not dropped");
    }
}

/// The server accepts one connection at a time, so the next client is served only when the previous
/// connection has been freed.
#[tokio::test]
async fn calls_of_a_client_that_resets_are_dropped() {
    let (gate, mut held) = Gate::new();
    let settings = Settings { connections: 1, in_flight: 100, ..Settings::default() };
    let server = Server::start(Serve(gate), settings).await;
    // With fewer calls than may be in flight, the server keeps reading; with more, it does not.
    // After the end of the input, it reads no more.
    for (calls, end) in [(50, false), (200, false), (50, true), (200, true)] {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        let requests = (0..calls).flat_map(|id| call("later", id, "never")).collect::<Vec<_>>();
        socket.write_all(&requests).await.unwrap();
        if end {
            socket.shutdown().await.unwrap();
        }
        let mut started = Vec::new();
        for _ in 0..calls.min(100) {
            started
                .push(timeout(LONG, held.recv()).await.expect("a call was not started").unwrap());
        }
        assert!(started.iter().all(|call| !call.release.is_closed()), "{calls} {end}");
        socket.set_zero_linger().unwrap();
        drop(socket);
        for mut call in started {
            timeout(LONG, call.release.closed()).await.expect("a call was not dropped");
        }
        let next = server.client(Protocol::Binary).await;
        timeout(LONG, next.ping()).await.expect("the connection was not freed").unwrap();
        drop(next);
        while let Ok(mut call) = held.try_recv() {
            timeout(LONG, call.release.closed()).await.expect("a call was not dropped");
        }
    }
    assert_eq!(server.stop().await.faulty, 0);
}

#[tokio::test]
async fn calls_of_a_client_that_sends_garbage_are_dropped() {
    let (gate, mut held) = Gate::new();
    let server = Server::start(Serve(gate), Settings::default()).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    for id in 0..3 {
        socket.write_all(&call("later", id, "never")).await.unwrap();
    }
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    all_dropped(&mut held, 3).await;
    assert_eq!(server.stop().await.faulty, 1);
}

/// A one-way call is independent of its client, which does not wait for it.
#[tokio::test]
async fn one_way_calls_outlast_their_client() {
    let (started, mut calls) = mpsc::unbounded_channel();
    let patience = SHORT; // for the one-way call, which runs when the server stops
    let server =
        Server::start(Endless(started), Settings { patience, ..Settings::default() }).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let one_way = raw::message(Protocol::Binary, "note", TMessageType::OneWay, 1, |to| {
        to.write_field_stop().unwrap();
    });
    socket.write_all(&raw::frame(&one_way)).await.unwrap();
    socket.write_all(&call("later", 2, "never")).await.unwrap();
    let mut both = Vec::new();
    for _ in 0..2 {
        both.push(timeout(LONG, calls.recv()).await.unwrap().unwrap());
    }
    socket.set_zero_linger().unwrap();
    drop(socket);
    both.sort_by_key(|(kind, ..)| *kind == TMessageType::OneWay);
    let (_, alive, mut dropped) = both.remove(0);
    drop(alive);
    timeout(LONG, dropped.recv()).await.expect("the call was not dropped");
    let (_, alive, mut dropped) = both.remove(0);
    drop(alive);
    assert!(futures::poll!(Box::pin(dropped.recv())).is_pending(), "the one-way call was dropped");
    server.stop().await;
    assert_eq!(
        timeout(LONG, dropped.recv()).await.expect("the one-way call outlives the server"),
        None
    );
}

fn one_way() -> Vec<u8> {
    raw::frame(&raw::message(Protocol::Binary, "note", TMessageType::OneWay, 1, |to| {
        to.write_field_stop().unwrap();
    }))
}

/// Serves a client that makes a one-way call and then closes, again and again. The calls keep running.
async fn closed_with_one_way_calls(resets: bool) {
    let (started, mut calls) = mpsc::unbounded_channel();
    let settings = Settings { connections: 3, patience: SHORT, ..Settings::default() };
    let server = Server::start(Endless(started), settings).await;
    let mut running = Vec::new();
    for _ in 0..2 * 3 {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(&one_way()).await.unwrap();
        running.push(timeout(LONG, calls.recv()).await.expect("it has no place").unwrap());
        if resets {
            socket.set_zero_linger().unwrap();
        }
    }
    // There are as many as there can be, and none of their calls was dropped.
    let mut next = TcpStream::connect(server.address).await.unwrap();
    next.write_all(&call("later", 2, "never")).await.unwrap();
    let started = timeout(Duration::from_millis(300), calls.recv()).await;
    assert!(started.is_err(), "more connections are served than there are places");
    for (kind, alive, mut dropped) in running {
        assert_eq!(kind, TMessageType::OneWay);
        drop(alive);
        assert!(futures::poll!(Box::pin(dropped.recv())).is_pending(), "it was dropped");
    }
    drop(next);
    server.stop().await;
}

/// The one-way calls of closed connections leave the places to others, up to as many connections.
#[tokio::test]
async fn a_closed_connection_has_no_place_though_its_one_way_calls_are_running() {
    closed_with_one_way_calls(false).await;
}

#[tokio::test]
async fn a_reset_connection_has_no_place_though_its_one_way_calls_are_running() {
    closed_with_one_way_calls(true).await;
}

/// Clients that send calls and reset or close their connections, before the server has accepted any of
/// them.
fn leave_at_once(address: SocketAddr, connections: usize, calls: &[u8], resets: bool) {
    for _ in 0..connections {
        let mut socket = std::net::TcpStream::connect(address).unwrap();
        socket.write_all(calls).unwrap();
        let linger = resets.then_some(Duration::ZERO);
        socket2::SockRef::from(&socket).set_linger(linger).unwrap();
    }
}

/// What they have sent is started in the turns of one connection, however many there are.
#[tokio::test]
async fn calls_of_clients_that_have_left_take_the_turns_of_one() {
    const CONNECTIONS: usize = 50;
    const EACH: usize = 100;

    let call = call("later", 1, "not read");
    for (call, resets) in [(one_way(), true), (one_way(), false), (call, true)] {
        let started = Counting::default();
        let count = Arc::clone(&started.0);
        // Those that have reset take no place. There is time for their calls.
        let connections = CONNECTIONS + usize::from(!resets);
        let settings = Settings { connections, after_reset: LONG, ..Settings::default() };
        let server = Server::start(started, settings).await;
        leave_at_once(server.address, CONNECTIONS, &call.repeat(EACH), resets);
        let client = server.client(Protocol::Binary).await;
        timeout(LONG, client.ping()).await.expect("no answer").unwrap_err();
        let before = count.load(SeqCst);
        assert!(before < 12 * CONNECTIONS, "{before} were started before");
        let all = async {
            while count.load(SeqCst) < CONNECTIONS * EACH + 1 {
                yield_now().await;
            }
        };
        timeout(LONG, all).await.expect("a call was lost");
        server.stop().await;
    }
}

/// Neither those that are still read nor those whose calls wait for a turn keep the places of others,
/// however many there are.
#[tokio::test]
async fn clients_that_have_left_calls_behind_do_not_keep_others_out() {
    let threads = std::thread::available_parallelism().unwrap().get();
    let mut one_way = call("long", 1, &"x".repeat(5_000));
    one_way[7] = 4; // the type of the message
    for resets in [true, false] {
        let (begun, short) = std::sync::mpsc::channel();
        let service =
            Computing { short: Mutex::new(short), begun: begun.clone(), computed: Arc::default() };
        // Some of the calls compute, and the others wait for a thread.
        let settings = Settings {
            connections: 2 * threads,
            after_reset: 9 * LONG,
            patience: SHORT,
            ..Settings::default()
        };
        let server = Server::start(service, settings).await;
        leave_at_once(server.address, 8 * threads, &one_way, resets);
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(&call("short", 1, "")).await.unwrap();
        timeout(LONG / 2, answer(&mut socket)).await.expect("it has no place");
        for _ in 0..8 * threads {
            begun.send(()).unwrap();
        }
        server.stop().await;
    }
}

/// Their calls are not started for ever.
#[tokio::test]
async fn calls_of_a_client_that_has_left_are_started_for_a_while() {
    let (gate, mut held) = Gate::new();
    let settings =
        Settings { in_flight: 10, after_reset: SHORT, patience: SHORT, ..Settings::default() };
    let server = Server::start(Serve(gate), settings).await;
    let mut one_way = call("later", 1, "x");
    one_way[7] = 4; // the type of the message
    leave_at_once(server.address, 1, &one_way.repeat(100), true);
    let mut running = Vec::new();
    for _ in 0..10 {
        running.push(timeout(LONG, held.recv()).await.expect("it is not started").unwrap());
    }
    // No permit is free until then.
    tokio::time::sleep(2 * SHORT).await;
    for call in running {
        call.release.send(()).expect("a one-way call was dropped");
    }
    server.stop().await;
    assert!(held.try_recv().is_err(), "further calls are started");
}

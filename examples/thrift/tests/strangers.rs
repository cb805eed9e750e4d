//! What strangers do to the server's memory and sockets: they send more than they read, stop
//! halfway, reset, and stay away. Others are served all the while.

mod common;

use std::future::{Future, pending};
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use allocation_counter::measure;
use async_compression::tokio::write::ZlibEncoder;
use common::{Gate, Held, LONG, Server, raw};
use futures::future::join_all;
use thrift::ApplicationErrorKind;
use thrift::protocol::{TMessageType, TType};
use thrift_demux::demo::{Example, Serve};
use thrift_demux::{Error, Limits, Message, Protocol, Request, Service, Settings, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_util::bytes::Bytes;

const MIB: usize = 1 << 20;

/// A time-out that a test waits for, and that no good client exceeds on a busy machine.
const SHORT: Duration = Duration::from_secs(1);

fn example() -> Serve<Example> {
    Serve(Arc::new(Example::default()))
}

fn call(name: &str, id: i32, text: &str) -> Vec<u8> {
    raw::call(Protocol::Binary, name, id, |to| {
        raw::string(to, 1, text);
        if name == "later" {
            raw::field(to, TType::I32, 2);
            to.write_i32(0).unwrap(); // the gate says when
        }
    })
}

/// So many calls that they are written fast.
fn calls(name: &str, length: usize) -> Vec<u8> {
    let call = call(name, 1, &"x".repeat(length));
    call.repeat((MIB / 4).div_ceil(call.len()))
}

/// Runs on this thread alone, and returns how much memory was held at most.
fn most<F: Future<Output = ()>>(test: F) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let used = measure(|| runtime.block_on(async { timeout(LONG, test).await.expect("it hangs") }));
    usize::try_from(used.bytes_max).unwrap()
}

/// Writes `bytes` over and over until the server reads no more, or so many are written. Returns how
/// many.
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

/// 4 MiB for each connection, 16 MiB for all.
fn small() -> Settings {
    Settings { memory: 16 * MIB, memory_each: 4 * MIB, ..Settings::default() }
}

/// What connections may hold beside [`small`]'s: 64 KiB that are their own, as much that is being
/// written, and what reads and compresses.
fn beside(connections: usize) -> usize {
    connections * 256 * 1024 + MIB
}

/// 300 MiB are sent, or as much of it as the server takes.
fn sent_and_not_answered(length: usize) {
    let used = most(async {
        let (gate, mut held) = Gate::new();
        let server = Server::start(Serve(gate), small()).await;
        let requests = calls("later", length);
        let sockets = join_all((0..20).map(|_| TcpStream::connect(server.address))).await;
        let sockets = sockets.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        let counts = join_all(sockets.iter().map(|of| fill(of, &requests, 15 * MIB))).await;
        assert!(counts.iter().sum::<usize>() > 16 * MIB);
        // A neighbour gets its answers, one that is larger than its own room when there is room
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
    assert!(used < 16 * MIB + beside(21), "{used} bytes for calls in flight");
}

/// One client cannot have what is for all.
#[test]
fn calls_of_one_client_are_bounded() {
    for (name, length) in [("later", MIB), ("later", 50), ("echo", 20_000)] {
        let used = most(async {
            let (gate, _held) = Gate::new();
            let settings = Settings { in_flight: 1 << 16, memory: 64 * MIB, ..small() };
            let server = Server::start(Serve(gate), settings).await;
            let socket = TcpStream::connect(server.address).await.unwrap();
            fill(&socket, &calls(name, length), 50 * MIB).await;
            drop(socket);
            server.stop().await;
        });
        assert!(used < 4 * MIB + beside(2) + 2 * MIB, "{used} bytes for {name} of {length}");
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

/// 1.5 MB that inflate to 1.5 GB: calls of a megabyte each.
#[test]
fn calls_that_inflate_are_bounded() {
    let used = most(async {
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
    assert!(used < 16 * MIB + beside(16) + 2 * MIB, "{used} bytes for calls in flight");
}

/// Twenty clients that send and do not read.
#[test]
fn answers_that_are_not_read_are_bounded() {
    for length in [100, 20_000, MIB] {
        let used = most(async {
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
        assert!(used < 16 * MIB + beside(21), "{used} bytes, answers of {length}");
    }
}

/// Frames of which most is missing hold no memory, and no room for longer than the time-out.
#[test]
fn frames_that_stop_halfway_give_their_room_back() {
    let reasons = Arc::<Mutex<Vec<String>>>::default();
    let told = Arc::clone(&reasons);
    let on_closed = Arc::new(move |_, reason: &str| told.lock().unwrap().push(reason.to_owned()));
    let used = most(async move {
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
    assert!(used < 8 * MIB, "{used} bytes for 2 MB that came");
    let reasons = reasons.lock().unwrap();
    assert_eq!(reasons[0], "a frame of 1048576 bytes took longer than 1s");
}

#[tokio::test]
async fn a_client_that_takes_no_answer_is_closed_and_its_room_is_free() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let on_closed = Arc::new(move |_, reason: &str| tell.send(reason.to_owned()).unwrap());
    let settings = Settings { stall_timeout: SHORT, on_closed, ..small() };
    let server = Server::start(example(), settings).await;
    let request = call("echo", 1, &"x".repeat(MIB));
    let sockets = join_all((0..3).map(|_| TcpStream::connect(server.address))).await;
    for socket in sockets.iter().flatten() {
        // It may be closed before it is full.
        let mut written = 0;
        while let Ok(()) = timeout(LONG, socket.writable()).await.expect("not closed") {
            match socket.try_write(&request[written % request.len()..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        let reason = timeout(LONG, told.recv()).await.unwrap().unwrap();
        assert_eq!(reason, "it took no answer for 1s");
    }
    let quick = server.client(Protocol::Binary).await;
    assert_eq!(quick.echo("y".repeat(MIB)).await.unwrap().len(), MIB);
    assert_eq!(server.stop().await.faulty, 3);
}

/// Answers with so many bytes; if that is 0, with as many as the call's id says.
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

async fn answer(socket: &mut TcpStream) -> Message {
    let length = timeout(LONG, socket.read_u32()).await.expect("no answer").unwrap();
    let mut frame = vec![0; length as usize];
    timeout(LONG, socket.read_exact(&mut frame)).await.expect("no answer").unwrap();
    Message::open(&frame.into(), &Limits::default()).unwrap()
}

/// A quarter of 4 MiB is for answers that are longer than their calls.
#[tokio::test]
async fn an_answer_that_there_is_no_room_for_is_refused_and_the_next_is_not() {
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
    assert_eq!(what, "an answer of 3145752 bytes, for which there is no room");
    server.stop().await;
}

#[tokio::test]
async fn one_more_connection_than_there_are_places_waits_for_one() {
    let settings = Settings { connections: 2, ..Settings::default() };
    let server = Server::start(example(), settings).await;
    let first = server.client(Protocol::Binary).await;
    let second = server.client(Protocol::Binary).await;
    futures::try_join!(first.ping(), second.ping()).unwrap();
    let third = server.client(Protocol::Binary).await;
    let mut waits = Box::pin(third.ping());
    for _ in 0..50 {
        first.ping().await.unwrap();
        assert!(futures::poll!(&mut waits).is_pending(), "a third is served");
    }
    drop(second);
    timeout(LONG, waits).await.expect("it waits for ever").unwrap();
    drop((first, third));
    assert_eq!(server.stop().await.connections, 3);
}

#[tokio::test]
async fn a_call_of_later_is_capped() {
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

/// Calls that never end, and say that they were dropped by closing a channel.
struct Endless(mpsc::UnboundedSender<(TMessageType, mpsc::Sender<()>, mpsc::Receiver<()>)>);

impl Service for Endless {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        let (alive, dropped) = mpsc::channel(1);
        let _ = self.0.send((request.message.kind, alive.clone(), dropped));
        let _until_dropped = alive;
        pending().await
    }
}

async fn all_dropped(held: &mut mpsc::UnboundedReceiver<Held>, count: usize) {
    for _ in 0..count {
        let Held { mut release, .. } = timeout(LONG, held.recv()).await.unwrap().unwrap();
        timeout(LONG, release.closed()).await.expect("a call goes on");
    }
}

/// With one place, the next client is served when all of the last one is gone.
#[tokio::test]
async fn calls_of_a_client_that_resets_are_dropped() {
    let (gate, mut held) = Gate::new();
    let settings = Settings { connections: 1, in_flight: 100, ..Settings::default() };
    let server = Server::start(Serve(gate), settings).await;
    // Fewer than may be in flight: the server reads. More: it does not. After an end: it reads no
    // more.
    for (calls, end) in [(50, false), (200, false), (50, true), (200, true)] {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        let requests = (0..calls).flat_map(|id| call("later", id, "never")).collect::<Vec<_>>();
        socket.write_all(&requests).await.unwrap();
        if end {
            socket.shutdown().await.unwrap();
        }
        let mut begun = Vec::new();
        for _ in 0..calls.min(100) {
            begun.push(timeout(LONG, held.recv()).await.expect("not begun").unwrap());
        }
        assert!(begun.iter().all(|call| !call.release.is_closed()), "{calls} {end}");
        socket.set_zero_linger().unwrap();
        drop(socket);
        for mut call in begun {
            timeout(LONG, call.release.closed()).await.expect("a call goes on");
        }
        let next = server.client(Protocol::Binary).await;
        timeout(LONG, next.ping()).await.expect("the place is not free").unwrap();
        drop(next);
        while let Ok(mut call) = held.try_recv() {
            timeout(LONG, call.release.closed()).await.expect("a call goes on");
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

/// What a one-way call does cannot depend on its client: it is not waiting.
#[tokio::test]
async fn one_way_calls_outlast_their_client() {
    let (begun, mut calls) = mpsc::unbounded_channel();
    let patience = SHORT; // for what stays when the server stops
    let server = Server::start(Endless(begun), Settings { patience, ..Settings::default() }).await;
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
    timeout(LONG, dropped.recv()).await.expect("the call goes on");
    let (_, alive, mut dropped) = both.remove(0);
    drop(alive);
    assert!(futures::poll!(Box::pin(dropped.recv())).is_pending(), "the one-way call is dropped");
    server.stop().await;
    assert_eq!(timeout(LONG, dropped.recv()).await.expect("it outlasts the server"), None);
}

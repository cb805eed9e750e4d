//! Stages before and after a demux: a tee and zlib, separate and combined, on either side.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use async_compression::tokio::write::ZlibEncoder;
use common::{Gate, LONG, Server, nothing_left, options, raw};
use futures::future;
use thrift::protocol::TMessageType;
use thrift_demux::demo::{Example, Serve, one_of_each};
use thrift_demux::{Client, Limits, Message, Protocol, Settings, Transport, Way};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::bytes::Bytes;
use tokio_util::io::{InspectReader, InspectWriter};

type Log = Arc<Mutex<Vec<(Way, Bytes)>>>;

fn tap(log: &Log) -> impl Fn(Way, &Bytes) + Send + Sync + 'static {
    let log = Arc::clone(log);
    move |way, frame| log.lock().unwrap().push((way, frame.clone()))
}

fn example() -> Serve<Example> {
    Serve(Arc::new(Example::default()))
}

fn heads(log: &Log, way: Way) -> Vec<(i32, TMessageType, String)> {
    let open = |frame: &Bytes| Message::open(frame, &Limits::default()).unwrap();
    let log = log.lock().unwrap();
    let frames = log.iter().filter(|(went, _)| *went == way).map(|(_, frame)| open(frame));
    frames.map(|message| (message.id, message.kind, message.name)).collect()
}

async fn connect(server: &Server, zlib: bool, log: Option<&Log>) -> Client {
    let options = options(Protocol::Compact);
    let socket = TcpStream::connect(server.address).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let (from, to) = socket.into_split();
    let limits = &options.limits;
    let stage = if zlib { Transport::zlib } else { Transport::framed };
    let transport = stage(from, to, limits);
    Client::over(if let Some(log) = log { transport.tee(tap(log)) } else { transport }, options)
}

fn settings(zlib: bool, log: Option<Log>) -> Settings {
    Settings {
        wrap: Arc::new(move |from, to, framing| {
            let transport = if zlib {
                Transport::zlib(from, to, framing)
            } else {
                Transport::framed(from, to, framing)
            };
            if let Some(log) = &log { transport.tee(tap(log)) } else { transport }
        }),
        ..Settings::default()
    }
}

/// All combinations of stages, before the demux of the client and after the demux of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_stages_on_both_sides() {
    for (zlib, tee) in [(false, false), (false, true), (true, false), (true, true)] {
        let (near, far) = (Log::default(), Log::default());
        let server = Server::start(example(), settings(zlib, tee.then(|| far.clone()))).await;
        let client = connect(&server, zlib, tee.then_some(&near)).await;
        let calls = future::join_all((0..500).map(async |n| {
            let mut value = one_of_each();
            value.integer64 = n;
            assert_eq!(client.each(value.clone()).await.unwrap(), value);
        }));
        timeout(LONG, calls).await.expect("a call was lost");
        nothing_left(&client).await;
        drop(client);
        let report = server.stop().await;
        assert_eq!((report.calls, report.faulty, report.answers.delivered), (500, 0, 500));
        if tee {
            let (sent, received) = (heads(&near, Way::Out), heads(&far, Way::In));
            assert_eq!(sent.len(), 500);
            assert_eq!(sent, received, "the taps of the two sides differ");
            assert_eq!(heads(&far, Way::Out), heads(&near, Way::In));
        }
    }
}

#[tokio::test]
async fn a_tee_logs_requests_and_answers_unchanged() {
    let log = Log::default();
    let server = Server::start(example(), settings(false, Some(log.clone()))).await;
    let client = connect(&server, false, None).await;
    assert_eq!(client.add(2, 2).await.unwrap(), 4);
    client.note("not answered").await.unwrap();
    assert_eq!(client.notes().await.unwrap(), 1);
    drop(client);
    server.stop().await;
    let received = heads(&log, Way::In);
    let names =
        received.iter().map(|(id, kind, name)| (*id, *kind, name.as_str())).collect::<Vec<_>>();
    let (call, reply) = (TMessageType::Call, TMessageType::Reply);
    assert_eq!(names, [(1, call, "add"), (2, TMessageType::OneWay, "note"), (3, call, "notes")]);
    assert_eq!(heads(&log, Way::Out), [(1, reply, "add".into()), (3, reply, "notes".into())]);
}

/// Counts the bytes below the zlib stage.
#[tokio::test]
async fn a_compressed_connection_is_smaller_on_the_wire() {
    let server = Server::start(example(), settings(true, None)).await;
    let options = options(Protocol::Binary);
    let bytes = <[Arc<AtomicUsize>; 2]>::default();
    let [sent, received] = bytes.clone();
    let (from, to) = TcpStream::connect(server.address).await.unwrap().into_split();
    let from = InspectReader::new(from, move |read| _ = received.fetch_add(read.len(), Relaxed));
    let to = InspectWriter::new(to, move |written| _ = sent.fetch_add(written.len(), Relaxed));
    let client = Client::over(Transport::zlib(from, to, &options.limits), options);
    let text = "the same again, ".repeat(10_000);
    assert_eq!(client.echo(text.clone()).await.unwrap(), text);
    drop(client);
    assert_eq!(server.stop().await.faulty, 0);
    for bytes in bytes {
        let bytes = bytes.load(Relaxed);
        assert!((100..2_000).contains(&bytes), "{bytes} bytes for {}", text.len());
    }
}

#[tokio::test]
async fn shuffled_answers_of_a_compressed_connection_reach_their_callers() {
    let (gate, mut held) = Gate::new();
    let server = Server::start(Serve(gate), settings(true, None)).await;
    let log = Log::default();
    let client = connect(&server, true, Some(&log)).await;
    let calls = future::join_all((0..200).map(async |n| {
        let text = n.to_string();
        assert_eq!(client.later(text.clone(), 0).await.unwrap(), text);
    }));
    let releases = async {
        let mut waiting = Vec::new();
        while waiting.len() < 200 {
            waiting.push(held.recv().await.unwrap());
        }
        waiting.sort_by_key(|call| call.text.parse::<i32>().unwrap());
        // Release the last call first, and each further call when the previous answer has arrived.
        while let Some(call) = waiting.pop() {
            call.release.send(()).unwrap();
            while heads(&log, Way::In).len() < 200 - waiting.len() {
                tokio::task::yield_now().await;
            }
        }
    };
    timeout(LONG, future::join(calls, releases)).await.expect("a call was lost");
    let answered = heads(&log, Way::In).into_iter().map(|(id, ..)| id).collect::<Vec<_>>();
    assert!(answered.is_sorted_by(|a, b| a > b), "not in the order of release: {answered:?}");
    drop(client);
    server.stop().await;
}

/// Sends `chunks` compressed. Returns the reason with which the server closed the connection.
async fn reason_for(chunks: impl Iterator<Item = Vec<u8>>, limits: Limits) -> String {
    let reasons = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&reasons);
    let on_closed = Arc::new(move |_, reason: &str| log.lock().unwrap().push(reason.to_owned()));
    let settings = Settings { limits, on_closed, ..settings(true, None) };
    let server = Server::start(example(), settings).await;
    let (mut from, to) = TcpStream::connect(server.address).await.unwrap().into_split();
    let mut to = ZlibEncoder::new(to);
    for chunk in chunks {
        if to.write_all(&chunk).await.is_err() {
            break; // the server has closed the connection
        }
    }
    let _ = to.flush().await;
    let end = timeout(LONG, from.read(&mut [0])).await.expect("the connection was not closed");
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    let mut reasons = reasons.lock().unwrap();
    reasons.pop().expect("no reason was reported")
}

/// 20 MiB of zeros in 20 KiB: the limit applies to the inflated length of a frame.
#[tokio::test]
async fn a_zip_bomb_is_rejected() {
    let length = 20_u32 << 20;
    let bomb = std::iter::once(length.to_be_bytes().to_vec())
        .chain(std::iter::repeat_n(vec![0; 1 << 20], 20));
    let reason = reason_for(bomb, Limits::default()).await;
    assert_eq!(reason, "a frame of 20971520 bytes, more than 16384000");
}

/// `TZlibTransport` of Apache Thrift's Python package closes the socket in this way.
#[tokio::test]
async fn a_socket_that_closes_without_the_end_of_its_zlib_stream() {
    let server = Server::start(example(), settings(true, None)).await;
    let (mut from, to) = TcpStream::connect(server.address).await.unwrap().into_split();
    let mut to = ZlibEncoder::new(to);
    let call = raw::call(Protocol::Binary, "ping", 1, |_| {});
    to.write_all(&call).await.unwrap();
    to.flush().await.unwrap();
    to.get_mut().shutdown().await.unwrap();
    let mut answer = Vec::new();
    timeout(LONG, from.read_to_end(&mut answer))
        .await
        .expect("the connection was not closed")
        .unwrap();
    assert!(!answer.is_empty());
    let report = server.stop().await;
    assert_eq!((report.calls, report.faulty, report.answers.delivered), (1, 0, 1));
}

/// `TZlibTransport` also causes resets, because it leaves the end of a flush unread when it closes.
#[tokio::test]
async fn requests_that_arrived_before_a_reset_are_processed() {
    for zlib in [false, true] {
        let server = Server::start(example(), settings(zlib, None)).await;
        for n in 1..=20 {
            let socket = TcpStream::connect(server.address).await.unwrap();
            socket.set_nodelay(true).unwrap();
            let mut to = ZlibEncoder::new(socket);
            let note =
                raw::call(Protocol::Binary, "note", n, |to| raw::string(to, 1, "last words"));
            if zlib {
                to.write_all(&note).await.unwrap();
                to.flush().await.unwrap();
            } else {
                to.get_mut().write_all(&note).await.unwrap();
            }
            to.get_ref().set_zero_linger().unwrap();
        }
        let client = connect(&server, zlib, None).await;
        let all = async { while client.notes().await.unwrap() < 20 {} };
        timeout(LONG, all).await.expect("a note was lost");
        assert_eq!(server.stop().await.faulty, 0);
    }
}

#[tokio::test]
async fn uncompressed_input_closes_the_connection_with_a_reason() {
    let reasons = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&reasons);
    let on_closed = Arc::new(move |_, reason: &str| log.lock().unwrap().push(reason.to_owned()));
    let server = Server::start(example(), Settings { on_closed, ..settings(true, None) }).await;
    let client = connect(&server, false, None).await;
    let error = timeout(LONG, client.ping()).await.expect("the call did not complete").unwrap_err();
    assert!(error.to_string().starts_with("no connection: "), "{error}");
    assert_eq!(reasons.lock().unwrap().len(), 1);
    assert!(!reasons.lock().unwrap()[0].is_empty());
    server.stop().await;
}

//! Invalid input from untrusted peers (forged lengths, garbage, oversized messages) causes a clear
//! error and allocates no memory.

mod common;

use std::sync::{Arc, Mutex};

use allocation_counter::measure;
use common::{Gate, LONG, Server, answer, nothing_left, options, raw};
use futures::FutureExt;
use thrift::ApplicationErrorKind;
use thrift::protocol::{TListIdentifier, TMapIdentifier, TMessageType, TSetIdentifier, TType};
use thrift_demux::demo::{OneOfEach, Serve, one_of_each};
use thrift_demux::{Client, Error, Limits, Message, Protocol, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const PROTOCOLS: [Protocol; 2] = [Protocol::Binary, Protocol::Compact];

/// Memory for the name of a method and the text of an error.
const SMALL: u64 = 1024;

fn open(message: &[u8]) -> Result<OneOfEach, Error> {
    let limits = Limits::default();
    Message::open(&message.to_vec().into(), &limits)?.read(&limits)
}

/// Decodes a message. Returns the result and the peak of the memory allocated in addition to the
/// frame.
fn read(message: &[u8]) -> (Result<OneOfEach, Error>, u64) {
    let frame = message.to_vec().into();
    let limits = Limits::default();
    let mut done = None;
    let used = measure(|| {
        let read = |message: Message| message.read::<OneOfEach>(&limits);
        done = Some(Message::open(&frame, &limits).and_then(read));
    });
    (done.unwrap(), used.bytes_max)
}

fn forged(protocol: Protocol, body: impl FnOnce(raw::To<'_>)) -> Vec<u8> {
    raw::message(protocol, "each", TMessageType::Call, 1, body)
}

#[track_caller]
fn fails(message: &[u8], expected: &str) {
    let (done, used) = read(message);
    let error = done.expect_err("a forged message was accepted").to_string();
    assert!(error.contains(expected), "{error}");
    assert!(used <= SMALL, "{used} bytes allocated for {} received: {error}", message.len());
}

/// Writes the length of a string in either protocol.
fn length(protocol: Protocol, to: &mut Vec<u8>, length: u32) {
    match protocol {
        Protocol::Binary => to.extend(length.to_be_bytes()),
        Protocol::Compact => {
            let mut left = length;
            while left >= 0x80 {
                to.push(left.to_le_bytes()[0] | 0x80);
                left >>= 7;
            }
            to.push(left.to_le_bytes()[0]);
        }
    }
}

#[test]
fn a_string_that_is_longer_than_its_frame() {
    for protocol in PROTOCOLS {
        for (forge, expected) in [
            (100, "a string of 100 bytes, with 5 left"),
            (16_000_000, "a string of 16000000 bytes, with 5 left"),
            (0x7fff_ffff, "a string of 2147483647 bytes, more than 16384000"),
        ] {
            // 8 is a string of the struct, 11 a binary, 99 an unknown field, which is skipped.
            for id in [8, 11, 99] {
                let mut message = forged(protocol, |to| raw::field(to, TType::String, id));
                length(protocol, &mut message, forge);
                message.extend(b"short");
                fails(&message, expected);
            }
        }
    }
    let mut message = forged(Protocol::Binary, |to| raw::field(to, TType::String, 8));
    message.extend((-1_i32).to_be_bytes());
    fails(&message, "a string of -1 bytes");
    let mut message = forged(Protocol::Compact, |to| raw::field(to, TType::String, 8));
    message.extend([0xff, 0xff, 0xff, 0xff, 0x7f]);
    fails(&message, "a length exceeds 32 bits");
}

#[test]
fn a_container_with_more_elements_than_bytes() {
    for protocol in PROTOCOLS {
        for element in [TType::I08, TType::I64, TType::String, TType::Struct, TType::List] {
            // 14 is a list of the struct; 98 and 99 are unknown fields, which are skipped.
            for id in [14, 98, 99] {
                for (size, expected) in [
                    (1000, "a container of 1000, with 0 bytes left"),
                    (i32::MAX, "ontainer"), // the `thrift` crate rejects some of them
                ] {
                    let list = forged(protocol, |to| {
                        raw::field(to, TType::List, id);
                        to.write_list_begin(&TListIdentifier::new(element, size)).unwrap();
                    });
                    fails(&list, expected);
                    let set = forged(protocol, |to| {
                        raw::field(to, TType::Set, id);
                        to.write_set_begin(&TSetIdentifier::new(element, size)).unwrap();
                    });
                    fails(&set, if id == 14 { "" } else { expected });
                    let map = forged(protocol, |to| {
                        raw::field(to, TType::Map, 99);
                        to.write_map_begin(&TMapIdentifier::new(element, element, size)).unwrap();
                    });
                    fails(&map, expected);
                }
            }
        }
    }
}

/// The message announces a list of single bytes, while the struct has elements of eight bytes.
#[test]
fn elements_of_another_type_than_announced() {
    for protocol in PROTOCOLS {
        let mut message = forged(protocol, |to| {
            raw::field(to, TType::List, 14);
            to.write_list_begin(&TListIdentifier::new(TType::I08, 60_000)).unwrap();
        });
        message.extend(vec![0xff; 60_000]);
        let (done, used) = read(&message);
        assert!(done.is_err());
        assert!(used <= 8 * 60_000 + SMALL, "{used} bytes");
    }
}

#[test]
fn more_elements_than_the_limit_even_if_they_are_present() {
    for protocol in PROTOCOLS {
        let mut value = one_of_each();
        value.i64_list = vec![1; 1 << 16];
        let write =
            |value: &_| Message::write(protocol, "each", TMessageType::Call, 1, value).unwrap();
        assert_eq!(open(&write(&value)).unwrap(), value);
        value.i64_list.push(1);
        fails(&write(&value), "65537");
    }
}

#[test]
fn deeply_nested_structs() {
    for protocol in PROTOCOLS {
        let message = forged(protocol, |to| {
            for _ in 0..100_000 {
                raw::field(to, TType::Struct, 99);
            }
        });
        let error = open(&message).unwrap_err();
        assert!(matches!(error, Error::Malformed(_)), "{error}");
    }
}

#[test]
fn a_name_that_is_longer_than_its_frame() {
    let mut binary = vec![0x80, 1, 0, 1];
    length(Protocol::Binary, &mut binary, 0x00ff_ffff);
    fails(&binary, "its envelope: ");
    let mut compact = vec![0x82, 0x21, 1];
    length(Protocol::Compact, &mut compact, 0x00ff_ffff);
    fails(&compact, "its envelope: ");
}

/// Random bytes result in an error or a value, never in a panic, and allocate memory in proportion
/// to their length.
#[test]
fn random_and_mutated_messages() {
    let mut random = fastrand::Rng::with_seed(1);
    let value = one_of_each();
    let mut errors = 0;
    for round in 0..30_000 {
        let protocol = PROTOCOLS[round % 2];
        let frame = Message::write(protocol, "each", TMessageType::Call, 1, &value).unwrap();
        let mut frame = frame.to_vec();
        if round % 3 == 0 {
            let body = frame.len().min(12);
            random.fill(&mut frame[body..]);
        }
        for _ in 0..random.usize(..6) {
            let at = random.usize(..frame.len());
            frame[at] = random.u8(..);
        }
        frame.truncate(random.usize(..=frame.len()));
        let (done, used) = read(&frame);
        errors += u32::from(done.is_err());
        assert!(used <= 64 * frame.len() as u64 + SMALL, "{used} bytes for {frame:?}");
    }
    assert!(errors > 20_000, "only {errors} errors: too few messages were invalid");
}

#[tokio::test]
async fn a_forged_length_is_answered_with_an_error_and_the_connection_stays_open() {
    let server = Server::example().await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    for protocol in PROTOCOLS {
        let mut forged = raw::message(protocol, "echo", TMessageType::Call, 7, |to| {
            raw::field(to, TType::String, 1);
        });
        length(protocol, &mut forged, 1_000_000);
        socket.write_all(&raw::frame(&forged)).await.unwrap();
        let message = answer(&mut socket).await;
        assert_eq!((message.kind, message.id, message.name.as_str()), {
            (TMessageType::Exception, 7, "echo")
        });

        let right = raw::call(protocol, "echo", 8, |to| raw::string(to, 1, "well"));
        socket.write_all(&right).await.unwrap();
        let message = answer(&mut socket).await;
        assert_eq!((message.kind, message.id), (TMessageType::Reply, 8));
    }
    assert_eq!(server.stop().await.faulty, 0);
}

#[tokio::test]
async fn no_such_method_and_missing_arguments() {
    let server = Server::example().await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    for protocol in PROTOCOLS {
        for (name, id) in [("no such method", 1), ("add", 2)] {
            socket.write_all(&raw::call(protocol, name, id, |_| {})).await.unwrap();
            let message = answer(&mut socket).await;
            assert_eq!((message.kind, message.id), (TMessageType::Exception, id));
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn garbage_closes_its_connection_with_a_reason() {
    let reasons = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&reasons);
    let on_closed = Arc::new(move |_, reason: &str| log.lock().unwrap().push(reason.to_owned()));
    let (gate, _held) = Gate::new();
    let settings = Settings { on_closed, ..Settings::default() };
    let server = Server::start(Serve(gate), settings).await;
    let neighbour = server.client(Protocol::Binary).await;
    let garbage: [(&[u8], &str); 6] = [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes, more than 16384000"),
        (&[0xff; 8], "a frame of 4294967295 bytes, more than 16384000"),
        (&[0, 0, 0, 0], "a request is malformed: an empty frame"),
        (&[0, 0, 0, 1, 7], "neither binary nor compact: its first byte is 0x07"),
        (
            &[0, 0, 0, 4, 0x80, 2, 0, 1],
            "a request is malformed: its envelope: received bad version",
        ),
        (
            &raw::frame(&raw::message(Protocol::Compact, "x", TMessageType::Reply, 1, |_| {})),
            "Reply",
        ),
    ];
    for (bytes, expected) in garbage {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let end =
            timeout(LONG, socket.read(&mut [0])).await.expect("the connection was not closed");
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        let reason = reasons.lock().unwrap().pop().expect("no reason was reported");
        assert!(reason.contains(expected), "{reason}");
        assert_eq!(neighbour.add(1, 1).await.unwrap(), 2);
    }
    assert_eq!(server.stop().await.faulty, 6);
}

#[tokio::test]
async fn an_end_within_a_frame_is_reported() {
    let reasons = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&reasons);
    let on_closed = Arc::new(move |_, reason: &str| log.lock().unwrap().push(reason.to_owned()));
    let (gate, _held) = Gate::new();
    let server = Server::start(Serve(gate), Settings { on_closed, ..Settings::default() }).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(&[0, 0, 1, 0, 0x80]).await.unwrap();
    socket.shutdown().await.unwrap();
    assert_eq!(timeout(LONG, socket.read(&mut [0])).await.unwrap().unwrap(), 0);
    assert_eq!(*reasons.lock().unwrap(), ["the connection ended within a frame, after 5 bytes"]);
    server.stop().await;
}

#[tokio::test]
async fn a_request_beyond_the_limits_is_not_sent() {
    let server = Server::example().await;
    let mut options = options(Protocol::Binary);
    options.limits.frame = 1000;
    let client = Client::connect(server.address, options).await.unwrap();
    let error = client.echo("x".repeat(1000)).await.unwrap_err();
    assert_eq!(error.to_string(), "too large: echo: 1024 bytes, more than 1000");
    assert_eq!(client.echo("x".repeat(900)).await.unwrap().len(), 900);
    assert_eq!(server.stop().await.calls, 1);
}

#[tokio::test]
async fn an_answer_beyond_the_limits_is_an_error_of_its_call() {
    let (gate, _held) = Gate::new();
    let settings = Settings {
        // The request fits into the limit, but the answer does not.
        limits: Limits { frame: 1024, ..Limits::default() },
        ..Settings::default()
    };
    let server = Server::start(Serve(gate), settings).await;
    let client = server.client(Protocol::Binary).await;
    let words = (0..84).map(|n| format!("{n:04}")).collect();
    let error = client.count(words).await.unwrap_err();
    let Error::Refused(ApplicationErrorKind::InternalError, what) = error else {
        panic!("{error}")
    };
    assert!(what.ends_with("bytes, more than 1024"), "{what}");
    client.ping().await.unwrap();
    server.stop().await;
}

/// Starts a server that answers every request with `bytes`.
async fn answers_with(protocol: Protocol, bytes: Vec<u8>) -> (Client, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        while let Ok(length) = socket.read_u32().await {
            let mut request = vec![0; length as usize];
            socket.read_exact(&mut request).await.unwrap();
            socket.write_all(&bytes).await.unwrap();
        }
    });
    (Client::connect(address, options(protocol)).await.unwrap(), server)
}

#[tokio::test]
async fn an_answer_with_a_forged_length_fails_only_its_call() {
    for protocol in PROTOCOLS {
        let mut forged = raw::message(protocol, "echo", TMessageType::Reply, 1, |to| {
            raw::field(to, TType::String, 0);
        });
        length(protocol, &mut forged, 1_000_000);
        let (client, _server) = answers_with(protocol, raw::frame(&forged)).await;
        let mut other = Box::pin(client.echo("of id 1"));
        assert!((&mut other).now_or_never().is_none());
        let error = timeout(LONG, other).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("a string of 1000000 bytes, with 0 left"), "{error}");
        assert_eq!(client.closed(), None, "the connection was closed");
        nothing_left(&client).await;
    }
}

#[tokio::test]
async fn an_answer_of_another_method_is_an_error() {
    let answer = raw::message(Protocol::Binary, "sum", TMessageType::Reply, 1, |to| {
        to.write_field_stop().unwrap();
    });
    let (client, _server) = answers_with(Protocol::Binary, raw::frame(&answer)).await;
    let error = timeout(LONG, client.ping()).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "malformed: called ping, but the answer is for sum");
}

#[tokio::test]
async fn an_unsolicited_answer_is_counted() {
    let answer = raw::message(Protocol::Binary, "ping", TMessageType::Reply, 1, |to| {
        to.write_field_stop().unwrap();
    });
    let twice = raw::frame(&answer).repeat(2);
    let (client, _server) = answers_with(Protocol::Binary, twice).await;
    timeout(LONG, client.ping()).await.unwrap().unwrap();
    let late = async {
        while client.counts().late == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, late).await.expect("the second answer was not counted");
    nothing_left(&client).await;
}

#[tokio::test]
async fn garbage_from_the_server_closes_the_connection_and_fails_every_call_with_the_reason() {
    let (client, _server) = answers_with(Protocol::Binary, b"HTTP/1.1 400\r\n\r\n".to_vec()).await;
    let calls = futures::future::join_all((0..50).map(|n| client.add(n, n)));
    for answer in timeout(LONG, calls).await.expect("a call did not complete") {
        let error = answer.unwrap_err().to_string();
        assert_eq!(error, "no connection: a frame of 1213486160 bytes, more than 16384000");
    }
    nothing_left(&client).await;
}

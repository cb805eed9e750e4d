//! Calls and their answers: all methods, threads and orders; cancelled calls and late answers.

mod common;

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Gate, LONG, Server, nothing_left, options, raw};
use futures::{FutureExt, StreamExt, future, stream};
use thrift::ApplicationErrorKind;
use thrift::protocol::TMessageType;
use thrift_demux::demo::{Forbidden, Serve, one_of_each};
use thrift_demux::{Client, Error, Limits, Message, Options, Protocol, Settings, Transport, Way};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const PROTOCOLS: [Protocol; 2] = [Protocol::Binary, Protocol::Compact];

#[tokio::test]
async fn every_method_in_both_protocols() {
    let server = Server::example().await;
    for protocol in PROTOCOLS {
        let client = server.client(protocol).await;
        client.ping().await.unwrap();
        assert_eq!(client.add(2, 3).await.unwrap(), 5);
        assert_eq!(client.echo("three \u{d7} four").await.unwrap(), "three \u{d7} four");
        assert_eq!(client.later("soon", 1).await.unwrap(), "soon");
        assert_eq!(client.each(one_of_each()).await.unwrap(), one_of_each());
        assert_eq!(client.sum((1..=1000).collect()).await.unwrap(), 500_500);
        let counts = client.count(vec!["a".into(), "b".into(), "a".into()]).await.unwrap();
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [("a".into(), 2), ("b".into(), 1)]);
        nothing_left(&client).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn exceptions_declared_and_not() {
    let server = Server::example().await;
    for protocol in PROTOCOLS {
        let client = server.client(protocol).await;
        let error = client.count(vec![String::new()]).await.unwrap_err();
        assert_eq!(error.declared::<Forbidden>(), Some(&Forbidden { word: String::new() }));
        let error = client.add(i64::MAX, 1).await.unwrap_err();
        let Error::Refused(ApplicationErrorKind::InternalError, what) = error else {
            panic!("{error}")
        };
        assert_eq!(what, "the sum exceeds 64 bits");
        assert_eq!(client.add(i64::MAX, 0).await.unwrap(), i64::MAX, "the connection was closed");
    }
    server.stop().await;
}

/// Multiplexed method names (`Service:method`). The answer has the method name without the service.
#[tokio::test]
async fn methods_of_a_named_service() {
    let server = Server::example().await;
    for protocol in PROTOCOLS {
        let named = |service| Options { service: Some(service), ..options(protocol) };
        let client = Client::connect(server.address, named("Demo")).await.unwrap();
        assert_eq!(client.add(2, 3).await.unwrap(), 5);
        client.note("one-way").await.unwrap();
        let error = client.count(vec![String::new()]).await.unwrap_err();
        assert!(error.declared::<Forbidden>().is_some(), "{error}");

        for (service, expected) in [
            ("Other", "there is no method add of a service Other"),
            ("", "there is no method add of a service "),
        ] {
            let client = Client::connect(server.address, named(service)).await.unwrap();
            let error = client.add(2, 3).await.unwrap_err();
            let Error::Refused(ApplicationErrorKind::UnknownMethod, what) = error else {
                panic!("{error}")
            };
            assert_eq!(what, expected);
        }

        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(&raw::call(protocol, "Demo:ping", 7, |_| {})).await.unwrap();
        let length = socket.read_u32().await.unwrap();
        let mut frame = vec![0; length as usize];
        socket.read_exact(&mut frame).await.unwrap();
        let answer = Message::open(&frame.into(), &Limits::default()).unwrap();
        assert_eq!((answer.name.as_str(), answer.id), ("ping", 7));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_one_way_call_is_made_and_not_answered() {
    let server = Server::example().await;
    let client = server.client(Protocol::Binary).await;
    for n in 0..100 {
        client.note(n.to_string()).await.unwrap();
    }
    let all = async { while client.notes().await.unwrap() < 100 {} };
    timeout(LONG, all).await.expect("a note was lost");
    assert_eq!(client.counts().late, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_service_that_panics_fails_one_call() {
    let (gate, _held) = Gate::new();
    let server = Server::start(Serve(gate), Settings::default()).await;
    let client = server.client(Protocol::Compact).await;
    let error = client.add(i64::MIN, 0).await.unwrap_err();
    assert_eq!(error.to_string(), "refused by the server: the service panicked (InternalError)");
    assert_eq!(client.add(1, 1).await.unwrap(), 2);
    server.stop().await;
}

#[test]
fn calls_from_any_thread() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::example());
    let client = runtime.block_on(server.client(Protocol::Binary));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (client, handle) = (client.clone(), runtime.handle().clone());
            scope.spawn(move || {
                for n in 0..200 {
                    let sum = handle.block_on(client.add(thread * 1000, n)).unwrap();
                    assert_eq!(sum, thread * 1000 + n);
                }
            });
        }
    });
    assert_eq!(client.counts().calls, 1600);
    runtime.block_on(server.stop());
}

/// The service holds all calls until the last has arrived, then answers them in a random order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shuffled_answers_reach_their_callers() {
    const CALLS: usize = 1000;
    for protocol in PROTOCOLS {
        let (gate, mut held) = Gate::new();
        let server = Server::start(Serve(gate), Settings::default()).await;
        let (arrived, options) = (Arc::<Mutex<Vec<i32>>>::default(), options(protocol));
        let (from, to) = TcpStream::connect(server.address).await.unwrap().into_split();
        let transport = Transport::framed(from, to, &options.limits).tee({
            let arrived = Arc::clone(&arrived);
            move |way, frame| {
                if way == Way::In {
                    let id = Message::open(frame, &Limits::default()).unwrap().id;
                    arrived.lock().unwrap().push(id);
                }
            }
        });
        let client = Client::over(transport, options);
        let calls = future::join_all((0..CALLS).map(async |n| {
            let text = format!("call {n}");
            assert_eq!(client.later(text.clone(), 0).await.unwrap(), text);
        }));
        let releases = async {
            let mut waiting = Vec::new();
            while waiting.len() < CALLS {
                waiting.push(held.recv().await.unwrap());
            }
            fastrand::Rng::with_seed(7).shuffle(&mut waiting);
            for call in waiting {
                call.release.send(()).unwrap();
            }
        };
        timeout(LONG, future::join(calls, releases)).await.expect("a call was lost");
        let mut arrived = std::mem::take(&mut *arrived.lock().unwrap());
        let overtaken = arrived.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!(
            overtaken > CALLS / 4,
            "only {overtaken} answers arrived before that of an earlier call"
        );
        arrived.sort_unstable();
        assert!(arrived.into_iter().eq(1..=1000), "an id was not answered exactly once");
        nothing_left(&client).await;
        assert_eq!(client.counts().late, 0);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_stage_of_a_client_that_panics_closes_its_connection() {
    for at in [Way::In, Way::Out] {
        let server = Server::example().await;
        let (from, to) = TcpStream::connect(server.address).await.unwrap().into_split();
        let options = Options::default();
        let transport = Transport::framed(from, to, &options.limits)
            .tee(move |way, _| assert_ne!(way, at, "a test panics"));
        let client = Client::over(transport, options);
        for _ in 0..2 {
            let error = timeout(LONG, client.ping()).await.unwrap().unwrap_err();
            let closed = client.closed().expect("it is not closed");
            assert_eq!(error.to_string(), format!("no connection: {closed}"));
            assert!(closed.contains("panicked"), "{closed}");
        }
        nothing_left(&client).await;
        server.stop().await;
    }
}

/// Cancels a tenth of the calls before their answers: some before the request is sent, most after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_a_tenth_cancelled_leave_nothing() {
    const CALLS: i64 = 10_000;
    let (gate, mut held) = Gate::new();
    let server = Server::start(Serve(gate), Settings::default()).await;
    let client = server.client(Protocol::Binary).await;
    let done = stream::iter(0..CALLS)
        .map(async |n| {
            if n % 10 == 9 {
                // The gate withholds the answer. The first poll attaches the call and queues its
                // request. Requests are written in order, so it was sent before this `ping`.
                let mut call = Box::pin(client.later(n.to_string(), 0));
                assert!(futures::poll!(&mut call).is_pending());
                if n % 3 > 0 {
                    client.ping().await.unwrap();
                }
                return 0;
            }
            assert_eq!(client.add(n, 1).await.unwrap(), n + 1);
            1
        })
        .buffer_unordered(500)
        .fold(0, async |sum, done| sum + done);
    assert_eq!(timeout(LONG, done).await.expect("a call was lost"), 9_000);
    nothing_left(&client).await;
    assert!(
        client.counts().calls > 9_500,
        "most calls should have been attached: {:?}",
        client.counts()
    );

    // Answer the cancelled calls now. The server reads requests in order, so all of them have
    // arrived when this `ping` is answered.
    client.ping().await.unwrap();
    let mut answers = 0;
    while let Ok(call) = held.try_recv() {
        call.release.send(()).unwrap();
        answers += 1;
    }
    assert!(answers > 500, "only {answers} of the cancelled calls reached the server");
    let late = async {
        while client.counts().late < answers {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, late)
        .await
        .unwrap_or_else(|_| panic!("expected {answers} late answers: {:?}", client.counts()));
    nothing_left(&client).await;
    assert_eq!(client.add(1, 1).await.unwrap(), 2);
    assert_eq!(client.counts().late, answers);
    server.stop().await;
}

#[tokio::test]
async fn a_late_answer_is_counted_and_discarded() {
    let (gate, mut held) = Gate::new();
    let server = Server::start(Serve(gate), Settings::default()).await;
    let options = Options { deadline: Duration::from_millis(50), ..Options::default() };
    let client = Client::connect(server.address, options).await.unwrap();
    let error = client.later("too late", 0).await.unwrap_err();
    assert!(matches!(error, Error::Deadline(_)), "{error}");
    nothing_left(&client).await;

    held.recv().await.unwrap().release.send(()).unwrap();
    let late = async {
        while client.counts().late == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, late).await.expect("the late answer was not counted");
    assert_eq!(client.add(1, 2).await.unwrap(), 3, "the next call got another answer");
    assert_eq!(client.counts().late, 1);
    server.stop().await;
}

/// The limit ends the attachment here, not the lease, which the caller still holds.
#[tokio::test]
async fn an_answer_detaches_its_call_before_the_caller_polls() {
    let server = Server::example().await;
    let client = server.client(Protocol::Binary).await;
    let mut call = Box::pin(client.echo("in time"));
    assert!((&mut call).now_or_never().is_none());
    let detached = async {
        while client.counts().calls == 0 || client.counts().waiting > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, detached).await.expect("the call is still attached");
    assert_eq!(call.await.unwrap(), "in time");
    server.stop().await;
}

#[tokio::test]
async fn a_call_that_is_dropped_before_its_first_poll_is_never_made() {
    let server = Server::example().await;
    let client = server.client(Protocol::Binary).await;
    drop(client.ping());
    client.ping().await.unwrap();
    assert_eq!(client.counts().calls, 1);
    server.stop().await;
}

#[tokio::test]
async fn calls_fail_with_the_reason_when_the_connection_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = Client::connect(address, Options::default()).await.unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    let calls = future::join_all((0..100).map(|n| client.add(n, n)));
    let end = async {
        socket.readable().await.unwrap();
        drop(socket);
    };
    let (answers, ()) = timeout(LONG, future::join(calls, end)).await.expect("a call hangs");
    for answer in answers {
        let error = answer.unwrap_err();
        assert!(matches!(&error, Error::Closed(_)), "{error}");
    }
    let error = client.ping().await.unwrap_err();
    assert!(matches!(&error, Error::Closed(_)), "{error}");
    nothing_left(&client).await;
}

#[tokio::test]
async fn the_connection_ends_with_its_last_handle() {
    let server = Server::example().await;
    let client = server.client(Protocol::Binary).await;
    let other = client.clone();
    client.ping().await.unwrap();
    drop(client);
    other.ping().await.unwrap();
    drop(other);
    // The connection is closed, so the server stops at once.
    assert_eq!(server.stop().await.faulty, 0);
}

#[tokio::test]
async fn a_client_that_does_not_read_does_not_delay_others() {
    let (gate, _held) = Gate::new();
    let server =
        Server::start(Serve(gate), Settings { in_flight: 16, ..Settings::default() }).await;
    let slow = TcpStream::connect(server.address).await.unwrap();
    let quick = server.client(Protocol::Binary).await;
    let text = "x".repeat(1 << 16);
    let request = raw::call(Protocol::Binary, "echo", 1, |to| raw::string(to, 1, &text));
    // Write requests until the server stops reading, because its answers are not read.
    let stuck = async {
        let (mut written, mut quiet) = (0, 0);
        while quiet < 100 {
            match slow.try_write(&request[written % request.len()..]) {
                Ok(bytes) => (written, quiet) = (written + bytes, 0),
                Err(error) if error.kind() == ErrorKind::WouldBlock => quiet += 1,
                Err(error) => panic!("{error}"),
            }
            assert_eq!(quick.add(1, 1).await.unwrap(), 2);
        }
        assert!(
            written > 16 * request.len(),
            "{written} bytes: the server read fewer than 16 requests"
        );
    };
    timeout(LONG, stuck)
        .await
        .expect("the other client is delayed, or the server reads without limit");
    drop(slow);
    server.stop().await;
}

/// The client shuts down its write direction, but still reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_no_more_still_gets_every_answer() {
    let server = Server::example().await;
    for _ in 0..20 {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        let call = |id| raw::call(Protocol::Binary, "ping", id, |_| {});
        let calls = (1..=500).flat_map(call).collect::<Vec<_>>();
        socket.write_all(&calls).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut answers = Vec::new();
        timeout(LONG, socket.read_to_end(&mut answers))
            .await
            .expect("the connection was not closed")
            .unwrap();
        let one = raw::message(Protocol::Binary, "ping", TMessageType::Reply, 1, |to| {
            to.write_field_stop().unwrap();
        });
        assert_eq!(answers.len(), 500 * raw::frame(&one).len(), "an answer was lost");
    }
    assert_eq!(server.stop().await.answers.delivered, 20 * 500);
}

#[tokio::test]
async fn the_server_lets_running_calls_finish() {
    let (gate, mut held) = Gate::new();
    let server = Server::start(Serve(gate), Settings::default()).await;
    let client = server.client(Protocol::Binary).await;
    let mut call = Box::pin(client.later("at last", 0));
    assert!((&mut call).now_or_never().is_none());
    let running = held.recv().await.unwrap();
    let stop = async {
        let stopping = server.stop();
        let release = async { running.release.send(()).unwrap() };
        future::join(stopping, release).await.0
    };
    let (report, answer) = timeout(LONG, future::join(stop, call)).await.unwrap();
    assert_eq!(answer.unwrap(), "at last");
    assert_eq!((report.calls, report.answers.delivered), (1, 1));
}

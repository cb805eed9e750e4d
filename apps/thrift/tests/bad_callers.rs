//! Callers that ask for what cannot be, or whose executors are broken: what they cost the other callers.

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Wake, Waker};
use std::time::Instant;

use common::{
    Gate, LONG, Server, answers, millis, nothing_left, options, reply, request, scripted, two,
};
use futures::future::join_all;
use thrift::ApplicationErrorKind;
use thrift_demux::demo::Serve;
use thrift_demux::{Client, Error, Options, Pool, Protocol, Settings, Wire};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

const PROTOCOLS: [Protocol; 2] = [Protocol::Binary, Protocol::Compact];

/// A struct without fields.
struct Empty;

impl Wire for Empty {
    fn read(from: &mut dyn thrift::protocol::TInputProtocol) -> thrift::Result<Self> {
        from.skip(thrift::protocol::TType::Struct).map(|()| Self)
    }
    fn write(&self, to: &mut dyn thrift::protocol::TOutputProtocol) -> thrift::Result<()> {
        to.write_field_stop()
    }
}

/// Answers calls of `add`, and closes its connection at any other, as servers do whose handler failed.
async fn answers_add_only(mut socket: TcpStream, _: usize) {
    while let Some(call) = request(&mut socket).await {
        if call.name != "add" || socket.write_all(&two(&call)).await.is_err() {
            break;
        }
    }
}

/// If the servers were left alone as often as they close a connection, others would find none.
#[tokio::test]
async fn calls_that_make_their_server_close_do_not_keep_others_from_it() {
    for servers in [1, 3] {
        let mut addresses = Vec::new();
        for _ in 0..servers {
            addresses.push(scripted(answers_add_only).await.0);
        }
        let pool = Pool::new(addresses, Options::default());
        let add = async || pool.round_robin(async |client| client.add(1, 1).await).await;
        assert_eq!(add().await.unwrap(), 2);
        let begin = Instant::now();
        for _ in 0..50 {
            // More of them than of the others, and at each server.
            for _ in 0..2 * servers {
                let lost = pool.round_robin(async |client| client.echo("x").await).await;
                assert!(matches!(lost, Err(Error::Closed(_))));
            }
            assert_eq!(add().await.unwrap(), 2);
        }
        // With a pause of 100 ms for each lost connection, it would be a minute.
        assert!(begin.elapsed() < millis(5000), "{servers} servers: {:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn a_name_that_is_too_long_is_not_sent() {
    let server = Server::example().await;
    for protocol in PROTOCOLS {
        for service in [None, Some("Demo")] {
            let options = Options { service, ..options(protocol) };
            let client = Client::connect(server.address, options).await.unwrap();
            let longest = 1024 - service.map_or(0, |service| service.len() + 1);
            let answer = client.call::<_, Empty>(&"x".repeat(longest), &Empty).await;
            let Err(Error::Refused(ApplicationErrorKind::UnknownMethod, _)) = answer else {
                panic!("an answer");
            };
            let too_long = "x".repeat(longest + 1);
            let errors = [
                client.call::<_, Empty>(&too_long, &Empty).await.err(),
                client.send(&too_long, &Empty).await.err(),
            ];
            for error in errors {
                let Some(Error::TooLarge(what)) = error else { panic!("{error:?}") };
                assert_eq!(what, "a method name of 1025 bytes, more than 1024");
            }
            assert_eq!(client.add(2, 3).await.unwrap(), 5);
            assert_eq!(client.closed(), None);
        }
    }
    server.stop().await;
}

/// The server answers with the name of the method.
#[tokio::test]
async fn a_caller_may_name_the_service_in_the_method() {
    let server = Server::example().await;
    for protocol in PROTOCOLS {
        let client = server.client(protocol).await;
        client.call::<_, Empty>("Demo:ping", &Empty).await.unwrap();
        for unknown in ["Demo:nope", "Other:ping", "Demo:Demo:ping", "Demo:", ":"] {
            let answer = client.call::<_, Empty>(unknown, &Empty).await;
            assert!(matches!(answer, Err(Error::Refused(..))), "{unknown}: {:?}", answer.err());
        }
        assert_eq!(client.closed(), None);
    }
    server.stop().await;
}

#[tokio::test]
async fn callers_that_get_answers_for_other_methods_cost_others_no_call() {
    let (address, connections) = scripted(async |mut socket: TcpStream, _| {
        while let Some(mut call) = request(&mut socket).await {
            if call.name != "echo" {
                call.name = "other".to_owned();
            }
            if socket.write_all(&reply(&call, call.id)).await.is_err() {
                return;
            }
        }
    })
    .await;
    let pool = Pool::new([address], Options::default()).places(4);
    for _ in 0..20 {
        let others = (0..10).map(async |_| {
            let answer = pool.round_robin(async |client| client.later("x", 0).await).await;
            let Err(Error::Malformed(what)) = answer else { panic!("{answer:?}") };
            assert_eq!(what, "called later, but the answer is for other");
        });
        timeout(LONG, join_all(others)).await.expect("a call waits");
        let answer = pool.round_robin(async |client| client.echo("x").await);
        assert_eq!(timeout(LONG, answer).await.expect("the call waits").unwrap(), "an answer");
    }
    assert_eq!(connections.load(SeqCst), 1, "the server was left");
}

/// When the last calls that all servers got were not answered, they may all hang, but none of them is
/// known to be better.
#[tokio::test]
async fn a_call_for_each_server_that_is_not_answered_does_not_hold_up_the_next_ones() {
    const CALLS: usize = 300;
    let (gate, mut arrivals) = Gate::new();
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start(Serve(Arc::clone(&gate)), Settings::default()).await);
    }
    let addresses = servers.iter().map(|server| server.address);
    let pool = Pool::new(addresses, Options { deadline: millis(2000), ..Options::default() });
    let call = || pool.round_robin(async |client| client.later("x", 0).await);
    for round in 0..2 {
        let calls = join_all((0..CALLS).map(|_| call()));
        let all_arrive = async {
            let mut held = Vec::new();
            while held.len() < CALLS {
                held.push(timeout(LONG, arrivals.recv()).await.unwrap().unwrap());
            }
            // None is answered before.
            for held in held {
                held.release.send(()).unwrap();
            }
        };
        let (answers, ()) = futures::join!(calls, all_arrive);
        assert!(answers.iter().all(Result::is_ok), "{round}: {answers:?}");
        let bad = join_all(servers.iter().map(|_| call())).await;
        assert!(bad.iter().all(|answer| matches!(answer, Err(Error::Deadline(_)))), "{bad:?}");
        for _ in &servers {
            arrivals.recv().await.unwrap();
        }
    }
}

/// Panics when it is woken, like a task of an executor that has ended.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("the executor has ended");
    }
}

/// Polls a future once, with a waker that panics.
fn poll_broken<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) {
    let waker = Waker::from(Arc::new(Broken));
    assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
}

#[tokio::test]
async fn callers_whose_wakers_panic_do_not_end_the_connection() {
    let (gate, mut arrivals) = Gate::new();
    let settings = Settings { patience: millis(10), ..Settings::default() };
    let server = Server::start(Serve(gate), settings).await;
    let client = server.client(Protocol::Binary).await;
    let [mut one, mut two, mut three] = [(); 3].map(|()| Box::pin(client.later("x", 0)));
    let mut held = Vec::new();
    for call in [&mut one, &mut two, &mut three] {
        poll_broken(call.as_mut());
        held.push(timeout(LONG, arrivals.recv()).await.unwrap().unwrap());
    }
    for held in held.drain(..2) {
        held.release.send(()).unwrap();
    }
    for _ in 0..100 {
        assert_eq!(client.echo("x").await.unwrap(), "x");
    }
    // Those that run when the connection ends are woken, too.
    server.stop().await;
    drop(held);
    timeout(LONG, nothing_left(&client)).await.unwrap();
    assert!(timeout(LONG, three).await.unwrap().is_err());
    assert_eq!(one.await.unwrap(), "x");
    assert_eq!(two.await.unwrap(), "x");
}

#[tokio::test]
async fn callers_in_line_whose_wakers_panic_do_not_end_the_pool() {
    let (address, _) = scripted(answers).await;
    let pool = Pool::new([address], Options::default()).places(1);
    let call = || pool.round_robin(async |client| client.echo("x").await);
    assert_eq!(call().await.unwrap(), "an answer");
    for _ in 0..3 {
        let mut broken = [(); 3].map(|()| Box::pin(call()));
        for call in &mut broken {
            poll_broken(call.as_mut());
        }
        for _ in 0..3 {
            let answer = timeout(LONG, call()).await.expect("the call waits");
            assert_eq!(answer.unwrap(), "an answer");
        }
    }
    // The last ones are dropped in line.
    let mut broken = [(); 3].map(|()| Box::pin(call()));
    for call in &mut broken {
        poll_broken(call.as_mut());
    }
    let client = pin!(pool.fail_over(async |client| client.echo("x").await));
    assert_eq!(client.await.unwrap(), "an answer");
}

//! A server that stops: running calls finish, and others are not swallowed.

mod common;

use common::{Gate, Held, LONG, Server, millis, raw, within};
use thrift_demux::demo::Serve;
use thrift_demux::{Client, Error, Pool, Protocol, Report, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// A server that is to stop, and the call that it waits for.
struct Stopping {
    address: std::net::SocketAddr,
    client: Client,
    call: JoinHandle<Result<String, Error>>,
    running: Held,
    done: JoinHandle<Report>,
    arrivals: mpsc::UnboundedReceiver<Held>,
}

async fn stopping() -> Stopping {
    let (gate, mut arrivals) = Gate::new();
    let settings = Settings { patience: 10 * LONG, ..Settings::default() };
    let server = Server::start(Serve(gate), settings).await;
    let address = server.address;
    let client = server.client(Protocol::Binary).await;
    let caller = client.clone();
    let call = tokio::spawn(async move { caller.later("first", 0).await });
    let running = arrivals.recv().await.unwrap();
    let done = tokio::spawn(server.stop());
    let refuses = async { while TcpStream::connect(address).await.is_ok() {} };
    timeout(LONG, refuses).await.expect("the server accepts connections while it stops");
    Stopping { address, client, call, running, done, arrivals }
}

#[tokio::test]
async fn a_server_that_stops_answers_calls_on_a_connection_while_an_earlier_one_runs() {
    let Stopping { client, call, running, done, mut arrivals, .. } = stopping().await;
    for n in 0..10 {
        let sum = timeout(LONG, client.add(n, 1)).await.expect("the call is swallowed");
        assert_eq!(sum.unwrap(), n + 1);
    }
    // So does a later call that outlasts the first one.
    let caller = client.clone();
    let last = tokio::spawn(async move { caller.later("last", 0).await });
    let last_running = timeout(LONG, arrivals.recv()).await.expect("it is swallowed").unwrap();
    running.release.send(()).unwrap();
    assert_eq!(timeout(LONG, call).await.unwrap().unwrap().unwrap(), "first");
    let sum = timeout(LONG, client.add(1, 1)).await.expect("the call is swallowed");
    assert_eq!(sum.unwrap(), 2);
    assert!(!done.is_finished());
    last_running.release.send(()).unwrap();
    assert_eq!(timeout(LONG, last).await.unwrap().unwrap().unwrap(), "last");
    let report = timeout(LONG, done).await.expect("the server does not stop").unwrap();
    assert_eq!((report.calls, report.answers.delivered), (13, 13));
    assert!(matches!(client.add(1, 1).await, Err(Error::Closed(_))));
}

#[tokio::test]
async fn a_pool_loses_no_call_to_a_server_that_stops_while_another_client_has_a_long_call() {
    let Stopping { address, call, running, done, .. } = stopping().await;
    let other = Server::example().await;
    let pool = Pool::new([address, other.address], within(LONG));
    for n in 0..20 {
        let sum = pool.round_robin(async |client| client.add(n, 1).await).await;
        assert_eq!(sum.unwrap(), n + 1);
    }
    running.release.send(()).unwrap();
    timeout(LONG, call).await.unwrap().unwrap().unwrap();
    timeout(LONG, done).await.expect("the server does not stop").unwrap();
}

/// Closing a socket on which a request has arrived would drop what the system has not sent yet.
#[tokio::test]
async fn an_answer_that_is_not_read_yet_arrives_although_the_client_goes_on_calling() {
    const LENGTH: usize = 100_000; // the system of the server takes it at once
    let server = Server::example().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(server.address).await.unwrap();
    let echo = raw::call(Protocol::Binary, "echo", 1, |to| {
        raw::string(to, 1, &"x".repeat(LENGTH));
        to.write_field_stop().unwrap();
    });
    let ping = raw::call(Protocol::Binary, "ping", 2, |to| to.write_field_stop().unwrap());
    socket.write_all(&echo).await.unwrap();
    socket.read_u8().await.unwrap(); // the answer is on its way
    let done = tokio::spawn(server.stop());
    for _ in 0..100 {
        if socket.write_all(&ping).await.is_err() {
            break;
        }
        sleep(millis(1)).await;
    }
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("the answer is dropped");
    assert!(answer.len() >= LENGTH, "{} bytes", answer.len());
    drop(socket);
    timeout(LONG, done).await.expect("the server does not stop").unwrap();
}

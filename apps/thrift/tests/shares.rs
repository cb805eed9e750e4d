//! Clients that take all the memory that they can get leave a share to the others.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Gate, Held, LONG, Server, answer, raw, within};
use futures::future::join_all;
use thrift::protocol::{TMessageType, TType};
use thrift_demux::demo::{Example, Serve};
use thrift_demux::{Client, Error, Message, Protocol, Request, Service, Settings};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::bytes::Bytes;

const MIB: usize = 1 << 20;

/// Longer than any test: nothing here ends because of a time-out.
const NEVER: Duration = Duration::from_secs(3600);

/// Limits of 4 MiB for each connection and 16 MiB for all.
fn small() -> Settings {
    Settings { memory: 16 * MIB, memory_each: 4 * MIB, stall_timeout: NEVER, ..Settings::default() }
}

fn example() -> Serve<Example> {
    Serve(Arc::new(Example::default()))
}

/// Writes `bytes`, as far as the server reads them, to each of many connections.
async fn send_to(server: &Server, connections: usize, bytes: &[u8]) -> Vec<TcpStream> {
    join_all((0..connections).map(async |_| {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        let _ = timeout(Duration::from_millis(300), socket.write_all(bytes)).await;
        socket
    }))
    .await
}

/// A call that a gate does not answer.
fn never_ending(kind: TMessageType, length: usize) -> Vec<u8> {
    raw::frame(&raw::message(Protocol::Binary, "later", kind, 1, |to| {
        raw::string(to, 1, &"x".repeat(length));
        raw::field(to, TType::I32, 2);
        to.write_i32(0).unwrap();
        to.write_field_stop().unwrap();
    }))
}

async fn client(server: &Server) -> Client {
    Client::connect(server.address, within(LONG)).await.unwrap()
}

#[tokio::test]
async fn announced_lengths_hold_no_memory_of_others() {
    let server = Server::start(example(), small()).await;
    let mut bytes = u32::try_from(MIB).unwrap().to_be_bytes().to_vec();
    bytes.push(0x80);
    let sockets = send_to(&server, 100, &bytes).await;
    let healthy = client(&server).await;
    for length in [100_000, MIB] {
        assert_eq!(healthy.echo("x".repeat(length)).await.unwrap().len(), length);
    }
    drop(sockets);
    server.stop().await;
}

/// Six connections fill their shares with bytes that they have really sent.
#[tokio::test]
async fn incomplete_frames_leave_a_share_to_others() {
    let server = Server::start(example(), small()).await;
    let mut bytes = u32::try_from(MIB).unwrap().to_be_bytes().to_vec();
    bytes.resize(MIB / 2, 0x80);
    let sockets = send_to(&server, 6, &bytes).await;
    let healthy = client(&server).await;
    assert_eq!(healthy.echo("x".repeat(100_000)).await.unwrap().len(), 100_000);
    drop(sockets);
    server.stop().await;
}

/// Together, they need far more than there is.
#[tokio::test]
async fn long_frames_of_many_clients_are_all_answered() {
    let server = Server::start(example(), small()).await;
    let clients = join_all((0..30).map(|_| client(&server))).await;
    let answers = clients.iter().map(|of| of.echo("x".repeat(MIB)));
    for answer in join_all(answers).await {
        assert_eq!(answer.unwrap().len(), MIB);
    }
    server.stop().await;
}

/// A frame that holds memory that others may need does not wait for more without limit.
#[tokio::test]
async fn a_frame_that_waits_for_memory_for_too_long_is_reported() {
    let (closed, mut reasons) = mpsc::unbounded_channel();
    let on_closed = Arc::new(move |_, reason: &str| closed.send(reason.to_owned()).unwrap());
    let stall_timeout = Duration::from_secs(1);
    let (gate, _held) = Gate::new();
    let server = Server::start(Serve(gate), Settings { stall_timeout, on_closed, ..small() }).await;
    let call = never_ending(TMessageType::Call, MIB);
    let sockets = send_to(&server, 20, &call.repeat(4)).await;
    let reason = timeout(LONG, reasons.recv()).await.expect("all frames wait").unwrap();
    assert_eq!(
        reason,
        format!("no memory was left for a frame of {} bytes within 1s", call.len() - 4)
    );
    drop(sockets);
    server.stop().await;
}

/// Answers `echo` with a text of as many bytes as its call's id says.
struct Long;

impl Service for Long {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        let Message { protocol, name, id, .. } = &request.message;
        let answer = raw::message(*protocol, name, TMessageType::Reply, *id, |to| {
            raw::string(to, 0, &"x".repeat(id.unsigned_abs() as usize));
            to.write_field_stop().unwrap();
        });
        Ok(Some(answer.into()))
    }
}

/// Those that do not read are closed, the greediest first, when others need their memory. The
/// answers of the others may be refused until it is known who does not read.
#[tokio::test]
async fn answers_that_are_not_read_leave_memory_to_the_answers_of_others() {
    let (closed, mut reasons) = mpsc::unbounded_channel();
    let on_closed = Arc::new(move |_, reason: &str| closed.send(reason.to_owned()).unwrap());
    let server = Server::start(Long, Settings { on_closed, ..small() }).await;
    let greedy = raw::call(Protocol::Binary, "echo", 100_000, |_| {}).repeat(10);
    let sockets = send_to(&server, 16, &greedy).await;
    let mut healthy = TcpStream::connect(server.address).await.unwrap();
    let calls = async {
        // The buffers of the system take some megabytes of each connection.
        let (mut answered, mut closed) = (0, None);
        while answered < 20 || closed.is_none() {
            for socket in &sockets {
                let _ = socket.try_write(&greedy); // it may be closed
            }
            sleep(Duration::from_millis(10)).await;
            closed = closed.or_else(|| reasons.try_recv().ok());
            let call = raw::call(Protocol::Binary, "echo", 400_000, |_| {});
            healthy.write_all(&call).await.unwrap();
            let kind = answer(&mut healthy).await.kind;
            answered += u32::from(closed.is_some() && kind == TMessageType::Reply);
        }
        closed
    };
    let reason =
        timeout(LONG, calls).await.expect("the answers of a client that reads are refused");
    let expected = "the client read hardly any of its answers while others needed their memory";
    assert_eq!(reason.as_deref(), Some(expected));
    drop((sockets, healthy));
    server.stop().await;
}

/// Those that are in the way, because they hold most and neither read nor send, are closed when a
/// frame waits for memory.
#[tokio::test]
async fn frames_do_not_wait_for_the_memory_of_clients_that_do_not_go_on() {
    let echo = raw::call(Protocol::Binary, "echo", 1, |to| raw::string(to, 1, &"x".repeat(MIB)));
    let mut half = u32::try_from(MIB).unwrap().to_be_bytes().to_vec();
    half.resize(MIB / 2, 0x80);
    for (bytes, expected) in [
        (
            echo.repeat(20),
            "the client read hardly any of its answers while others needed their memory",
        ),
        (half, "the client sent hardly any of a frame while others needed its memory"),
    ] {
        let (closed, mut reasons) = mpsc::unbounded_channel();
        let on_closed = Arc::new(move |_, reason: &str| closed.send(reason.to_owned()).unwrap());
        let server = Server::start(example(), Settings { on_closed, ..small() }).await;
        let sockets = send_to(&server, 20, &bytes).await;
        let healthy = client(&server).await;
        for _ in 0..10 {
            assert_eq!(healthy.echo("x".repeat(100_000)).await.unwrap().len(), 100_000);
        }
        while let Ok(reason) = reasons.try_recv() {
            assert_eq!(reason, expected);
        }
        drop(sockets);
        server.stop().await;
    }
}

/// Fills the memory with calls that do not end, each on a connection of its own.
async fn fill(
    server: &Server,
    kind: TMessageType,
    arrivals: &mut mpsc::UnboundedReceiver<Held>,
) -> Vec<(TcpStream, Held)> {
    let mut calls = Vec::new();
    // The last ones take what others that did not fit have given back.
    for length in [MIB, MIB / 2, MIB / 4, MIB / 8, MIB / 16, MIB / 16, MIB / 16] {
        loop {
            let sockets = send_to(server, 1, &never_ending(kind, length)).await;
            let arrived = timeout(Duration::from_millis(500), arrivals.recv()).await;
            let Ok(Some(call)) = arrived else { break };
            calls.extend(sockets.into_iter().zip([call]));
        }
    }
    calls
}

/// They hold all that they can get, and nothing ends them but the need of others.
#[tokio::test]
async fn calls_that_take_long_do_not_keep_others_out() {
    let (closed, mut reasons) = mpsc::unbounded_channel();
    let on_closed = Arc::new(move |_, reason: &str| closed.send(reason.to_owned()).unwrap());
    let (gate, mut arrivals) = Gate::new();
    let server = Server::start(Serve(gate), Settings { on_closed, ..small() }).await;
    let calls = fill(&server, TMessageType::Call, &mut arrivals).await;
    let healthy = client(&server).await;
    for _ in 0..10 {
        assert_eq!(healthy.echo("x".repeat(100_000)).await.unwrap().len(), 100_000);
    }
    let mut closed = 0;
    while let Ok(reason) = reasons.try_recv() {
        closed += usize::from(reason == "its calls held memory for long while others needed it");
    }
    assert!((1..calls.len()).contains(&closed), "{closed} of {} were closed", calls.len());
    drop(calls);
    server.stop().await;
}

/// A one-way call continues when its client leaves, unless others need its memory.
#[tokio::test]
async fn one_way_calls_of_clients_that_have_left_do_not_keep_others_out() {
    let (gate, mut arrivals) = Gate::new();
    let server = Server::start(Serve(gate), small()).await;
    let calls = fill(&server, TMessageType::OneWay, &mut arrivals).await;
    let calls: Vec<_> = calls.into_iter().map(|(_socket, call)| call).collect();
    let healthy = client(&server).await;
    for _ in 0..10 {
        assert_eq!(healthy.echo("x".repeat(100_000)).await.unwrap().len(), 100_000);
    }
    let dropped = calls.iter().filter(|call| call.release.is_closed()).count();
    assert!((1..calls.len()).contains(&dropped), "{dropped} of {} were dropped", calls.len());
    server.stop().await;
}

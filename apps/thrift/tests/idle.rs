//! Idle connections do not keep others out.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Gate, LONG, Server, answer, raw};
use thrift::protocol::TType;
use thrift_demux::demo::Serve;
use thrift_demux::{Protocol, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const CONNECTIONS: usize = 20;

const SERVER: &str = env!("CARGO_BIN_EXE_thrift-demux");

async fn call(socket: &mut TcpStream, name: &str) {
    let call = raw::call(Protocol::Binary, name, 1, |to| {
        raw::string(to, 1, "x");
        if name == "later" {
            raw::field(to, TType::I32, 2);
            to.write_i32(60_000).unwrap();
        }
    });
    socket.write_all(&call).await.unwrap();
}

async fn echo(server: &Server) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    call(&mut socket, "echo").await;
    assert_eq!(answer(&mut socket).await.name, "echo");
    socket
}

/// Waits until the server closes the connection.
async fn closed(socket: &mut TcpStream) {
    let end = timeout(LONG, socket.read(&mut [0])).await.expect("it stays open");
    assert_eq!(end.unwrap(), 0);
}

#[tokio::test]
async fn the_longest_idle_connection_makes_room_for_another() {
    let (service, mut held) = Gate::new();
    let settings = Settings { connections: CONNECTIONS, idle_timeout: None, ..Default::default() };
    let server = Server::start(Serve(service), settings).await;
    // The first is busy, and so stays; the others never make a call.
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    call(&mut busy, "later").await;
    let running = timeout(LONG, held.recv()).await.expect("no call arrived").unwrap();
    let mut idle = Vec::new();
    for _ in 1..CONNECTIONS {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    let mut known = echo(&server).await;
    closed(&mut idle[0]).await;
    for socket in &idle[1..] {
        let open = socket.try_read(&mut [0]).expect_err("more than one is closed");
        assert_eq!(open.kind(), ErrorKind::WouldBlock);
    }
    // However many come, all are served.
    for _ in 0..3 * CONNECTIONS {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    echo(&server).await;
    // The one that was served first is closed a second after its answer.
    let more = async {
        loop {
            idle.push(echo(&server).await);
        }
    };
    tokio::select! {
        () = closed(&mut known) => {}
        () = more => {}
    }
    running.release.send(()).unwrap();
    assert_eq!(answer(&mut busy).await.name, "later");
    server.stop().await;
}

/// The server looks for idle connections at intervals. A connection that is accepted in the same
/// turn as such a look, which a blocked thread makes likely, closes none while places are free.
#[tokio::test]
async fn no_idle_connection_is_closed_while_places_are_free() {
    let settings = Settings { idle_timeout: None, ..Default::default() };
    let (service, _held) = Gate::new();
    let server = Server::start(Serve(service), settings).await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        idle.push(echo(&server).await);
    }
    for _ in 0..30 {
        let next = std::net::TcpStream::connect(server.address).unwrap();
        std::thread::sleep(Duration::from_millis(110));
        drop(next);
        echo(&server).await;
    }
    for socket in &idle {
        let open = socket.try_read(&mut [0]).expect_err("it is closed while places are free");
        assert_eq!(open.kind(), ErrorKind::WouldBlock);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_connection_is_closed_when_it_makes_no_call_for_the_idle_timeout() {
    let (service, mut held) = Gate::new();
    let idle_timeout = Some(Duration::from_millis(300));
    let server =
        Server::start(Serve(service), Settings { idle_timeout, ..Default::default() }).await;
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    call(&mut busy, "later").await;
    let running = timeout(LONG, held.recv()).await.expect("no call arrived").unwrap();
    for _ in 0..2 {
        closed(&mut echo(&server).await).await;
    }
    running.release.send(()).unwrap();
    assert_eq!(answer(&mut busy).await.name, "later");
    closed(&mut busy).await;
    assert_eq!(server.stop().await.faulty, 0);
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server in a process of its own, which may open 64 files. Returns its address.
#[cfg(unix)]
fn with_few_files() -> (Process, String) {
    let script = format!("ulimit -n 64; exec '{SERVER}' serve --listen 127.0.0.1:0");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Process(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").expect("no address").to_owned();
    (server, address)
}

#[cfg(unix)]
#[tokio::test]
async fn the_longest_idle_connection_makes_room_at_the_limit_of_open_files() {
    let (mut server, address) = with_few_files();
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(&address).await.unwrap());
    }
    let mut next = TcpStream::connect(&address).await.unwrap();
    call(&mut next, "echo").await;
    assert_eq!(answer(&mut next).await.name, "echo");
    closed(&mut idle[0]).await;
    server.0.kill().unwrap();
    let mut errors = String::new();
    server.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let reported = errors.matches("cannot accept a connection").count();
    assert_eq!(reported, 1, "{errors}");
}

#[cfg(unix)]
#[tokio::test]
async fn clients_that_have_shut_down_their_side_make_room_at_the_limit_of_open_files() {
    let (_server, address) = with_few_files();
    let mut busy = Vec::new();
    for n in 0..70 {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        call(&mut socket, "later").await;
        if n % 2 == 1 {
            socket.shutdown().await.unwrap();
        }
        busy.push(socket);
    }
    let mut next = TcpStream::connect(&address).await.unwrap();
    call(&mut next, "echo").await;
    assert_eq!(timeout(LONG, answer(&mut next)).await.expect("it has no file").name, "echo");
    for socket in busy.iter_mut().step_by(2) {
        assert!(futures::poll!(pin!(socket.read(&mut [0]))).is_pending(), "it lost its call");
    }
}

/// They may still read the answers, but nearly always have left.
#[tokio::test]
async fn clients_that_have_shut_down_their_side_make_room_for_others_though_their_calls_run() {
    let (service, mut held) = Gate::new();
    let settings = Settings { connections: 3, idle_timeout: None, ..Default::default() };
    let server = Server::start(Serve(service), settings).await;
    let mut calls = Vec::new();
    for _ in 0..3 {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        call(&mut socket, "later").await;
        let running = timeout(LONG, held.recv()).await.expect("no call arrived").unwrap();
        calls.push((socket, running));
    }
    // The first one has not.
    for (socket, _) in &mut calls[1..] {
        socket.shutdown().await.unwrap();
    }
    for n in 1..3 {
        let mut next = timeout(LONG, echo(&server)).await.expect("it has no place");
        let dropped = calls.iter().filter(|(_, call)| call.release.is_closed()).count();
        assert_eq!(dropped, n, "calls were dropped");
        call(&mut next, "later").await; // it stays
        let running = timeout(LONG, held.recv()).await.expect("no call arrived").unwrap();
        calls.push((next, running));
    }
    assert!(!calls[0].1.release.is_closed(), "the client that has not left lost its call");
    drop(calls);
    server.stop().await;
}

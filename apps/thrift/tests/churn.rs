//! Misbehaving clients connect and disconnect. Afterwards, as much memory is allocated as before.

mod common;

use std::sync::Arc;

use allocation_counter::measure;
use common::{LONG, Server, raw};
use thrift::protocol::TType;
use thrift_demux::demo::{Example, Serve};
use thrift_demux::{Protocol, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

fn call(name: &str, length: usize) -> Vec<u8> {
    raw::call(Protocol::Binary, name, 1, |to| raw::string(to, 1, &"x".repeat(length)))
}

/// Runs three hundred clients. Some send garbage, some stop within a frame, some do not read, some
/// make calls that take a minute; all reset their connections.
async fn round(server: &Server) {
    // Longer calls are started, and their memory is released, on other threads, which are not measured.
    let echo = call("echo", 3_000).repeat(20);
    let later = raw::call(Protocol::Binary, "later", 1, |to| {
        raw::string(to, 1, "never");
        raw::field(to, TType::I32, 2);
        to.write_i32(60_000).unwrap();
    });
    for n in 0..300 {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        match n % 5 {
            3 => socket.write_all(&later.repeat(20)).await.unwrap(),
            0 => socket.write_all(&echo).await.unwrap(),
            1 => socket.write_all(&echo[..5_000]).await.unwrap(),
            2 => socket.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap(),
            _ => {
                socket.write_all(&echo[..echo.len() / 20]).await.unwrap();
                socket.read_u32().await.unwrap();
            }
        }
        socket.set_zero_linger().unwrap();
    }
    // The server accepts one connection at a time, so this is served when all others are closed.
    let mut last = TcpStream::connect(server.address).await.unwrap();
    last.write_all(&call("echo", 1)).await.unwrap();
    last.read_u32().await.unwrap();
}

#[test]
fn disconnected_clients_leave_no_memory_allocated() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = Settings { connections: 1, ..Settings::default() };
    let server = runtime.block_on(Server::start(Serve(Arc::new(Example::default())), settings));
    let mut left = Vec::new();
    for _ in 0..8 {
        let round =
            async { timeout(LONG, round(&server)).await.expect("the round did not finish") };
        left.push(measure(|| runtime.block_on(round)).bytes_current);
    }
    // Tables grow in the first rounds.
    assert!(
        left[4..].iter().sum::<i64>() < 1000,
        "bytes that remained allocated after each round: {left:?}"
    );
    runtime.block_on(server.stop());
}

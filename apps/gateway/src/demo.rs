//! The demo: made-up messages, and two slow clients.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::message::Key;
use crate::source::Source;

/// How long the client that stalls does not read.
const STALL: Duration = Duration::from_secs(40);
/// How long clients read at a time, before they show that they are there.
const READ: Duration = Duration::from_secs(2);

/// The keys of the demo, and their shares in percent.
const MENU: [(&str, u64); 8] = [
    ("demo.tea", 30),
    ("demo.coffee", 25),
    ("demo.cocoa", 15),
    ("demo.mate", 10),
    ("demo.cider", 8),
    ("demo.juice", 6),
    ("demo.milk", 4),
    ("demo.water", 2),
];

/// Publishes made-up messages at this rate while it is polled.
pub async fn publish(source: Source, rate: u32) {
    let keys: Vec<Key> = MENU.iter().map(|(key, _)| Key::from(*key)).collect();
    let mut tick = interval(Duration::from_millis(20));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut count, mut due, mut last) = (0_u64, 0.0, Instant::now());
    loop {
        let now = tick.tick().await;
        // After a pause (blocked input, broker away), at most 100 ms of messages are made up for.
        due += f64::from(rate) * now.duration_since(last).as_secs_f64().min(0.1);
        last = now;
        let mut published = [const { Vec::new() }; MENU.len()];
        while due >= 1.0 {
            due -= 1.0;
            count += 1;
            // 37 is coprime to 100, so this visits all residues in a scattered order.
            let (mut rest, mut choice) = (count.wrapping_mul(37) % 100, 0);
            while rest >= MENU[choice].1 {
                rest -= MENU[choice].1;
                choice += 1;
            }
            let body = format!("cup {count} of {}", &keys[choice]["demo.".len()..]);
            published[choice].push(body);
        }
        // Publishes the messages of a key in sequence to keep their order.
        let publish = async |(key, bodies): (&Key, Vec<String>)| {
            for body in bodies {
                let _ = source.publish(key, body.as_bytes(), false).await;
            }
        };
        future::join_all(keys.iter().zip(published).map(publish)).await;
    }
}

/// Runs the slow clients: one subscribes to more than its rate, and one stalls.
pub async fn readers(gateway: SocketAddr) {
    let all: Vec<_> = MENU.iter().map(|(key, _)| *key).collect();
    let limited = json!({ "type": "subscribe", "keys": &all[..2], "rate": 5 });
    let stalls = json!({ "type": "subscribe", "keys": all });
    let again = async |request: Value, pause| loop {
        let Err(error) = read(gateway, &request, pause).await;
        tracing::debug!(%error, "a client of the demo has left");
        sleep(READ).await;
    };
    future::join(again(limited, Duration::ZERO), again(stalls, STALL)).await;
}

/// Subscribes, and reads with pauses. What it reads does not matter, so this is no more of a
/// WebSocket than it has to be.
async fn read(gateway: SocketAddr, request: &Value, pause: Duration) -> io::Result<Infallible> {
    let socket = if gateway.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_recv_buffer_size(4096)?;
    let mut socket = socket.connect(gateway).await?;
    let handshake = format!(
        "GET /ws HTTP/1.1\r\nhost: {gateway}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(handshake.as_bytes()).await?;
    let mut received = [0; 4096];
    let _ = socket.read(&mut received).await?;
    let text = request.to_string();
    let length = u16::try_from(text.len()).map_err(io::Error::other)?.to_be_bytes();
    // Frames of clients are masked, here by zeros.
    let head = [0x81, 0xfe, length[0], length[1], 0, 0, 0, 0];
    socket.write_all(&[&head, text.as_bytes()].concat()).await?;
    loop {
        let reading = async {
            loop {
                if socket.read(&mut received).await? == 0 {
                    return Err::<Infallible, _>(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
            }
        };
        if let Ok(ended) = timeout(READ, reading).await {
            return ended;
        }
        socket.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await?; // a pong
        sleep(pause).await;
    }
}

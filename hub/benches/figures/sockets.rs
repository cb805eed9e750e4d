//! 1,000 TCP clients of 50 topics, in bursts of 5,000 and of 250 lines. The time does not include that
//! of the clients.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use cpu_time::ThreadTime;
use futures::SinkExt;
use stream_demux_hub::{Hub, Overflow, Terms, write_sink};
use tokio::io::AsyncWriteExt;
use tokio::sync::broadcast;
use tokio_util::codec::{FramedWrite, LinesCodec};

use crate::fanout::{Item, run, text};
use crate::measure::{Clock, Contender, Cost, compare, threads};

const CLIENTS: u64 = 1_000;
const TOPICS: u64 = 50;

/// What is published: a burst, and the next when all clients have read it.
#[derive(Clone, Copy)]
struct Load {
    /// The lines of a burst.
    lines: u64,
    bursts: u64,
}

/// The second has five lines for each client, so the calls cost more than the lines.
const LOADS: [Load; 2] = [Load { lines: 5_000, bursts: 5 }, Load { lines: 250, bursts: 50 }];

impl Load {
    /// The lines that all clients get in a burst.
    fn copies(self) -> u64 {
        self.lines * CLIENTS / TOPICS
    }
}

/// Clients in a thread of their own. After each burst it sends the processor time that it took so
/// far.
fn connect(load: Load) -> (Vec<tokio::net::TcpStream>, Receiver<Duration>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (server, _) = listener.accept().unwrap();
        server.set_nodelay(true).unwrap();
        server.set_nonblocking(true).unwrap();
        servers.push(tokio::net::TcpStream::from_std(server).unwrap());
    }
    let (arrived, burst_arrived) = channel();
    thread::spawn(move || read(load, clients, &arrived));
    (servers, burst_arrived)
}

fn read(load: Load, mut clients: Vec<TcpStream>, arrived: &Sender<Duration>) {
    let (start, mut buffer) = (ThreadTime::now(), vec![0; 64 * 1024]);
    for client in &clients {
        client.set_nonblocking(true).unwrap();
    }
    for _ in 0..load.bursts {
        let mut left = load.copies() * (text().len() as u64 + 1);
        while left > 0 {
            thread::sleep(Duration::from_millis(2));
            for client in &mut clients {
                match client.read(&mut buffer) {
                    Ok(n) => left -= n as u64,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        }
        if arrived.send(start.elapsed()).is_err() {
            return;
        }
    }
}

async fn publish<F: Future<Output = ()>>(
    load: Load,
    mut arrived: Receiver<Duration>,
    mut publish: impl FnMut(u64, Item) -> F,
) -> Cost {
    let clock = Clock::start();
    let mut clients = Duration::ZERO;
    for _ in 0..load.bursts {
        for n in 0..load.lines {
            publish(n % TOPICS, text()).await;
        }
        let waiting = tokio::task::spawn_blocking(move || (arrived.recv().unwrap(), arrived));
        (clients, arrived) = waiting.await.unwrap();
    }
    let cost = clock.stop(load.copies() * load.bursts);
    Cost { time: cost.time.saturating_sub(clients), ..cost }
}

/// Formatting a line costs more than copying it.
fn encode(line: &Item, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(line.as_bytes());
    buffer.push(b'\n');
}

/// Room for a burst, as the channels of the rivals have: otherwise the hub writes each time that the
/// publisher has to wait.
fn hub() -> Hub<u64, Item> {
    Hub::builder().capacity(8 * 1_024).spawn()
}

async fn publish_to_hub(load: Load, arrived: Receiver<Duration>, hub: &Hub<u64, Item>) -> Cost {
    publish(load, arrived, |topic, line| async move { hub.publish(topic, line).await.unwrap() })
        .await
}

async fn attach_writer(load: Load) -> Cost {
    let (sockets, arrived) = connect(load);
    let hub = hub();
    for (n, socket) in (0..).zip(sockets) {
        let encode = |line: Item, buffer: &mut Vec<u8>| {
            encode(&line, buffer);
            Ok(())
        };
        tokio::spawn(hub.attach_writer(n % TOPICS, socket, encode, Terms::new()));
    }
    publish_to_hub(load, arrived, &hub).await
}

async fn attach_sinks(load: Load) -> Cost {
    let (sockets, arrived) = connect(load);
    let hub = hub();
    let terms = Terms::new().buffer(1_024).overflow(Overflow::Wait);
    let attach = |(n, socket)| {
        let sink = write_sink(socket, 8 * 1024, |line: Item, buffer| {
            encode(&line, buffer);
            Ok(())
        });
        hub.attach(n % TOPICS, sink, terms)
    };
    let _leases = (0..).zip(sockets).map(attach).collect::<Vec<_>>();
    publish_to_hub(load, arrived, &hub).await
}

/// A task for each client, with this program.
async fn broadcast<F>(
    load: Load,
    client: impl Fn(tokio::net::TcpStream, broadcast::Receiver<Item>) -> F,
) -> Cost
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sockets, arrived) = connect(load);
    let topics: HashMap<_, _> =
        (0..TOPICS).map(|n| (n, broadcast::channel::<Item>(1_024).0)).collect();
    for (n, socket) in (0..).zip(sockets) {
        tokio::spawn(client(socket, topics[&(n % TOPICS)].subscribe()));
    }
    publish(load, arrived, |topic, line| {
        topics[&topic].send(line).unwrap();
        std::future::ready(())
    })
    .await
}

async fn write_with_codec(socket: tokio::net::TcpStream, mut lines: broadcast::Receiver<Item>) {
    let mut client = FramedWrite::new(socket, LinesCodec::new());
    while let Ok(line) = lines.recv().await {
        client.feed(line).await.unwrap();
        while let Ok(line) = lines.try_recv() {
            client.feed(line).await.unwrap();
        }
        SinkExt::<Item>::flush(&mut client).await.unwrap();
    }
}

async fn write_buffer(mut socket: tokio::net::TcpStream, mut lines: broadcast::Receiver<Item>) {
    let mut buffer = Vec::new();
    while let Ok(line) = lines.recv().await {
        encode(&line, &mut buffer);
        while let Ok(line) = lines.try_recv() {
            encode(&line, &mut buffer);
        }
        socket.write_all(&buffer).await.unwrap();
        buffer.clear();
    }
}

pub(crate) fn measure(rounds: usize) {
    for load in LOADS {
        for threads in threads() {
            let title = format!(
                "1,000 sockets of 50 topics, bursts of {}, {}: a delivery",
                load.lines,
                threads.name()
            );
            let contenders = vec![
                Contender::new("hub, attach_writer", move || {
                    run(threads, move || attach_writer(load))
                }),
                Contender::new("hub, write_sink", move || run(threads, move || attach_sinks(load))),
                Contender::new("broadcast per topic, codec, one flush", move || {
                    run(threads, move || broadcast(load, write_with_codec))
                }),
                Contender::new("broadcast per topic, one buffer, one write", move || {
                    run(threads, move || broadcast(load, write_buffer))
                }),
            ];
            compare(&title, rounds, contenders);
        }
    }
}

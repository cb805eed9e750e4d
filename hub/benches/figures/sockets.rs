//! 1,000 TCP clients of 50 topics, in bursts of 5,000 lines. The time does not include that of the
//! clients.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use cpu_time::ThreadTime;
use futures::SinkExt;
use stream_demux_hub::{Hub, Overflow, Terms, write_sink};
use tokio::sync::broadcast;
use tokio_util::codec::{FramedWrite, LinesCodec};

use crate::fanout::{Item, run, text};
use crate::measure::{Clock, Contender, Cost, compare, threads};

const CLIENTS: u64 = 1_000;
const TOPICS: u64 = 50;
const BURST: u64 = 5_000;
const BURSTS: u64 = 5;
const COPIES: u64 = BURST * CLIENTS / TOPICS;

/// Clients in a thread of their own. After each burst it sends the processor time that it took so
/// far.
fn connect() -> (Vec<tokio::net::TcpStream>, Receiver<Duration>) {
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
    thread::spawn(move || read(clients, &arrived));
    (servers, burst_arrived)
}

fn read(mut clients: Vec<TcpStream>, arrived: &Sender<Duration>) {
    let (start, mut buffer) = (ThreadTime::now(), vec![0; 64 * 1024]);
    for client in &clients {
        client.set_nonblocking(true).unwrap();
    }
    for _ in 0..BURSTS {
        let mut left = COPIES * (text().len() as u64 + 1);
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
    mut arrived: Receiver<Duration>,
    mut publish: impl FnMut(u64, Item) -> F,
) -> Cost {
    let clock = Clock::start();
    let mut clients = Duration::ZERO;
    for _ in 0..BURSTS {
        for n in 0..BURST {
            publish(n % TOPICS, text()).await;
        }
        let waiting = tokio::task::spawn_blocking(move || (arrived.recv().unwrap(), arrived));
        (clients, arrived) = waiting.await.unwrap();
    }
    let cost = clock.stop(COPIES * BURSTS);
    Cost { time: cost.time.saturating_sub(clients), ..cost }
}

async fn hub() -> Cost {
    let (sockets, arrived) = connect();
    // Room for a burst, as the channels of the rival have: otherwise the hub writes each time that
    // the publisher has to wait.
    let hub = Hub::builder().capacity(8 * 1_024).spawn();
    let terms = Terms::new().buffer(1_024).overflow(Overflow::Wait);
    let attach = |(n, socket)| {
        let sink = write_sink(socket, 8 * 1024, |line: Item, buffer| {
            // Formatting a line costs more than copying it.
            buffer.extend_from_slice(line.as_bytes());
            buffer.push(b'\n');
            Ok(())
        });
        hub.attach(n % TOPICS, sink, terms)
    };
    let _leases = (0..).zip(sockets).map(attach).collect::<Vec<_>>();
    publish(arrived, |topic, line| {
        let hub = &hub;
        async move { hub.publish(topic, line).await.unwrap() }
    })
    .await
}

async fn broadcast() -> Cost {
    let (sockets, arrived) = connect();
    let topics: HashMap<_, _> =
        (0..TOPICS).map(|n| (n, broadcast::channel::<Item>(1_024).0)).collect();
    for (n, socket) in (0..).zip(sockets) {
        let mut lines = topics[&(n % TOPICS)].subscribe();
        tokio::spawn(async move {
            let mut client = FramedWrite::new(socket, LinesCodec::new());
            while let Ok(line) = lines.recv().await {
                client.feed(line).await.unwrap();
                while let Ok(line) = lines.try_recv() {
                    client.feed(line).await.unwrap();
                }
                SinkExt::<Item>::flush(&mut client).await.unwrap();
            }
        });
    }
    publish(arrived, |topic, line| {
        topics[&topic].send(line).unwrap();
        std::future::ready(())
    })
    .await
}

pub(crate) fn measure(rounds: usize) {
    for threads in threads() {
        compare(
            &format!("1,000 sockets of 50 topics, bursts of 5,000, {}: a delivery", threads.name()),
            rounds,
            vec![
                Contender::new("hub, write_sink", move || run(threads, hub)),
                Contender::new("broadcast per topic, codec, one flush", move || {
                    run(threads, broadcast)
                }),
            ],
        );
    }
}

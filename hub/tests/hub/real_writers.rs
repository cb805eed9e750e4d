//! Writers of a hub and of a demux, to TCP sockets, on tokio's runtimes.
//!
//! Each line has a number, and a notice has the number of lines that are missing, so a client knows
//! whether what it has received is exactly what it must be.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::stream;
use stream_demux::DemuxStreamExt;
use stream_demux_hub::{Hub, Overflow, Terms, Writer, WriterEnd, Written, writers};
use tokio::io::{AsyncReadExt, duplex};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};

use crate::common::Dice;
use crate::runtimes::{RUNTIMES, run};

/// Two ends of a connection, whose buffers take some thousand bytes.
async fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    let connect = socket.connect(listener.local_addr().unwrap());
    let (client, server) = futures::future::join(connect, listener.accept()).await;
    let (server, _) = server.unwrap();
    server.set_nodelay(true).unwrap();
    (server, client.unwrap())
}

fn listener() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    // Sockets that are accepted have it from here.
    socket.set_send_buffer_size(4 * 1024).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(1_024).unwrap()
}

/// A line with a number, and some bytes that depend on it.
fn line(n: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let padding = [0, 3, 50, 700][(n % 4) as usize];
    writeln!(bytes, "{n} {:.<padding$}", "")
}

fn notice(lost: u64, bytes: &mut Vec<u8>) {
    writeln!(bytes, "lost {lost}").unwrap();
}

/// What a client knows from what it has read.
#[derive(Debug, Default)]
struct Reading {
    /// The number that comes next. Before the first line, how many are missing.
    next: u64,
    has_begun: bool,
    lines: u64,
    lost: u64,
    /// The bytes of a line that is not complete.
    rest: Vec<u8>,
}

impl Reading {
    /// # Panics
    ///
    /// Panics if these bytes cannot follow.
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        for text in rest.split_inclusive(|&byte| byte == b'\n') {
            if !text.ends_with(b"\n") {
                self.rest = text.to_vec();
                return;
            }
            let text = std::str::from_utf8(text).unwrap();
            if let Some(lost) = text.strip_prefix("lost ") {
                let lost = lost.trim_end().parse::<u64>().unwrap();
                self.next += lost;
                self.lost += lost;
                continue;
            }
            let n = text.split(' ').next().unwrap().parse::<u64>().unwrap();
            let mut expected = Vec::new();
            line(n, &mut expected).unwrap();
            assert_eq!(text.as_bytes(), expected);
            assert!(!self.has_begun || n == self.next, "{n} after {self:?}");
            self.has_begun = true;
            self.next = n + 1;
            self.lines += 1;
        }
    }

    fn is_between_lines(&self) -> bool {
        self.rest.is_empty()
    }
}

/// Reads to the end, in pieces.
async fn read(client: &mut TcpStream, dice: &mut Dice) -> Reading {
    let (mut reading, mut buffer) = (Reading::default(), vec![0; 10_000]);
    loop {
        let most = 1 + dice.index(buffer.len());
        match client.read(&mut buffer[..most]).await {
            Ok(0) => return reading,
            Ok(bytes) => reading.take(&buffer[..bytes]),
            Err(error) => panic!("{error}"),
        }
    }
}

fn check(written: &Written, reading: &Reading, sent: u64) {
    assert!(matches!(written.end, WriterEnd::Closed), "{written:?}");
    assert!(reading.is_between_lines());
    assert_eq!((written.items, written.lost), (reading.lines, reading.lost));
    assert_eq!((written.items + written.lost, written.unwritten), (sent, 0));
}

#[test]
fn hub_that_waits_for_its_writers_loses_nothing_in_partial_writes() {
    for workers in RUNTIMES {
        run(workers, async {
            let (hub, listener) = (Hub::new(), listener());
            let (mut writers, mut clients) = (JoinSet::new(), JoinSet::new());
            for seed in 0..10 {
                let (server, mut client) = connection(&listener).await;
                let terms = Terms::new().buffer(8).overflow(Overflow::Wait);
                writers.spawn(hub.attach_writer("key", server, line, terms));
                clients.spawn(async move {
                    let reading = read(&mut client, &mut Dice::new(seed)).await;
                    assert_eq!((reading.lines, reading.lost), (2_000, 0));
                });
            }
            for n in 0..2_000 {
                hub.publish("key", n).await.unwrap();
            }
            drop(hub);
            for written in writers.join_all().await {
                assert!(matches!(written.end, WriterEnd::Closed), "{written:?}");
                assert_eq!((written.items, written.lost), (2_000, 0));
            }
            clients.join_all().await;
        });
    }
}

/// The peer that never reads costs the others nothing, and ends by its time-out or with the peer.
#[test]
fn peer_that_never_reads() {
    for workers in RUNTIMES {
        run(workers, async {
            let (hub, listener) = (Hub::new(), listener());
            let terms = Terms::new().buffer(64);
            let attach = |server| hub.attach_writer("key", server, line, terms).on_lost(notice);
            let (server, stuck) = connection(&listener).await;
            let stalls = attach(server).stall_timeout(Duration::from_millis(100));
            let stalls = tokio::spawn(stalls);
            let (server, hung) = connection(&listener).await;
            let hangs = tokio::spawn(attach(server));
            let (server, mut client) = connection(&listener).await;
            let reads = tokio::spawn(attach(server));
            let client = tokio::spawn(async move { read(&mut client, &mut Dice::new(1)).await });
            // More than the buffers of a socket take.
            for n in 0..20_000 {
                hub.publish("key", n).await.unwrap();
            }
            let written = stalls.await.unwrap();
            assert!(matches!(written.end, WriterEnd::Stalled), "{written:?}");
            // It was there all the time, and not longer than the limit of the log after that.
            let known = written.items + written.lost + written.unwritten;
            assert!(
                written.lost > 0 && written.unwritten <= 64 + 1 && known <= 20_000,
                "{written:?}"
            );

            // The other one is there still, and ends with its peer.
            assert!(!hangs.is_finished());
            drop(hung);
            let written = hangs.await.unwrap();
            assert!(matches!(written.end, WriterEnd::Failed(_)), "{written:?}");
            drop(hub);
            check(&reads.await.unwrap(), &client.await.unwrap(), 20_000);
            drop(stuck);
        });
    }
}

#[test]
fn peer_that_resets_in_the_middle_of_an_item() {
    for workers in RUNTIMES {
        run(workers, async {
            let (hub, listener) = (Hub::new(), listener());
            let terms = Terms::new().overflow(Overflow::Wait);
            let (server, mut broken) = connection(&listener).await;
            let fails = tokio::spawn(hub.attach_writer("key", server, line, terms));
            let (server, mut client) = connection(&listener).await;
            let reads = tokio::spawn(hub.attach_writer("key", server, line, terms));
            let client = tokio::spawn(async move { read(&mut client, &mut Dice::new(1)).await });
            let reset = tokio::spawn(async move {
                let mut some = [0; 1_001];
                broken.read_exact(&mut some).await.unwrap();
                // What it has not read makes it a reset.
                drop(broken);
                let mut reading = Reading::default();
                reading.take(&some);
                assert!(!reading.is_between_lines());
                reading.lines
            });
            for n in 0..3_000 {
                hub.publish("key", n).await.unwrap();
            }
            drop(hub);
            let written = fails.await.unwrap();
            assert!(matches!(written.end, WriterEnd::Failed(_)), "{written:?}");
            assert!(written.items >= reset.await.unwrap() && written.unwritten > 0);
            check(&reads.await.unwrap(), &client.await.unwrap(), 3_000);
        });
    }
}

#[test]
fn encoder_that_fails_or_panics_ends_its_writers_and_not_the_hub() {
    for workers in RUNTIMES {
        run(workers, async move {
            let detached = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&detached);
            let hub = Hub::builder().on_detached(move |_, _| {
                count.fetch_add(1, SeqCst);
            });
            let (hub, listener) = (hub.spawn(), listener());
            let fails = |n: u64, bytes: &mut Vec<u8>| match n {
                100 => Err(io::ErrorKind::InvalidData.into()),
                n => line(n, bytes),
            };
            let panics = |n: u64, bytes: &mut Vec<u8>| {
                assert!(n < 200, "this panic is part of the test");
                line(n, bytes)
            };
            let (mut pairs, terms) = (Vec::new(), Terms::new().overflow(Overflow::Wait));
            for ends_after in [100, 200, 300] {
                for _ in 0..3 {
                    let (server, mut client) = connection(&listener).await;
                    let writer = match ends_after {
                        100 => hub.attach_writer("key", server, fails, terms),
                        200 => hub.attach_writer("key", server, panics, terms),
                        _ => hub.attach_writer("key", server, line, terms),
                    };
                    let client =
                        tokio::spawn(async move { read(&mut client, &mut Dice::new(1)).await });
                    pairs.push((ends_after, tokio::spawn(writer), client));
                }
            }
            for n in 0..300 {
                hub.publish("key", n).await.unwrap();
            }
            let stats = hub.stats().await;
            assert_eq!((stats.receiving, detached.load(SeqCst)), (1, 2));
            drop(hub);
            for (ends_after, writer, client) in pairs {
                let written = writer.await.unwrap();
                let is_unencoded = matches!(written.end, WriterEnd::Unencoded);
                assert_eq!(is_unencoded, ends_after < 300, "{written:?}");
                let reading = client.await.unwrap();
                assert_eq!((reading.lines, reading.lost), (ends_after, 0));
                assert_eq!(written.items, ends_after);
            }
        });
    }
}

#[test]
fn items_that_are_larger_than_the_limit_are_missing_in_their_places() {
    for workers in RUNTIMES {
        run(workers, async {
            let listener = listener();
            let encode = |n: u64, bytes: &mut Vec<u8>| {
                line(n, bytes)?;
                // Every seventh would be larger than all that the log may keep.
                bytes.resize(if n % 7 == 0 { 100_000 } else { bytes.len() }, b'!');
                Ok(())
            };
            let (sink, handle) = writers(1_024, encode);
            let sink = sink.max_bytes(50_000).overflow(Overflow::Wait);
            let (server, mut client) = connection(&listener).await;
            let writer = tokio::spawn(handle.join(server).on_lost(notice));
            let client = tokio::spawn(async move { read(&mut client, &mut Dice::new(1)).await });
            stream::iter(0..1_000_u64).demux_by(|_| (), stream::iter([((), sink)])).await;
            let (written, reading) = (writer.await.unwrap(), client.await.unwrap());
            assert_eq!(written.lost, 143);
            check(&written, &reading, 1_000);
        });
    }
}

#[test]
fn writers_that_join_and_leave_in_a_burst() {
    for workers in RUNTIMES {
        run(workers, async {
            let (hub, listener) = (Hub::new(), listener());
            let done = Arc::new(AtomicU64::new(0));
            let publisher = tokio::spawn({
                let (hub, done) = (hub.clone(), Arc::clone(&done));
                async move {
                    let mut n = 0;
                    while done.load(SeqCst) < 300 {
                        hub.publish(n % 3, n / 3).await.unwrap();
                        n += 1;
                        if n % 50 == 0 {
                            yield_now().await;
                        }
                    }
                }
            });
            let mut clients = JoinSet::new();
            for (n, buffer) in (0..300).zip((1..=100).cycle()) {
                let (server, mut client) = connection(&listener).await;
                let terms = Terms::new().buffer(buffer);
                let writer = hub.attach_writer(n % 3, server, line, terms).on_lost(notice);
                let done = Arc::clone(&done);
                clients.spawn(async move {
                    let mut writer = Box::pin(writer);
                    let (mut reading, mut buffer) = (Reading::default(), vec![0; 10_000]);
                    let enough = n % 40;
                    while reading.lines < enough {
                        tokio::select! {
                            written = &mut writer => panic!("{written:?}"),
                            read = client.read(&mut buffer) => {
                                reading.take(&buffer[..read.unwrap()]);
                            }
                        }
                    }
                    assert!(writer.items() >= reading.lines);
                    done.fetch_add(1, SeqCst);
                });
            }
            clients.join_all().await;
            publisher.await.unwrap();
            for key in 0..3 {
                assert_eq!(hub.subscribers(&key).await, 0, "the keys are free");
            }
        });
    }
}

/// Writers and a demux in all threads that there are, with clients that stop to read now and then.
async fn program(seed: u64) -> (u64, u64) {
    const ITEMS: u64 = 3_000;
    let mut dice = Dice::new(seed);
    let (sink, handle) = writers(1 + dice.index(60), line);
    let sink = sink.max_bytes(1_000 + dice.index(20_000));
    let (items, input) = mpsc::channel(16);
    let input = stream::unfold(input, |mut input| async { Some((input.recv().await?, input)) });
    let demux = tokio::spawn(Box::pin(input).demux_by(|_| (), stream::iter([((), sink)])));
    let mut clients = JoinSet::new();
    for n in 0..ITEMS {
        if n < 8 || dice.index(100) == 0 {
            let mut dice = Dice::new(seed * 1_000_000 + n);
            let (server, mut client) = duplex(1 + dice.index(5_000));
            let writer = tokio::spawn(handle.join(server).on_lost(notice));
            clients.spawn(async move {
                let leaves_after =
                    if dice.index(2) == 0 { u64::MAX } else { dice.index(1_000) as u64 };
                let (mut reading, mut buffer) = (Reading::default(), vec![0; 10_000]);
                while reading.lines < leaves_after {
                    let most = 1 + dice.index(3_000);
                    let bytes = client.read(&mut buffer[..most]).await.unwrap();
                    reading.take(&buffer[..bytes]);
                    if bytes == 0 {
                        let written = writer.await.unwrap();
                        assert!(matches!(written.end, WriterEnd::Closed), "{written:?}");
                        assert!(reading.is_between_lines() && reading.next == ITEMS);
                        assert_eq!((written.items, written.lost), (reading.lines, reading.lost));
                        break;
                    }
                    if dice.index(20) == 0 {
                        for _ in 0..dice.index(40) {
                            yield_now().await;
                        }
                    }
                }
                (reading.lines, reading.lost)
            });
        }
        items.send(n).await.expect("the demux runs");
        if dice.index(50) == 0 {
            yield_now().await;
        }
    }
    drop(items);
    let totals = demux.await.expect("the demux does not panic");
    assert_eq!((totals.delivered, totals.copies, totals.lost), (ITEMS, 0, 0));
    let counts = clients.join_all().await;
    counts.into_iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
}

#[test]
fn writers_that_come_and_go_and_stop_write_whole_items_and_tell_all_losses() {
    for workers in [0, 1, 2, 4] {
        for seed in 1..=3 {
            let (lines, lost) = run(workers, program(seed));
            assert!(lines > 1_000 && lost > 0, "{lines}, {lost}");
        }
    }
}

/// Writers of one key share a sink if they agree in their encoders and terms.
#[test]
fn writers_of_a_hub_share_what_they_can() {
    run(0, async {
        let hub = Hub::new();
        let encoded = Arc::new(AtomicUsize::new(0));
        let attach = |terms: Terms| {
            let (server, client) = duplex(1_024);
            let encoded = Arc::clone(&encoded);
            let encode = move |n: u64, bytes: &mut Vec<u8>| {
                encoded.fetch_add(1, SeqCst);
                line(n, bytes)
            };
            (tokio::spawn(hub.attach_writer("key", server, encode, terms)), client)
        };
        let same = [(); 5].map(|()| attach(Terms::new()));
        let tagged = attach(Terms::new().tag(7).limit(1));
        assert_eq!(hub.subscribers(&"key").await, 1);
        hub.publish("key", 1).await.unwrap();
        assert!(matches!(tagged.0.await.unwrap().end, WriterEnd::Limit));
        assert_eq!(encoded.load(SeqCst), 1);

        let shorter = attach(Terms::new().buffer(8));
        let waited_for = attach(Terms::new().overflow(Overflow::Wait));
        let (server, other_encoder) = duplex(1_024);
        let other = tokio::spawn(hub.attach_writer("key", server, line, Terms::new()));
        assert_eq!(hub.subscribers(&"key").await, 4);
        hub.publish("key", 2).await.unwrap();
        assert_eq!(hub.stats().await.totals.delivered, 5);
        drop(hub);
        for (writer, mut client) in same.into_iter().chain([shorter, waited_for]) {
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            assert!(text.ends_with(&format!("2 {}\n", ".".repeat(50))));
            assert!(matches!(writer.await.unwrap().end, WriterEnd::Closed));
        }
        assert_eq!((encoded.load(SeqCst), other.await.unwrap().items), (4, 1));
        drop(other_encoder);
    });
}

#[test]
fn key_is_free_when_its_last_writer_leaves_and_can_be_used_again() {
    run(0, async {
        let hub = Hub::new();
        for n in 0..1_000 {
            let mut written = Vec::new();
            let writer = hub.attach_writer("key", &mut written, line, Terms::new().limit(1));
            hub.publish("key", 4 * n).await.unwrap();
            assert_eq!(writer.await.items, 1);
            assert_eq!(written, format!("{} \n", 4 * n).into_bytes());
        }
        assert_eq!(hub.subscribers(&"key").await, 0);
        assert!(size_of::<Writer<TcpStream>>() < 600, "a client takes this and its socket");
    });
}

#[test]
fn writer_that_is_stuck_under_wait_holds_the_hub_until_its_timeout() {
    run(0, async {
        let hub = Hub::new();
        let terms = Terms::new().buffer(4).overflow(Overflow::Wait);
        let (server, mut client) = duplex(100_000);
        let reads = tokio::spawn(hub.attach_writer("key", server, line, terms));
        let (server, stuck) = duplex(1);
        let terms = terms.stall_timeout(Duration::from_millis(50));
        let stuck_writer = tokio::spawn(hub.attach_writer("key", server, line, terms));
        for n in 0..3_000 {
            hub.publish("key", 4 * n).await.unwrap();
        }
        let written = stuck_writer.await.unwrap();
        assert!(matches!(written.end, WriterEnd::Stalled), "{written:?}");
        assert_eq!((written.items, written.bytes, written.lost), (0, 1, 0));
        drop((hub, stuck));
        let written = reads.await.unwrap();
        assert_eq!((written.items, written.lost), (3_000, 0));
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with("11996 \n"));
    });
}

#[test]
fn lost_items_count_in_the_stats_of_the_hub() {
    run(0, async {
        let hub = Hub::new();
        let (server, mut client) = duplex(1);
        let writer = hub.attach_writer("key", server, line, Terms::new().buffer(2));
        for n in 0..10 {
            hub.publish("key", 4 * n).await.unwrap();
        }
        // The writer begins when the others are lost.
        while hub.stats().await.totals.delivered < 10 {
            yield_now().await;
        }
        let writer = tokio::spawn(writer);
        let stats = loop {
            let stats = hub.stats().await;
            if stats.lost > 0 {
                break stats;
            }
            yield_now().await;
        };
        assert_eq!((stats.lost, stats.totals.delivered), (8, 10));
        drop(hub);
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert_eq!((text.as_str(), writer.await.unwrap().lost), ("32 \n36 \n", 8));
    });
}

#[test]
fn writers_end_with_the_hub() {
    run(0, async {
        let hub = Hub::<_, u64>::new();
        let mut written = Vec::new();
        let writer = hub.attach_writer("key", &mut written, line, Terms::new());
        hub.publish("key", 4).await.unwrap();
        hub.shutdown(Duration::MAX).await;
        // It has not been polled until now.
        assert!(matches!(writer.await.end, WriterEnd::Closed));
        assert_eq!(written, b"4 \n");
        let late = hub.attach_writer("key", tokio::io::sink(), line, Terms::new());
        assert!(matches!(late.await.end, WriterEnd::Closed));

        let hub =
            Hub::<_, u64>::builder().on_unmatched(|_, _| panic!("a part of the test")).spawn();
        let writer = hub.attach_writer("key", tokio::io::sink(), line, Terms::new());
        hub.publish("key", 1).await.unwrap();
        hub.publish("other", 2).await.unwrap();
        let written = writer.await;
        assert!(matches!(written.end, WriterEnd::Aborted), "{written:?}");
        assert!(written.items <= 1);
        let late = hub.attach_writer("key", tokio::io::sink(), line, Terms::new());
        assert!(matches!(late.await.end, WriterEnd::Aborted));
    });
}

#[tokio::test]
#[should_panic(expected = "writers that share their items cannot have the policy DropNewest")]
async fn hub_refuses_a_writer_that_drops_the_newest_item() {
    let terms = Terms::new().overflow(Overflow::DropNewest);
    let _writer = Hub::new().attach_writer("key", tokio::io::sink(), line, terms);
}

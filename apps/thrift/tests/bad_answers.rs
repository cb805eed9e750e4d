//! Servers that send something, but few useful answers: what they cost the calls of a pool.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{LONG, Server, millis, reply, request, scripted, within};
use futures::future::join_all;
use thrift_demux::Pool;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::{sleep, timeout};

/// Places at each server, which is also the number of callers at each.
const PLACES: usize = 16;

const DEADLINE: Duration = millis(400);

/// Makes calls for ten deadlines to a pool of the bad server and a good one, more at a time than
/// the good one has places for. Returns how many failed.
async fn failures(bad: SocketAddr) -> usize {
    let good = Server::example().await;
    let pool = Pool::new([bad, good.address], within(DEADLINE)).places(PLACES);
    let failed = AtomicUsize::new(0);
    let begin = Instant::now();
    let callers = (0..2 * PLACES).map(async |_| {
        while begin.elapsed() < 10 * DEADLINE {
            if pool.round_robin(async |client| client.later("x", 20).await).await.is_err() {
                failed.fetch_add(1, SeqCst);
            }
        }
    });
    timeout(LONG, join_all(callers)).await.expect("a call did not complete");
    failed.into_inner()
}

/// At first a call for each place, then about one per deadline. If the answers of the server do not
/// count, it fails a call for each place in each of the ten deadlines.
fn check(failed: usize) {
    assert!(failed < 4 * PLACES, "{failed} calls failed");
}

/// Reads requests and answers none of them.
async fn reads(mut from: tokio::net::tcp::OwnedReadHalf) {
    let mut bytes = [0; 4096];
    while tokio::io::AsyncReadExt::read(&mut from, &mut bytes).await.is_ok_and(|read| read > 0) {}
}

/// Answers the first call of each connection, and runs `sends` with that answer while the other
/// requests are read.
async fn sending<F>(
    sends: impl Fn(OwnedWriteHalf, Vec<u8>) -> F + Clone + Send + Sync + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let script = move |mut socket: TcpStream, _| {
        let sends = sends.clone();
        async move {
            let Some(call) = request(&mut socket).await else { return };
            let answer = reply(&call, call.id);
            if socket.write_all(&answer).await.is_err() {
                return;
            }
            let (from, to) = socket.into_split();
            futures::join!(reads(from), sends(to, answer));
        }
    };
    scripted(script).await.0
}

/// Announces the longest frame and sends a byte of it now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_completes_a_frame_costs_few_calls() {
    let bad = sending(async |mut to, _| {
        let mut next = to.write_all(&16_000_000_u32.to_be_bytes()).await;
        while next.is_ok() {
            sleep(DEADLINE / 8).await;
            next = to.write_all(&[0]).await;
        }
    });
    check(failures(bad.await).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_repeats_an_answer_costs_few_calls() {
    let bad = sending(async |mut to, answer| {
        while to.write_all(&answer).await.is_ok() {
            sleep(DEADLINE / 8).await;
        }
    });
    check(failures(bad.await).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_answers_are_late_costs_few_calls() {
    let (bad, _) = scripted(async |mut socket: TcpStream, _| {
        let (answers, mut late) = tokio::sync::mpsc::unbounded_channel();
        let mut waiting = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                call = request(&mut socket) => {
                    let (Some(call), answers) = (call, answers.clone()) else { return };
                    waiting.spawn(async move {
                        sleep(DEADLINE * 3 / 2).await;
                        let _ = answers.send(reply(&call, call.id));
                    });
                }
                Some(answer) = late.recv() => {
                    if socket.write_all(&answer).await.is_err() {
                        return;
                    }
                }
            }
        }
    })
    .await;
    check(failures(bad).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_every_tenth_call_costs_few_calls() {
    let (bad, _) = scripted(async |mut socket: TcpStream, _| {
        while let Some(call) = request(&mut socket).await {
            if call.id % 10 == 1 && socket.write_all(&reply(&call, call.id)).await.is_err() {
                return;
            }
        }
    })
    .await;
    check(failures(bad).await);
}

/// A tenth of the calls is hopeless at every server. The others are not held up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_fail_at_each_server_do_not_hold_up_the_others() {
    let servers = [Server::example().await, Server::example().await];
    let pool = Pool::new(servers.each_ref().map(|server| server.address), within(millis(2000)));
    let callers = (0..50).map(async |caller| {
        for n in 0..20 {
            let millis = if (caller + n) % 10 == 0 { 50_000 } else { 1 };
            let answer = pool.round_robin(async |client| client.later("x", millis).await).await;
            assert_eq!(answer.is_ok(), millis == 1, "{answer:?}");
        }
    });
    timeout(LONG, join_all(callers)).await.expect("a call did not complete");
}

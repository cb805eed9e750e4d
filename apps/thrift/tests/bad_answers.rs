//! Servers that send something, but few useful answers: what they cost the calls of a pool.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{LONG, Server, answers, millis, options, raw, reply, request, scripted, within};
use futures::future::join_all;
use thrift::protocol::TMessageType;
use thrift_demux::{Error, Limits, Options, Pool, Protocol};
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

/// A server that answers each call at once, with a result that is not that of its method.
async fn answers_with(body: &'static [u8], kind: TMessageType) -> (SocketAddr, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let script = move |mut socket: TcpStream, _| {
        let calls = Arc::clone(&counter);
        async move {
            while let Some(call) = request(&mut socket).await {
                calls.fetch_add(1, SeqCst);
                let mut answer = raw::message(call.protocol, &call.name, kind, call.id, |_| {});
                answer.extend_from_slice(body);
                if socket.write_all(&raw::frame(&answer)).await.is_err() {
                    return;
                }
            }
        }
    };
    (scripted(script).await.0, calls)
}

/// The kinds of answers that cannot be read: an unknown type, an end, a wrong kind.
const UNREADABLE: [(&[u8], TMessageType); 4] = [
    (&[0x0f, 0xff], TMessageType::Reply),
    (&[], TMessageType::Reply),
    (&[0], TMessageType::Call),
    (&[11, 0, 1, 0xff, 0xff, 0xff, 0xff], TMessageType::Exception),
];

#[tokio::test]
async fn fail_over_leaves_a_server_whose_answers_cannot_be_read() {
    for (body, kind) in UNREADABLE {
        let (bad, _) = answers_with(body, kind).await;
        let (good, _) = scripted(answers).await;
        let pool = Pool::new([bad, good], Options::default());
        for _ in 0..10 {
            let answer = pool.fail_over(async |client| client.echo("x").await);
            let answer = timeout(LONG, answer).await.expect("the call waits");
            assert_eq!(answer.unwrap(), "an answer", "{body:?} {kind:?}");
        }
        let alone = Pool::new([bad], Options::default());
        let error = alone.fail_over(async |client| client.echo("x").await).await.unwrap_err();
        assert!(matches!(error, Error::Malformed(_)), "{error}");
    }
}

/// It answers sooner than the others, so it would get nearly all calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_robin_leaves_a_server_whose_answers_cannot_be_read() {
    for (body, kind) in UNREADABLE {
        let (bad, calls) = answers_with(body, kind).await;
        let good = Server::example().await;
        let pool = Pool::new([bad, good.address], Options::default()).places(4);
        let failed = AtomicUsize::new(0);
        let callers = (0..30).map(async |_| {
            for _ in 0..10 {
                if pool.round_robin(async |client| client.later("x", 10).await).await.is_err() {
                    failed.fetch_add(1, SeqCst);
                }
            }
        });
        timeout(LONG, join_all(callers)).await.expect("a call did not complete");
        let (failed, calls) = (failed.into_inner(), calls.load(SeqCst));
        assert_eq!(failed, calls, "calls failed at the good server");
        assert!(failed < 40, "{failed} of 300 calls failed: {body:?} {kind:?}");
        // `ask_all` tells why, and the server gets no call.
        let answers = pool.ask_all(async |client| client.later("x", 0).await).await.0;
        assert!(answers[0].1.is_err());
        assert_eq!(answers[1].1.as_deref().unwrap(), "x");
    }
}

/// Every second answer of the only server cannot be read.
#[tokio::test]
async fn calls_continue_beside_an_answer_that_cannot_be_read() {
    let (address, _) = scripted(async |mut socket: TcpStream, _| {
        while let Some(call) = request(&mut socket).await {
            let mut answer = reply(&call, call.id);
            if call.id % 2 == 0 {
                let last = answer.len() - 1;
                answer[last] = 0x0f;
            }
            let _ = socket.write_all(&answer).await;
        }
    })
    .await;
    let pool = Pool::new([address], Options::default());
    for round in 0..50 {
        let calls = (0..2).map(|_| pool.round_robin(async |client| client.echo("x").await));
        for (n, answer) in timeout(LONG, join_all(calls)).await.unwrap().into_iter().enumerate() {
            match answer {
                Ok(answer) => assert_eq!(answer, "an answer"),
                Err(Error::Malformed(_)) => {}
                Err(error) => panic!("round {round}, call {n}: {error}"),
            }
        }
    }
}

/// What a service sends that returned null, and what a caller gets that has another version of the IDL.
/// Others call the same server.
#[tokio::test]
async fn callers_that_cannot_use_well_formed_answers_cost_others_no_call() {
    let (address, connections) = scripted(async |mut socket: TcpStream, _| {
        while let Some(call) = request(&mut socket).await {
            let answer = if call.name == "echo" || call.name == "sum" {
                reply(&call, call.id)
            } else {
                raw::frame(&raw::message(
                    call.protocol,
                    &call.name,
                    TMessageType::Reply,
                    call.id,
                    |to| {
                        to.write_field_stop().unwrap();
                    },
                ))
            };
            if socket.write_all(&answer).await.is_err() {
                return;
            }
        }
    })
    .await;
    for protocol in [Protocol::Binary, Protocol::Compact] {
        let pool = Pool::new([address], options(protocol)).places(4);
        let before = connections.load(SeqCst);
        for _ in 0..50 {
            let unusable = (0..10).map(async |_| {
                let no_result = pool.round_robin(async |client| client.later("x", 0).await).await;
                assert!(matches!(no_result, Err(Error::Malformed(_))), "{no_result:?}");
                let other_idl = pool.round_robin(async |client| client.sum(vec![1]).await).await;
                assert!(matches!(other_idl, Err(Error::Malformed(_))), "{other_idl:?}");
            });
            let usable = (0..2).map(async |_| {
                pool.round_robin(async |client| client.ping().await).await.unwrap();
                let answer = pool.round_robin(async |client| client.echo("x").await).await;
                assert_eq!(answer.unwrap(), "an answer");
            });
            let calls = futures::future::join(join_all(unusable), join_all(usable));
            timeout(LONG, calls).await.expect("a call waits");
        }
        assert_eq!(connections.load(SeqCst), before + 1, "the server was left");
    }
}

/// Strings of callers that take only short ones.
#[tokio::test]
async fn callers_that_take_less_than_the_server_sends_do_not_make_the_pool_leave_it() {
    let (address, connections) = scripted(answers).await;
    let limits = Limits { string: 8, ..Limits::default() };
    let pool = Pool::new([address], Options { limits, ..Options::default() }).places(4);
    for _ in 0..50 {
        let calls = (0..10).map(|_| pool.round_robin(async |client| client.echo("x").await));
        for answer in timeout(LONG, join_all(calls)).await.expect("a call waits") {
            assert!(matches!(answer, Err(Error::Malformed(_))), "{answer:?}");
        }
    }
    assert_eq!(connections.load(SeqCst), 1, "the server was left");
}

//! What one bad server costs the calls of a pool.

mod common;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use allocation_counter::measure;
use common::{Gate, LONG, Server, answers, millis, reads_only, reply, request, scripted, within};
use futures::future::join_all;
use thrift_demux::demo::{Example, Serve};
use thrift_demux::{Client, Error, Options, Pool, Settings};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Reads a request and closes the connection.
async fn reads_and_closes(mut socket: TcpStream, _: usize) {
    request(&mut socket).await;
}

/// Answers a request, and closes the connection at the next one.
async fn answers_one_and_closes(mut socket: TcpStream, _: usize) {
    let call = request(&mut socket).await.unwrap();
    socket.write_all(&reply(&call, call.id)).await.unwrap();
    request(&mut socket).await;
}

fn socket() -> socket2::Socket {
    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap()
}

/// A socket that does not listen, so that connections are refused. While it exists, no other server gets
/// its address.
fn refusing_socket() -> (socket2::Socket, SocketAddr) {
    let socket = socket();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// An address at which connections are refused until the process ends.
fn refusing() -> SocketAddr {
    let (socket, address) = refusing_socket();
    std::mem::forget(socket);
    address
}

/// A listener that neither accepts nor refuses, because its queue is full.
struct BlackHole {
    address: SocketAddr,
    _sockets: Vec<socket2::Socket>,
}

impl BlackHole {
    async fn new() -> Self {
        let (listener, address) = refusing_socket();
        listener.listen(0).unwrap();
        let mut sockets = vec![listener];
        loop {
            let filler = socket();
            filler.set_nonblocking(true).unwrap();
            let _ = filler.connect(&address.into()); // in progress
            sockets.push(filler);
            match Client::connect(address, within(millis(100))).await {
                Err(Error::Deadline(_)) => return Self { address, _sockets: sockets },
                Err(error) => panic!("{error}"),
                Ok(_) => {}
            }
        }
    }
}

/// Makes calls at once, each in a task of its own, and returns their results.
async fn at_once(
    pool: &Arc<Pool>,
    calls: usize,
    delay: i32,
) -> Vec<(Duration, Result<String, Error>)> {
    let calls = (0..calls).map(|_| {
        let pool = Arc::clone(pool);
        tokio::spawn(async move {
            let start = Instant::now();
            let answer = pool.round_robin(async |client| client.later("x", delay).await).await;
            (start.elapsed(), answer)
        })
    });
    let done = timeout(LONG, join_all(calls)).await.expect("a call did not complete");
    done.into_iter().map(Result::unwrap).collect()
}

fn failed(done: &[(Duration, Result<String, Error>)]) -> Vec<String> {
    done.iter().filter_map(|(_, answer)| answer.as_ref().err()).map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_connections_costs_no_call() {
    let (one, two) = (Server::example().await, Server::example().await);
    for place in 0..3 {
        let mut servers = vec![one.address, two.address];
        servers.insert(place, refusing());
        let pool = Arc::new(Pool::new(servers, Options::default()).places(8));
        let done = at_once(&pool, 100, 50).await;
        assert_eq!(failed(&done), Vec::<String>::new());
    }
}

/// The deadline is longer than the watchdog, so no call may wait for the attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_be_reached_delays_no_call() {
    let (hole, good) = (BlackHole::new().await, Server::example().await);
    let servers = [hole.address, good.address];
    let pool = Arc::new(Pool::new(servers, within(2 * LONG)).places(8));
    assert_eq!(failed(&at_once(&pool, 100, 10).await), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_hangs_costs_each_caller_one_deadline() {
    const CALLERS: u32 = 40;
    let (hole, good) = (BlackHole::new().await, Server::example().await);
    let deadline = millis(500);
    let pool = Arc::new(Pool::new([hole.address, good.address], within(deadline)));
    let calls = (0..CALLERS).map(|n| {
        let pool = Arc::clone(&pool);
        tokio::spawn(async move {
            let n = n.into();
            let start = Instant::now();
            if n % 2 == 0 {
                let sum = pool.fail_over(async |client| client.add(n, 1).await).await;
                assert_eq!(sum.unwrap(), n + 1);
            } else {
                let answers = pool.ask_all(async |client| client.add(n, 1).await).await.0;
                assert!(answers[0].1.is_err());
                assert_eq!(*answers[1].1.as_ref().unwrap(), n + 1);
            }
            start.elapsed()
        })
    });
    let took = timeout(LONG, join_all(calls)).await.expect("a call did not complete");
    let longest = took.into_iter().map(Result::unwrap).max().unwrap();
    // One after the other, the last would have waited forty times.
    assert!(longest < deadline * CALLERS / 4, "the longest call took {longest:?}");
}

#[tokio::test]
async fn an_address_that_is_silent_or_refuses_leaves_time_for_the_next_one() {
    let (hole, good) = (BlackHole::new().await, Server::example().await);
    let addresses = [hole.address, refusing(), good.address];
    let (begin, deadline) = (Instant::now(), millis(3000));
    let client = Client::connect(&addresses[..], within(deadline)).await.unwrap();
    assert!(begin.elapsed() < deadline, "the silent address took all of it");
    assert_eq!(client.add(1, 1).await.unwrap(), 2);
    let silent = Client::connect(hole.address, within(millis(100))).await;
    assert!(matches!(silent, Err(Error::Deadline(_))));
    let none = Client::connect(&[][..], within(millis(100))).await.unwrap_err();
    assert_eq!(none.to_string(), "no connection: the name has no address");
}

#[tokio::test]
async fn an_attempt_goes_on_when_its_first_caller_is_dropped() {
    let (hole, good) = (BlackHole::new().await, Server::example().await);
    let pool = Arc::new(Pool::new([hole.address, good.address], within(millis(500))));
    let call = || {
        let pool = Arc::clone(&pool);
        tokio::spawn(async move { pool.fail_over(async |client| client.add(1, 1).await).await })
    };
    let (first, second) = (call(), call());
    tokio::task::yield_now().await;
    first.abort();
    assert_eq!(timeout(LONG, second).await.expect("the call hangs").unwrap().unwrap(), 2);
}

#[tokio::test]
async fn a_connection_that_is_silent_is_replaced() {
    let (address, connections) = scripted(async |socket, number| {
        // As if a firewall had forgotten the first connection.
        if number == 0 { reads_only(socket, 0).await } else { answers(socket, 0).await }
    })
    .await;
    let pool = Pool::new([address], within(millis(300)));
    for attempt in 1.. {
        assert!(attempt <= 12, "12 calls failed on the same connection");
        match timeout(LONG, pool.round_robin(async |client| client.echo("x").await)).await.unwrap()
        {
            Ok(answer) => {
                assert_eq!(answer, "an answer");
                break;
            }
            Err(error) => assert!(error.is_connection_error(), "{error}"),
        }
    }
    assert!(connections.load(SeqCst) >= 2);
}

/// The bad server is always free, so it would get nearly all calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_closes_each_connection_costs_few_calls() {
    const PLACES: usize = 8;
    let (one, two) = (Server::example().await, Server::example().await);
    let (bad, connections) = scripted(reads_and_closes).await;
    let pool = [bad, one.address, two.address];
    let pool = Arc::new(Pool::new(pool, Options::default()).places(PLACES));
    let failed = failed(&at_once(&pool, 300, 100).await);
    // Its first connection may get a call for each place, each further one gets one call. Pauses
    // double, so there are few.
    let connections = connections.load(SeqCst);
    assert!(failed.len() < PLACES + connections, "{} of 300: {}", failed.len(), failed[0]);
    assert!(connections <= 10, "{connections} connections to the bad server");
}

/// The same for a server that accepts connections and closes them without reading, as a proxy does
/// whose backend is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_and_closes_costs_few_calls() {
    let good = Server::example().await;
    let (bad, connections) = scripted(async |socket, _| drop(socket)).await;
    let pool = Arc::new(Pool::new([bad, good.address], Options::default()).places(8));
    let failed = failed(&at_once(&pool, 200, 50).await);
    let connections = connections.load(SeqCst);
    assert!(failed.len() < 8 + connections, "{} of 200: {}", failed.len(), failed[0]);
    assert!(connections <= 10, "{connections} connections to the bad server");
}

/// A server that hangs gets one call at a time, once its calls have waited for nearly a deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_costs_few_calls() {
    const PLACES: usize = 16;
    let good = Server::example().await;
    let (bad, _) = scripted(reads_only).await;
    let pool = Pool::new([bad, good.address], within(millis(500))).places(PLACES);
    let lost = AtomicUsize::new(0);
    // Each caller waits for its answer before it makes the next call.
    let callers = (0..2 * PLACES).map(async |_| {
        for _ in 0..40 {
            if pool.round_robin(async |client| client.later("x", 50).await).await.is_err() {
                lost.fetch_add(1, SeqCst);
            }
        }
    });
    timeout(LONG, join_all(callers)).await.expect("a call did not complete");
    let lost = lost.into_inner();
    // At first one for each place, then one for each deadline.
    assert!(lost < 8 * PLACES, "{lost} of {} calls", 2 * PLACES * 40);
}

/// It has had many calls at a time before, and few show that it hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_hung_while_there_were_few_calls_costs_few_when_there_are_many() {
    const CALLS: usize = 300;
    let has_hung = Arc::new(AtomicBool::new(false));
    let hangs = Arc::clone(&has_hung);
    let (bad, _) = scripted(move |mut socket: TcpStream, _| {
        let hangs = Arc::clone(&hangs);
        async move {
            while let Some(call) = request(&mut socket).await {
                if !hangs.load(SeqCst) {
                    socket.write_all(&reply(&call, call.id)).await.unwrap();
                }
            }
        }
    })
    .await;
    let good = [scripted(answers).await.0, scripted(answers).await.0];
    let pool = Pool::new([bad, good[0], good[1]], within(millis(1000)));
    let call = || pool.round_robin(async |client| client.echo("x").await);
    let many = || join_all((0..CALLS).map(|_| call()));
    assert!(pool.ask_all(async |client| client.echo("x").await).await.agreed().is_some());
    assert!(many().await.iter().all(Result::is_ok));
    has_hung.store(true, SeqCst);
    while call().await.is_ok() {}
    let lost = many().await.iter().filter(|answer| answer.is_err()).count();
    assert!(lost < 10, "{lost} of {CALLS} calls");
}

#[tokio::test]
async fn a_server_that_is_up_again_is_used_again() {
    let (socket, address) = refusing_socket();
    let pool = Pool::new([address], within(millis(1000)));
    for _ in 0..3 {
        let error = pool.round_robin(async |client| client.ping().await).await.unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
    socket.listen(128).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(socket.into()).unwrap();
    let service = Serve(Arc::new(Example::default()));
    let server =
        thrift_demux::serve(listener, service, Settings::default(), CancellationToken::new());
    tokio::spawn(server);
    let used = async {
        while pool.round_robin(async |client| client.ping().await).await.is_err() {}
        pool.fail_over(async |client| client.ping().await).await.unwrap();
        assert!(pool.ask_all(async |client| client.ping().await).await.agreed().is_some());
    };
    timeout(LONG, used).await.expect("the server gets no calls");
}

/// A server may close an idle connection: the next call uses another at once.
#[tokio::test]
async fn a_server_that_closes_idle_connections_is_not_left_alone() {
    let (address, connections) = scripted(async |mut socket: TcpStream, _| {
        let call = request(&mut socket).await.unwrap();
        socket.write_all(&reply(&call, call.id)).await.unwrap();
    })
    .await;
    // A rest would be longer than the watchdog.
    let pool = Pool::new([address], within(2 * LONG));
    let calls = async {
        for n in 1..=20 {
            pool.ask_all(async |client| {
                let answer = client.echo("x").await;
                while client.closed().is_none() {
                    tokio::task::yield_now().await;
                }
                answer
            })
            .await
            .agreed()
            .expect("the server was left alone");
            assert_eq!(connections.load(SeqCst), n);
        }
    };
    timeout(LONG, calls).await.expect("a call did not complete");
}

#[tokio::test]
async fn fail_over_leaves_a_server_that_answers_with_other_ids() {
    let (bad, _) = scripted(async |mut socket: TcpStream, _| {
        while let Some(call) = request(&mut socket).await {
            let _ = socket.write_all(&reply(&call, call.id + 1)).await;
        }
    })
    .await;
    let (good, _) = scripted(answers).await;
    let pool = Pool::new([bad, good], Options::default());
    for _ in 0..10 {
        let answer = pool.fail_over(async |client| client.echo("x").await);
        let answer = timeout(Duration::from_secs(20), answer).await.expect("the call waits");
        assert_eq!(answer.unwrap(), "an answer");
    }
}

#[tokio::test]
async fn all_servers_down_is_an_error_that_names_them() {
    let hole = BlackHole::new().await;
    let servers = [refusing(), hole.address, refusing()];
    let deadline = millis(500);
    let pool = Arc::new(Pool::new(servers, within(deadline)).places(2));
    for _ in 0..2 {
        let done = at_once(&pool, 100, 0).await;
        for (took, answer) in done {
            let error = answer.unwrap_err();
            assert!(matches!(error, Error::Closed(_)), "{error}");
            let named: HashSet<_> =
                servers.iter().filter(|one| error.to_string().contains(&one.to_string())).collect();
            assert_eq!(named.len(), 3, "{error}");
            assert!(took < 10 * deadline, "{took:?}");
        }
    }
    let failed_over = pool.fail_over(async |client| client.ping().await);
    let error = timeout(LONG, failed_over).await.expect("the call hangs").unwrap_err();
    assert!(error.is_connection_error(), "{error}");
}

/// Refused connections are no reason to wait until the deadline, which is longer than the watchdog.
#[tokio::test]
async fn all_servers_refuse_and_calls_fail_before_their_deadline() {
    let servers = [refusing(), refusing()];
    let pool = Pool::new(servers, within(2 * LONG));
    for _ in 0..2 {
        let call = pool.round_robin(async |client| client.ping().await);
        let error = timeout(LONG, call).await.expect("the call waits").unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
        let call = pool.fail_over(async |client| client.ping().await);
        let error = timeout(LONG, call).await.expect("the call waits").unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
}

#[tokio::test]
async fn a_call_waits_for_a_place_until_its_deadline() {
    let server = Server::example().await;
    let pool = Arc::new(Pool::new([server.address], within(millis(500))).places(1));
    let (is_taken, taken) = oneshot::channel();
    let (release, released) = oneshot::channel();
    let ends = Mutex::new(Some((is_taken, released)));
    let running = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move {
            // The place is kept until the test releases it.
            let call = async |client: Client| {
                let (is_taken, released) = ends.lock().unwrap().take().unwrap();
                is_taken.send(()).unwrap();
                released.await.unwrap();
                client.echo("released").await
            };
            pool.round_robin(call).await
        }
    });
    timeout(LONG, taken).await.expect("the first call gets no place").unwrap();
    let waiting = pool.round_robin(async |client| client.ping().await);
    let error = timeout(LONG, waiting).await.expect("the call waits").unwrap_err();
    assert!(matches!(error, Error::Deadline(after) if after == millis(500)), "{error}");
    release.send(()).unwrap();
    assert_eq!(timeout(LONG, running).await.unwrap().unwrap().unwrap(), "released");
}

/// While no place is free, calls are made and dropped.
#[test]
fn calls_that_gave_up_waiting_leave_no_memory_allocated() {
    const CALLS: i64 = 20_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (gate, mut held) = Gate::new();
    let server = runtime.block_on(Server::start(Serve(gate), Settings::default()));
    let _inside = runtime.enter();
    let pool = Arc::new(Pool::new([server.address], Options::default()).places(1));
    let running = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.round_robin(async |client| client.later("held", 0).await).await }
    });
    let arrival = runtime.block_on(async { timeout(LONG, held.recv()).await });
    let call = arrival.expect("no call arrived").unwrap();
    let round = || {
        runtime.block_on(async {
            for _ in 0..CALLS {
                tokio::select! {
                    biased;
                    _ = pool.round_robin(async |client| client.ping().await) => panic!("no place"),
                    () = tokio::task::yield_now() => {}
                }
            }
        });
    };
    round();
    let left = measure(round).bytes_current;
    assert!(left < CALLS, "{left} bytes remained allocated after {CALLS} dropped calls");
    call.release.send(()).unwrap();
    runtime.block_on(running).unwrap().unwrap();
}

#[tokio::test]
async fn a_pool_that_is_dropped_lets_its_calls_finish_and_closes() {
    let (gate, mut held) = Gate::new();
    let server = Server::start(Serve(gate), Settings::default()).await;
    let pool = Arc::new(Pool::new([server.address], Options::default()));
    let running = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.round_robin(async |client| client.later("last", 0).await).await }
    });
    let call = timeout(LONG, held.recv()).await.expect("no call arrived").unwrap();
    drop(pool);
    call.release.send(()).unwrap();
    assert_eq!(timeout(LONG, running).await.unwrap().unwrap().unwrap(), "last");
    // The connection is closed, so the server stops at once.
    assert_eq!(server.stop().await.faulty, 0);
}

/// All connections are closed or reset at random, and calls are dropped in all states.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_flap_cost_only_calls_that_were_sent() {
    const CALLERS: usize = 1000;
    let flaps = |seed: u64| {
        scripted(move |mut socket: TcpStream, number| async move {
            let mut random = fastrand::Rng::with_seed(seed + number as u64);
            let calls = random.usize(0..200);
            for _ in 0..calls {
                let Some(call) = request(&mut socket).await else { return };
                let _ = socket.write_all(&reply(&call, call.id)).await;
            }
            if random.bool() {
                socket.set_zero_linger().unwrap();
            }
        })
    };
    let hole = BlackHole::new().await;
    let flapping = [flaps(1).await.0, flaps(1000).await.0, flaps(2000).await.0];
    let servers = [hole.address, refusing()].into_iter().chain(flapping);
    let pool = Arc::new(Pool::new(servers, Options::default()).places(4));
    let sent = Arc::new(AtomicUsize::new(0));
    let callers = (0..CALLERS).map(|caller| {
        let (pool, sent) = (Arc::clone(&pool), Arc::clone(&sent));
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(caller as u64);
            let mut unsent = 0;
            for _ in 0..10 {
                let is_sent = AtomicUsize::new(0);
                let call = pool.round_robin(async |client| {
                    is_sent.store(1, SeqCst);
                    sent.fetch_add(1, SeqCst);
                    client.echo("x").await
                });
                let done = if random.u8(0..10) == 0 {
                    let short = millis(random.u64(0..3));
                    timeout(short, call).await.unwrap_or_else(|_| Ok(String::new()))
                } else {
                    call.await
                };
                unsent += usize::from(done.is_err() && is_sent.into_inner() == 0);
            }
            unsent
        })
    });
    let done = timeout(LONG, join_all(callers)).await.expect("a call hangs");
    let unsent = done.into_iter().map(Result::unwrap).sum::<usize>();
    assert!(sent.load(SeqCst) > CALLERS);
    assert_eq!(unsent, 0, "calls failed that were not sent");
    // Calls that were dropped keep their places until they are answered or lost.
    let free = async {
        loop {
            let state = format!("{pool:?}");
            let count = |what| state.matches(what).count();
            if count("running: 0") == 5 && count(" held: 0") == count(" held: ") {
                break;
            }
            tokio::time::sleep(millis(10)).await;
        }
    };
    let done = timeout(LONG / 4, free).await;
    assert!(done.is_ok(), "places are left taken: {pool:?}");
}

/// The caller's own time limit may end first; the error is that of the attempt.
#[tokio::test]
async fn an_attempt_that_hangs_is_an_error_that_names_the_server() {
    let hole = BlackHole::new().await;
    for deadline in [millis(0), millis(200)] {
        let pool = Pool::new([hole.address], within(deadline));
        for _ in 0..3 {
            let error = pool.fail_over(async |client| client.ping().await).await.unwrap_err();
            assert!(error.to_string().contains(&hole.address.to_string()), "{error}");
        }
    }
}

/// The bad server accepts connections and reads nothing, so one-way calls seem to succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_way_calls_leave_a_server_that_does_not_read() {
    const SIZE: usize = 100_000;
    let good = Server::example().await;
    let (bad, connections) = scripted(async |socket, _| {
        std::future::pending::<()>().await;
        drop::<TcpStream>(socket);
    })
    .await;
    let deadline = millis(300);
    let pool = Pool::new([bad, good.address], within(deadline));
    let begin = Instant::now();
    let mut sent = 0;
    while begin.elapsed() < 15 * deadline {
        let notes = (0..4).map(async |_| {
            pool.round_robin(async |client| client.note("x".repeat(SIZE)).await).await
        });
        let _ = timeout(LONG, join_all(notes)).await.expect("a call did not complete");
        sent += 4;
    }
    let connections = connections.load(SeqCst);
    assert!(connections > 1, "the server was not noticed");
    // What the queue of the first connection holds, and the sockets of each.
    let most = 100 + 80 * connections;
    let client = Client::connect(good.address, within(LONG)).await.unwrap();
    let mut arrived = client.notes().await.unwrap();
    let lost = |arrived| usize::try_from(sent - arrived).unwrap();
    while lost(arrived) >= most && begin.elapsed() < LONG {
        tokio::time::sleep(millis(100)).await;
        arrived = client.notes().await.unwrap();
    }
    let lost = lost(arrived);
    assert!(lost < most, "{lost} of {sent} were lost, with {connections} connections");
}

/// Each connection answers as many calls as it loses, so the rests grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_one_call_and_closes_costs_few_calls() {
    let good = Server::example().await;
    let (bad, connections) = scripted(answers_one_and_closes).await;
    let pool = Pool::new([bad, good.address], Options::default()).places(4);
    let begin = Instant::now();
    while begin.elapsed() < millis(3000) {
        let _ = pool.round_robin(async |client| client.later("x", 10).await).await;
    }
    // After rests of 100, 200, 400, 800 and 1,600 ms; with 100 ms each, there would be thirty.
    let connections = connections.load(SeqCst);
    assert!(connections <= 8, "{connections} connections to the bad server");
}

/// A loss now and then, such as by a restart, does not make a bad server look like the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_server_is_left_alone_although_a_good_one_loses_a_connection_now_and_then() {
    let (good, _) = scripted(async |mut socket: TcpStream, _| {
        while let Some(call) = request(&mut socket).await {
            if call.name == "echo" || socket.write_all(&reply(&call, call.id)).await.is_err() {
                break;
            }
        }
    })
    .await;
    let (bad, connections) = scripted(answers_one_and_closes).await;
    let pool = Pool::new([bad, good], Options::default()).places(4);
    let begin = Instant::now();
    let mut losses = 0;
    while begin.elapsed() < millis(3000) {
        let _ = pool.round_robin(async |client| client.later("x", 10).await).await;
        if losses < 2 && begin.elapsed() > millis(1000) * losses {
            let lost = pool.round_robin(async |client| client.echo("x").await).await;
            losses += u32::from(lost.is_err());
        }
    }
    // With two losses of the good server, four of the bad one are not left alone at most.
    let connections = connections.load(SeqCst);
    assert!(connections <= 20, "{connections} connections to the bad server");
}

/// All close each connection after an answer, and their callers try again at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_all_bad_do_not_get_thousands_of_connections() {
    let (bad, connections) = scripted(answers_one_and_closes).await;
    let pool = Pool::new([bad], Options::default());
    let begin = Instant::now();
    let calls = (0..10).map(async |_| {
        while begin.elapsed() < millis(1000) {
            let _ = pool.round_robin(async |client| client.echo("x").await).await;
        }
    });
    join_all(calls).await;
    // One in 20 ms.
    let connections = connections.load(SeqCst);
    assert!(connections <= 51, "{connections} connections");
}

/// It answered more calls than it lost, so one answer on the next connection is enough.
#[tokio::test]
async fn a_server_that_was_restarted_gets_many_calls_after_its_first_answer() {
    const AT_ONCE: usize = 10;
    let (address, _) = scripted(async |mut socket: TcpStream, number| {
        // The first connection ends with a call that waits, the second has calls that wait.
        let first = if number == 0 { 5 } else { 1 };
        for _ in 0..first {
            let call = request(&mut socket).await.unwrap();
            socket.write_all(&reply(&call, call.id)).await.unwrap();
        }
        let mut calls = Vec::new();
        for _ in 0..if number == 0 { 1 } else { AT_ONCE } {
            calls.push(request(&mut socket).await.unwrap());
        }
        if number > 0 {
            for call in calls {
                socket.write_all(&reply(&call, call.id)).await.unwrap();
            }
        }
    })
    .await;
    let pool = Pool::new([address], within(millis(5000)));
    let call = || pool.round_robin(async |client| client.echo("x").await);
    for _ in 0..5 {
        call().await.unwrap();
    }
    assert!(matches!(call().await, Err(Error::Closed(_))), "the first connection ends");
    call().await.unwrap();
    for answer in join_all((0..AT_ONCE).map(|_| call())).await {
        assert_eq!(answer.unwrap(), "an answer");
    }
}

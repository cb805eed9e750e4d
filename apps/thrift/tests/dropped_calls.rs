//! Calls whose callers give up before the deadline, for example with a time limit of their own, or do
//! not poll them. A call that was sent is judged as if its caller had waited.

mod common;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{Gate, LONG, Server, answers, millis, nothing_left, reply, request, scripted, within};
use futures::poll;
use thrift_demux::demo::Serve;
use thrift_demux::{Client, Error, Options, Pool, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, sleep_until, timeout};

/// A server that answers some requests, and how many it got.
async fn answers_if(
    is_answered: impl Fn(usize) -> bool + Copy + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let (address, _) = scripted(move |mut socket: TcpStream, _| {
        let counter = Arc::clone(&counter);
        async move {
            while let Some(call) = request(&mut socket).await {
                if is_answered(counter.fetch_add(1, SeqCst)) {
                    let _ = socket.write_all(&reply(&call, call.id)).await;
                }
            }
        }
    })
    .await;
    (address, requests)
}

enum How {
    FailOver,
    RoundRobin,
}

/// For a few deadlines, makes a call every few milliseconds, and drops it after a tenth of the
/// deadline. Returns how many requests the bad server got after one and a half deadlines, and how
/// many calls were made in that time.
async fn after_one_deadline(
    how: How,
    (bad, requests): (SocketAddr, Arc<AtomicUsize>),
) -> (usize, usize) {
    let deadline = millis(1000);
    let (good, _) = scripted(answers).await;
    let pool = Arc::new(Pool::new([bad, good], within(deadline)));
    let begin = Instant::now();
    let (mut before, mut calls) = (None, 0);
    while begin.elapsed() < 4 * deadline {
        if before.is_none() && begin.elapsed() >= 3 * deadline / 2 {
            before = Some(requests.load(SeqCst));
        }
        calls += usize::from(before.is_some());
        let pool = Arc::clone(&pool);
        let is_fail_over = matches!(how, How::FailOver);
        tokio::spawn(async move {
            let call = async |client: Client| client.echo("x").await;
            timeout(deadline / 10, async {
                let answer = if is_fail_over {
                    pool.fail_over(call).await
                } else {
                    pool.round_robin(call).await
                };
                assert!(answer.is_ok(), "{answer:?}");
            })
            .await
        });
        sleep(millis(5)).await;
    }
    (requests.load(SeqCst) - before.expect("the test was stopped"), calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_over_leaves_a_server_that_hangs_although_its_calls_are_dropped() {
    let bad = answers_if(|_| false).await;
    let (sent, calls) = after_one_deadline(How::FailOver, bad).await;
    assert!(sent < 10, "{sent} of {calls}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_over_leaves_a_server_that_answers_some_calls_although_the_others_are_dropped() {
    let bad = answers_if(|number| number % 10 == 0).await;
    let (sent, calls) = after_one_deadline(How::FailOver, bad).await;
    assert!(sent < calls / 8, "{sent} of {calls}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_robin_gives_few_calls_to_a_server_that_answers_some_although_the_others_are_dropped()
{
    let bad = answers_if(|number| number % 10 == 0).await;
    let (sent, calls) = after_one_deadline(How::RoundRobin, bad).await;
    assert!(sent < calls / 8, "{sent} of {calls}");
}

/// As with hedged calls: the answer of another server was earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_calls_that_are_answered_in_time_cost_their_server_nothing() {
    let (first, _) = scripted(async |socket: TcpStream, _| {
        let (mut from, mut to) = socket.into_split();
        let (late, mut due) = mpsc::unbounded_channel();
        let reads = async {
            while let Some(call) = request(&mut from).await {
                late.send((Instant::now() + millis(100), call)).unwrap();
            }
        };
        let answers = async {
            while let Some((at, call)) = due.recv().await {
                sleep_until(at.into()).await;
                let _ = to.write_all(&reply(&call, call.id)).await;
            }
        };
        tokio::join!(reads, answers);
    })
    .await;
    let (second, connections) = scripted(answers).await;
    let deadline = millis(1500);
    let pool = Arc::new(Pool::new([first, second], within(deadline)));
    let begin = Instant::now();
    while begin.elapsed() < 3 * deadline {
        let pool = Arc::clone(&pool);
        tokio::spawn(async move {
            timeout(millis(10), pool.fail_over(async |client| client.echo("x").await)).await
        });
        sleep(millis(5)).await;
    }
    assert_eq!(connections.load(SeqCst), 0, "another server was asked");
}

/// One place, and a call that was dropped takes it.
#[tokio::test]
async fn a_dropped_call_keeps_its_place_until_it_is_answered() {
    let (gate, mut held) = Gate::new();
    let server = Server::start(Serve(gate), Settings::default()).await;
    let pool = Arc::new(Pool::new([server.address], Options::default()).places(1));
    let call = || {
        let pool = Arc::clone(&pool);
        tokio::spawn(
            async move { pool.round_robin(async |client| client.later("x", 0).await).await },
        )
    };
    let dropped = call();
    let running = timeout(LONG, held.recv()).await.expect("no call arrived").unwrap();
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    let next = call();
    assert!(timeout(millis(100), held.recv()).await.is_err(), "the place was free");
    running.release.send(()).unwrap();
    let running = timeout(LONG, held.recv()).await.expect("the place stays taken").unwrap();
    running.release.send(()).unwrap();
    assert_eq!(timeout(LONG, next).await.unwrap().unwrap().unwrap(), "x");
}

#[tokio::test]
async fn a_dropped_call_keeps_its_place_until_its_deadline() {
    let (address, requests) = answers_if(|number| number > 0).await;
    let deadline = millis(500);
    let pool = Pool::new([address], within(deadline)).places(1);
    let call = || pool.round_robin(async |client| client.echo("x").await);
    let begin = Instant::now();
    assert!(timeout(millis(100), call()).await.is_err(), "an answer");
    assert_eq!(requests.load(SeqCst), 1);
    // The second is not answered within its deadline if it gets the place late.
    while call().await.is_err() {}
    assert!(begin.elapsed() >= deadline, "{:?}", begin.elapsed());
    assert_eq!(requests.load(SeqCst), 2);
}

/// Its request waits in the queue, because the server does not read.
#[tokio::test]
async fn a_dropped_call_that_was_not_sent_keeps_no_place() {
    let (address, _) = scripted(async |socket, _| {
        std::future::pending::<()>().await;
        drop::<TcpStream>(socket);
    })
    .await;
    let pool = Pool::new([address], within(LONG)).places(2);
    // Fills the buffers of the sockets: it is sent, at least in part, and takes a place.
    let text = "x".repeat(16_000_000);
    let call = pool.round_robin(async |client| client.echo(text.clone()).await);
    assert!(timeout(millis(500), call).await.is_err(), "an answer");
    for _ in 0..5 {
        let called = AtomicUsize::new(0);
        let call = pool.round_robin(async |client| {
            called.store(1, SeqCst);
            client.echo("x").await
        });
        assert!(timeout(millis(100), call).await.is_err(), "an answer");
        assert_eq!(called.into_inner(), 1, "no place is free");
    }
}

/// The pool is dropped while a call that was dropped is not answered.
#[tokio::test]
async fn a_dropped_call_does_not_keep_its_connection_open() {
    let (event, mut events) = mpsc::unbounded_channel();
    let (address, _) = scripted(move |mut socket: TcpStream, _| {
        let event = event.clone();
        async move {
            while request(&mut socket).await.is_some() {
                let _ = event.send("request");
            }
            let _ = event.send("end");
        }
    })
    .await;
    // The deadline is longer than the watchdog.
    let pool = Pool::new([address], within(2 * LONG));
    tokio::select! {
        answer = pool.round_robin(async |client| client.echo("x").await) => panic!("{answer:?}"),
        event = events.recv() => assert_eq!(event, Some("request")),
    }
    drop(pool);
    let event = timeout(LONG, events.recv()).await.expect("the connection stays open");
    assert_eq!(event, Some("end"));
}

/// Its server closes the connection, and answers on the next one.
#[tokio::test]
async fn a_dropped_call_frees_its_place_when_its_connection_is_closed() {
    let (event, mut events) = mpsc::unbounded_channel();
    let close = Arc::new(Notify::new());
    let closing = Arc::clone(&close);
    let (address, _) = scripted(move |mut socket: TcpStream, number| {
        let (event, closing) = (event.clone(), Arc::clone(&closing));
        async move {
            if number > 0 {
                return answers(socket, number).await;
            }
            request(&mut socket).await;
            event.send(()).unwrap();
            closing.notified().await;
        }
    })
    .await;
    // The deadline is longer than the watchdog.
    let pool = Pool::new([address], within(2 * LONG)).places(1);
    let call = || pool.round_robin(async |client| client.echo("x").await);
    // The state of the connection remains as long as a handle.
    let _handle = pool.round_robin(async |client| Ok::<_, Error>(client)).await.unwrap();
    tokio::select! {
        answer = call() => panic!("{answer:?}"),
        _ = events.recv() => {}
    }
    assert!(timeout(millis(100), call()).await.is_err(), "the place was free");
    close.notify_one();
    // A call that began before the connection was closed fails with it.
    let answered = async { while call().await.is_err() {} };
    timeout(LONG / 4, answered).await.expect("the place stays taken");
}

/// Calls are dropped at all times, also when their answers have just arrived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_calls_are_judged_once_and_leave_nothing_behind() {
    const CALLS: u64 = 20_000;
    let server = Server::example().await;
    let pool = Arc::new(Pool::new([server.address], Options::default()).places(64));
    let callers = (0..16).map(|seed| {
        let pool = Arc::clone(&pool);
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..CALLS / 16 {
                let call = pool.round_robin(async |client| client.add(1, 1).await);
                let short = Duration::from_micros(random.u64(0..400));
                tokio::select! {
                    sum = call => assert_eq!(sum.unwrap(), 2),
                    () = async {
                        let end = Instant::now() + short;
                        while Instant::now() < end {
                            tokio::task::yield_now().await;
                        }
                    } => {}
                }
            }
        })
    });
    for caller in timeout(LONG, futures::future::join_all(callers)).await.expect("a call hangs") {
        caller.unwrap();
    }
    let settled = async {
        loop {
            let state = format!("{pool:?}");
            if state.contains(" held: 0") && state.contains("running: 0") {
                break;
            }
            sleep(millis(10)).await;
        }
    };
    let done = timeout(LONG / 4, settled).await;
    assert!(done.is_ok(), "calls are left: {pool:?}");
    let client = pool.round_robin(async |client| Ok::<_, Error>(client)).await.unwrap();
    nothing_left(&client).await;
    assert_eq!(client.closed(), None);
}

/// When a server has hung, many calls wait for its only place, and have little time left when they get
/// it. Each is answered too late for its caller, but within a deadline after it was sent.
#[tokio::test]
async fn a_server_that_is_well_again_gets_more_calls_though_all_that_wait_come_too_late() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&is_well);
    let (address, _) = scripted(move |socket: TcpStream, _| {
        let well = Arc::clone(&well);
        async move {
            let (mut from, to) = socket.into_split();
            let to = Arc::new(tokio::sync::Mutex::new(to));
            while let Some(call) = request(&mut from).await {
                if well.load(SeqCst) {
                    let to = Arc::clone(&to);
                    tokio::spawn(async move {
                        sleep(millis(300)).await;
                        to.lock().await.write_all(&reply(&call, call.id)).await
                    });
                }
            }
        }
    })
    .await;
    let pool = Arc::new(Pool::new([address], within(millis(1000))));
    let (done, mut results) = mpsc::unbounded_channel();
    let calling = tokio::spawn(async move {
        loop {
            let (pool, done) = (Arc::clone(&pool), done.clone());
            tokio::spawn(async move {
                let call = async |client: Client| client.echo("x").await;
                let _ = done.send(pool.round_robin(call).await);
            });
            sleep(millis(15)).await;
        }
    });
    let recovered = async {
        let mut answered = 0;
        while answered < 100 {
            match results.recv().await.unwrap() {
                Ok(_) => answered += 1,
                Err(Error::Deadline(_)) => is_well.store(true, SeqCst),
                Err(error) => panic!("{error}"),
            }
        }
    };
    timeout(LONG, recovered).await.expect("it gets one call at a time for ever");
    calling.abort();
}

/// As `Buffered` does while its consumer is busy.
#[tokio::test]
async fn a_call_that_waits_for_room_and_is_not_polled_holds_up_no_others() {
    let is_reading = Arc::new(Notify::new());
    let starts = Arc::clone(&is_reading);
    let (address, _) = scripted(move |socket, number| {
        let starts = Arc::clone(&starts);
        async move {
            starts.notified().await;
            answers(socket, number).await;
        }
    })
    .await;
    let client = Client::connect(address, Options::default()).await.unwrap();
    let mut calls = JoinSet::new();
    let call = |text: String| {
        let client = client.clone();
        async move { client.echo(text).await }
    };
    // More than the sockets and the queue take.
    for _ in 0..32 {
        calls.spawn(call("x".repeat(1 << 20)));
    }
    let all_wait = async || {
        for _ in 0..100 {
            yield_now().await;
        }
    };
    all_wait().await;
    let mut unpolled = pin!(call("unpolled".to_owned()));
    assert!(poll!(&mut unpolled).is_pending());
    for _ in 0..3 {
        calls.spawn(call("x".to_owned()));
    }
    all_wait().await;
    is_reading.notify_one();
    while let Some(answer) = timeout(LONG, calls.join_next()).await.expect("they wait for it") {
        assert_eq!(answer.unwrap().unwrap(), "an answer");
    }
    assert_eq!(timeout(LONG, unpolled).await.unwrap().unwrap(), "an answer");
}

/// How the connections of a server end. A reset is a broken pipe, if the client has shut down its side
/// before.
async fn ends() -> (SocketAddr, mpsc::UnboundedReceiver<(usize, ErrorKind)>) {
    let (ended, ends) = mpsc::unbounded_channel();
    let script = move |mut socket: TcpStream, _| {
        let ended = ended.clone();
        async move {
            let mut requests = 0;
            loop {
                let length = match socket.read_u32().await {
                    Ok(length) => length,
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof && requests > 0 => {
                        // The client has shut down its side. Calls may be running, so this side is open.
                        let kind = loop {
                            sleep(millis(10)).await;
                            if let Ok(Some(error)) = socket.take_error() {
                                break error.kind();
                            }
                        };
                        let _ = ended.send((requests, kind));
                        return;
                    }
                    Err(error) => {
                        let _ = ended.send((requests, error.kind()));
                        return;
                    }
                };
                let mut frame = vec![0; length as usize];
                if socket.read_exact(&mut frame).await.is_err() {
                    return;
                }
                requests += 1;
            }
        }
    };
    (scripted(script).await.0, ends)
}

/// Otherwise, a server cannot know that its answers will not be read.
#[tokio::test]
async fn a_connection_that_is_dropped_with_calls_is_reset() {
    let (address, mut ends) = ends().await;
    let client = Client::connect(address, Options::default()).await.unwrap();
    {
        let mut call = pin!(client.later("x", 0));
        assert!(poll!(&mut call).is_pending());
        while client.counts().calls < 1 {
            yield_now().await;
        }
        client.note("a last word").await.unwrap();
    }
    drop(client);
    let (requests, end) = timeout(LONG, ends.recv()).await.expect("it is not reset").unwrap();
    assert!(matches!(end, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{end}");
    assert_eq!(requests, 2, "the last word was lost");
}

#[tokio::test]
async fn a_connection_that_is_given_up_is_reset() {
    let (address, mut ends) = ends().await;
    let pool = Pool::new([address], within(millis(50)));
    let answer = pool.round_robin(async |client| client.later("x", 0).await).await;
    assert!(matches!(answer, Err(Error::Deadline(_))), "{answer:?}");
    let retries = async {
        loop {
            let _ = pool.round_robin(async |client| client.later("x", 0).await).await;
        }
    };
    let end = async { ends.recv().await.unwrap() };
    tokio::select! {
        (_, end) = end => {
            assert!(matches!(end, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{end}");
        }
        () = retries => {}
        () = sleep(LONG) => panic!("it is not reset"),
    }
}

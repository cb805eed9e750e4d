//! The example programs beside the plain ones: their lines, and the processor time of the same job.

use std::future::pending;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, stream};
use hub_programs::{calls, chat, customers, fanout, partitions, prices};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use crate::measure::{Clock, Contender, Cost, compare, threads};

/// Prints the lines of a program that are neither blank nor comments.
macro_rules! lines {
    ($program:literal) => {
        println!(
            "{}: {} lines, plain {}",
            $program,
            count(include_str!(concat!("../../programs/src/", $program, "/hub.rs"))),
            count(include_str!(concat!("../../programs/src/", $program, "/plain.rs"))),
        )
    };
}

fn count(program: &str) -> usize {
    let lines = program.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// Measures the two of a job on one thread and two.
macro_rules! measure {
    ($rounds:ident, $job:literal, $hub:expr, $plain:expr) => {
        for threads in threads() {
            let contenders = vec![
                Contender::new("hub", move || threads.runtime().block_on(spawn(|| $hub))),
                Contender::new("plain", move || threads.runtime().block_on(spawn(|| $plain))),
            ];
            compare(&format!("{}, {}", $job, threads.name()), $rounds, contenders);
        }
    };
}

async fn spawn<P: Future<Output = Cost> + Send + 'static>(
    program: impl FnOnce() -> P + Send + 'static,
) -> Cost {
    tokio::spawn(async { program().await }).await.expect("the program does not panic")
}

const ROOMS: u64 = 20;
const CLIENTS: u64 = 10;
const ROUNDS: u64 = 20;
const BURST: u64 = 10;

async fn chat<S>(serve: impl FnOnce(TcpListener) -> S) -> Cost
where
    S: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener));
    let all = Arc::new(Barrier::new(usize::try_from(ROOMS * CLIENTS).unwrap() + 1));
    let mut clients = JoinSet::new();
    for n in 0..ROOMS * CLIENTS {
        let all = Arc::clone(&all);
        clients.spawn(async move {
            let (reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
            let mut reader = BufReader::new(reader);
            let (hello, mut line) = (format!("hello of {n}\n"), String::new());
            writer.write_all(format!("room {}\n{hello}", n % ROOMS).as_bytes()).await.unwrap();
            while line != hello {
                line.clear();
                reader.read_line(&mut line).await.unwrap();
            }
            all.wait().await;
            let text = "a line of text that somebody has written\n";
            let burst = text.repeat(usize::try_from(BURST).unwrap());
            for round in 1..=ROUNDS {
                writer.write_all(burst.as_bytes()).await.unwrap();
                let mut left = BURST * CLIENTS;
                while left > 0 {
                    line.clear();
                    reader.read_line(&mut line).await.unwrap();
                    left -= u64::from(line == text);
                    assert!(!line.is_empty() && !line.starts_with('('), "{round}: {line:?}");
                }
            }
        });
    }
    all.wait().await;
    let clock = Clock::start();
    clients.join_all().await;
    server.abort();
    clock.stop(ROOMS * CLIENTS * CLIENTS * BURST * ROUNDS)
}

const CUSTOMERS: u64 = 1_000;
const ORDERS: u64 = 300_000;

fn orders() -> impl Stream<Item = (u64, u64)> + Send + 'static {
    stream::iter(0..ORDERS).map(|n| (n * 7_919 % CUSTOMERS, n))
}

async fn handle(customer: u64, order: u64) {
    std::hint::black_box((customer, order));
}

fn boxed(customer: u64, order: u64) -> BoxFuture<'static, ()> {
    handle(customer, order).boxed()
}

fn log() -> impl Stream<Item = (u32, u64, u64)> + Send + 'static {
    orders().map(|(customer, n)| (u32::try_from(n % 8).unwrap(), n / 8, customer))
}

fn commit(position: (u32, u64)) {
    std::hint::black_box(position);
}

async fn work<T, R: Future<Output = Vec<T>>>(run: R) -> Cost {
    let clock = Clock::start();
    assert!(run.await.is_empty());
    clock.stop(ORDERS)
}

/// Bursts of 20 items for each topic. A pause lets the readers read.
fn items() -> impl Stream<Item = (u64, u64)> + Send + 'static {
    stream::iter(0..BURSTS).flat_map(|_| {
        let pause = stream::once(sleep(Duration::from_millis(10))).filter_map(|()| async { None });
        stream::iter(0..1_000).map(|n| (n % 50, n)).chain(pause)
    })
}

const BURSTS: u64 = 50;

async fn fan_out<R: Future<Output = u64>>(run: R) -> Cost {
    let clock = Clock::start();
    let count = run.await;
    assert_eq!(count, BURSTS * 20_000);
    clock.stop(count)
}

/// Updates of 5,000 symbols for a second, this number in each of 200 ticks. Before the first one the
/// clients have time to subscribe, and then the clock starts.
fn updates(of_tick: u64, clock: Arc<OnceLock<Clock>>) -> BoxStream<'static, (u32, u64)> {
    let ticks = stream::unfold((None, 0), move |(ticks, count)| {
        let clock = Arc::clone(&clock);
        async move {
            let mut ticks = if let Some(ticks) = ticks {
                ticks
            } else {
                sleep(Duration::from_millis(300)).await;
                clock.get_or_init(Clock::start);
                interval(Duration::from_millis(5))
            };
            ticks.tick().await;
            Some((count, (Some(ticks), count + 1)))
        }
    });
    let updates = ticks.take(200).flat_map(move |tick| {
        let first = tick * of_tick;
        stream::iter(first..first + of_tick)
    });
    updates.map(|n| (u32::try_from(n * 7_919 % 5_000).unwrap(), n)).boxed()
}

const PAUSE: Duration = Duration::from_millis(50);

/// Checks that the clients show the last 5,000 updates at the end, three clients each.
async fn show<R: Future<Output = u64>>(
    of_tick: u64,
    run: impl FnOnce(BoxStream<'static, (u32, u64)>) -> R,
) -> Cost {
    let clock = Arc::new(OnceLock::new());
    let sum = run(updates(of_tick, Arc::clone(&clock))).await;
    let updates = 200 * of_tick;
    assert_eq!(sum, 3 * (updates - 5_000..updates).sum::<u64>());
    let clock = Arc::into_inner(clock).and_then(OnceLock::into_inner);
    clock.expect("the updates are dropped, and have started it").stop(updates)
}

const CALLERS: u64 = 100;
const CALLS: u64 = 300;

/// A connection to a server that answers each request with itself.
async fn echo() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connection = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    connection.set_nodelay(true).unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = server.read(&mut buffer).await {
            server.write_all(&buffer[..n]).await.unwrap();
        }
    });
    connection
}

async fn call<C: Send + Sync + 'static, F>(
    client: C,
    call: impl Fn(Arc<C>) -> F + Copy + Send + 'static,
) -> Cost
where
    F: Future<Output = io::Result<String>> + Send,
{
    let (client, mut callers) = (Arc::new(client), JoinSet::new());
    let clock = Clock::start();
    for _ in 0..CALLERS {
        let client = Arc::clone(&client);
        callers.spawn(async move {
            for _ in 0..CALLS {
                assert_eq!(call(Arc::clone(&client)).await.unwrap(), "a request");
            }
        });
    }
    callers.join_all().await;
    clock.stop(CALLERS * CALLS)
}

async fn call_hub() -> Cost {
    let client = calls::hub::Client::new(echo().await);
    call(client, |client| async move { client.call("a request").await }).await
}

async fn call_plain() -> Cost {
    let client = calls::plain::Client::new(echo().await);
    call(client, |client| async move { client.call("a request").await }).await
}

pub(crate) fn measure_chat(rounds: usize) {
    lines!("chat");
    measure!(rounds, "chat: a line to a client", chat(chat::hub::serve), chat(chat::plain::serve));
}

pub(crate) fn measure_workers(rounds: usize) {
    lines!("customers");
    measure!(
        rounds,
        "workers: an order",
        work(customers::hub::run(orders(), pending(), handle)),
        work(customers::plain::run(orders(), pending(), handle))
    );
}

pub(crate) fn measure_partitions(rounds: usize) {
    lines!("partitions");
    measure!(
        rounds,
        "a partitioned log, 200 customers at a time: an order",
        work(partitions::hub::run(log(), pending(), boxed, commit)),
        work(partitions::plain::run(log(), pending(), boxed, commit))
    );
}

pub(crate) fn measure_fanout(rounds: usize) {
    lines!("fanout");
    measure!(
        rounds,
        "fan-out: a delivery",
        fan_out(fanout::hub::run(items())),
        fan_out(fanout::plain::run(items()))
    );
}

pub(crate) fn measure_prices(rounds: usize) {
    lines!("prices");
    for (of_tick, rate) in [(1_000, "200,000"), (100, "20,000"), (25, "5,000")] {
        for threads in threads() {
            let run = move |pause| show(of_tick, move |updates| prices::hub::run(updates, pause));
            let contenders = vec![
                Contender::new("hub, Conflate, read as they come", move || {
                    threads.runtime().block_on(spawn(move || run(None)))
                }),
                Contender::new("hub, Conflate, read every 50 ms", move || {
                    threads.runtime().block_on(spawn(move || run(Some(PAUSE))))
                }),
                Contender::new("plain: a table, read every 50 ms", move || {
                    let run = |updates| prices::plain::run(updates, PAUSE);
                    threads.runtime().block_on(spawn(move || show(of_tick, run)))
                }),
            ];
            let clients = "300 clients, each with 50 of 5,000 prices";
            let title =
                format!("{clients}, {rate} updates a second, {}: an update", threads.name());
            compare(&title, rounds, contenders);
        }
    }
}

pub(crate) fn measure_calls(rounds: usize) {
    lines!("calls");
    measure!(rounds, "calls: a call", call_hub(), call_plain());
}

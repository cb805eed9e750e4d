//! A pool of servers: fail-over, round robin, and comparing the answers of all.

mod common;

use std::sync::Arc;

use common::{Gate, Held, LONG, Server};
use thrift_demux::demo::{Example, Serve};
use thrift_demux::{Answers, Client, Error, Options, Pool, Protocol, Request, Service, Settings};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::bytes::Bytes;

/// A service whose answers are wrong.
struct Wrong(Serve<Example>);

impl Service for Wrong {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        match self.0.call(request).await? {
            Some(frame) => {
                // The result of `add` is the eight bytes before the last byte.
                let mut frame = frame.to_vec();
                let last = frame.len() - 2;
                frame[last] ^= 1;
                Ok(Some(frame.into()))
            }
            None => Ok(None),
        }
    }
}

fn example() -> Serve<Example> {
    Serve(Arc::new(Example::default()))
}

async fn three() -> [Server; 3] {
    [Server::example().await, Server::example().await, Server::example().await]
}

fn pool(servers: &[Server]) -> Pool {
    Pool::new(servers.iter().map(|server| server.address), Options::default())
}

#[tokio::test]
async fn round_robin_gives_each_server_its_share() {
    let servers = three().await;
    let pool = pool(&servers);
    for n in 0..30 {
        assert_eq!(pool.round_robin(async |client| client.add(n, 1).await).await.unwrap(), n + 1);
    }
    drop(pool);
    for server in servers {
        assert_eq!(server.stop().await.calls, 10);
    }
}

#[tokio::test]
async fn round_robin_passes_over_a_server_that_is_gone() {
    let [first, second, third] = three().await;
    let servers = [first.address, second.address, third.address];
    let pool = Pool::new(servers, Options::default());
    second.stop().await;
    for n in 0..30 {
        assert_eq!(pool.round_robin(async |client| client.add(n, 1).await).await.unwrap(), n + 1);
    }
    drop(pool);
    assert_eq!(first.stop().await.calls + third.stop().await.calls, 30);
}

/// Spawns a call that waits until the test releases it.
fn later(pool: &Arc<Pool>, text: &str) -> JoinHandle<Result<String, Error>> {
    let (pool, text) = (Arc::clone(pool), text.to_owned());
    tokio::spawn(async move {
        pool.round_robin(async |client| client.later(text.clone(), 0).await).await
    })
}

/// Waits for the next call that arrives at a server.
async fn arrival(held: &mut mpsc::UnboundedReceiver<Held>) -> Held {
    timeout(LONG, held.recv()).await.expect("no call arrived").unwrap()
}

#[tokio::test]
async fn a_slow_server_delays_only_its_own_calls() {
    let (slow, mut stuck) = Gate::new();
    let slow = Server::start(Serve(slow), Settings::default()).await;
    let quick = Server::example().await;
    let pool = Arc::new(pool(&[slow, quick]).places(2));
    let calls = ["one", "two", "three", "four"].map(|text| later(&pool, text));
    let held = [arrival(&mut stuck).await, arrival(&mut stuck).await];
    // All places of the slow server are taken: all further calls go to the other server.
    for n in 0..100 {
        let sum = timeout(LONG, pool.round_robin(async |client| client.add(n, 1).await)).await;
        assert_eq!(sum.expect("the call was delayed").unwrap(), n + 1);
    }
    assert!(stuck.try_recv().is_err());
    for call in held {
        call.release.send(()).unwrap();
    }
    for (call, text) in calls.into_iter().zip(["one", "two", "three", "four"]) {
        assert_eq!(timeout(LONG, call).await.unwrap().unwrap().unwrap(), text);
    }
    // The slow server gets calls again.
    for _ in 0..2 {
        pool.round_robin(async |client| client.add(1, 1).await).await.unwrap();
    }
}

#[tokio::test]
async fn calls_that_wait_go_to_the_others_when_a_server_retires() {
    let (one, mut of_one) = Gate::new();
    let (other, mut of_other) = Gate::new();
    let servers = [
        Server::start(Serve(one), Settings::default()).await,
        Server::start(Serve(other), Settings::default()).await,
    ];
    let address = servers[0].address.to_string();
    let pool = Arc::new(pool(&servers).places(1));
    let calls = (0..10).map(|n| later(&pool, &n.to_string())).collect::<Vec<_>>();
    let (first, mut next) = (arrival(&mut of_one).await, arrival(&mut of_other).await);
    pool.retire(&address);
    first.release.send(()).unwrap();
    // Eight calls wait. The first server has a free place, but gets none of them.
    for _ in 0..8 {
        next.release.send(()).unwrap();
        next = arrival(&mut of_other).await;
    }
    next.release.send(()).unwrap();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(timeout(LONG, call).await.unwrap().unwrap().unwrap(), n.to_string());
    }
    assert!(of_one.try_recv().is_err(), "a retired server got a call");
    pool.retire(&servers[1].address.to_string());
    let error = timeout(LONG, pool.round_robin(async |client| client.ping().await)).await;
    let error = error.unwrap().unwrap_err().to_string();
    assert_eq!(error, "no connection: there is no server in the pool");
}

/// A caller that is dropped while it waits does not keep a place.
#[tokio::test]
async fn a_call_that_is_dropped_while_it_waits_keeps_no_place() {
    let (gate, mut held) = Gate::new();
    let servers = [Server::start(Serve(gate), Settings::default()).await];
    let pool = Arc::new(pool(&servers).places(1));
    let first = later(&pool, "first");
    let running = arrival(&mut held).await;
    for _ in 0..10 {
        let waits = later(&pool, "dropped");
        tokio::task::yield_now().await;
        waits.abort();
    }
    let last = later(&pool, "last");
    running.release.send(()).unwrap();
    let running = arrival(&mut held).await;
    assert_eq!(running.text, "last");
    running.release.send(()).unwrap();
    for call in [first, last] {
        timeout(LONG, call).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn fail_over_continues_with_the_next_server() {
    let [first, second, third] = three().await;
    let pool = Pool::new([first.address, second.address, third.address], Options::default());
    let call = async |n| pool.fail_over(move |client| async move { client.add(n, 1).await }).await;
    for n in 0..10 {
        assert_eq!(call(n).await.unwrap(), n + 1);
    }
    assert_eq!(first.stop().await.calls, 10, "all calls go to one server while it is up");
    for n in 0..10 {
        assert_eq!(call(n).await.unwrap(), n + 1);
    }
    assert_eq!(second.stop().await.calls, 10);
    for n in 0..10 {
        assert_eq!(call(n).await.unwrap(), n + 1);
    }
    assert_eq!(third.stop().await.calls, 10);
    let error = call(0).await.unwrap_err();
    assert!(matches!(error, Error::Closed(_)), "{error}");
}

#[tokio::test]
async fn an_error_that_the_server_answered_with_causes_no_fail_over() {
    let servers = three().await;
    let pool = pool(&servers);
    let error = pool.fail_over(async |client| client.add(i64::MAX, 1).await).await.unwrap_err();
    assert!(matches!(error, Error::Refused(..)), "{error}");
    drop(pool);
    let [first, second, third] = servers;
    assert_eq!(first.stop().await.calls, 1);
    assert_eq!(second.stop().await.calls + third.stop().await.calls, 0);
}

#[tokio::test]
async fn fail_over_leaves_a_server_that_does_not_answer() {
    let (gate, _held) = Gate::new();
    let silent = Server::start(Serve(gate), Settings::default()).await;
    let other = Server::start(example(), Settings::default()).await;
    let deadline = std::time::Duration::from_millis(50);
    let pool =
        Pool::new([silent.address, other.address], Options { deadline, ..Options::default() });
    let answer = pool.fail_over(async |client| client.later("here", 0).await).await;
    assert_eq!(answer.unwrap(), "here");
}

#[tokio::test]
async fn all_are_asked_and_agree() {
    let servers = three().await;
    let answers = pool(&servers).ask_all(async |client| client.sum(vec![1, 2, 3]).await).await;
    assert_eq!(answers.agreed(), Some(&6));
    assert_eq!(answers.majority(), Some((&6, vec![])));
    for server in servers {
        assert_eq!(server.stop().await.calls, 1);
    }
}

#[tokio::test]
async fn a_server_with_a_different_answer_is_named() {
    let wrong = Server::start(Wrong(example()), Settings::default()).await;
    let [first, second, _] = three().await;
    let servers = [first.address, wrong.address, second.address];
    let options = Options { protocol: Protocol::Binary, ..Options::default() };
    let answers = Pool::new(servers, options).ask_all(async |client| client.add(1, 1).await).await;
    assert_eq!(answers.agreed(), None);
    let name = wrong.address.to_string();
    assert_eq!(answers.majority(), Some((&2, vec![name.as_str()])));

    let answers = Pool::new([first.address, wrong.address], options)
        .ask_all(async |client| client.add(1, 1).await)
        .await;
    assert_eq!(
        (answers.agreed(), answers.majority()),
        (None, None),
        "one answer against another is no majority"
    );
}

#[tokio::test]
async fn an_empty_pool_returns_an_error() {
    let pool = Pool::new(Vec::<String>::new(), Options::default());
    let error = pool.fail_over(async |client| client.ping().await).await.unwrap_err();
    assert_eq!(error.to_string(), "no connection: there is no server in the pool");
    assert_eq!(pool.ask_all(async |client| client.ping().await).await.agreed(), None);
}

#[test]
fn a_pool_whose_runtime_has_shut_down_says_so() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pool = runtime().block_on(async { Pool::new(["127.0.0.1:1"], Options::default()) });
    let add = async |client: Client| client.add(1, 1).await;
    let errors = runtime().block_on(async {
        let each = [pool.round_robin(add).await, pool.fail_over(add).await];
        let Answers(mut all) = pool.ask_all(add).await;
        each.into_iter().chain(all.pop().map(|(_, answer)| answer)).map(Result::unwrap_err)
    });
    for error in errors {
        let error = error.to_string();
        assert!(error.contains("the runtime of the pool has shut down"), "{error}");
    }
}

#[test]
fn connections_belong_to_the_runtime_of_the_pool_whichever_calls_first() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (server, pool) = runtime.block_on(async {
        let server = Server::example().await;
        let pool = pool(std::slice::from_ref(&server));
        (server, pool)
    });
    for n in 0..3 {
        let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sum = other.block_on(pool.fail_over(async |client| client.add(n, 1).await));
        assert_eq!(sum.unwrap(), n + 1);
    }
    let sum = runtime.block_on(pool.round_robin(async |client| client.add(1, 1).await));
    assert_eq!(sum.unwrap(), 2);
    drop(pool);
    assert_eq!(runtime.block_on(server.stop()).connections, 1);
}

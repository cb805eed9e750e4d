//! A pool of servers: fail-over, round robin, and all of them asked and compared.

mod common;

use std::sync::Arc;

use common::{Gate, Server};
use thrift_demux::demo::{Example, Serve};
use thrift_demux::{Error, Options, Pool, Protocol, Request, Service, Settings};
use tokio_util::bytes::Bytes;

/// One that is wrong, and one that counts what it is asked.
struct Wrong(Serve<Example>);

impl Service for Wrong {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        match self.0.call(request).await? {
            Some(frame) => {
                // The result of `add` is its last eight bytes but one.
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

#[tokio::test]
async fn fail_over_goes_on_where_a_server_stops() {
    let [first, second, third] = three().await;
    let pool = Pool::new([first.address, second.address, third.address], Options::default());
    let call = async |n| pool.fail_over(move |client| async move { client.add(n, 1).await }).await;
    for n in 0..10 {
        assert_eq!(call(n).await.unwrap(), n + 1);
    }
    assert_eq!(first.stop().await.calls, 10, "one server has all calls while it is there");
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
async fn fail_over_is_for_connections_not_for_answers() {
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
async fn one_that_differs_is_named() {
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
    assert_eq!((answers.agreed(), answers.majority()), (None, None), "one against one");
}

#[tokio::test]
async fn an_empty_pool_says_so() {
    let pool = Pool::new(Vec::<String>::new(), Options::default());
    let error = pool.fail_over(async |client| client.ping().await).await.unwrap_err();
    assert_eq!(error.to_string(), "no connection: there is no server in the pool");
    assert_eq!(pool.ask_all(async |client| client.ping().await).await.agreed(), None);
}

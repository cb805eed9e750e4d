//! Requests of a client: their limits, the memory that they take, and which of them are not sent.

mod common;

use std::pin::pin;

use common::{LONG, Server, answers, millis, scripted, within};
use futures::future::join_all;
use thrift::protocol::{TInputProtocol, TOutputProtocol};
use thrift_demux::demo::one_of_each;
use thrift_demux::{Client, Error, Options, Protocol, Transport, Wire};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Each limit holds for calls and one-way calls, and for what is nested.
#[tokio::test]
async fn a_request_with_a_string_or_container_beyond_the_limits_is_not_sent() {
    for protocol in [Protocol::Binary, Protocol::Compact] {
        let server = Server::example().await;
        let mut options = Options { protocol, ..Options::default() };
        options.limits.string = 100;
        options.limits.container = 3;
        let client = Client::connect(server.address, options).await.unwrap();
        let long = "x".repeat(101);
        let mut bytes = one_of_each();
        bytes.base64 = vec![0; 101];
        let mut list = one_of_each();
        list.base64 = Vec::new();
        list.i16_list = vec![1; 4];
        let errors = [
            client.echo(long.clone()).await.unwrap_err(),
            client.note(long.clone()).await.unwrap_err(),
            client.each(bytes).await.unwrap_err(),
            client.count(vec![long.clone()]).await.unwrap_err(),
            client.sum(vec![1; 4]).await.unwrap_err(),
            client.each(list).await.unwrap_err(),
            client.count(vec![String::from("x"); 4]).await.unwrap_err(),
        ];
        for (n, error) in errors.into_iter().enumerate() {
            assert!(matches!(error, Error::TooLarge(_)), "{n}: {error}");
            let size = if n < 4 { "of 101, more than 100" } else { "of 4, more than 3" };
            assert!(error.to_string().contains(size), "{n}: {error}");
        }
        assert_eq!(client.echo("x".repeat(100)).await.unwrap().len(), 100);
        assert_eq!(client.sum(vec![1; 3]).await.unwrap(), 3);
        assert_eq!(server.stop().await.calls, 2);
    }
}

/// Arguments of this many bytes, which are encoded for each request.
struct Large(usize);

impl Wire for Large {
    fn read(_: &mut dyn TInputProtocol) -> thrift::Result<Self> {
        Ok(Self(0))
    }
    fn write(&self, to: &mut dyn TOutputProtocol) -> thrift::Result<()> {
        to.write_bytes(&vec![0; self.0])
    }
}

/// Nothing that is written is read. Calls are dropped, reach their deadlines, or wait.
#[test]
fn requests_that_wait_to_be_written_take_bounded_memory() {
    const CALLS: usize = 200;
    const MIB: i64 = 1 << 20;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let allocated = allocation_counter::measure(|| {
        runtime.block_on(async {
            let (near, _far) = tokio::io::duplex(1024);
            let (from, to) = tokio::io::split(near);
            let options = within(2 * LONG);
            let client = Client::over(Transport::framed(from, to, &options.limits), options);
            let args = Large(1 << 20);
            for _ in 0..CALLS {
                let _ = timeout(millis(0), client.call::<_, Large>("echo", &args)).await;
            }
            let calls = (0..CALLS).map(|_| client.call::<_, Large>("echo", &args));
            let _ = timeout(millis(200), join_all(calls)).await;
            let notes = (0..CALLS).map(|_| client.send("note", &args));
            let _ = timeout(millis(200), join_all(notes)).await;
        });
    });
    let most = i64::try_from(allocated.bytes_max).unwrap();
    assert!(most < 16 * MIB, "{} MiB for {CALLS} calls of 1 MiB", most / MIB);
}

/// A call whose request was not written when it ended is not executed.
#[tokio::test]
async fn a_request_whose_call_has_ended_is_not_sent() {
    let (address, _) = scripted(answers).await;
    let (near, far) = tokio::io::duplex(1024);
    let (from, to) = tokio::io::split(near);
    let options = within(LONG);
    let client = Client::over(Transport::framed(from, to, &options.limits), options);
    let large = Large(1 << 20);
    // The first call fills the pipe.
    let mut first = pin!(client.call::<_, Large>("echo", &large));
    assert!(timeout(millis(50), &mut first).await.is_err());
    for _ in 0..10 {
        assert!(timeout(millis(0), client.ping()).await.is_err());
    }
    let last = client.echo("x");
    let server = async {
        let mut far = far;
        let mut socket = TcpStream::connect(address).await.unwrap();
        tokio::io::copy_bidirectional(&mut far, &mut socket).await
    };
    let answer = async {
        tokio::select! {
            answer = last => answer.unwrap(),
            _ = server => panic!("the server ended"),
            () = sleep(LONG) => panic!("no answer arrived"),
        }
    };
    assert_eq!(answer.await, "an answer");
    assert_eq!(client.counts().late, 0, "a request was sent whose call had ended");
}

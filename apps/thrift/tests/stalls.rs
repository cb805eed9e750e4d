//! A client that reads its answers slowly, but steadily, has not stalled.

mod common;

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{LONG, Server, raw};
use thrift::protocol::TMessageType;
use thrift_demux::{Error, Message, Protocol, Request, Service, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_util::bytes::Bytes;

const MEGABYTE: usize = 1_000_000;

/// Answers every call with a megabyte.
struct Long;

impl Service for Long {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        let Message { protocol, name, id, .. } = &request.message;
        let answer = raw::message(*protocol, name, TMessageType::Reply, *id, |to| {
            raw::string(to, 0, &"x".repeat(MEGABYTE));
            to.write_field_stop().unwrap();
        });
        Ok(Some(answer.into()))
    }
}

/// The client reads an answer in three seconds, which is longer than the time-out, and never reads
/// nothing for as long.
#[tokio::test]
async fn a_client_that_reads_slowly_is_not_closed() {
    let reasons = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&reasons);
    let settings = Settings {
        stall_timeout: Duration::from_secs(2),
        on_closed: Arc::new(move |_, reason| log.lock().unwrap().push(reason.to_owned())),
        ..Settings::default()
    };
    let server = Server::start(Long, settings).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let calls = raw::call(Protocol::Binary, "echo", 1, |_| {}).repeat(10);
    socket.write_all(&calls).await.unwrap();
    let mut part = vec![0; 100_000];
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        timeout(LONG, socket.read_exact(&mut part)).await.expect("nothing is written").unwrap();
        sleep(Duration::from_millis(300)).await;
        assert_eq!(*reasons.lock().unwrap(), Vec::<String>::new(), "after {:?}", start.elapsed());
    }
    // Now it reads nothing.
    let closed = async {
        while reasons.lock().unwrap().is_empty() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, closed).await.expect("it is not closed");
    assert_eq!(*reasons.lock().unwrap(), ["the client read no answers for 2s"]);
    let end = timeout(LONG, socket.read_to_end(&mut part)).await.expect("it stays open");
    assert!(end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    server.stop().await;
}

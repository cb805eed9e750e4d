//! What a client gets, whatever the service returns and the settings are.

mod common;

use std::sync::Arc;

use common::{LONG, Server, answer, raw, within};
use thrift::ApplicationErrorKind;
use thrift::protocol::TMessageType;
use thrift_demux::demo::{Example, Serve};
use thrift_demux::{Client, Error, Protocol, Request, Service, Settings};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::bytes::Bytes;

const PROTOCOLS: [Protocol; 2] = [Protocol::Binary, Protocol::Compact];

/// Returns an empty answer.
struct Empty;

impl Service for Empty {
    async fn call(&self, _: Request) -> Result<Option<Bytes>, Error> {
        Ok(Some(Bytes::new()))
    }
}

#[tokio::test]
async fn an_empty_answer_is_an_exception() {
    let server = Server::start(Empty, Settings::default()).await;
    for protocol in PROTOCOLS {
        let client = server.client(protocol).await;
        let error = timeout(LONG, client.ping()).await.expect("no answer").unwrap_err();
        let Error::Refused(ApplicationErrorKind::MissingResult, what) = error else {
            panic!("{error}")
        };
        assert_eq!(what, "the service returned an empty answer");
        assert_eq!(client.closed(), None);
    }
    server.stop().await;
}

/// As Apache's Go library does: it reads no answer, so the next one has to be that of the next call.
#[tokio::test]
async fn a_one_way_method_that_is_called_as_a_call_gets_no_answer() {
    let server = Server::example().await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    for protocol in PROTOCOLS {
        let note = raw::call(protocol, "note", 5, |to| raw::string(to, 1, "x"));
        socket.write_all(&note).await.unwrap();
        let ping = raw::call(protocol, "ping", 6, |_| {});
        socket.write_all(&ping).await.unwrap();
        let message = answer(&mut socket).await;
        assert_eq!((message.kind, message.id), (TMessageType::Reply, 6));
    }
    server.stop().await;
}

#[tokio::test]
async fn settings_of_zero_count_as_one() {
    let settings = Settings { connections: 0, in_flight: 0, ..Settings::default() };
    let server = Server::start(Serve(Arc::new(Example::default())), settings).await;
    let client = Client::connect(server.address, within(LONG)).await.unwrap();
    assert_eq!(client.add(2, 3).await.unwrap(), 5);
    drop(client);
    server.stop().await;
}

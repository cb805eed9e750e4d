//! Calls with time-outs on one connection, whose replies come in any order.

use std::future::ready;
use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use stream_demux_hub::Hub;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec};

pub struct Client {
    replies: Hub<u64, String>,
    requests: Mutex<FramedWrite<OwnedWriteHalf, LinesCodec>>,
    next: AtomicU64,
}

impl Client {
    pub fn new(connection: TcpStream) -> Self {
        let (reader, writer) = connection.into_split();
        let lines = FramedRead::new(reader, LinesCodec::new());
        let replies = lines.scan((), |(), line| ready(line.ok().and_then(|line| parse(&line))));
        let replies = Hub::builder().input(replies).spawn();
        let requests = Mutex::new(FramedWrite::new(writer, LinesCodec::new()));
        Self { replies, requests, next: AtomicU64::new(0) }
    }

    pub async fn call(&self, request: &str) -> Result<String> {
        let id = self.next.fetch_add(1, Relaxed);
        let reply = self.replies.next(id);
        let sent = self.requests.lock().await.send(format!("{id} {request}")).await;
        sent.map_err(Error::other)?;
        let reply = timeout(Duration::from_secs(1), reply).await?;
        reply.ok_or_else(|| ErrorKind::ConnectionReset.into())
    }
}

fn parse(line: &str) -> Option<(u64, String)> {
    let (id, reply) = line.split_once(' ')?;
    Some((id.parse().ok()?, reply.to_owned()))
}

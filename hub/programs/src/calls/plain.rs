//! The same with a map of `oneshot` senders.

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex as Sync};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec};

/// `None` when the connection is closed.
type Waiting = Arc<Sync<Option<HashMap<u64, oneshot::Sender<String>>>>>;

pub struct Client {
    waiting: Waiting,
    requests: Mutex<FramedWrite<OwnedWriteHalf, LinesCodec>>,
    next: AtomicU64,
}

impl Client {
    pub fn new(connection: TcpStream) -> Self {
        let (reader, writer) = connection.into_split();
        let mut lines = FramedRead::new(reader, LinesCodec::new());
        let waiting = Waiting::new(Sync::new(Some(HashMap::new())));
        let calls = Arc::clone(&waiting);
        tokio::spawn(async move {
            while let Some(Ok(line)) = lines.next().await {
                let Some((id, reply)) = line.split_once(' ') else { break };
                let Ok(id) = id.parse::<u64>() else { break };
                if let Some(call) = calls.lock().unwrap().as_mut().unwrap().remove(&id) {
                    let _ = call.send(reply.to_owned());
                }
            }
            calls.lock().unwrap().take();
        });
        let requests = Mutex::new(FramedWrite::new(writer, LinesCodec::new()));
        Self { waiting, requests, next: AtomicU64::new(0) }
    }

    pub async fn call(&self, request: &str) -> Result<String> {
        let id = self.next.fetch_add(1, Relaxed);
        let (sender, reply) = oneshot::channel();
        let Some(()) =
            self.waiting.lock().unwrap().as_mut().map(|calls| drop(calls.insert(id, sender)))
        else {
            return Err(ErrorKind::ConnectionReset.into());
        };
        let _cleanup = Cleanup(&self.waiting, id);
        let sent = self.requests.lock().await.send(format!("{id} {request}")).await;
        sent.map_err(Error::other)?;
        timeout(Duration::from_secs(1), reply).await?.map_err(|_| ErrorKind::ConnectionReset.into())
    }
}

/// Removes a call that has timed out or was cancelled.
struct Cleanup<'a>(&'a Waiting, u64);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap().as_mut().and_then(|calls| calls.remove(&self.1));
    }
}

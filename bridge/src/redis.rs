//! [`Redis`]: publish/subscribe by Redis.
//!
//! The connections use RESP3: confirmations and items come as push messages, so the order between
//! them is known. The client library is given the socket, and its future is polled by the task of
//! the connection: it has no task and no queue of its own that could grow.

use std::sync::Arc;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisConnectionInfo, RedisError, Value, cmd,
};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use crate::arrivals::{Arrival, Gate};
use crate::engine::{Claim, Connection, Engine, Failure, Line, Subscriber};
use crate::url::UrlError;

/// The address of a Redis server.
#[derive(Debug)]
pub(crate) struct Redis {
    address: ConnectionAddr,
    settings: RedisConnectionInfo,
}

impl Redis {
    pub(crate) fn new(url: &str) -> Result<Self, UrlError> {
        if url.starts_with("rediss:") || url.starts_with("valkeys:") {
            let reason = "TLS is not supported; use redis:// or unix://, for example by a tunnel";
            return Err(UrlError(reason.to_owned()));
        }
        let info = url.into_connection_info().map_err(|error| UrlError(error.to_string()))?;
        let address = info.addr().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        Ok(Self { address, settings })
    }

    async fn open<S>(
        &self,
        socket: S,
        subscriber: Option<Subscriber>,
    ) -> Result<Connection<RedisLine>, RedisError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // The bridge has its own time-outs: an answer may have to wait until arrivals are routed.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let arrivals = subscriber.as_ref().map(|subscriber| Arc::clone(&subscriber.arrivals));
        let config = match subscriber {
            Some(to) => config.set_push_sender(move |push| {
                arrive(&to, push);
                Ok::<(), ()>(())
            }),
            None => config,
        };
        let gate = Gate::new(socket, arrivals);
        let reads = gate.reads();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&self.settings, gate, config).await?;
        let driver = async move {
            driver.await;
            Arc::from("the engine has closed the connection")
        };
        Ok(Connection { line: RedisLine(connection), driver: Box::pin(driver), reads })
    }
}

impl Engine for Redis {
    type Line = RedisLine;

    async fn connect(
        &self,
        subscriber: Option<Subscriber>,
    ) -> Result<Connection<RedisLine>, Failure> {
        let broken = |error: std::io::Error| {
            Failure::Broken(format!("cannot connect to {}: {error}", self.address).into())
        };
        let opened = match &self.address {
            ConnectionAddr::Tcp(host, port) => {
                let socket = TcpStream::connect((host.as_str(), *port)).await.map_err(broken)?;
                socket.set_nodelay(true).map_err(broken)?;
                self.open(socket, subscriber).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let socket = UnixStream::connect(path).await.map_err(broken)?;
                self.open(socket, subscriber).await
            }
            address => {
                return Err(Failure::Refused(format!("{address} is not supported").into()));
            }
        };
        opened.map_err(|error| failure(&error))
    }
}

/// Hands on what the server has pushed.
fn arrive(to: &Subscriber, push: PushInfo) {
    let mut data = push.data.into_iter();
    // An `unsubscribe` of no channel at all has no name.
    let Some(Value::BulkString(key)) = data.next() else { return };
    let arrival = match push.kind {
        PushKind::Subscribe => Arrival::Subscribed,
        PushKind::Unsubscribe => Arrival::Unsubscribed,
        PushKind::Message => {
            let Some(Value::BulkString(item)) = data.next() else { return };
            Arrival::Item(item.into())
        }
        _ => return,
    };
    to.arrivals.push(to.epoch, key, arrival);
}

/// A connection to a Redis server.
#[derive(Clone)]
pub(crate) struct RedisLine(MultiplexedConnection);

impl RedisLine {
    fn send(&self, command: Cmd) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let mut connection = self.0.clone();
        async move {
            let answer = connection.send_packed_command(&command).await;
            match answer.and_then(Value::extract_error) {
                Ok(_) => Ok(()),
                Err(error) => Err(failure(&error)),
            }
        }
    }
}

impl Line for RedisLine {
    fn subscribe(&self, key: &str) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        self.send(cmd("SUBSCRIBE").arg(key).take())
    }

    fn unsubscribe(&self, key: &str) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        self.send(cmd("UNSUBSCRIBE").arg(key).take())
    }

    fn publish(
        &self,
        key: &str,
        item: &Bytes,
        claim: Claim,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        // The client library does not tell whether it has written a command.
        claim.take();
        self.send(cmd("PUBLISH").arg(key).arg(&item[..]).take())
    }

    fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        self.send(cmd("PING"))
    }
}

fn failure(error: &RedisError) -> Failure {
    let reason = error.to_string().into();
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
            Failure::Refused(reason)
        }
        _ => Failure::Broken(reason),
    }
}

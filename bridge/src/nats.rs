//! [`Nats`]: publish/subscribe by NATS.
//!
//! The protocol is spoken here and not by the client library `async-nats`, for what a bridge
//! promises cannot be built on it (read in 0.46 and 0.51): it reads its socket always, and drops
//! messages when a queue is full; it connects again by itself; and it tells both by a queue that
//! drops, too, beside the messages. So a gap could not be told in its place. Its `flush` does not
//! wait for the server.
//!
//! A NATS server handles the commands of a connection one after the other. So each command is
//! followed by a `PING`, and the `PONG` confirms it. What the server has to say against a command
//! comes before that.

mod address;
mod driver;
mod subject;
mod wire;

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use crate::arrivals::Gate;
use crate::engine::{Claim, Connection, Engine, Failure, Line, Subscriber};
use crate::event::Key;
use crate::nats::address::Address;
use crate::nats::driver::{Command, Driver, Request};
use crate::nats::subject::{LONGEST, subject};
use crate::nats::wire::{Info, Said, connect, parse};
use crate::url::UrlError;

/// How many commands may wait for the writer. Other publishers keep their items, so one that gives
/// up leaves nothing here.
const COMMANDS: usize = 64;

/// The address of a NATS server.
#[derive(Debug)]
pub(crate) struct Nats(Address);

impl Nats {
    pub(crate) fn new(url: &str) -> Result<Self, UrlError> {
        Ok(Self(Address::parse(url)?))
    }

    fn broken(&self, error: &std::io::Error) -> Failure {
        Failure::Broken(format!("cannot connect to {}: {error}", self.0).into())
    }

    /// Introduces itself, and waits until the server has agreed.
    async fn greet(&self, socket: &mut Gate<TcpStream>) -> Result<(Info, BytesMut), Failure> {
        let address = &self.0;
        let broken = |error| self.broken(&error);
        let refused = |reason: &str| -> Failure {
            Failure::Refused(format!("cannot connect to {address}: {reason}").into())
        };
        let mut bytes = BytesMut::new();
        let mut greeting: Option<Info> = None;
        loop {
            while let Some((said, length)) = parse(&bytes).map_err(|error| refused(&error))? {
                match (said, &greeting) {
                    (Said::Info(info), None) => {
                        if info.requires_tls {
                            return Err(refused("the server requires TLS, which is not supported"));
                        }
                        socket.write_all(&connect(address)).await.map_err(broken)?;
                        greeting = Some(info);
                    }
                    (Said::Pong, Some(info)) => {
                        let info = *info;
                        bytes.advance(length);
                        return Ok((info, bytes));
                    }
                    (Said::Error(reason), _) => return Err(refused(&reason)),
                    (Said::Info(_) | Said::Ok | Said::Ping, Some(_)) => {}
                    _ => return Err(refused("it is not a NATS server")),
                }
                bytes.advance(length);
            }
            if socket.read_buf(&mut bytes).await.map_err(broken)? == 0 {
                return Err(refused("the server has closed the connection"));
            }
        }
    }
}

impl Engine for Nats {
    type Line = NatsLine;

    async fn connect(
        &self,
        subscriber: Option<Subscriber>,
    ) -> Result<Connection<NatsLine>, Failure> {
        let Address { host, port, .. } = &self.0;
        let broken = |error| self.broken(&error);
        let socket = TcpStream::connect((host.as_str(), *port)).await.map_err(broken)?;
        socket.set_nodelay(true).map_err(broken)?;
        let arrivals = subscriber.as_ref().map(|subscriber| Arc::clone(&subscriber.arrivals));
        let mut socket = Gate::new(socket, arrivals);
        let reads = socket.reads();
        let (info, rest) = self.greet(&mut socket).await?;
        let (requests, receiver) = mpsc::channel(COMMANDS);
        let driver = Driver::new(subscriber, info);
        Ok(Connection {
            line: NatsLine(requests),
            driver: Box::pin(driver.run(socket, receiver, rest)),
            reads,
        })
    }
}

/// A connection to a NATS server.
#[derive(Clone)]
pub(crate) struct NatsLine(mpsc::Sender<Request>);

impl NatsLine {
    fn send(
        &self,
        command: Result<Command, Failure>,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let requests = self.0.clone();
        async move {
            let (sender, answer) = oneshot::channel();
            let request = Request { command: command?, answer: sender };
            let broken = || Failure::Broken("the connection to the engine is broken".into());
            requests.send(request).await.map_err(|_| broken())?;
            answer.await.unwrap_or_else(|_| Err(broken()))
        }
    }
}

/// Returns the subject of a key, unless no server would take it.
fn subject_of(key: &str) -> Result<String, Failure> {
    let subject = subject(key);
    if subject.len() > LONGEST {
        let length = subject.len();
        let reason = format!("the subject of the key has {length} bytes, more than {LONGEST}");
        return Err(Failure::Refused(reason.into()));
    }
    Ok(subject)
}

impl Line for NatsLine {
    fn subscribe(&self, key: &str) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        let command = subject_of(key);
        self.send(command.map(|subject| Command::Subscribe { key: Key::from(key), subject }))
    }

    fn unsubscribe(&self, key: &str) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        self.send(Ok(Command::Unsubscribe { key: Key::from(key) }))
    }

    fn publish(
        &self,
        key: &str,
        item: &Bytes,
        claim: Claim,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        let command = subject_of(key);
        self.send(command.map(|subject| Command::Publish { subject, item: item.clone(), claim }))
    }

    fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        self.send(Ok(Command::Ping))
    }
}

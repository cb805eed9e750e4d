//! A pool of servers with the same service, for redundancy, load balancing, or comparing answers.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures::future;
use tokio::sync::Mutex;

use crate::client::{Client, Options};
use crate::error::Error;
use crate::turns::Turns;

/// Several servers. Connects to each when it is first needed, and again after its connection was
/// lost.
#[derive(Debug)]
pub struct Pool {
    servers: Vec<Server>,
    options: Options,
    /// The server that answered last, with which `fail_over` begins.
    preferred: AtomicUsize,
    /// Chooses the next server for `round_robin`.
    turns: Turns,
}

/// Default limit of concurrent [`Pool::round_robin`] calls per server. It equals the default of
/// [`Settings::in_flight`](crate::Settings::in_flight): further calls would wait at that server
/// while others may be idle.
const PLACES: usize = 1024;

#[derive(Debug)]
struct Server {
    address: String,
    client: Mutex<Option<Client>>,
}

/// The answer of each server, in the order of the pool.
#[derive(Debug)]
pub struct Answers<T>(pub Vec<(String, Result<T, Error>)>);

impl<T: PartialEq> Answers<T> {
    /// Returns the answer if all servers answered and all answers are equal.
    #[must_use]
    pub fn agreed(&self) -> Option<&T> {
        let (_, first) = self.0.first()?;
        let first = first.as_ref().ok()?;
        self.0.iter().all(|(_, answer)| answer.as_ref().ok() == Some(first)).then_some(first)
    }

    /// Returns the answer that more than half of all servers gave, and the servers that gave a
    /// different answer or none.
    #[must_use]
    pub fn majority(&self) -> Option<(&T, Vec<&str>)> {
        let votes = |answer: &T| {
            self.0.iter().filter(|(_, other)| other.as_ref().ok() == Some(answer)).count()
        };
        let answers = self.0.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        let winner = answers.into_iter().find(|answer| votes(answer) * 2 > self.0.len())?;
        let others = self.0.iter().filter(|(_, answer)| answer.as_ref().ok() != Some(winner));
        Some((winner, others.map(|(address, _)| address.as_str()).collect()))
    }
}

impl Pool {
    /// Creates a pool of the servers at these addresses. Does not connect yet.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a Tokio runtime, as it spawns a task.
    pub fn new(addresses: impl IntoIterator<Item = impl ToString>, options: Options) -> Self {
        let server = |address: String| Server { address, client: Mutex::new(None) };
        let servers: Vec<_> =
            addresses.into_iter().map(|address| server(address.to_string())).collect();
        let turns = Turns::new(servers.len(), PLACES);
        Self { servers, options, preferred: AtomicUsize::new(0), turns }
    }

    /// Limits the concurrent calls of [`round_robin`](Self::round_robin) per server. The default is
    /// 1,024, the minimum 1.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a Tokio runtime, as it spawns a task.
    #[must_use]
    pub fn places(mut self, places: usize) -> Self {
        self.turns = Turns::new(self.servers.len(), places.max(1));
        self
    }

    /// Removes a server from [`round_robin`](Self::round_robin), for example before it is stopped.
    /// Its running calls continue; calls that wait for a place go to the other servers.
    pub fn retire(&self, address: &str) {
        for (index, server) in self.servers.iter().enumerate() {
            if server.address == address {
                self.turns.retire(index);
            }
        }
    }

    /// Calls the server that answered last and, if that fails, the others in turn. Use it for
    /// idempotent calls only: a call that ended with a broken connection or a time-out may have
    /// been executed.
    pub async fn fail_over<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let first = self.preferred.load(Relaxed);
        let mut failure = empty_pool();
        for step in 0..self.servers.len() {
            let index = (first + step) % self.servers.len();
            let done = match self.client(&self.servers[index]).await {
                Ok(client) => call(client).await,
                Err(error) => Err(error),
            };
            match done {
                Err(error) if error.is_connection_error() => failure = error,
                done => {
                    self.preferred.store(index, Relaxed);
                    return done;
                }
            }
        }
        Err(failure)
    }

    /// Calls the next server in turn that has a free place and can be connected to. A slow server
    /// delays only its own calls. A request that was sent is not sent again: if its server fails,
    /// the call fails.
    pub async fn round_robin<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut failure = empty_pool();
        for _ in &self.servers {
            let Some(place) = self.turns.next().await else { break };
            match self.client(&self.servers[place.server]).await {
                Ok(client) => return call(client).await, // `place` is released after the call
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Calls all servers concurrently, so that their answers can be compared.
    pub async fn ask_all<T, F>(&self, call: impl Fn(Client) -> F) -> Answers<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let answers = self.servers.iter().map(async |server| {
            let answer = match self.client(server).await {
                Ok(client) => call(client).await,
                Err(error) => Err(error),
            };
            (server.address.clone(), answer)
        });
        Answers(future::join_all(answers).await)
    }

    /// Returns the connection to a server; connects if there is none or it is closed.
    async fn client(&self, server: &Server) -> Result<Client, Error> {
        let mut client = server.client.lock().await;
        match &*client {
            Some(client) if client.closed().is_none() => Ok(client.clone()),
            _ => {
                let fresh = Client::connect(&server.address, self.options).await?;
                Ok(client.insert(fresh).clone())
            }
        }
    }
}

fn empty_pool() -> Error {
    Error::Closed("there is no server in the pool".into())
}

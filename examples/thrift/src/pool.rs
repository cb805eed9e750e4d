//! A pool: the same service on several servers, for redundancy, for load, or for comparison.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures::future;
use tokio::sync::Mutex;

use crate::client::{Client, Options};
use crate::error::Error;
use crate::turns::Turns;

/// Several servers. Connections are made when they are first needed, and again when they were lost.
#[derive(Debug)]
pub struct Pool {
    servers: Vec<Server>,
    options: Options,
    /// Where fail-over begins: the server that answered last.
    preferred: AtomicUsize,
    /// Whose turn it is in `round_robin`.
    turns: Turns,
}

/// Calls of [`Pool::round_robin`] that a server has at a time: as many as a server of this package
/// runs for a connection, by default. More would wait there, while others may have nothing to do.
const PLACES: usize = 1024;

#[derive(Debug)]
struct Server {
    address: String,
    client: Mutex<Option<Client>>,
}

/// What each server answered, in the order of the pool.
#[derive(Debug)]
pub struct Answers<T>(pub Vec<(String, Result<T, Error>)>);

impl<T: PartialEq> Answers<T> {
    /// The answer, if every server gave one and all are the same.
    #[must_use]
    pub fn agreed(&self) -> Option<&T> {
        let (_, first) = self.0.first()?;
        let first = first.as_ref().ok()?;
        self.0.iter().all(|(_, answer)| answer.as_ref().ok() == Some(first)).then_some(first)
    }

    /// The answer that more than half of all servers gave, and the servers that gave another, or
    /// none.
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
    /// A pool of servers by their addresses. Connects to none of them yet.
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

    /// Sets how many calls of [`round_robin`](Self::round_robin) a server has at a time; 1,024 by
    /// default, at least 1.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a Tokio runtime, as it spawns a task.
    #[must_use]
    pub fn places(mut self, places: usize) -> Self {
        self.turns = Turns::new(self.servers.len(), places.max(1));
        self
    }

    /// Takes a server out of [`round_robin`](Self::round_robin), before it is stopped, say. Its
    /// calls end as they would; those that wait for a place go to the other servers.
    pub fn retire(&self, address: &str) {
        for (index, server) in self.servers.iter().enumerate() {
            if server.address == address {
                self.turns.retire(index);
            }
        }
    }

    /// Calls the server that answered last, and if it has no answer, the others in turn. A call
    /// whose connection broke, or that had no answer in time, may have been made: for what may be
    /// done twice.
    pub async fn fail_over<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let first = self.preferred.load(Relaxed);
        let mut failure = none();
        for step in 0..self.servers.len() {
            let index = (first + step) % self.servers.len();
            let done = match self.client(&self.servers[index]).await {
                Ok(client) => call(client).await,
                Err(error) => Err(error),
            };
            match done {
                Err(error) if error.is_of_the_connection() => failure = error,
                done => {
                    self.preferred.store(index, Relaxed);
                    return done;
                }
            }
        }
        Err(failure)
    }

    /// Calls the next server in turn that has a place for it, and that there is a connection to: a
    /// slow server holds up no call but its own. What was sent is never sent again: the call fails
    /// with its server.
    pub async fn round_robin<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut failure = none();
        for _ in &self.servers {
            let Some(place) = self.turns.next().await else { break };
            match self.client(&self.servers[place.server]).await {
                Ok(client) => return call(client).await, // and then the place is free
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Calls all servers at once, so that their answers can be compared.
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

    /// The connection to a server: that of the last call if it is open.
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

fn none() -> Error {
    Error::Closed("there is no server in the pool".into())
}

//! A pool of servers with the same service, for redundancy, load balancing, or comparing answers.
//!
//! `upstream` has the connection to each server, `turns` shares out calls.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use futures::future;
use tokio::time::timeout;

use crate::client::{Client, Options};
use crate::error::Error;
use crate::turns::Turns;
use crate::upstream::{News, Occupied, Resting, SHUT_DOWN, Unusable, Upstream};

/// Several servers. Connects to each when it is first needed, and again after its connection was
/// lost. All calls that need a server wait for the same attempt to connect, at most for
/// [`Options::deadline`].
///
/// A server is left alone for a while after an attempt failed, or after a connection that answered
/// nothing or lost calls: for 100 milliseconds, and twice as long after each further failure, up to
/// five seconds or half a deadline. Then it gets one call of [`round_robin`](Self::round_robin) at a
/// time until it answers. If it closed a connection with calls, and no other server that is well has
/// lost less than half as many, the calls may be the cause: it is connected to again after at most
/// 20 milliseconds.
///
/// A server is judged by the answers to its calls. A call that ends at its deadline, or whose answer
/// is not well-formed, closes a place of its server, and an answer in time opens one. So a server that
/// fails more calls than it answers gets one call at a time. If it fails even those with answers
/// that are not well-formed, it is left alone. Exceptions are answers, and so are results that the
/// caller cannot use, because they have another type, are for another method, are missing, or exceed
/// its limits of strings and containers.
///
/// A call that was sent is still with the server if its future is dropped, for example by a time
/// limit of the caller, or has ended early because it had waited for a place. It is judged when it is
/// answered, or a deadline after it got its place. Until then it counts as running and keeps the
/// place, at least the first 16,384 of a connection. A call that was not sent is not judged.
///
/// Connections are closed when the pool is dropped and their calls have ended.
#[derive(Debug)]
pub struct Pool {
    servers: Vec<Arc<Upstream>>,
    options: Options,
    news: Arc<News>,
    /// The server that answered last, with which `fail_over` begins.
    preferred: AtomicUsize,
    /// Chooses the next server for `round_robin`.
    turns: Turns,
}

/// Default limit of concurrent [`Pool::round_robin`] calls per server. It equals the default of
/// [`Settings::in_flight`](crate::Settings::in_flight): further calls would wait at that server
/// while others may be idle.
const PLACES: usize = 1024;

/// How many servers an error of the whole pool names.
const NAMED: usize = 4;

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
    /// It belongs to the Tokio runtime in which it is created, and cannot be used when that has shut
    /// down.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a Tokio runtime, as it spawns a task.
    pub fn new(addresses: impl IntoIterator<Item = impl ToString>, options: Options) -> Self {
        let news = Arc::<News>::default();
        let server = |address: String| Upstream::new(address, options, Arc::clone(&news));
        let servers: Vec<_> =
            addresses.into_iter().map(|address| Arc::new(server(address.to_string()))).collect();
        news.set_servers(&servers);
        let turns = Turns::new(&servers, PLACES, &news.usual, options.deadline);
        Self { servers, options, news, preferred: AtomicUsize::new(0), turns }
    }

    /// Limits the concurrent calls of [`round_robin`](Self::round_robin) on the connection to each server,
    /// until their closures have ended. Those that have got their place or an answer, or whose deadline
    /// has passed, do not count for long if they are not polled. The default is 1,024, the minimum 1.
    /// Servers that have [retired](Self::retire) are used again.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a Tokio runtime, as it spawns a task.
    #[must_use]
    pub fn places(mut self, places: usize) -> Self {
        let (usual, deadline) = (&self.news.usual, self.options.deadline);
        self.turns = Turns::new(&self.servers, places.max(1), usual, deadline);
        for server in &self.servers {
            server.set_retired(false);
        }
        self
    }

    /// Removes a server from [`round_robin`](Self::round_robin), for example before it is stopped.
    /// Its running calls continue; calls that wait for a place go to the other servers.
    pub fn retire(&self, address: &str) {
        for (index, server) in self.servers.iter().enumerate() {
            if server.address == address {
                self.turns.retire(index);
                server.set_retired(true);
            }
        }
    }

    /// Calls the server that answered last and, if that fails, the others in turn; at last those
    /// whose open places are all taken, and those that are being left alone, when that is over. Use
    /// it for idempotent calls only: a call that ended with a broken connection, a time-out or an
    /// answer that cannot be read may have been executed.
    ///
    /// Each server takes at most one deadline to connect to and, if it is called, one to answer.
    ///
    /// # Errors
    ///
    /// That of the last server that was tried, if no server answered. It names the server if there
    /// is no connection to it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call may have been executed. It tries no further server, and the
    /// server that it has called is judged when it answers, or at the deadline. Attempts to connect
    /// go on for other calls.
    pub async fn fail_over<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let first = self.preferred.load(Relaxed);
        let count = self.servers.len();
        let in_turn = (0..count).map(|step| ((first + step) % count, Resting::Fails));
        let mut candidates = in_turn.collect::<VecDeque<_>>();
        let mut failure = empty_pool();
        while let Some((index, resting)) = candidates.pop_front() {
            let server = &self.servers[index];
            if resting == Resting::Fails && !server.has_free_place() {
                candidates.push_back((index, Resting::Waits));
                continue;
            }
            let client = match server.client(resting).await {
                Ok(client) => client,
                Err(Unusable::Resting(error)) => {
                    candidates.push_back((index, Resting::Waits));
                    failure = error;
                    continue;
                }
                Err(Unusable::Failed(error)) => {
                    failure = error;
                    continue;
                }
            };
            match call(client).await {
                Err(error) if error.is_connection_error() || error.is_malformed() => {
                    failure = error;
                }
                done => {
                    self.preferred.store(index, Relaxed);
                    return done;
                }
            }
        }
        Err(failure)
    }

    /// Calls the next server in turn that is connected and has a free place. A slow server delays
    /// only its own calls, and a server that cannot be connected to delays none. A request that was
    /// sent is not sent again: if its server fails, the call fails.
    ///
    /// Until it is sent, a call waits for a place at any server. This time counts towards its
    /// deadline: the client that `call` gets has what is left of it.
    /// Calls get places in the order in which they come, but those that have less time left than answers
    /// usually take, and a little more, come after others.
    ///
    /// `call` should call at once. If it does something else before or between its calls to the server,
    /// it keeps its [place](Self::places), and its call fails if the connection was closed meanwhile.
    ///
    /// # Errors
    ///
    /// Those of `call`, and before it was sent:
    ///
    /// * [`Error::Closed`], with the reasons, when every server has been tried since the call began
    ///   and none could be connected to, or none at the deadline; also if there is no server, or the
    ///   runtime of the pool has shut down.
    /// * [`Error::Deadline`], if no place was free within it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while it waits for a place, nothing is sent and no place is taken.
    /// Later, the call keeps its place until it is answered or the server has had its deadline, unless
    /// its request was not sent yet.
    pub async fn round_robin<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = self.options.deadline;
        let began = Instant::now();
        let (client, occupied) = match timeout(deadline, self.place(began)).await {
            Ok(place) => place?,
            Err(_) if self.in_turn().any(|server| server.is_open()) => {
                return Err(Error::Deadline(deadline));
            }
            Err(_) => return Err(self.unreachable()),
        };
        let _held = occupied.hold(); // until the closure has ended
        let mut about_to_call = Some(occupied);
        let mut call = pin!(call(client.within(deadline.saturating_sub(began.elapsed()))));
        future::poll_fn(|cx| {
            let polled = call.as_mut().poll(cx);
            about_to_call = None; // it has called, or does something else first
            polled
        })
        .await
    }

    /// Calls all servers concurrently, so that their answers can be compared. The answer of a
    /// server that is being left alone is the reason, at once. All others are called, whatever is
    /// known of them: with a server that hangs, each comparison takes a deadline.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the calls may have been executed. Those that were sent are judged
    /// when they are answered, or at their deadlines.
    pub async fn ask_all<T, F>(&self, call: impl Fn(Client) -> F) -> Answers<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let answers = self.servers.iter().map(async |server| {
            let answer = match server.client(Resting::Fails).await {
                Ok(client) => call(client).await,
                Err(unusable) => Err(unusable.into()),
            };
            (server.address.clone(), answer)
        });
        Answers(future::join_all(answers).await)
    }

    /// Waits for a place at a server, or until all have failed.
    async fn place(&self, began: Instant) -> Result<(Client, Occupied), Error> {
        let since = self.news.failures();
        let all_failed = self.news.wait_for(|| {
            let has_none = self.in_turn().all(|server| server.has_failed(since));
            (has_none && self.in_turn().next().is_some()).then_some(())
        });
        let place = async {
            loop {
                let (client, occupied) = self.turns.next(began).await?.claim();
                // If not, nothing was sent, so the call can go to another server.
                if client.is_open() {
                    return Some((client, occupied));
                }
            }
        };
        tokio::select! {
            biased;
            place = place => place.ok_or_else(|| self.no_turns()),
            () = all_failed => Err(self.unreachable()),
        }
    }

    /// Why nothing shares out places.
    fn no_turns(&self) -> Error {
        if self.in_turn().next().is_none() {
            return empty_pool();
        }
        Error::Closed(SHUT_DOWN.into())
    }

    /// The servers that have not retired.
    fn in_turn(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.servers.iter().filter(|server| !server.is_retired())
    }

    fn unreachable(&self) -> Error {
        let mut reasons = self.in_turn().map(|server| server.reason());
        let named = reasons.by_ref().take(NAMED).collect::<Vec<_>>().join("; ");
        let more = match reasons.count() {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        Error::Closed(format!("no server of the pool can be used: {named}{more}").into())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for server in &self.servers {
            server.end();
        }
    }
}

fn empty_pool() -> Error {
    Error::Closed("there is no server in the pool".into())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::demo::{Example, Serve};
    use crate::server::{Settings, serve};

    #[tokio::test]
    async fn a_connection_without_ids_is_replaced_and_no_call_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (service, stop) = (Serve(Arc::new(Example::default())), CancellationToken::new());
        tokio::spawn(serve(listener, service, Settings::default(), stop));
        let pool = Pool::new([address], Options::default());
        for _ in 0..3 {
            pool.servers[0].client(Resting::Fails).await.unwrap().use_up_ids();
            for n in 0..3 {
                let sum = pool.round_robin(async |client| client.add(n, 1).await).await;
                assert_eq!(sum.unwrap(), n + 1);
                let sum = pool.fail_over(async |client| client.add(n, 1).await).await;
                assert_eq!(sum.unwrap(), n + 1);
            }
        }
    }
}

//! Connecting to one of the addresses of a server.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::error::Error;

type Found = io::Result<Vec<SocketAddr>>;

/// Returns the addresses of a server. Names are resolved by the system, on a thread that is blocked
/// meanwhile.
pub(crate) async fn addresses(of: impl ToSocketAddrs) -> Found {
    Ok(lookup_host(of).await?.collect())
}

/// The lookup of the addresses of a server: at most one at a time.
///
/// It goes on when an attempt to connect gives it up, because nothing takes its thread back, and a
/// later attempt gets what it has found. Otherwise, attempts beside a resolver that does not answer
/// would use up the threads of the runtime, which are for files and other names, too.
#[derive(Debug, Default)]
pub(crate) struct Lookup(Mutex<Option<JoinHandle<Found>>>);

impl Lookup {
    /// Waits for the lookup that is running, or starts this one.
    ///
    /// Cancel safe: the lookup goes on.
    pub(crate) async fn run(&self, find: impl Future<Output = Found> + Send + 'static) -> Found {
        let mut running = self.0.lock().await;
        let lookup = running.get_or_insert_with(|| tokio::spawn(find));
        let found = lookup.await;
        *running = None;
        found.unwrap_or_else(|ended| Err(io::Error::other(ended)))
    }
}

/// Connects to one of these addresses. One that is silent, such as that of a broken IPv6 network, must
/// leave time for the next one.
pub(crate) async fn connect(
    addresses: impl Future<Output = Found>,
    deadline: Duration,
) -> Result<TcpStream, Error> {
    let closed = |error: io::Error| Error::Closed(error.to_string().into());
    let began = Instant::now();
    let late = |_| Error::Deadline(deadline);
    let addresses = timeout(deadline, addresses).await.map_err(late)?.map_err(closed)?;
    let mut failure = Error::Closed("the name has no address".into());
    for (address, others) in addresses.iter().zip((0..addresses.len()).rev()) {
        let left = deadline.saturating_sub(began.elapsed());
        let part = left / u32::try_from(others + 1).unwrap_or(u32::MAX);
        failure = match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => closed(error),
            Err(elapsed) => late(elapsed),
        };
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_lookup_that_was_given_up_is_taken_up_by_the_next_attempt() {
        let lookup = Lookup::default();
        let (answer, answered) = oneshot::channel::<Found>();
        let first = lookup.run(async { answered.await.unwrap() });
        assert!(first.now_or_never().is_none());
        let second = || lookup.run(async { panic!("another lookup is started") });
        assert!(second().now_or_never().is_none());
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        answer.send(Ok(vec![address])).unwrap();
        assert_eq!(second().await.unwrap(), [address]);
        // What was found before may have changed since.
        assert_eq!(lookup.run(async { Ok(Vec::new()) }).await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_lookup_that_panics_is_an_error_and_the_next_one_is_made() {
        let lookup = Lookup::default();
        let error = lookup.run(async { panic!("of a resolver") }).await.unwrap_err();
        assert!(error.to_string().contains("of a resolver"), "{error}");
        assert_eq!(lookup.run(async { Ok(Vec::new()) }).await.unwrap(), []);
    }
}

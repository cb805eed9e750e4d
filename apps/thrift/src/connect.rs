//! Connecting to one of the addresses of a server.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::error::Error;

type Found = io::Result<Vec<SocketAddr>>;

/// Returns the addresses of a server. Names are resolved by the system, on a thread of the runtime for
/// blocking work, as by Tokio's own functions.
pub(crate) async fn addresses(of: impl ToSocketAddrs) -> Found {
    Ok(lookup_host(of).await?.collect())
}

/// Returns the addresses of a server, which is a name or an address with a port. Names are resolved by the
/// system, on a thread of their own. Those of the runtime are for others: a resolver that does not answer
/// for some hundred servers would use them up.
pub(crate) async fn addresses_of_server(server: String) -> Found {
    if let Ok(address) = server.parse() {
        return Ok(vec![address]);
    }
    let (found, finding) = oneshot::channel();
    thread::Builder::new().name("thrift-lookup".to_owned()).spawn(move || {
        // The receiver is gone if the runtime has shut down.
        let _ =
            found.send(std::net::ToSocketAddrs::to_socket_addrs(&server).map(Iterator::collect));
    })?;
    finding.await.map_err(io::Error::other)?
}

/// The lookup of the addresses of a server: at most one at a time.
///
/// It goes on when an attempt to connect gives it up, because nothing takes its thread back, and a
/// later attempt gets what it has found. Otherwise, attempts beside a resolver that does not answer
/// would need more and more threads.
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

/// Returns the addresses in the order in which this attempt tries them. One that accepts connections but is
/// dead, such as that of a load balancer without servers, is not the first one each time.
pub(crate) fn in_turn(mut addresses: Vec<SocketAddr>, attempt: u32) -> Vec<SocketAddr> {
    if !addresses.is_empty() {
        let first = attempt as usize % addresses.len();
        addresses.rotate_left(first);
    }
    addresses
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
    use std::sync::mpsc::channel;

    use futures::FutureExt;
    use tokio::runtime::Builder;
    use tokio::task::spawn_blocking;

    use super::*;

    #[test]
    fn names_of_servers_need_no_thread_of_the_runtime() {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let (release, released) = channel::<()>();
            let blocked = spawn_blocking(move || released.recv());
            for server in ["localhost:9090", "127.0.0.1:9090", "[::1]:9090"] {
                let found = addresses_of_server(server.to_owned());
                let found = timeout(Duration::from_secs(60), found).await.expect("it waits");
                assert!(found.unwrap().iter().all(|address| address.port() == 9090));
            }
            assert!(addresses_of_server("no port".to_owned()).await.is_err());
            drop(release);
            assert!(blocked.await.unwrap().is_err());
        });
    }

    #[test]
    fn each_attempt_begins_with_another_address() {
        let addresses = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let first = |attempt| in_turn(addresses.to_vec(), attempt)[0].port();
        assert_eq!([0, 1, 2, 3].map(first), [1, 2, 3, 1]);
        assert_eq!(in_turn(Vec::new(), 7), []);
    }

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

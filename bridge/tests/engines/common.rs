//! A proxy before a server, and settings of bridges.

use std::net::Ipv4Addr;
use std::time::Duration;

use stream_demux_bridge::{Bridge, Builder, Received, Subscription};
use test_servers::random_port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Only ever ends a test that hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    /// Nothing goes through, and nothing is closed: a cable that was pulled.
    Frozen,
    /// All connections are closed, and new ones, too.
    Cut,
}

/// A network between bridges and a server.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    mode: watch::Sender<Mode>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> Self {
        let listener = loop {
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, random_port())).await {
                break listener;
            }
        };
        let port = listener.local_addr().unwrap().port();
        let mode = watch::Sender::new(Mode::Open);
        let modes = mode.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let modes = modes.clone();
                connections.spawn(async move {
                    if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await {
                        let (client_reader, client_writer) = client.into_split();
                        let (server_reader, server_writer) = server.into_split();
                        tokio::select! {
                            () = copy(client_reader, server_writer, modes.clone()) => {}
                            () = copy(server_reader, client_writer, modes) => {}
                        }
                    }
                });
            }
        });
        Self { port, mode, _tasks: tasks }
    }

    pub(crate) fn open(&self) {
        self.mode.send_replace(Mode::Open);
    }

    pub(crate) fn freeze(&self) {
        self.mode.send_replace(Mode::Frozen);
    }

    pub(crate) fn cut(&self) {
        self.mode.send_replace(Mode::Cut);
    }
}

/// Completes when the connection is closed.
async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut modes: watch::Receiver<Mode>,
) {
    let mut buffer = vec![0; 4_096];
    loop {
        let mode = *modes.borrow_and_update();
        if mode == Mode::Cut {
            return;
        }
        tokio::select! {
            changed = modes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            read = from.read(&mut buffer), if mode == Mode::Open => {
                match read {
                    Ok(0) | Err(_) => return,
                    Ok(count) => {
                        if to.write_all(&buffer[..count]).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// A bridge that notices a silent engine soon, and connects again soon.
pub(crate) fn quick() -> Builder {
    patient()
        .heartbeat(Duration::from_millis(500))
        .connect_timeout(Duration::from_secs(1))
        .publish_timeout(Duration::from_millis(500))
}

/// A bridge that does not mistake a slow machine for a silent engine.
pub(crate) fn patient() -> Builder {
    Bridge::builder()
        .heartbeat(Duration::from_secs(20))
        .connect_timeout(Duration::from_secs(10))
        .publish_timeout(Duration::from_secs(30))
        .reconnect_delay(Duration::from_millis(10), Duration::from_millis(200))
}

/// Waits until something is true that another process makes true.
pub(crate) async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + WATCHDOG;
    while !is_true() {
        assert!(std::time::Instant::now() < deadline, "not within {WATCHDOG:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until both connections of a bridge are there, or both have broken.
pub(crate) async fn connected(bridge: &Bridge, wanted: bool) {
    let mut status = bridge.status();
    let done = status.wait_for(|status| {
        status.receiving.is_connected == wanted && status.publishing.is_connected == wanted
    });
    timeout(WATCHDOG, done).await.expect("the status changes").unwrap();
}

/// Publishes, and gives the engine another chance if it was away.
pub(crate) async fn publish(bridge: &Bridge, key: &str, item: &str) {
    let deadline = std::time::Instant::now() + WATCHDOG;
    while let Err(error) = bridge.publish(key, item.to_owned()).await {
        assert!(std::time::Instant::now() < deadline, "{error}");
    }
}

pub(crate) async fn next(subscription: &mut Subscription) -> Received {
    let received = timeout(WATCHDOG, subscription.recv()).await;
    received.expect("something comes").expect("it has not ended")
}

pub(crate) fn item(key: &str, item: impl Into<String>) -> Received {
    Received::Item { key: key.into(), item: item.into().into() }
}

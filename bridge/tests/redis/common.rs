//! A Redis server and a proxy before it, which end with the test.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream as StdTcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use stream_demux_bridge::{Bridge, Builder, Received, Subscription};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Only ever ends a test that hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// A port below the range of source ports: otherwise a restarted server may find it taken.
fn random_port() -> u16 {
    fastrand::u16(20_000..32_000)
}

/// A Redis server with a folder of its own. Dropping it kills the process, by its id.
pub(crate) struct Server {
    process: Option<Child>,
    pub(crate) port: u16,
    folder: PathBuf,
    options: Vec<String>,
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Relaxed);
        let name = format!("bridge-redis-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let options = options.iter().map(ToString::to_string).collect();
        let mut server = Self { process: None, port: random_port(), folder, options };
        for _ in 0..20 {
            if server.try_start() {
                return server;
            }
            server.port = random_port();
        }
        panic!("redis-server does not start: is it installed?");
    }

    /// Starts it again, at the same port.
    pub(crate) fn restart(&mut self) {
        for _ in 0..20 {
            if self.try_start() {
                return;
            }
        }
        panic!("redis-server does not start again at port {}", self.port);
    }

    /// Returns `false` if it has not come up, for example because the port is taken.
    fn try_start(&mut self) -> bool {
        assert!(self.process.is_none(), "it runs already");
        let mut process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--port", &self.port.to_string(), "--dir", self.folder.to_str().unwrap()])
            .args(&self.options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        loop {
            if process.try_wait().unwrap().is_some() {
                return false;
            }
            if self.answers() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Another server at this port may have answered, and this one is about to give up.
        std::thread::sleep(Duration::from_millis(20));
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        self.process = Some(process);
        true
    }

    fn answers(&self) -> bool {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let Ok(mut socket) = StdTcpStream::connect(address) else { return false };
        let mut answer = [0; 5];
        socket.write_all(b"PING\r\n").is_ok()
            && socket.read_exact(&mut answer).is_ok()
            && &answer == b"+PONG"
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Ends the process at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Asks the server to end.
    pub(crate) fn shut_down(&mut self) {
        let mut process = self.process.take().expect("it runs");
        signal(process.id(), "TERM");
        process.wait().unwrap();
    }

    pub(crate) fn pause(&self) {
        signal(self.process.as_ref().expect("it runs").id(), "STOP");
    }

    pub(crate) fn resume(&self) {
        signal(self.process.as_ref().expect("it runs").id(), "CONT");
    }

    /// Sends a command by a connection of its own.
    pub(crate) fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).unwrap()
    }

    /// How many connections are subscribed to a key.
    pub(crate) fn subscribers(&self, key: &str) -> u64 {
        let (_, count): (String, u64) = self.command(&["PUBSUB", "NUMSUB", key]);
        count
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn signal(id: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status();
    assert!(status.unwrap().success());
}

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

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
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
        .heartbeat(Duration::from_millis(150))
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

/// Waits until the connection by which items come has broken this many times and is there again.
pub(crate) async fn reconnected(bridge: &Bridge, breaks: u64) {
    let mut status = bridge.status();
    let done = status.wait_for(|status| {
        status.receiving.is_connected
            && status.publishing.is_connected
            && status.receiving.breaks >= breaks
    });
    timeout(WATCHDOG, done).await.expect("it connects again").unwrap();
}

pub(crate) async fn next(subscription: &mut Subscription) -> Received {
    let received = timeout(WATCHDOG, subscription.recv()).await;
    received.expect("something comes").expect("it has not ended")
}

pub(crate) fn item(key: &str, item: impl Into<String>) -> Received {
    Received::Item { key: key.into(), item: item.into().into() }
}

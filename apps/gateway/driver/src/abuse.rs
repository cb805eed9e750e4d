//! Misbehaving clients, and a check of the gateway's resources after they have left.

use std::time::Duration;

use futures::future::join_all;
use reqwest::{Body, Client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{self, Socket};
use crate::stats;

/// The number of tasks of each kind.
const TASKS: usize = 8;
/// Until the allocator's memory is stable: 58 MiB after 5 s, 108 after 30, 100 after 120.
const WARM_UP: Duration = Duration::from_secs(30);
/// How long the gateway may hold resources of a client that has left: its timeouts are 10 s.
const DEADLINES: Duration = Duration::from_secs(15);

#[derive(Debug, clap::Args)]
pub struct Abuse {
    /// HOST:PORT of the gateway
    #[arg(long)]
    gateway: String,
    /// Its process id
    #[arg(long)]
    pid: u32,
    #[arg(long)]
    seconds: u64,
}

#[derive(Debug, Clone, Copy)]
struct Use {
    kib: u64,
    files: usize,
    /// Processor time in five seconds, in hundredths of a second.
    ticks: u64,
}

impl Abuse {
    pub async fn run(self) -> Result<(), String> {
        let time = Duration::from_secs(self.seconds);
        self.attack(WARM_UP.max(time / 4)).await;
        let before = self.look().await?;
        self.attack(time * 3 / 4).await;
        let after = self.look().await?;
        println!("  before: {before}\n  after:  {after}");
        let health = timeout(DEADLINES, stats::text(&self.gateway, "stats")).await;
        health.map_err(|_| "no answer".to_owned())??;
        let has_grown = after.kib > before.kib + before.kib / 2 + 16 * 1024
            || after.files > before.files + 5
            || after.ticks > before.ticks + 25;
        if has_grown {
            Err("its resources did not return to the level before".into())
        } else {
            Ok(())
        }
    }

    async fn attack(&self, time: Duration) {
        let end = Instant::now() + time;
        join_all((0..6 * TASKS).map(async |task| {
            while Instant::now() < end {
                // The gateway may refuse any of this.
                let _ = timeout(Duration::from_secs(20), self.one(task % 6)).await;
            }
        }))
        .await;
    }

    async fn one(&self, kind: usize) -> Result<(), String> {
        match kind {
            0 => self.reset().await,
            1 => self.garbage().await,
            2 => self.unread().await,
            3 => self.storm().await,
            4 => self.stuck().await,
            _ => self.publish().await,
        }
    }

    /// Subscribes and resets the connection.
    async fn reset(&self) -> Result<(), String> {
        let mut socket = self.subscriber(3).await?;
        sleep(Duration::from_millis(fastrand::u64(..50))).await;
        let _ = socket.get_mut().set_zero_linger();
        Ok(())
    }

    /// Sends bytes that are not HTTP, or not WebSocket frames.
    async fn garbage(&self) -> Result<(), String> {
        let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(2000).collect();
        let mut raw = TcpStream::connect(&self.gateway).await.map_err(|error| error.to_string())?;
        let _ = raw.write_all(&bytes).await;
        let mut socket = self.subscriber(1).await?;
        let _ = socket.get_mut().write_all(&bytes).await;
        let _ = raw.read(&mut [0; 100]).await;
        Ok(())
    }

    /// Requests a lot and reads none of it.
    async fn unread(&self) -> Result<(), String> {
        let mut raw = TcpStream::connect(&self.gateway).await.map_err(|error| error.to_string())?;
        let path = ["/page.js", "/stats", "/metrics"][fastrand::usize(..3)];
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(1000);
        let writing = raw.write_all(request.as_bytes());
        let _ = timeout(Duration::from_secs(5), writing).await;
        sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    /// Subscribes to unique keys and leaves.
    async fn storm(&self) -> Result<(), String> {
        let mut socket = self.subscriber(1).await?;
        for _ in 0..500 {
            let key = format!("storm {}", fastrand::u64(..));
            let say = async {
                client::say(&mut socket, "subscribe", &key).await?;
                client::say(&mut socket, "unsubscribe", &key).await
            };
            let reply = timeout(Duration::from_secs(1), say).await;
            reply
                .map_err(|_| "the request was not read in time")?
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Subscribes to the busiest keys and reads nothing.
    async fn stuck(&self) -> Result<(), String> {
        let _socket = self.subscriber(20).await?;
        sleep(Duration::from_secs(fastrand::u64(1..10))).await;
        Ok(())
    }

    /// Posts valid bodies, too large ones, and ones that break off.
    async fn publish(&self) -> Result<(), String> {
        let url = format!("http://{}/publish/{}", self.gateway, fastrand::usize(..20));
        let byte = [b'x', 1, 0xff, b'"'][fastrand::usize(..4)];
        let body = vec![byte; fastrand::usize(..70_000)];
        let part = Body::wrap_stream(futures::stream::iter([
            Ok(vec![byte; 100]),
            Err(std::io::Error::other("it breaks off")),
        ]));
        let body = if fastrand::u8(..) < 10 { part } else { body.into() };
        let sent = Client::new().post(url).body(body).send().await;
        sent.map(drop).map_err(|error| error.to_string())
    }

    async fn subscriber(&self, keys: usize) -> Result<Socket, String> {
        client::subscriber(&self.gateway, Some(4096), (0..keys).map(|key| key.to_string())).await
    }

    /// Measures the gateway once all clients have left and all timeouts are over.
    async fn look(&self) -> Result<Use, String> {
        sleep(DEADLINES).await;
        stats::await_idle(&self.gateway).await?;
        let ticks = self.ticks()?;
        sleep(Duration::from_secs(5)).await;
        let ticks = self.ticks()? - ticks;
        let status = self.proc("status")?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = kib.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.pid));
        let files = files.map_err(|error| error.to_string())?.count();
        Ok(Use { kib: kib.ok_or("no VmRSS")?, files, ticks })
    }

    /// Returns the processor time.
    fn ticks(&self) -> Result<u64, String> {
        let stat = self.proc("stat")?;
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let field = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
        field(11).zip(field(12)).map(|(user, system)| user + system).ok_or("no times".to_owned())
    }

    fn proc(&self, file: &str) -> Result<String, String> {
        let path = format!("/proc/{}/{file}", self.pid);
        std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
    }
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kib, files, ticks } = self;
        write!(f, "{} MiB, {files} files, {} % of a core", kib / 1024, ticks / 5)
    }
}

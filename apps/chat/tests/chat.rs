//! The program, as its users start it, and a real Redis or NATS server.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt};
use test_servers::{Nats, Program, Redis, Server, random_port};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// Only ever ends a test that hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// The answer to what is not understood.
const USAGE: &str = "error say `join ROOM`, `leave ROOM` or `say ROOM TEXT`";

/// A process of the chat. Dropping it kills the process, by its id.
struct Chat {
    process: Child,
    url: String,
}

impl Chat {
    fn start(options: &[&str]) -> Self {
        for _ in 0..20 {
            let mut process = Command::new(env!("CARGO_BIN_EXE_chat"))
                .args(["--listen", &format!("127.0.0.1:{}", random_port())])
                .args(options)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
            match line.trim().strip_prefix("http://") {
                Some(address) => return Self { process, url: format!("ws://{address}chat") },
                // The port is taken.
                None => drop(process.wait()),
            }
        }
        panic!("the chat does not start");
    }

    async fn client(&self) -> Client {
        let (socket, _) = timeout(WATCHDOG, connect_async(&self.url)).await.unwrap().unwrap();
        Client(socket)
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    async fn send(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    /// Returns `None` if the server closes the connection.
    async fn read(&mut self) -> Option<String> {
        loop {
            match timeout(WATCHDOG, self.0.next()).await.expect("something comes") {
                Some(Ok(Message::Text(text))) => return Some(text.to_string()),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return None,
            }
        }
    }

    async fn expect(&mut self, text: &str) {
        assert_eq!(self.read().await.as_deref(), Some(text));
    }

    async fn join(&mut self, room: &str) {
        self.send(&format!("join {room}")).await;
        self.expect(&format!("joined {room}")).await;
    }
}

async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !is_true() {
        assert!(Instant::now() < deadline, "not within {WATCHDOG:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn one_process_without_an_engine() {
    let chat = Chat::start(&[]);
    let (mut ann, mut ben) = (chat.client().await, chat.client().await);
    ann.join("tea").await;
    ben.join("tea").await;
    ben.join("coffee").await;
    ann.send("say tea hello, all").await;
    ann.expect("said tea hello, all").await;
    ben.expect("said tea hello, all").await;
    ann.send("say coffee anyone here?").await;
    ben.expect("said coffee anyone here?").await;

    ben.send("leave tea").await;
    // After that, as one task reads both.
    ben.join("water").await;
    ann.send("say tea one").await;
    ann.send("say water two").await;
    ann.expect("said tea one").await;
    ben.expect("said water two").await;
}

#[tokio::test]
async fn two_processes_are_one_chat_by_redis() {
    two_processes_are_one_chat_and_tell_what_an_outage_may_have_lost::<Redis>("--redis").await;
}

/// Skipped without `nats-server`.
#[tokio::test]
async fn two_processes_are_one_chat_by_nats() {
    two_processes_are_one_chat_and_tell_what_an_outage_may_have_lost::<Nats>("--nats").await;
}

async fn two_processes_are_one_chat_and_tell_what_an_outage_may_have_lost<P: Program>(
    option: &str,
) {
    let Some(mut server) = Server::<P>::start(&[]) else { return };
    let (here, there) =
        (Chat::start(&[option, &server.url()]), Chat::start(&[option, &server.url()]));
    let (mut ann, mut ben) = (here.client().await, there.client().await);
    ann.join("tea").await;
    ben.join("tea").await;
    ann.send("say tea hello").await;
    ann.expect("said tea hello").await;
    ben.expect("said tea hello").await;
    // Answered when the engine has accepted the line, which may be after it is heard.
    ann.send("").await;
    ann.expect(USAGE).await;

    server.kill();
    // It waits at the server for the engine, and is told when it is there.
    ben.send("join coffee").await;
    server.restart();
    ann.expect("missed tea").await;
    let mut told = [ben.read().await.unwrap(), ben.read().await.unwrap()];
    told.sort();
    assert_eq!(told, ["joined coffee", "missed tea"]);
    // Its connection for publishing may take a moment longer.
    ann.send("say tea again").await;
    let mut answer = ann.read().await.unwrap();
    while answer.starts_with("error ") {
        ann.send("say tea again").await;
        answer = ann.read().await.unwrap();
    }
    assert_eq!(answer, "said tea again");
    ben.expect("said tea again").await;
}

#[tokio::test]
async fn client_that_reads_slowly_changes_its_rooms_meanwhile() {
    let Some(server) = Server::<Redis>::start(&[]) else { return };
    let chat = Chat::start(&["--redis", &server.url()]);
    let (mut slow, mut busy) = (chat.client().await, chat.client().await);
    slow.join("busy").await;
    // Much more than the buffers of two sockets hold.
    let line = format!("say busy {}", "x".repeat(4_000));
    for _ in 0..10_000 {
        busy.send(&line).await;
    }
    // Nothing is read, and the server cannot write. It does what the client asks for all the same.
    for n in 0..500 {
        slow.send(&format!("join room-{n}")).await;
        slow.send(&format!("leave room-{n}")).await;
    }
    slow.send("leave busy").await;
    slow.send("join quiet").await;
    let subscribers = |room: &str| server.subscribers(&format!("chat:{room}"));
    eventually("the slow client is in its last room", || subscribers("quiet") == 1).await;
    eventually("it has left the others", || {
        subscribers("busy") == 0 && (0..500).all(|n| subscribers(&format!("room-{n}")) == 0)
    })
    .await;

    // What it says is heard while it cannot be written to, and it is told what it has missed.
    busy.join("quiet").await;
    slow.send("say quiet I am here").await;
    busy.expect("said quiet I am here").await;
    let mut lost = 0;
    loop {
        let text = slow.read().await.expect("the server has not given it up");
        if let Some(lines) = text.strip_prefix("lost ") {
            lost += lines.parse::<u64>().unwrap();
        }
        if text == "said quiet I am here" {
            break;
        }
    }
    assert!(lost > 0, "the test was not slow enough");
}

#[tokio::test]
async fn nonsense_is_answered_and_does_not_end_the_chat() {
    let chat = Chat::start(&[]);
    let mut ann = chat.client().await;
    for nonsense in ["", "join", "join two rooms", "say tea", "shout tea hello"] {
        ann.send(nonsense).await;
        ann.expect(USAGE).await;
    }
    for n in 0..100 {
        ann.join(&format!("room-{n}")).await;
    }
    ann.send("join another").await;
    ann.expect("error no more than 100 rooms at once").await;
    ann.send("leave room-0").await;
    ann.join("another").await;
    ann.send(&format!("say another {}", "x".repeat(5_000))).await;
    assert_eq!(ann.read().await, None, "it is too long");
    let mut ben = chat.client().await;
    ben.join("tea").await;
}

#[tokio::test]
async fn long_frame_that_is_only_announced_is_refused_at_once() {
    let chat = Chat::start(&[]);
    let mut ann = chat.client().await;
    ann.join("tea").await;
    let mut frame = vec![0x81, 0xff];
    frame.extend(10_000_000_u64.to_be_bytes());
    frame.extend([0; 4]); // the mask, and none of the bytes
    ann.0.get_mut().write_all(&frame).await.unwrap();
    assert_eq!(ann.read().await, None);
}

#[test]
fn address_or_url_that_cannot_be_used_is_an_error_without_a_backtrace() {
    for (options, reason) in [
        (["--redis", "rediss://127.0.0.1/"], "TLS is not supported"),
        (["--nats", "tls://127.0.0.1/"], "TLS is not supported"),
        (["--listen", "192.0.2.1:8080"], "cannot listen on 192.0.2.1:8080"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_chat")).args(options).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(error.starts_with("chat: ") && error.contains(reason), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

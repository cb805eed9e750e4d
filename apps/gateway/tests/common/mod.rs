//! A gateway in a process, and its clients.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_gateway");

/// Time limit of a test.
const TIMEOUT: Duration = Duration::from_secs(60);

thread_local! {
    /// The deadline of the test in this thread.
    static END: Instant = Instant::now() + TIMEOUT;
}

/// Awaits the future, or panics at the deadline.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = timeout_at(END.with(|end| *end), future).await;
    waited.unwrap_or_else(|_| panic!("after {TIMEOUT:?}, the test is still waiting for {what}"))
}

/// Repeats the query until it returns `true`.
pub async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let asking = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(what, asking).await;
}

/// A gateway process; killed on drop.
pub struct Gateway {
    pub address: SocketAddr,
    process: Child,
}

impl Gateway {
    pub async fn start(options: &[&str]) -> Self {
        Self::start_by(Command::new(PROGRAM), options).await
    }

    /// Starts it by a command that executes the gateway.
    pub async fn start_by(mut command: Command, options: &[&str]) -> Self {
        command.args(["--listen", "127.0.0.1:0"]).args(options);
        for name in ["GATEWAY_TOKEN", "GATEWAY_READ_KEY", "GATEWAY_AMQP"] {
            command.env_remove(name);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().expect("the gateway starts");
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = soon("the start", lines.next_line()).await.unwrap().expect("a line");
        let address = line.strip_prefix("listening on ").expect("the address").parse().unwrap();
        Self { address, process }
    }

    /// Sends a signal.
    pub fn kill(&self, signal: &str) {
        let id = self.process.id().expect("the gateway runs").to_string();
        let killed = std::process::Command::new("kill").args([signal, &id]).status();
        assert!(killed.unwrap().success());
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.kill("-TERM");
    }

    /// Returns the lines of its log.
    pub fn log(&mut self) -> Lines<BufReader<ChildStderr>> {
        BufReader::new(self.process.stderr.take().unwrap()).lines()
    }

    /// Returns its exit status. Nobody reads its log.
    pub async fn wait_without_reading(mut self) -> ExitStatus {
        soon("the exit", self.process.wait()).await.unwrap()
    }

    /// Returns its exit status and its log.
    pub async fn wait(mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        let mut stderr = self.process.stderr.take().unwrap();
        soon("the end of the log", stderr.read_to_string(&mut log)).await.unwrap();
        (soon("the exit", self.process.wait()).await.unwrap(), log)
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the status and the JSON body.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> (StatusCode, Value) {
        let mut request = reqwest::Client::new().request(method, self.url(path)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = soon(path, request.send()).await.unwrap();
        let status = response.status();
        let text = soon(path, response.text()).await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub async fn publish(&self, key: &str, body: impl Into<reqwest::Body>) {
        let (status, reply) = self.ask(Method::POST, &format!("/publish/{key}"), &[], body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{reply}");
    }

    /// Returns statistics made after this call: an answer is shared for a second.
    pub async fn stats(&self) -> Value {
        let stats = async || self.ask(Method::GET, "/stats", &[], "").await.1;
        let old = stats().await;
        loop {
            let new = stats().await;
            if new["uptime_ms"] != old["uptime_ms"] {
                return new;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A line of /proc/PID/FILE, in the file's unit: KiB of memory, number of files.
    pub fn proc(&self, file: &str, line: &str) -> u64 {
        let path = format!("/proc/{}/{file}", self.process.id().expect("the gateway runs"));
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|other| other.strip_prefix(line)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// The names of its threads.
    pub fn threads(&self) -> Vec<String> {
        let path = format!("/proc/{}/task", self.process.id().expect("the gateway runs"));
        let tasks = std::fs::read_dir(path).unwrap();
        // A thread may end in the meantime.
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
        tasks.filter_map(|task| name(task.unwrap())).collect()
    }

    pub fn memory(&self) -> u64 {
        self.proc("status", "VmRSS:") / 1024
    }

    /// Sends raw bytes, which need not be valid HTTP, and reads until the end.
    pub async fn raw(&self, request: &[u8]) -> String {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        socket.write_all(request).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut answer = Vec::new();
        soon("the answer", socket.read_to_end(&mut answer)).await.unwrap();
        // Lossy: a WebSocket may have sent frames already.
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub async fn connect(&self) -> Client {
        let socket = TcpStream::connect(self.address).await.unwrap();
        Client::on(socket, self.address).await
    }

    /// Connects with small socket buffers.
    pub async fn connect_narrow(&self) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Client::on(socket.connect(self.address).await.unwrap(), self.address).await
    }

    pub async fn subscriber(&self, key: &str) -> Client {
        let mut client = self.connect().await;
        client.subscribe(key).await;
        client
    }
}

pub struct Client(pub WebSocketStream<TcpStream>);

impl Client {
    async fn on(socket: TcpStream, address: SocketAddr) -> Self {
        let asked = tokio_tungstenite::client_async(format!("ws://{address}/ws"), socket);
        Self(soon("the handshake", asked).await.unwrap().0)
    }

    pub async fn send(&mut self, what: Value) {
        self.send_frame(Message::text(what.to_string())).await;
    }

    pub async fn send_frame(&mut self, frame: Message) {
        soon("sending", self.0.send(frame)).await.unwrap();
    }

    /// Returns the next frame that is not a ping.
    pub async fn frame(&mut self) -> Option<Result<Message, Error>> {
        loop {
            match soon("a message", self.0.next()).await {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => return other,
            }
        }
    }

    pub async fn next(&mut self) -> Value {
        match self.frame().await {
            Some(Ok(Message::Text(text))) => serde_json::from_str(&text).unwrap(),
            other => panic!("not a text: {other:?}"),
        }
    }

    pub async fn subscribe(&mut self, key: &str) {
        self.send(json!({ "type": "subscribe", "key": key })).await;
        let reply = self.next().await;
        assert_eq!((&reply["type"], &reply["key"]), (&json!("subscribed"), &json!(key)), "{reply}");
    }

    /// Returns what arrives until the gateway closes, and the close code.
    pub async fn rest(mut self) -> (Vec<Value>, Option<CloseCode>) {
        let (mut all, mut code) = (Vec::new(), None);
        while let Some(Ok(frame)) = self.frame().await {
            match frame {
                Message::Text(text) => all.push(serde_json::from_str(&text).unwrap()),
                Message::Close(why) => code = why.map(|why| why.code),
                other => panic!("unexpected {other:?}"),
            }
        }
        (all, code)
    }
}

/// A message as clients receive it.
pub fn message(key: &str, body: &str) -> Value {
    json!({ "type": "message", "key": key, "body": body })
}

//! A Redis server that ends with the test. The tests of `apps/chat` use it, too.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A port below the range of source ports: otherwise a restarted server may find it taken.
pub(crate) fn random_port() -> u16 {
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
        let Ok(mut socket) = TcpStream::connect(address) else { return false };
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

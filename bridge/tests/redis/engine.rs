//! Redis, as the scenarios need it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use stream_demux_bridge::{Bridge, Builder, UrlError};

use crate::server::{self, Program};

pub(crate) struct Redis;

pub(crate) type Server = server::Server<Redis>;

/// Options of a server that has enough of a slow consumer soon.
pub(crate) const IMPATIENT: &[&str] = &["--client-output-buffer-limit", "pubsub 64kb 0 0"];

/// Starts a bridge to a server, or to a proxy before it.
pub(crate) fn bridge(settings: Builder, port: u16) -> Result<Bridge, UrlError> {
    settings.redis(&server::url::<Redis>(port))
}

impl Program for Redis {
    const NAME: &str = "redis-server";
    const SCHEME: &str = "redis";

    fn find() -> Option<PathBuf> {
        Some(Self::NAME.into())
    }

    fn prepare(folder: &Path, port: u16, options: &[String]) -> Vec<String> {
        let port = port.to_string();
        let mut arguments = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"].to_vec();
        arguments.extend(["--port", &port, "--dir", folder.to_str().unwrap()]);
        arguments.extend(options.iter().map(String::as_str));
        arguments.iter().map(ToString::to_string).collect()
    }

    fn answers(mut socket: TcpStream) -> bool {
        let mut answer = [0; 5];
        socket.write_all(b"PING\r\n").is_ok()
            && socket.read_exact(&mut answer).is_ok()
            && &answer == b"+PONG"
    }
}

impl Server {
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

    /// How many connections there are, beside that of the question.
    pub(crate) fn connections(&self) -> usize {
        let clients: String = self.command(&["CLIENT", "LIST"]);
        clients.lines().count() - 1
    }

    /// Only keys that begin with `open.` may be used from now on.
    pub(crate) fn close(&mut self) {
        let () = self.command(&["ACL", "SETUSER", "default", "resetchannels", "&open.*"]);
    }

    /// All keys may be used from now on.
    pub(crate) fn open(&mut self) {
        let () = self.command(&["ACL", "SETUSER", "default", "allchannels"]);
    }
}

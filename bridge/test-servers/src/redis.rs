//! Redis.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use crate::{Program, Server, WATCHDOG};

pub struct Redis;

impl Program for Redis {
    const NAME: &str = "redis-server";
    const SCHEME: &str = "redis";
    const IMPATIENT: &[&str] = &["--client-output-buffer-limit", "pubsub 64kb 0 0"];

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

    fn subscribers(server: &Server<Self>, key: &str) -> usize {
        let (_, count): (String, usize) = server.command(&["PUBSUB", "NUMSUB", key]);
        count
    }

    fn connections(server: &Server<Self>) -> usize {
        let clients: String = server.command(&["CLIENT", "LIST"]);
        clients.lines().count() - 1
    }

    fn allow(server: &mut Server<Self>, only_open: bool) {
        let channels: &[&str] =
            if only_open { &["resetchannels", "&open.*"] } else { &["allchannels"] };
        let () = server.command(&[&["ACL", "SETUSER", "default"], channels].concat());
    }
}

impl Server<Redis> {
    /// Sends a command by a connection of its own.
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection_with_timeout(WATCHDOG).unwrap();
        connection.set_read_timeout(Some(WATCHDOG)).unwrap();
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).unwrap()
    }
}

//! NATS.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Program, Server, WATCHDOG, eventually};

pub struct Nats;

impl Program for Nats {
    const NAME: &str = "nats-server";
    const SCHEME: &str = "nats";
    const IMPATIENT: &[&str] = &["max_pending: 64KB", "max_payload: 32KB"];

    fn find() -> Option<PathBuf> {
        let demanded = std::env::var_os("NATS_SERVER").map(PathBuf::from);
        let program = demanded.clone().unwrap_or_else(|| Self::NAME.into());
        let is_there = Command::new(&program).arg("--version").output().is_ok();
        assert!(is_there || demanded.is_none(), "{} is not there", program.display());
        is_there.then_some(program)
    }

    fn prepare(folder: &Path, port: u16, options: &[String]) -> Vec<String> {
        configure(folder, port, "\">\"", options);
        vec!["-c".to_owned(), config(folder).to_str().unwrap().to_owned()]
    }

    fn answers(socket: TcpStream) -> bool {
        let mut greeting = [0; 5];
        let mut reader = &socket;
        reader.read_exact(&mut greeting).is_ok() && &greeting == b"INFO "
    }

    fn subscribers(server: &Server<Self>, subject: &str) -> usize {
        server.ask(&format!("subsz?subs=1&test={subject}")).matches("\"sid\"").count()
    }

    fn connections(server: &Server<Self>) -> usize {
        server.ask("connz").matches("\"cid\"").count()
    }

    fn allow(server: &mut Server<Self>, only_open: bool) {
        server.reload(if only_open { "\"open.>\"" } else { "\">\"" });
    }
}

fn config(folder: &Path) -> PathBuf {
    folder.join("nats.conf")
}

/// Writes the configuration of a server, whose clients may use these subjects. What it says about
/// itself is at a port beside that of the server.
fn configure(folder: &Path, port: u16, allowed: &str, options: &[String]) {
    let text = format!(
        r#"listen: "127.0.0.1:{port}"
http: "127.0.0.1:{}"
ping_interval: "10m"
authorization {{
    users: [{{ user: "ann", password: "tea", permissions: {{ publish: {allowed}, subscribe: {allowed} }} }}]
}}
no_auth_user: "ann"
{}
"#,
        port + 1,
        options.join("\n"),
    );
    fs::write(config(folder), text).unwrap();
}

impl Server<Nats> {
    /// Returns what the server says about itself.
    pub fn ask(&self, what: &str) -> String {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port + 1)).unwrap();
        socket.set_read_timeout(Some(WATCHDOG)).unwrap();
        let request = format!("GET /{what} HTTP/1.0\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    fn reload(&mut self, allowed: &str) {
        let loaded = |server: &Self| {
            let about = server.ask("varz");
            about.lines().find(|line| line.contains("\"config_load_time\"")).unwrap().to_owned()
        };
        let before = loaded(self);
        configure(&self.folder, self.port, allowed, &self.options);
        self.signal("HUP");
        eventually("it has read its configuration", || loaded(self) != before);
    }
}

//! Real Redis and NATS servers for tests. A server ends with its test.

use std::fs;
use std::io::Write;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

mod nats;
mod redis;

pub use nats::Nats;
pub use redis::Redis;

/// Only ever ends a test that hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A server that is asked whether it is there, and has not answered by then, is asked again.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// Waits until something is true that another process makes true.
fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !is_true() {
        assert!(Instant::now() < deadline, "not within {WATCHDOG:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An even port below the range of source ports: otherwise a restarted server may find it taken. The
/// next one is free for a second port of the same server.
pub fn random_port() -> u16 {
    2 * fastrand::u16(10_000..16_000)
}

/// A server for publish/subscribe.
pub trait Program: Sized {
    const NAME: &str;
    /// The part of a URL before `://`.
    const SCHEME: &str;
    /// Options of a server that has enough of a slow consumer soon.
    const IMPATIENT: &[&str];

    /// Returns `None` if the tests are to do without it.
    fn find() -> Option<PathBuf>;

    /// Writes what it needs into its folder. Returns its arguments.
    fn prepare(folder: &Path, port: u16, options: &[String]) -> Vec<String>;

    /// Returns `true` if this is a connection to such a server.
    fn answers(socket: TcpStream) -> bool;

    /// How many subscriptions there are to a key.
    fn subscribers(server: &Server<Self>, key: &str) -> usize;

    /// How many connections there are, beside that of the question.
    fn connections(server: &Server<Self>) -> usize;

    /// If `only_open` is `true`, only keys that begin with `open.` may be used from now on.
    /// Otherwise, all keys may be used.
    fn allow(server: &mut Server<Self>, only_open: bool);
}

/// A server with a folder of its own. Dropping it kills the process, by its id.
pub struct Server<P> {
    program: PathBuf,
    process: Option<Child>,
    pub port: u16,
    pub folder: PathBuf,
    options: Vec<String>,
    kind: PhantomData<P>,
}

impl<P: Program> Server<P> {
    /// Returns `None`, and says so once, if the tests are to do without the server.
    pub fn start(options: &[&str]) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SKIPPED: Once = Once::new();
        let Some(program) = P::find() else {
            // The test harness does not keep this from the terminal.
            let line = format!("skipped: {} is not installed, and not demanded\n", P::NAME);
            SKIPPED.call_once(|| std::io::stderr().write_all(line.as_bytes()).unwrap());
            return None;
        };
        let number = COUNT.fetch_add(1, Relaxed);
        let name = format!("bridge-{}-{}-{number}", P::NAME, std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let options = options.iter().map(ToString::to_string).collect();
        let port = random_port();
        let mut server = Self { program, process: None, port, folder, options, kind: PhantomData };
        for _ in 0..20 {
            if server.try_start() {
                return Some(server);
            }
            server.port = random_port();
        }
        panic!("{} does not start: is it installed?", P::NAME);
    }

    /// Starts it again, at the same port.
    pub fn restart(&mut self) {
        for _ in 0..20 {
            if self.try_start() {
                return;
            }
        }
        panic!("{} does not start again at port {}", P::NAME, self.port);
    }

    /// Returns `false` if it has not come up, for example because the port is taken.
    fn try_start(&mut self) -> bool {
        assert!(self.process.is_none(), "it runs already");
        let process = Command::new(&self.program)
            .args(P::prepare(&self.folder, self.port, &self.options))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        let process = self.process.insert(process);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        eventually("it answers, or gives up", || {
            process.try_wait().unwrap().is_some() || has_answered::<P>(address)
        });
        // Another server at this port may have answered, and this one is about to give up.
        let is_up = process.try_wait().unwrap().is_none();
        if !is_up {
            self.process = None;
        }
        is_up
    }

    pub fn url(&self) -> String {
        url::<P>(self.port)
    }

    /// Ends the process at once, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Asks the server to end.
    pub fn shut_down(&mut self) {
        self.signal("TERM");
        self.wait();
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        let process = self.process.as_mut().expect("it runs");
        eventually("it ends", || process.try_wait().unwrap().is_some());
        self.process = None;
    }

    pub fn pause(&self) {
        self.signal("STOP");
    }

    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// How many subscriptions there are to a key.
    pub fn subscribers(&self, key: &str) -> usize {
        P::subscribers(self, key)
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        P::connections(self)
    }

    /// Only keys that begin with `open.` may be used from now on.
    pub fn close(&mut self) {
        P::allow(self, true);
    }

    /// All keys may be used from now on.
    pub fn open(&mut self) {
        P::allow(self, false);
    }

    pub fn signal(&self, name: &str) {
        let id = self.process.as_ref().expect("it runs").id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(status.unwrap().success());
    }
}

/// Returns `true` if there is such a server. Something else may listen there, and say nothing.
fn has_answered<P: Program>(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, ASKED_AGAIN).is_ok_and(|socket| {
        socket.set_read_timeout(Some(ASKED_AGAIN)).unwrap();
        P::answers(socket)
    })
}

/// The URL of a server, or of a proxy before it.
pub fn url<P: Program>(port: u16) -> String {
    format!("{}://127.0.0.1:{port}", P::SCHEME)
}

impl<P> Drop for Server<P> {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    fn gives_up<P: Program + Send + 'static>() {
        let Some(mut server) = Server::<P>::start(&[]) else { return };
        server.kill();
        let _silent = TcpListener::bind((Ipv4Addr::LOCALHOST, server.port)).unwrap();
        let (sender, is_up) = mpsc::channel();
        std::thread::spawn(move || sender.send(server.try_start()));
        assert_eq!(is_up.recv_timeout(WATCHDOG / 2), Ok(false), "{}", P::NAME);
    }

    #[test]
    fn something_silent_at_the_port_is_not_waited_for() {
        gives_up::<Redis>();
        gives_up::<Nats>();
    }

    #[test]
    fn permissions_are_changed_and_the_options_stay() {
        let Some(mut server) = Server::<Nats>::start(&["max_payload: 1000"]) else { return };
        for change in [Server::close, Server::open] {
            change(&mut server);
            let about = server.ask("varz");
            assert!(about.contains("\"max_payload\": 1000,"), "{about}");
        }
    }
}

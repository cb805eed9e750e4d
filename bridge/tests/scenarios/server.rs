//! A server that ends with the test. The tests of `apps/chat` use it, too.

use std::fs;
use std::io::Write;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A port below the range of source ports: otherwise a restarted server may find it taken.
pub(crate) fn random_port() -> u16 {
    fastrand::u16(20_000..32_000)
}

/// A server for publish/subscribe.
pub(crate) trait Program {
    const NAME: &str;
    /// The part of a URL before `://`.
    const SCHEME: &str;

    /// Returns `None` if the tests are to do without it.
    fn find() -> Option<PathBuf>;

    /// Writes what it needs into its folder. Returns its arguments.
    fn prepare(folder: &Path, port: u16, options: &[String]) -> Vec<String>;

    /// Returns `true` if this is a connection to such a server.
    fn answers(socket: TcpStream) -> bool;
}

/// A server with a folder of its own. Dropping it kills the process, by its id.
pub(crate) struct Server<P> {
    program: PathBuf,
    process: Option<Child>,
    pub(crate) port: u16,
    pub(crate) folder: PathBuf,
    options: Vec<String>,
    kind: PhantomData<P>,
}

impl<P: Program> Server<P> {
    /// Returns `None`, and says so once, if the tests are to do without the server.
    pub(crate) fn start(options: &[&str]) -> Option<Self> {
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
    pub(crate) fn restart(&mut self) {
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
        let mut process = Command::new(&self.program)
            .args(P::prepare(&self.folder, self.port, &self.options))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        loop {
            if process.try_wait().unwrap().is_some() {
                return false;
            }
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
            if TcpStream::connect(address).is_ok_and(P::answers) {
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

    pub(crate) fn url(&self) -> String {
        url::<P>(self.port)
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
        self.signal("TERM");
        self.wait();
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) {
        self.process.take().expect("it runs").wait().unwrap();
    }

    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.as_ref().expect("it runs").id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(status.unwrap().success());
    }
}

/// The URL of a server, or of a proxy before it.
pub(crate) fn url<P: Program>(port: u16) -> String {
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

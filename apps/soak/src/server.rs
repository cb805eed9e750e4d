//! The server under attack: builds, starts, observes and interrupts it.

use std::env;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::report::Report;

pub struct Server {
    path: PathBuf,
    child: Child,
    id: u32,
    stdout: BufReader<ChildStdout>,
    stderr: Option<Lines<BufReader<ChildStderr>>>,
    address: SocketAddr,
}

/// Resources of the process, from `/proc`.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Bytes of memory that are resident.
    pub memory: u64,
    pub descriptors: usize,
    pub threads: usize,
    /// Processor time used, in seconds.
    pub busy: f64,
}

impl Server {
    pub async fn start(path: Option<PathBuf>) -> io::Result<Self> {
        let path = match path {
            Some(path) => path,
            None => build().await?,
        };
        let spawned = Command::new(&path)
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0) // Ctrl-C must reach only this program
            .spawn();
        let mut child = spawned.map_err(|error| named(&path, &error))?;
        let id = child.id().ok_or_else(|| io::Error::other("the server exited at once"))?;
        let missing = || io::Error::other("the server has no output");
        let mut stdout = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let stderr = BufReader::new(child.stderr.take().ok_or_else(missing)?).lines();
        let mut line = String::new();
        stdout.read_line(&mut line).await?;
        let address = line.trim().strip_prefix("listening on ").and_then(|text| text.parse().ok());
        let address = address.ok_or_else(|| {
            named(&path, &format!("expected the address in the first line, got {line:?}"))
        })?;
        Ok(Self { path, child, id, stdout, stderr: Some(stderr), address })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reports each line on its standard error as a violation, because a panic in the task of one
    /// client does not end the server.
    pub fn watch_stderr(&mut self, report: &Arc<Report>) {
        let Some(mut lines) = self.stderr.take() else { return };
        let report = Arc::clone(report);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                report.violation(format!("the server printed: {line}"));
            }
        });
    }

    /// Returns an error if the server has exited.
    pub fn sample(&self) -> io::Result<Sample> {
        let folder = format!("/proc/{}", self.id);
        let gone = |error: io::Error| io::Error::other(format!("the server has exited: {error}"));
        let pages = fs::read_to_string(format!("{folder}/statm")).map_err(gone)?;
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let page = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|size| u64::try_from(size).ok());
        let descriptors = fs::read_dir(format!("{folder}/fd")).map_err(gone)?.count();
        let threads = fs::read_dir(format!("{folder}/task")).map_err(gone)?.count();
        let memory = pages.unwrap_or(0) * page.unwrap_or(4096);
        if memory == 0 {
            return Err(io::Error::other("the server has exited: it has no memory"));
        }
        Ok(Sample { memory, descriptors, threads, busy: self.busy().unwrap_or(0.0) })
    }

    fn busy(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id)).ok()?;
        let (_, fields) = stat.rsplit_once(") ")?; // the process name may contain spaces
        let mut ticks = fields.split(' ').skip(11).map_while(|ticks| ticks.parse::<u32>().ok());
        let total = f64::from(ticks.next()?) + f64::from(ticks.next()?);
        let second = i32::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()?;
        Some(total / f64::from(second))
    }

    /// Waits until the number of descriptors has not changed for a while, and returns it.
    pub async fn settled_descriptors(&self, patience: Duration) -> io::Result<usize> {
        let deadline = Instant::now() + patience;
        let (mut last, mut since) = (self.sample()?.descriptors, Instant::now());
        while since.elapsed() < Duration::from_millis(500) && Instant::now() < deadline {
            sleep(Duration::from_millis(20)).await;
            let now = self.sample()?.descriptors;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    /// Waits until the server has this number of descriptors, for at most `patience`. Returns the
    /// last number.
    pub async fn settles_at(&self, descriptors: usize, patience: Duration) -> io::Result<usize> {
        let deadline = Instant::now() + patience;
        loop {
            let now = self.sample()?.descriptors;
            if now == descriptors || Instant::now() > deadline {
                return Ok(now);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Interrupts the server and waits until it exits. Returns its status and its output.
    pub async fn interrupt(mut self, patience: Duration) -> io::Result<(ExitStatus, String)> {
        let id = i32::try_from(self.id).map_err(io::Error::other)?;
        kill(Pid::from_raw(id), Signal::SIGINT)?;
        let mut output = String::new();
        let ending = async {
            self.stdout.read_to_string(&mut output).await?;
            self.child.wait().await
        };
        let Ok(status) = timeout(patience, ending).await else {
            self.child.kill().await?;
            let error = format!("the server has not exited {patience:?} after it was interrupted");
            return Err(io::Error::other(error));
        };
        Ok((status?, output))
    }
}

/// Builds the example. Its path differs from that of this program only in the profile.
async fn build() -> io::Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut command = Command::new(&cargo);
    command.args(["build", "--release", "--package", "stream-demux", "--example", "lines"]);
    command.arg("--manifest-path").arg(&manifest);
    let status = command.status().await.map_err(|error| named(Path::new(&cargo), &error))?;
    if !status.success() {
        return Err(io::Error::other("the example `lines` failed to build"));
    }
    let this = env::current_exe()?;
    let profiles = this.parent().and_then(Path::parent);
    let path = profiles.map(|folder| folder.join("release/examples/lines"));
    match path {
        Some(path) if path.exists() => Ok(path),
        _ => {
            Err(io::Error::other("cannot find the `lines` executable; pass its path with --server"))
        }
    }
}

fn named(path: &Path, error: &impl ToString) -> io::Error {
    io::Error::other(format!("{}: {}", path.display(), error.to_string()))
}

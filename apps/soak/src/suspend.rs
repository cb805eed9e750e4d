//! Suspends a client process while lines arrive for it, then kills it or resumes it. A resumed
//! client checks that every gap was reported.

use std::env;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::attack::Outcome;
use crate::clients::HOSE;
use crate::net::PATIENCE;
use crate::report::{Counter, Report};

pub async fn run(report: &Report) -> Outcome {
    try_run(report).await.unwrap_or(Outcome::CutOff)
}

async fn try_run(report: &Report) -> io::Result<Outcome> {
    let child = Command::new(env::current_exe()?)
        .args(["--client", &report.address().to_string(), HOSE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .process_group(0)
        .spawn()?;
    sleep(Duration::from_millis(fastrand::u64(200..1500))).await;
    for _ in 0..fastrand::u8(1..=3) {
        signal(&child, Signal::SIGSTOP)?;
        report.count(Counter::Stop, 1);
        sleep(Duration::from_millis(fastrand::u64(500..8000))).await;
        if fastrand::u8(..3) == 0 {
            signal(&child, Signal::SIGKILL)?;
            child.wait_with_output().await?;
            report.count(Counter::Kill, 1);
            return Ok(Outcome::Done);
        }
        signal(&child, Signal::SIGCONT)?;
        sleep(Duration::from_millis(fastrand::u64(50..1000))).await;
    }
    // This closes the client's standard input, so it disconnects and prints its counts.
    let Ok(output) = timeout(PATIENCE, child.wait_with_output()).await else {
        return Ok(Outcome::Violation(format!(
            "a resumed client has not exited within {PATIENCE:?}"
        )));
    };
    let output = output?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let counts = stdout.trim().split_once(' ').map(|(seen, lost)| (seen.parse(), lost.parse()));
    let Some((Ok(seen), Ok(lost))) = counts.filter(|_| output.status.success()) else {
        let (status, stdout) = (output.status, stdout.trim());
        return Ok(Outcome::Violation(format!("a resumed client failed: {status}, {stdout}")));
    };
    report.count(Counter::Release, 1);
    report.count(Counter::Checked, seen);
    report.count(Counter::Lost, lost);
    Ok(Outcome::Done)
}

fn signal(child: &Child, signal: Signal) -> io::Result<()> {
    let id = child.id().ok_or_else(|| io::Error::other("the client has exited"))?;
    let id = i32::try_from(id).map_err(io::Error::other)?;
    Ok(kill(Pid::from_raw(id), signal)?)
}

//! A client process that is stopped while lines come in for it; then killed, or let go on to check
//! that it was told of all it lost.

use std::env;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::attack::Outcome;
use crate::behave::HOSE;
use crate::net::PATIENCE;
use crate::report::{Deed, Report};

pub async fn sentence(report: &Report) -> Outcome {
    serve(report).await.unwrap_or(Outcome::CutOff)
}

async fn serve(report: &Report) -> io::Result<Outcome> {
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
        report.count(Deed::Stop, 1);
        sleep(Duration::from_millis(fastrand::u64(500..8000))).await;
        if fastrand::u8(..3) == 0 {
            signal(&child, Signal::SIGKILL)?;
            child.wait_with_output().await?;
            report.count(Deed::Kill, 1);
            return Ok(Outcome::Done);
        }
        signal(&child, Signal::SIGCONT)?;
        sleep(Duration::from_millis(fastrand::u64(50..1000))).await;
    }
    // Its standard input is closed by this: it leaves, and says what it saw.
    let Ok(output) = timeout(PATIENCE, child.wait_with_output()).await else {
        return Ok(Outcome::Violation(format!(
            "one that was stopped has not ended in {PATIENCE:?}"
        )));
    };
    let output = output?;
    let said = String::from_utf8_lossy(&output.stdout);
    let counts = said.trim().split_once(' ').map(|(seen, lost)| (seen.parse(), lost.parse()));
    let Some((Ok(seen), Ok(lost))) = counts.filter(|_| output.status.success()) else {
        let (status, said) = (output.status, said.trim());
        return Ok(Outcome::Violation(format!("one that was stopped: {status}, {said}")));
    };
    report.count(Deed::Release, 1);
    report.count(Deed::Checked, seen);
    report.count(Deed::Lost, lost);
    Ok(Outcome::Done)
}

fn signal(child: &Child, signal: Signal) -> io::Result<()> {
    let id = child.id().ok_or_else(|| io::Error::other("it has ended"))?;
    let id = i32::try_from(id).map_err(io::Error::other)?;
    Ok(kill(Pid::from_raw(id), signal)?)
}

//! The program, run as a user would.

#![cfg(unix)]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::str;

fn metrics(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metrics"));
    command.env("RUST_BACKTRACE", "1").stdin(Stdio::null()).args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    metrics(arguments).output().expect("it starts")
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn metrics_watchdog_evicts_the_hanging_and_not_the_pausing_consumer() {
    // Long patience, so that a busy machine does not make a thinker look as if it hung.
    let output = run(&["--messages", "20000", "--patience", "1500"]);
    let (exposition, log) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{log}");
    let has = |line: &str| assert!(exposition.lines().any(|l| l == line), "{line}: {exposition}");
    has("demux_received_total 20000");
    has("demux_detached_total{reason=\"evicted\"} 1");
    has("demux_detached_total{reason=\"finished\"} 3");
    has("demux_attachments 0");
    has("demux_queued 0");
    has("demux_discarded_total{key=\"audit\",reason=\"evicted\"} 1");
    let value = |name: &str| {
        let line = exposition.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("no {name}: {exposition}"));
        value.trim().parse::<f64>().expect("a number")
    };
    assert!(value("demux_blocked_seconds_total{key=\"audit\"}") >= 1.5, "{exposition}");
    assert!(value("demux_blocked_total{key=\"search\"}") >= 1.0, "{exposition}");
    assert!(value("demux_discarded_total{key=\"prices\",reason=\"overflowed\"}") >= 1.0);
    assert!(exposition.ends_with("# EOF\n"), "{exposition}");
    assert_eq!(log.matches("evicted, because the input waited").count(), 1, "{log}");
    assert!(log.contains("detached key=\"audit\" tag=4 reason=\"evicted\""), "{log}");
    assert_eq!(log.lines().count(), 4 + 1 + 4, "nothing is logged for each message: {log}");
}

#[test]
fn unknown_options_and_invalid_values_are_named_with_the_usage() {
    let cases: [(&[&str], &str); 3] = [
        (&["--bogus"], "invalid option '--bogus'"),
        (&["--patience", "-1"], "cannot parse argument \"-1\": invalid digit found in string"),
        (&["--messages"], "missing argument for option '--messages'"),
    ];
    for (arguments, error) in cases {
        let output = run(arguments);
        let complaint = text(&output.stderr);
        assert!(complaint.starts_with(&format!("metrics: {error}")), "{complaint}");
        assert!(complaint.contains("\nusage: metrics ["), "{complaint}");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{arguments:?}");
    }
    assert!(text(&run(&["--help"]).stdout).starts_with("usage: metrics ["));
}

/// Standard output is closed, as `head` does when it has read enough.
#[test]
fn it_does_not_panic_when_its_output_is_closed() {
    let (closed, reader) = UnixStream::pair().expect("two ends");
    drop(reader);
    let mut command = metrics(&["--messages", "100"]);
    let output = command.stdout(OwnedFd::from(closed)).stderr(Stdio::piped()).output();
    let output = output.expect("it starts");
    let complaint = text(&output.stderr);
    assert!(complaint.contains("cannot print: "), "{complaint}");
    assert_eq!(output.status.code(), Some(1), "{complaint}");
}

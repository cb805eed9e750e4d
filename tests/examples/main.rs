//! The small examples, run as programs: their output, their own checks, and the messages for
//! invalid usage.
//!
//! Time limits are watchdogs, which can only fail a test.

#![cfg(unix)] // signals, and error messages of missing files and closed connections

mod article;
mod jokes;
mod lines;

use std::env;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Longer than any step takes on a slow, busy machine.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Creates a command for an example, which `cargo test` builds into a sibling of the folder of this
/// test.
fn example(name: &str) -> Command {
    let test = env::current_exe().expect("the test has a path");
    let profile = test.ancestors().nth(2).expect("it is in <profile>/deps");
    let path = profile.join("examples").join(name);
    assert!(
        path.is_file(),
        "{} is missing: `cargo test` builds it; with `--test` or `--tests`, run \
         `cargo build --example {name}` first",
        path.display()
    );
    let mut command = Command::new(path);
    command.env("RUST_BACKTRACE", "1").stdin(Stdio::null());
    command
}

fn run(name: &str, arguments: &[&str]) -> Output {
    let mut command = example(name);
    let command = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the example starts");
    let _watchdog = Watchdog::over(&child);
    child.wait_with_output().expect("it ends")
}

/// Kills a process that does not exit.
struct Watchdog {
    /// Dropped when the process has exited.
    _done: mpsc::Sender<()>,
}

impl Watchdog {
    fn over(child: &Child) -> Self {
        let (id, (done, is_done)) = (child.id().to_string(), mpsc::channel());
        thread::spawn(move || {
            if is_done.recv_timeout(WATCHDOG) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", &id]).status();
            }
        });
        Self { _done: done }
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Returns the output of a run that must succeed.
fn printed(name: &str, arguments: &[&str]) -> String {
    let output = run(name, arguments);
    let complaints = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{name} {arguments:?}: {complaints}");
    text(&output.stdout).to_owned()
}

/// Returns the error message of a run that must fail, without the name of the example.
fn complaint(name: &str, arguments: &[&str]) -> String {
    let output = run(name, arguments);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{name} {arguments:?}: {complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    let complaint = complaint.trim_end().strip_prefix(&format!("{name}: "));
    complaint.expect("the message does not begin with the name of the example").to_owned()
}

/// Returns the numbers in a text.
fn numbers(text: &str) -> Vec<u64> {
    let words = text.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    words.map(|word| word.parse().expect("a number")).collect()
}

/// A temporary file.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: impl AsRef<[u8]>) -> Self {
        let file = format!("stream-demux-{}-{name}", std::process::id());
        let scratch = Self(env::temp_dir().join(file));
        scratch.write(content);
        scratch
    }

    fn write(&self, content: impl AsRef<[u8]>) {
        fs::write(&self.0, content).expect("cannot write the file");
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

// ---- all of them --------------------------------------------------------------------------------

const ALL: [&str; 7] =
    ["fan_in", "jokes", "lines", "shards", "static_routes", "streams_out", "workers"];

#[test]
fn help_is_printed_and_no_error() {
    for name in ALL.into_iter().chain(["article"]) {
        let help = printed(name, &["--help"]);
        assert!(help.starts_with(&format!("usage: {name} [")), "{help}");
    }
}

#[test]
fn unknown_options_and_invalid_values_are_named_with_the_usage() {
    let bad: [(&str, &[&str], &str); 8] = [
        ("article", &["--variant", "best"], "unknown variant `best`"),
        ("fan_in", &["--producers", "9", "--samples", "8"], "9 producers cannot share 8 samples"),
        ("jokes", &["--source", "tape"], "cannot parse argument \"tape\": no such source"),
        ("lines", &["--listen"], "missing argument for option '--listen'"),
        ("shards", &["--work", "1,,2"], "--work 1,,2: cannot parse integer from empty string"),
        ("static_routes", &["one", "two"], "unexpected argument \"two\""),
        ("streams_out", &["5"], "unexpected argument \"5\""),
        ("workers", &["--jobs", "0"], "cannot parse argument \"0\": number would be zero"),
    ];
    let unknown = ALL.map(|name| (name, &["--bogus"] as &[_], "invalid option '--bogus'"));
    for (name, arguments, error) in bad.into_iter().chain(unknown) {
        let output = run(name, arguments);
        let complaint = text(&output.stderr);
        let (first, usage) = complaint.split_once('\n').unwrap_or((complaint, ""));
        assert!(first.starts_with(&format!("{name}: {error}")), "{arguments:?}: {complaint}");
        assert!(usage.starts_with(&format!("usage: {name} [")), "{complaint}");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{arguments:?}");
    }
}

/// Standard output is closed, as `head` does when it has read enough.
#[test]
fn examples_do_not_panic_when_their_output_is_closed() {
    let short: [(&str, &[&str]); 5] = [
        ("fan_in", &["--samples", "1000", "--rounds", "1"]),
        ("shards", &["--items", "1000", "--rounds", "1"]),
        ("static_routes", &[]),
        ("streams_out", &["--readings", "1000"]),
        ("workers", &["--jobs", "100"]),
    ];
    for (name, arguments) in short {
        let (closed, reader) = UnixStream::pair().expect("two ends");
        drop(reader);
        let command = &mut example(name);
        let child = command.args(arguments).stdout(OwnedFd::from(closed)).stderr(Stdio::piped());
        let child = child.spawn().expect("the example starts");
        let _watchdog = Watchdog::over(&child);
        let output = child.wait_with_output().expect("it ends");
        let complaint = text(&output.stderr);
        assert!(complaint.contains("cannot print: "), "{name}: {complaint}");
        assert_eq!(output.status.code(), Some(1), "{name}: {complaint}");
    }
}

// ---- fan_in, shards, streams_out, workers: they check all items that arrive -----

#[test]
fn fan_in_receives_each_sample_once_each_way() {
    let few = ["--producers", "7", "--samples", "70003", "--room", "16", "--rounds", "1"];
    for (more, kind) in [(&[] as &[&str], "tasks"), (&["--threads"], "threads")] {
        let report = printed("fan_in", &[&few, more].concat());
        let expected = format!("70000 samples of 7 {kind}, each received once and in order\n");
        assert!(report.starts_with(&expected), "{report}");
        assert_eq!(report.matches(" ns a sample\n").count(), 3, "{report}");
    }
    printed("fan_in", &["--producers", "200", "--samples", "2000", "--room", "1", "--rounds", "1"]);
}

#[test]
fn shards_deliver_all_items_in_order_and_print_the_speed_up() {
    let few = ["--items", "30000", "--keys", "10", "--rounds", "1", "--shards", "3"];
    let more = ["--batch", "7", "--work", "0,600"];
    let report = printed("shards", &[&few[..], &more].concat());
    assert_eq!(report.matches(" x)").count(), 4, "{report}");
    // With more shards than keys, some are unused, and must end as well.
    printed("shards", &["--items", "100", "--keys", "1", "--rounds", "1", "--shards", "5"]);
}

#[test]
fn streams_out_makes_a_group_for_each_sensor_with_backpressure() {
    let report = printed("streams_out", &["--readings", "200000"]);
    let [all, sensors, subscribed, grouped, groups, lost, most] = numbers(&report)[..] else {
        panic!("{report}")
    };
    assert_eq!((all, sensors, groups), (200_000, 10, 10), "{report}");
    // Lost readings were in the channel of the dropped subscriber, or held for it.
    assert!((all - 1..=all).contains(&(subscribed + grouped)), "{report}");
    assert!((2_000..2_100).contains(&subscribed) && lost < 50, "{report}");
    assert!(most < 1_000, "the input does not wait for the readers: {report}");
}

#[test]
fn workers_do_each_job_once_and_in_order_and_are_made_again_for_returning_customers() {
    let report = printed("workers", &["--jobs", "20000"]);
    let [jobs, customers, workers, idle, most, waited] = numbers(&report)[..] else {
        panic!("{report}")
    };
    assert_eq!((jobs, customers), (20_000, 200), "{report}");
    // How many workers are reaped, and when, depends on the clock.
    assert!(workers >= customers && idle < workers, "{report}");
    assert!((1..=workers).contains(&most) && waited <= workers - customers, "{report}");
}

// ---- static_routes ------------------------------------------------------------------------------

#[test]
fn static_routes_routes_each_kind() {
    let output = run("static_routes", &[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        text(&output.stdout),
        "started\nstopped\nmetric load: 2 values, sum 1\nmetric users: 1 values, sum 12\n\
         alarms of level 1, 2 and 3: [1, 0, 1]\n8 messages, 7 delivered, 1 unmatched\n"
    );
    assert_eq!(text(&output.stderr), "static_routes: no sink for `no sink for this`\n");
}

#[test]
fn static_routes_stops_at_the_first_invalid_line_and_names_it() {
    let wrong = [
        ("metric load much", "`much`: invalid float literal"),
        ("shout hello", "neither log, metric, alarm nor trace: `shout`"),
    ];
    for (line, error) in wrong {
        let file = Scratch::new("routes", format!("log before\n{line}\nlog after\n"));
        let output = run("static_routes", &[file.path()]);
        let expected = format!("static_routes: {}: line 2: {error}\n", file.path());
        assert_eq!(text(&output.stderr), expected);
        assert_eq!(output.status.code(), Some(1));
        let printed = text(&output.stdout);
        assert!(printed.starts_with("before\n") && !printed.contains("after"), "{printed}");
        assert!(printed.ends_with("1 messages, 1 delivered, 0 unmatched\n"), "{printed}");
    }
    let nowhere = complaint("static_routes", &["/nowhere/at/all"]);
    assert!(nowhere.starts_with("cannot open /nowhere/at/all: "), "{nowhere}");
}

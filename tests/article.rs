//! The example `article`, run as a program: the counts of each variant, and the messages for
//! invalid usage.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Output};

const VARIANTS: [&str; 5] = ["demux", "select", "biased", "select-all", "lossy"];

/// Returns the path of an example, which `cargo test` builds into a sibling of the folder of this
/// test.
fn example(name: &str) -> PathBuf {
    let test = env::current_exe().expect("the test has a path");
    let profile = test.ancestors().nth(2).expect("it is in <profile>/deps");
    let path = profile.join("examples").join(format!("{name}{}", env::consts::EXE_SUFFIX));
    let release = if profile.ends_with("release") { "--release " } else { "" };
    assert!(
        path.is_file(),
        "{} is missing: `cargo test` builds it; with `--test` or `--tests`, run \
         `cargo build {release}--example {name}` first",
        path.display()
    );
    path
}

fn article(arguments: &[&str]) -> Output {
    let command = &mut Command::new(example("article"));
    command.args(arguments).env("RUST_BACKTRACE", "1").output().expect("the example starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Runs a variant, which must succeed. Returns the lines of its clients, sorted, and the last line
/// without the time.
fn run(variant: &str, messages: u64) -> (Vec<String>, String) {
    let output = article(&["--messages", &messages.to_string(), "--variant", variant]);
    assert_eq!(text(&output.stderr), "", "{variant}, {messages} messages");
    assert_eq!(output.status.code(), Some(0), "{variant}, {messages} messages");
    let mut lines = text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>();
    let last = lines.pop().expect("the last line is missing");
    let (printed, counts) = last.split_once("; ").expect("the time is followed by the counts");
    let head = format!("{variant}: {messages} messages in ");
    assert!(printed.starts_with(&head) && printed.ends_with(" ns each"), "{last}");
    lines.sort();
    (lines, counts.to_owned())
}

/// Parses a last line: messages received by each client, expected by each, unmatched, lost.
fn numbers(counts: &str) -> [u64; 8] {
    let words = counts.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    let numbers = words.map(|word| word.parse().expect("a number")).collect::<Vec<_>>();
    numbers.try_into().unwrap_or_else(|_| panic!("not eight numbers: {counts}"))
}

// ---- the demux ----------------------------------------------------------------------------------

#[test]
fn the_demux_delivers_the_expected_messages_to_each_client() {
    let (clients, counts) = run("demux", 3000);
    assert_eq!(
        counts,
        "received [1000, 750, 1000], expected [1000, 750, 1000], unmatched 250, lost 0"
    );
    // Client 1 is detached after half of the messages and attached after three quarters.
    let printed = ["0 received 1000", "1 received 250", "1 received 500", "2 received 1000"];
    assert_eq!(clients, printed.map(|printed| format!("client {printed}")));
}

/// Of 3002 messages, the first one after the order to detach client 1 is for client 1.
#[test]
fn only_the_demux_applies_an_order_before_the_next_message() {
    let (_, counts) = run("demux", 3002);
    assert_eq!(
        counts,
        "received [1001, 751, 1000], expected [1001, 751, 1000], unmatched 250, lost 0"
    );
    let (_, counts) = run("biased", 3002);
    assert_eq!(
        counts,
        "received [1001, 752, 1000], expected [1001, 751, 1000], unmatched 249, lost 0"
    );
}

#[test]
fn the_demux_without_messages_delivers_none() {
    let (clients, counts) = run("demux", 0);
    assert_eq!(counts, "received [0, 0, 0], expected [0, 0, 0], unmatched 0, lost 0");
    assert_eq!(clients, [0, 1, 2].map(|id| format!("client {id} received 0")));
}

/// Client 1 is detached and attached before the message, because orders come before items.
#[test]
fn the_demux_with_one_message_delivers_it() {
    let (clients, counts) = run("demux", 1);
    assert_eq!(counts, "received [1, 0, 0], expected [1, 0, 0], unmatched 0, lost 0");
    let printed = ["0 received 1", "1 received 0", "1 received 0", "2 received 0"];
    assert_eq!(clients, printed.map(|printed| format!("client {printed}")));
}

#[test]
fn the_demux_is_the_default_variant() {
    let output = article(&["--messages", "10"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("\ndemux: 10 messages in "), "{}", text(&output.stdout));
}

// ---- other variants
// ------------------------------------------------------------------------------

/// In some variants, the number of delivered messages is random, but every message is counted.
#[test]
fn every_variant_accounts_for_every_message() {
    for variant in VARIANTS {
        for messages in [0, 1, 3000] {
            let (_, counts) = run(variant, messages);
            let [r0, r1, r2, e0, e1, e2, unmatched, lost] = numbers(&counts);
            assert_eq!(r0 + r1 + r2 + unmatched, messages, "{variant}: {counts}");
            let missed = [(r0, e0), (r1, e1), (r2, e2)].map(|(r, e)| e.saturating_sub(r));
            assert_eq!(lost, missed.iter().sum::<u64>(), "{variant}: {counts}");
        }
    }
}

/// The loop checks for orders before every hundredth message: the first 99 messages are lost, and
/// some after client 1 is attached again.
#[test]
fn the_lossy_loop_reports_its_loss() {
    let (_, counts) = run("lossy", 3000);
    assert_eq!(
        counts,
        "received [967, 734, 967], expected [1000, 750, 1000], unmatched 332, lost 82"
    );
    let (_, counts) = run("lossy", 1);
    assert_eq!(counts, "received [0, 0, 0], expected [1, 0, 0], unmatched 1, lost 1");
}

// ---- the command line ---------------------------------------------------------------------------

const USAGE: &str =
    "usage: article [--messages N] [--variant demux|select|biased|select-all|lossy]\n";

#[test]
fn invalid_usage_is_reported_clearly() {
    let bad: [(&[&str], &str); 8] = [
        (&["--bogus"], "unknown option `--bogus`"),
        (&["3000"], "unknown option `3000`"),
        (&["--variant", "best"], "unknown variant `best`"),
        (&["--messages"], "`--messages` needs a value"),
        (&["--messages", "1", "--variant"], "`--variant` needs a value"),
        (&["--messages", "many"], "`--messages many`: invalid digit found in string"),
        (&["--messages", "-1"], "`--messages -1`: invalid digit found in string"),
        (&["--messages", ""], "`--messages `: cannot parse integer from empty string"),
    ];
    for (arguments, error) in bad {
        let output = article(arguments);
        assert_eq!(text(&output.stderr), format!("article: {error}\n{USAGE}"), "{arguments:?}");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{arguments:?}");
    }
}

#[test]
fn help_is_not_an_error() {
    for arguments in [&["--help"][..], &["--messages", "1", "--help"]] {
        let output = article(arguments);
        assert_eq!((text(&output.stdout), text(&output.stderr)), (USAGE, ""), "{arguments:?}");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    }
}

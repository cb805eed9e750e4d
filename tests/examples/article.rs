//! `article`: the counts of each variant.

use crate::{numbers, printed};

const VARIANTS: [&str; 5] = ["demux", "select", "biased", "select-all", "lossy"];

/// Runs a variant, which must succeed. Returns the last line without the time.
fn run(variant: &str, messages: u64) -> String {
    let printed = printed("article", &["--messages", &messages.to_string(), "--variant", variant]);
    let last = printed.lines().last().expect("the last line is missing");
    let (printed, counts) = last.split_once("; ").expect("the time is followed by the counts");
    let head = format!("{variant}: {messages} messages in ");
    assert!(printed.starts_with(&head) && printed.ends_with(" ns each"), "{last}");
    counts.to_owned()
}

/// Of 3002 messages, the first one after the order to detach client 1 is for client 1.
#[test]
fn only_the_demux_applies_an_order_before_the_next_message() {
    let counts = run("demux", 3002);
    assert_eq!(
        counts,
        "received [1001, 751, 1000], expected [1001, 751, 1000], unmatched 250, lost 0"
    );
    let counts = run("biased", 3002);
    assert_eq!(
        counts,
        "received [1001, 752, 1000], expected [1001, 751, 1000], unmatched 249, lost 0"
    );
}

/// In some variants, the number of delivered messages is random, but every message is counted.
#[test]
fn every_variant_accounts_for_every_message() {
    for variant in VARIANTS {
        for messages in [0, 1, 3000] {
            let counts = run(variant, messages);
            let [r0, r1, r2, e0, e1, e2, unmatched, lost] = numbers(&counts)[..] else {
                panic!("not eight numbers: {counts}")
            };
            assert_eq!(r0 + r1 + r2 + unmatched, messages, "{variant}: {counts}");
            let missed = [(r0, e0), (r1, e1), (r2, e2)].map(|(r, e)| e.saturating_sub(r));
            assert_eq!(lost, missed.iter().sum::<u64>(), "{variant}: {counts}");
        }
    }
}

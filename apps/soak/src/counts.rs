//! The counts that the server prints when it exits.

use std::collections::HashMap;

/// Counts by name, from `Totals { received: 3, .. }`, and the number of clients that were `stuck`.
pub type Counts = HashMap<String, u64>;

pub fn parse(output: &str) -> Counts {
    let mut counts = Counts::new();
    let words = output.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let mut name = None;
    for word in words.filter(|word| !word.is_empty()) {
        if let (Some(name), Ok(count)) = (name, word.parse()) {
            counts.insert(name, count);
        }
        name = word.strip_suffix(':').map(str::to_owned);
    }
    let stuck = output.lines().find_map(|line| line.split_once(" clients were stuck"));
    if let Some(Ok(stuck)) = stuck.map(|(stuck, _)| stuck.parse()) {
        counts.insert("stuck".to_owned(), stuck);
    }
    counts
}

/// Checks the counts. Returns a description of each fault.
pub fn faults(counts: &Counts, published: u64) -> Vec<String> {
    let names = ["received", "copies", "unmatched", "delivered", "discarded", "lost", "queued"];
    let mut faults = Vec::new();
    let mut get = |name: &str| {
        counts.get(name).copied().unwrap_or_else(|| {
            faults.push(format!("the server did not print the count `{name}`"));
            0
        })
    };
    let [received, copies, unmatched, delivered, discarded, lost, queued] = names.map(&mut get);
    let [attached, detached] = ["attached", "detached"].map(&mut get);
    let (input, output) = (received + copies, unmatched + delivered + discarded + lost + queued);
    if input != output {
        faults.push(format!("{input} lines and copies, {output} accounted for"));
    }
    if queued != 0 {
        faults.push(format!("{queued} lines were still queued at the end"));
    }
    if attached != detached {
        faults.push(format!("{attached} sinks were attached, but {detached} detached"));
    }
    if received < published {
        faults.push(format!(
            "the clients published {published} lines, but the server received {received}"
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{faults, parse};

    const OUTPUT: &str = "listening on 127.0.0.1:7000\n\
        2 clients were stuck; Totals { received: 10, copies: 5, unmatched: 1, delivered: 9, \
        discarded: 3, lost: 2, queued: 0, attached: 4, detached: 4 }\n";

    #[test]
    fn parses_totals_and_finds_inconsistencies() {
        let counts = parse(OUTPUT);
        assert_eq!((counts["stuck"], counts["received"], counts["detached"]), (2, 10, 4));
        assert_eq!(faults(&counts, 10), [""; 0]);
        assert_eq!(faults(&counts, 11).len(), 1);
        for (right, wrong) in [
            ("lost: 2", "lost: 1"),
            ("detached: 4", "detached: 3"),
            ("queued: 0", ""),
            ("copies: 5", "copies: 6"),
        ] {
            assert!(!faults(&parse(&OUTPUT.replace(right, wrong)), 10).is_empty(), "{wrong}");
        }
        assert!(!faults(&parse(""), 0).is_empty());
    }
}

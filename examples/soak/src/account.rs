//! What the server says at its end.

use std::collections::HashMap;

/// Its counts by name, as in `Totals { received: 3, .. }`; and how many clients were `stuck`.
pub type Account = HashMap<String, u64>;

pub fn parse(said: &str) -> Account {
    let mut account = Account::new();
    let words = said.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let mut name = None;
    for word in words.filter(|word| !word.is_empty()) {
        if let (Some(name), Ok(count)) = (name, word.parse()) {
            account.insert(name, count);
        }
        name = word.strip_suffix(':').map(str::to_owned);
    }
    let stuck = said.lines().find_map(|line| line.split_once(" clients were stuck"));
    if let Some(Ok(stuck)) = stuck.map(|(stuck, _)| stuck.parse()) {
        account.insert("stuck".to_owned(), stuck);
    }
    account
}

/// What is wrong with it.
pub fn faults(account: &Account, published: u64) -> Vec<String> {
    let names = ["received", "copies", "unmatched", "delivered", "discarded", "lost", "queued"];
    let mut faults = Vec::new();
    let mut get = |name: &str| {
        account.get(name).copied().unwrap_or_else(|| {
            faults.push(format!("the server did not say how many were {name}"));
            0
        })
    };
    let [received, copies, unmatched, delivered, discarded, lost, queued] = names.map(&mut get);
    let [attached, detached] = ["attached", "detached"].map(&mut get);
    let (came, went) = (received + copies, unmatched + delivered + discarded + lost + queued);
    if came != went {
        faults.push(format!("{came} lines and copies came, {went} are accounted for"));
    }
    if queued != 0 {
        faults.push(format!("{queued} lines were queued at the end"));
    }
    if attached != detached {
        faults.push(format!("{attached} were attached, {detached} detached"));
    }
    if received < published {
        faults.push(format!("{published} lines were published in good order, {received} received"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{faults, parse};

    const SAID: &str = "listening on 127.0.0.1:7000\n\
        2 clients were stuck; Totals { received: 10, copies: 5, unmatched: 1, delivered: 9, \
        discarded: 3, lost: 2, queued: 0, attached: 4, detached: 4 }\n";

    #[test]
    fn it_reads_the_totals_and_finds_what_does_not_add_up() {
        let account = parse(SAID);
        assert_eq!((account["stuck"], account["received"], account["detached"]), (2, 10, 4));
        assert_eq!(faults(&account, 10), [""; 0]);
        assert_eq!(faults(&account, 11).len(), 1);
        for (right, wrong) in [
            ("lost: 2", "lost: 1"),
            ("detached: 4", "detached: 3"),
            ("queued: 0", ""),
            ("copies: 5", "copies: 6"),
        ] {
            assert!(!faults(&parse(&SAID.replace(right, wrong)), 10).is_empty(), "{wrong}");
        }
        assert!(!faults(&parse(""), 0).is_empty());
    }
}

//! [`subject`]: the NATS subject of a key.
//!
//! Most keys are their own subjects, so that other programs can use them: `orders.new`, `chat:tea`.
//! A subject must not contain spaces, empty parts between dots, or wildcards, and those that begin
//! with `$` belong to the server. Such characters of a key become `%20` and so on. No two keys have
//! the same subject, and no subject is a wildcard.

/// The longest subject. A command must fit into 4,096 bytes (`max_control_line`), or the server
/// closes the connection, and each one that comes after it.
pub(crate) const LONGEST: usize = 4_000;

/// An empty subject does not exist. A `%` alone is the subject of no other key.
const EMPTY: &str = "%";

/// Returns the subject of a key.
pub(crate) fn subject(key: &str) -> String {
    if key.is_empty() {
        return EMPTY.to_owned();
    }
    let mut subject = String::with_capacity(key.len());
    let mut previous = '.';
    let mut characters = key.chars().enumerate().peekable();
    while let Some((n, character)) = characters.next() {
        let is_last = characters.peek().is_none();
        let is_kept = match character {
            // Between two parts, neither of which is empty.
            '.' => previous != '.' && !is_last,
            '$' => n > 0,
            '*' | '>' | '%' | ' ' => false,
            _ => !character.is_ascii_control(),
        };
        if is_kept {
            subject.push(character);
        } else {
            subject.push('%');
            for digit in [u32::from(character) / 16, u32::from(character) % 16] {
                // All of these characters are ASCII, so there are two digits.
                subject.extend(char::from_digit(digit, 16));
            }
        }
        previous = character;
    }
    subject
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn ordinary_keys_are_their_own_subjects() {
        for key in
            ["tea", "orders.new", "chat:green tea".split(' ').next().unwrap(), "ü.日本", "a$"]
        {
            assert_eq!(subject(key), key);
        }
    }

    #[test]
    fn what_a_subject_must_not_contain_is_encoded() {
        for (key, expected) in [
            ("", "%"),
            ("green tea", "green%20tea"),
            ("*", "%2a"),
            ("a.>", "a.%3e"),
            ("%2a", "%252a"),
            (".", "%2e"),
            (".a..b.", "%2ea.%2eb%2e"),
            ("a\r\nPING\r\n", "a%0d%0aPING%0d%0a"),
            ("\t\0\u{7f}", "%09%00%7f"),
            ("$SYS.x", "%24SYS.x"),
        ] {
            assert_eq!(subject(key), expected);
        }
    }

    #[test]
    fn no_two_keys_share_a_subject_and_none_is_a_wildcard() {
        let alphabet = ['.', '%', '2', 'e', 'a', '*', ' ', '$'];
        let mut keys = vec![String::new()];
        let mut subjects = HashMap::new();
        for _ in 0..6 {
            let longer = |key: &String| alphabet.map(|character| format!("{key}{character}"));
            keys = keys.iter().flat_map(longer).collect();
            for key in &keys {
                let subject = subject(key);
                assert!(!subject.contains(['*', '>', ' ', '\r', '\n']), "{key:?}");
                assert!(subject.split('.').all(|part| !part.is_empty()), "{key:?}: {subject:?}");
                if let Some(other) = subjects.insert(subject, key.clone()) {
                    panic!("{key:?} and {other:?} have the same subject");
                }
            }
        }
    }
}

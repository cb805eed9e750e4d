//! Checks the lines that a subscriber of numbered lines receives: the numbers increase by one,
//! except for lines that the server reported as lost just before.

/// Checks the lines of one client with one subscription.
#[derive(Default)]
pub struct Checker {
    last: Option<u64>,
    /// Lines reported as lost since the last numbered line.
    announced: u64,
    pub seen: u64,
    pub lost: u64,
}

/// A valid line.
pub enum Seen<'a> {
    Subscribed,
    Loss,
    /// A number, and the rest of the line.
    Number(u64, &'a str),
}

impl Checker {
    pub fn look<'a>(&mut self, key: &str, line: &'a str) -> Result<Seen<'a>, String> {
        if line.strip_prefix("ok sub ") == Some(key) {
            return Ok(Seen::Subscribed);
        }
        if let Some(lost) = line.strip_prefix("lost ").and_then(|lost| lost.parse::<u64>().ok()) {
            self.announced += lost;
            self.lost += lost;
            return Ok(Seen::Loss);
        }
        let text = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(' '));
        let Some(text) = text else {
            return Err(format!("subscribed {key}, but received {line:.60}"));
        };
        let (number, rest) = text.split_once(' ').unwrap_or((text, ""));
        let number: u64 = number.parse().map_err(|_| format!("{key}: no number in {line:.60}"))?;
        if let Some(last) = self.last {
            let expected = last + 1 + self.announced;
            if number != expected {
                let announced = self.announced;
                return Err(format!(
                    "{key}: {number} after {last} with {announced} reported lost, expected {expected}"
                ));
            }
        }
        (self.last, self.announced) = (Some(number), 0);
        self.seen += 1;
        Ok(Seen::Number(number, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::Checker;

    fn check(lines: &[&str]) -> Result<(), String> {
        let mut checker = Checker::default();
        lines.iter().try_for_each(|line| checker.look("tea", line).map(drop))
    }

    #[test]
    fn accepts_only_announced_gaps() {
        assert_eq!(check(&["tea 7", "tea 8", "lost 2", "tea 11 x", "lost 1", "tea 13"]), Ok(()));
        assert_eq!(check(&["lost 3", "tea 7"]), Ok(()), "the first number is arbitrary");
        for wrong in [
            &["tea 7", "tea 9"][..],
            &["tea 7", "tea 7"],
            &["tea 7", "tea 6"],
            &["tea 7", "lost 2", "tea 9"],
            &["tea 7", "lost 2", "tea 11"],
            &["tea 7", "lost 1", "tea 9", "tea 11"],
            &["teas 7"],
            &["coffee 7"],
            &["tea x"],
            &["err unknown verb"],
        ] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }
}

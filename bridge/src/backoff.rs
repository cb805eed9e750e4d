//! [`Backoff`]: how long to wait before the next attempt to connect.

use std::time::Duration;

/// Doubles the delay with each attempt, and takes a random part of it.
#[derive(Debug)]
pub(crate) struct Backoff {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

/// A connection that lasted for less than this many of the longest delays does not reset the delay.
/// An engine that accepts connections and closes them at once, such as one that is out of memory or
/// behind a proxy without a server, is asked no more often than one that refuses them.
const HELD: u32 = 2;

impl Backoff {
    pub(crate) fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest: longest.max(shortest), next: shortest }
    }

    /// Returns how long to wait after a connection that lasted for this time, zero if there was
    /// none. Between half of the delay and all of it: servers that lost the engine at the same time
    /// do not come back at the same time.
    pub(crate) fn after(&mut self, held: Duration) -> Duration {
        if held >= self.longest * HELD {
            self.next = self.shortest;
        }
        let delay = self.next;
        self.next = (delay * 2).min(self.longest);
        delay.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    fn is_part_of(delay: Duration, whole: Duration) -> bool {
        delay >= whole / 2 && delay <= whole
    }

    #[test]
    fn delay_doubles_up_to_the_longest() {
        let mut backoff = Backoff::new(SHORTEST, LONGEST);
        for whole in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let delay = backoff.after(Duration::ZERO);
            assert!(is_part_of(delay, Duration::from_millis(whole)), "{delay:?} of {whole} ms");
        }
    }

    #[test]
    fn connection_that_broke_soon_does_not_reset_the_delay() {
        let mut backoff = Backoff::new(SHORTEST, LONGEST);
        for _ in 0..6 {
            backoff.after(Duration::ZERO);
        }
        assert!(is_part_of(backoff.after(LONGEST), LONGEST));
        assert!(is_part_of(backoff.after(LONGEST * HELD), SHORTEST));
        assert!(is_part_of(backoff.after(Duration::ZERO), SHORTEST * 2));
    }

    #[test]
    fn delays_of_two_servers_differ() {
        let delays = || Backoff::new(LONGEST, LONGEST).after(Duration::ZERO);
        let first = delays();
        assert!((0..100).any(|_| delays() != first));
    }
}

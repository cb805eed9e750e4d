//! For how long messages have waited for a client, in ticks of the clock of [`crate::settle`].

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// Ages that are told apart. A client is disconnected before it has older messages
/// ([`Board::give_up_overdue`](crate::board::Board::give_up_overdue)).
const AGES: u8 = 16;

/// A clock that all clients share. It wraps around.
#[derive(Default)]
pub struct Ticks(AtomicU8);

impl Ticks {
    pub fn pass(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub fn now(&self) -> u8 {
        self.0.load(Relaxed)
    }
}

/// Counts the messages that wait for a client, by the tick in which they were routed.
#[derive(Default)]
pub struct Waiting([AtomicU32; AGES as usize]);

impl Waiting {
    pub fn add(&self, tick: u8) {
        self.of(tick).fetch_add(1, Relaxed);
    }

    pub fn remove(&self, tick: u8) {
        self.of(tick).fetch_sub(1, Relaxed);
    }

    fn of(&self, tick: u8) -> &AtomicU32 {
        &self.0[usize::from(tick % AGES)]
    }

    /// Returns how many ticks the oldest message has waited; 0 if none waits.
    pub fn oldest(&self, now: u8) -> u8 {
        let waits = |age: &u8| self.of(now.wrapping_sub(*age)).load(Relaxed) > 0;
        (0..AGES).rev().find(waits).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_message_that_waits_is_known_also_when_the_clock_wraps_around() {
        for start in [0, 250_u8] {
            let waiting = Waiting::default();
            assert_eq!(waiting.oldest(start), 0);
            for age in 0..AGES {
                waiting.add(start.wrapping_add(age));
                assert_eq!(waiting.oldest(start.wrapping_add(age)), age);
            }
            let now = start.wrapping_add(AGES - 1);
            for age in (1..AGES).rev() {
                waiting.remove(now.wrapping_sub(age));
                assert_eq!(waiting.oldest(now), age - 1);
            }
        }
    }
}

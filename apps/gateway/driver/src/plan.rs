//! The messages to publish, their order, and the subscribers of each key.

use crate::message::{self, Key};

pub struct Plan {
    pub keys: Vec<Key>,
    /// For each message, the index of its key and its number among those of the key.
    pub messages: Vec<(usize, usize)>,
    /// The number of messages of each key.
    pub counts: Vec<usize>,
    /// The approximate size of a body.
    pub size: usize,
}

impl Plan {
    /// Creates a plan, which depends on the seed only. Some keys are much busier than others.
    pub fn new(keys: usize, messages: usize, size: usize, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut counts = vec![0; keys];
        let mut one = |_| {
            // The product of two uniform numbers favors small ones.
            let index = random.usize(..keys) * random.usize(..=keys) / keys;
            counts[index] += 1;
            (index, counts[index] - 1)
        };
        let messages = (0..messages).map(&mut one).collect();
        Self { keys: (0..keys).map(message::key).collect(), messages, counts, size }
    }

    pub fn body(&self, (index, number): (usize, usize)) -> Vec<u8> {
        message::body(&self.keys[index], number, self.size)
    }

    /// Returns the keys of a client: at least one, at most `most`. The clients together subscribe
    /// to all keys if there are at least as many clients as keys.
    pub fn wanted_by(&self, client: usize, gateways: usize, most: usize) -> Vec<usize> {
        let count = (1 + client / gateways % most).min(self.keys.len());
        // Adjacent keys, except for a step: with two gateways, some keys are wanted on both.
        let mut wanted: Vec<_> =
            (0..count).map(|nth| (client + 7 * nth) % self.keys.len()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_key_are_consecutive_and_every_client_has_a_key() {
        let plan = Plan::new(50, 1_000, 0, 7);
        let mut next = vec![0; 50];
        for (index, number) in &plan.messages {
            assert_eq!(next[*index], *number);
            next[*index] += 1;
        }
        assert_eq!(next, plan.counts);
        assert_eq!(plan.messages, Plan::new(50, 1_000, 0, 7).messages);
        let mut wanted = [0; 50];
        for client in 0..50 {
            let keys = plan.wanted_by(client, 2, 3);
            assert!((1..=3).contains(&keys.len()));
            for key in keys {
                wanted[key] += 1;
            }
        }
        assert!(wanted.iter().all(|wanted| *wanted > 0));
    }
}

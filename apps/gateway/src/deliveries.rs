//! Where the fates of deliveries are sent, and how many deliveries have none yet.
//!
//! The broker delivers no more when `--prefetch` messages are unacknowledged, and the more there are,
//! the longer it takes for each acknowledgement. So what waits for clients that read slowly, or not at
//! all, would hold up all others: see [`Deliveries::are_many`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::{Notify, mpsc};

use crate::message::Verdict;

/// There are many deliveries when they are more than this part of the prefetch, which is 512 by
/// default: what four clients may have waiting.
///
/// RabbitMQ searches for the message that is acknowledged among all older ones that are not. Beside
/// 512 of them, other messages take 20 to 30 ms longer. Beside 3,840, which 30 slow clients had waiting,
/// 2,000 messages a second were too many, and the delay of others grew to 27 s within 30 s.
const PART: u16 = 16;

/// The result of a delivery.
pub struct Fate {
    pub tag: u64,
    pub verdict: Verdict,
}

/// Sends the fates of the deliveries of a channel. The receiver ends when this and all deliveries
/// are dropped.
pub struct Fates {
    sender: mpsc::UnboundedSender<Fate>,
    pub deliveries: Arc<Deliveries>,
}

impl Fates {
    /// Returns the sender and the receiver for a channel with this prefetch.
    pub fn channel(prefetch: u16) -> (Arc<Self>, mpsc::UnboundedReceiver<Fate>) {
        let (sender, received) = mpsc::unbounded_channel();
        let deliveries = Arc::new(Deliveries::new(prefetch));
        (Arc::new(Self { sender, deliveries }), received)
    }

    pub fn send(&self, fate: Fate) {
        // The receiver is gone if the connection to the broker is: the broker then redelivers by
        // itself.
        let _ = self.sender.send(fate);
    }
}

/// Tags and counts of the deliveries of a channel. The broker counts tags up from 1.
pub struct Deliveries {
    arrived: AtomicU64,
    routed: AtomicU64,
    settled: AtomicU64,
    most: u64,
    became_many: Notify,
}

impl Deliveries {
    fn new(prefetch: u16) -> Self {
        let (arrived, routed, settled, became_many) = Default::default();
        Self { arrived, routed, settled, most: u64::from(prefetch / PART), became_many }
    }

    /// Records that the broker has sent the delivery of this tag.
    pub fn set_arrived(&self, tag: u64) {
        self.arrived.store(tag, Relaxed);
    }

    /// Returns the last tag that has arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    /// Records that the demux has taken the delivery of this tag.
    pub fn set_routed(&self, tag: u64) {
        self.routed.store(tag, Relaxed);
        if self.are_many() {
            self.became_many.notify_one();
        }
    }

    /// Returns the last tag that the demux has taken.
    pub fn routed(&self) -> u64 {
        self.routed.load(Relaxed)
    }

    /// Records that as many deliveries more are settled, or are given up.
    pub fn add_settled(&self, count: u64) {
        self.settled.fetch_add(count, Relaxed);
    }

    /// Returns `true` if many are routed and not settled. What is not routed yet waits for no client.
    pub fn are_many(&self) -> bool {
        // A refused delivery is settled and never routed.
        self.routed().saturating_sub(self.settled.load(Relaxed)) > self.most
    }

    /// Waits until there are many.
    pub async fn wait_for_many(&self) {
        while !self.are_many() {
            self.became_many.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn there_are_many_when_more_than_a_part_of_the_prefetch_is_routed_and_not_settled() {
        for (prefetch, most) in [(1, 0), (8192, 512), (8207, 512)] {
            let deliveries = Deliveries::new(prefetch);
            let are_many = || deliveries.wait_for_many().now_or_never().is_some();
            deliveries.set_arrived(8000);
            deliveries.set_routed(most);
            assert!(!are_many(), "{prefetch}");
            deliveries.set_routed(most + 1);
            assert!(are_many());
            deliveries.add_settled(1);
            assert!(!are_many());
            deliveries.set_routed(most + 2);
            assert!(are_many());
            deliveries.add_settled(most + 9); // some were refused, and not routed
            assert!(!are_many());
        }
    }

    #[tokio::test]
    async fn what_waits_for_many_is_woken() {
        let deliveries = Deliveries::new(PART);
        futures::join!(deliveries.wait_for_many(), async {
            for tag in 1..=2 {
                tokio::task::yield_now().await;
                deliveries.set_routed(tag);
            }
        });
    }
}

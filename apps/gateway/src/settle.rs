//! Acknowledges messages to the broker, in as few frames as possible.
//!
//! One acknowledgement can cover all messages up to a tag, but only up to the oldest message that
//! still waits for a client. Later messages are acknowledged singly, so that a stalled client uses
//! no more of the prefetch than the messages that wait for it. Most of these gaps are short,
//! because messages are flushed client by client. So an acknowledgement behind a gap is deferred
//! once, until the next batch.
//!
//! RabbitMQ closes a channel with a message that was unacknowledged for longer than its
//! `consumer_timeout` (30 minutes), and redelivers all others of the channel with it. So a message is
//! [overdue](Ages) before that, after `--ack-timeout`. If the policy drops messages for slow clients,
//! an overdue one is acknowledged although clients still wait for it. They still get it; what they
//! lose is that it is redelivered if the gateway ends first. With `wait` no message may be lost, and
//! the clients that it waits for are [disconnected](Board::give_up_overdue) instead. If it waits for
//! none yet, because a client blocks the input, that client [is](Board::give_up_slowest), but only
//! while the oldest message gets [older](Lag): when a client is gone, the others need time to catch up.
//!
//! If the policy drops messages, clients that read slowly must not hold up the others. While
//! [many](Deliveries::are_many) messages wait, they are overdue after [`CROWDED`].

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{OptionFuture, join, try_join_all};
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::amqp::SHORTEST_PAUSE;
use crate::board::Board;
use crate::deliveries::{Deliveries, Fate};
use crate::log::OVERDUE;
use crate::message::Verdict;

/// Maximum number of fates handled together: those that arrive while acknowledgements are written.
const BATCH: usize = 1024;
/// How often in the time-out the ages are checked: an overdue message is seven to eight parts old.
const PARTS: u8 = 8;
/// For how many ticks tags are remembered: one and a half times the time-out. When a message is so old,
/// it does not matter any more whether the clients are catching up: the broker may wait for twice the
/// time-out only, and all clients hear messages again if it closes the channel.
const OLDEST: u8 = PARTS + PARTS / 2;

/// When a message is overdue while many wait. A socket whose client reads accepts a message at once,
/// and if the processor is busy, the gateway writes it some milliseconds later. On the other hand, the
/// broker has to deliver what comes in this time, for clients that do not read as well: at 2,000
/// messages a second, a thousand wait in addition to the many.
const CROWDED: Duration = Duration::from_millis(500);

/// When a message is overdue, and what happens then.
pub struct Deadline {
    pub limit: Duration,
    /// It is acknowledged. Otherwise a client is disconnected.
    pub acknowledges: bool,
}

/// Runs until all messages are dropped and no more can come. Once a message is settled, the delay
/// before the next reconnect is reset; before that, a message in the queue may be what ends each
/// connection.
pub async fn settle(
    channel: &Channel,
    board: &Board,
    mut incoming: mpsc::UnboundedReceiver<Fate>,
    deliveries: &Deliveries,
    deadline: &Deadline,
    pause: &mut Duration,
) -> lapin::Result<()> {
    let (mut fates, mut runs) = (Vec::with_capacity(BATCH), Runs::default());
    let (mut watch, mut lag) = (Watch::new(board, deliveries, deadline), Lag::default());
    loop {
        let mut overdue = None;
        if runs.put_off.is_empty() {
            tokio::select! {
                count = incoming.recv_many(&mut fates, BATCH) => {
                    if count == 0 {
                        return Ok(());
                    }
                }
                old = watch.next() => overdue = old,
            }
        } else {
            yield_now().await;
            overdue = watch.next().now_or_never().flatten();
        }
        if fates.is_empty() || overdue.is_some() {
            // What is settled is not overdue. There are at most as many as the prefetch.
            let most = if overdue.is_some() { usize::MAX } else { BATCH };
            fates.extend(std::iter::from_fn(|| incoming.try_recv().ok()).take(most));
        }
        let is_settled = !fates.is_empty(); // not at a tick alone
        let mut nacks = Vec::new();
        let mut settled_now = 0; // counted together, as the task of the demux reads the count
        for Fate { tag, verdict } in fates.drain(..) {
            if runs.given_up.remove(&tag) {
                continue; // acknowledged before
            }
            if board.is_draining() && matches!(verdict, Verdict::Lost | Verdict::Repeat) {
                // The client gets it from the next gateway. The broker returns all of them when the
                // channel ends, in their order: a quorum queue would put each that is returned alone
                // behind all others.
                board.requeued.inc();
                continue;
            }
            runs.close(tag);
            settled_now += 1;
            let requeue = match verdict {
                Verdict::Acknowledge | Verdict::Lost => None,
                Verdict::Repeat => Some(true),
                Verdict::Refuse => Some(false),
            };
            if let Some(requeue) = requeue {
                let count = if requeue { &board.requeued } else { &board.refused };
                count.inc();
                nacks.push(channel.basic_nack(tag, BasicNackOptions { requeue, multiple: false }));
            } else {
                runs.settled.push(tag);
            }
        }
        deliveries.add_settled(settled_now);
        let is_overdue = overdue.is_some_and(|tag| runs.has_open(tag));
        if overdue.is_some() && !is_overdue {
            lag = Lag::default();
        }
        if let Some(tag) = overdue.filter(|_| is_overdue) {
            if deadline.acknowledges {
                let count = runs.give_up(tag);
                deliveries.add_settled(count as u64);
                if OVERDUE.allows() {
                    info!(count, "messages wait for clients for too long, and are acknowledged");
                }
            } else {
                let has_grown = lag.has_grown(watch.ages.of(runs.oldest()));
                let overdue = board.give_up_overdue(PARTS);
                let slowest = || if has_grown { board.give_up_slowest() } else { None };
                let slow = overdue.or_else(|| slowest().map(|client| vec![client]));
                if slow.is_some() {
                    lag.excuse();
                }
                for client in slow.into_iter().flatten() {
                    warn!(%client, "a client holds up the others for too long, and is disconnected");
                }
            }
        }
        try_join_all(nacks).await?; // before an acknowledgement that covers the same tags
        let Acks { up_to, single, count } = runs.acknowledge();
        let ack = |multiple| move |tag| channel.basic_ack(tag, BasicAckOptions { multiple });
        let singly = try_join_all(single.into_iter().map(ack(false)));
        let (first, rest) = join(try_join_all(up_to.map(ack(true))), singly).await;
        first.and(rest)?;
        board.acknowledged.inc_by(count);
        if is_settled {
            *pause = SHORTEST_PAUSE;
        }
    }
}

/// Tells which messages are overdue.
struct Watch<'a> {
    board: &'a Board,
    deliveries: &'a Deliveries,
    /// Of all that have arrived, because the broker counts their ages.
    ages: Ages,
    /// While many wait; `None` if they must not be acknowledged.
    crowd: Option<Ages>,
}

impl<'a> Watch<'a> {
    fn new(board: &'a Board, deliveries: &'a Deliveries, deadline: &Deadline) -> Self {
        let crowd = deadline.acknowledges.then(|| Ages::new(CROWDED));
        Self { board, deliveries, ages: Ages::new(deadline.limit), crowd }
    }

    /// Waits for the next tick. Returns the last tag that is overdue.
    async fn next(&mut self) -> Option<u64> {
        let Self { board, deliveries, ages, crowd } = self;
        let crowd = OptionFuture::from(crowd.as_mut().map(|crowd| crowd.next_of_many(deliveries)));
        tokio::select! {
            old = ages.next(|| deliveries.arrived()) => {
                board.pass_tick();
                old
            }
            Some(old) = crowd => old,
        }
    }
}

/// Tells which messages are old, from the tags that had arrived at each tick. It counts ticks and not
/// time: after a pause of the process, what has been settled in the meantime is heard first.
struct Ages {
    tick: Interval,
    /// The last tags at the last ticks.
    tags: VecDeque<u64>,
}

impl Ages {
    fn new(limit: Duration) -> Self {
        let mut tick = interval(limit / u32::from(PARTS));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { tick, tags: VecDeque::new() }
    }

    /// Waits for the next tick. Returns the last tag that is overdue.
    async fn next(&mut self, last: impl Fn() -> u64) -> Option<u64> {
        self.tick.tick().await;
        self.tags.push_back(last());
        if self.tags.len() > usize::from(OLDEST) {
            self.tags.pop_front();
        }
        let overdue = self.tags.len().checked_sub(usize::from(PARTS))?;
        Some(self.tags[overdue])
    }

    /// Returns the number of ticks since this tag has arrived, at most [`OLDEST`].
    fn of(&self, tag: u64) -> u8 {
        let before = self.tags.partition_point(|other| *other < tag);
        u8::try_from(self.tags.len() - before).unwrap_or(OLDEST)
    }

    /// The same, but only while many are routed and unsettled, and for those that are routed.
    async fn next_of_many(&mut self, deliveries: &Deliveries) -> Option<u64> {
        if !deliveries.are_many() {
            self.tags.clear();
            deliveries.wait_for_many().await;
            self.tick.reset();
        }
        self.next(|| deliveries.routed()).await
    }
}

/// Whether the oldest message gets older. Otherwise the clients are catching up, and what makes the
/// message old is over.
struct Lag {
    /// The age at the last tick.
    last: u8,
}

impl Default for Lag {
    fn default() -> Self {
        Self { last: PARTS - 1 }
    }
}

impl Lag {
    /// Called at each tick at which the oldest message is overdue.
    fn has_grown(&mut self, age: u8) -> bool {
        let last = std::mem::replace(&mut self.last, age);
        age > last || age == OLDEST
    }

    /// Called when a client is disconnected, and while it is: what has waited until then is older,
    /// through no fault of the others.
    fn excuse(&mut self) {
        self.last = u8::MAX;
    }
}

/// Tracks which messages are settled, by delivery tag. The broker counts tags up from 1 on each
/// channel.
struct Runs {
    /// The first tag that has not been seen.
    next: u64,
    /// Unsettled tags below `next`: at most the prefetch.
    open: BTreeSet<u64>,
    /// Settled, to be acknowledged.
    settled: Vec<u64>,
    /// Settled, and deferred once because of a gap.
    put_off: Vec<u64>,
    /// Acknowledged, although they are not settled: as many as wait for clients, which is bounded.
    given_up: HashSet<u64>,
}

#[derive(Debug, Default, PartialEq)]
struct Acks {
    /// Acknowledges all unsettled tags up to this one. It must be unsettled at the broker.
    up_to: Option<u64>,
    single: Vec<u64>,
    count: u64,
}

impl Default for Runs {
    fn default() -> Self {
        Self {
            next: 1,
            open: BTreeSet::new(),
            settled: Vec::new(),
            put_off: Vec::new(),
            given_up: HashSet::new(),
        }
    }
}

impl Runs {
    /// Marks a tag as settled.
    fn close(&mut self, tag: u64) {
        if tag >= self.next {
            self.open.extend(self.next..tag);
            self.next = tag + 1;
        } else {
            self.open.remove(&tag);
        }
    }

    /// Returns the oldest tag that is not settled.
    fn oldest(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next)
    }

    /// Returns `true` if a message up to this tag is not settled.
    fn has_open(&self, up_to: u64) -> bool {
        self.oldest() <= up_to
    }

    /// Acknowledges all messages up to this tag that are not settled. Returns their number.
    fn give_up(&mut self, up_to: u64) -> usize {
        if self.next <= up_to {
            self.open.extend(self.next..=up_to);
            self.next = up_to + 1;
        }
        let rest = self.open.split_off(&(up_to + 1));
        let old = std::mem::replace(&mut self.open, rest);
        self.settled.extend(&old);
        self.given_up.extend(&old);
        old.len()
    }

    /// Returns the acknowledgements to send now.
    fn acknowledge(&mut self) -> Acks {
        let gap = self.oldest();
        let (run, mut single): (Vec<_>, Vec<_>) =
            self.put_off.drain(..).partition(|tag| *tag < gap);
        let mut acks = Acks { up_to: run.iter().copied().max(), ..Acks::default() };
        let mut count = run.len() + single.len();
        for tag in self.settled.drain(..) {
            if tag < gap {
                acks.up_to = acks.up_to.max(Some(tag));
                count += 1;
            } else {
                self.put_off.push(tag);
            }
        }
        single.sort_unstable(); // the broker searches each from the oldest
        Acks { single, count: count as u64, ..acks }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::deliveries::Fates;

    fn settled(runs: &mut Runs, tags: &[u64]) -> Acks {
        for tag in tags {
            runs.close(*tag);
            runs.settled.push(*tag);
        }
        runs.acknowledge()
    }

    fn acks(up_to: impl Into<Option<u64>>, single: &[u64], count: u64) -> Acks {
        Acks { up_to: up_to.into(), single: single.to_vec(), count }
    }

    #[test]
    fn a_run_from_the_oldest_on_is_one_acknowledgement_in_whatever_order_it_was_settled() {
        let mut runs = Runs::default();
        assert_eq!(settled(&mut runs, &[3, 1, 2]), acks(3, &[], 3));
        assert_eq!(settled(&mut runs, &[4]), acks(4, &[], 1));
        assert_eq!(settled(&mut runs, &[]), acks(None, &[], 0));
    }

    #[test]
    fn tags_behind_a_gap_are_deferred_once_and_then_acknowledged_singly() {
        let mut runs = Runs::default();
        assert_eq!(settled(&mut runs, &[1, 4, 3]), acks(1, &[], 1));
        assert_eq!(settled(&mut runs, &[6]), acks(None, &[3, 4], 2));
        assert_eq!(settled(&mut runs, &[]), acks(None, &[6], 1));
        assert!(runs.put_off.is_empty());
        // Once the gap closes, tags that were acknowledged before are skipped, and are not the end
        // of the run.
        assert_eq!(settled(&mut runs, &[2]), acks(2, &[], 1));
        assert_eq!(settled(&mut runs, &[5, 7]), acks(7, &[], 2));
    }

    #[test]
    fn a_gap_that_closes_at_once_costs_nothing() {
        let mut runs = Runs::default();
        assert_eq!(settled(&mut runs, &[2, 3]), acks(None, &[], 0));
        assert_eq!(settled(&mut runs, &[1, 5]), acks(3, &[], 3));
        assert_eq!(settled(&mut runs, &[4]), acks(5, &[], 2));
        assert!(runs.open.is_empty());
    }

    #[test]
    fn a_refused_message_ends_no_run_and_is_no_gap() {
        let mut runs = Runs::default();
        runs.close(2);
        assert_eq!(settled(&mut runs, &[1]), acks(1, &[], 1));
        runs.close(3);
        assert_eq!(settled(&mut runs, &[4]), acks(4, &[], 1));
    }

    #[test]
    fn overdue_messages_are_acknowledged_once() {
        let mut runs = Runs::default();
        assert_eq!(settled(&mut runs, &[1, 3]), acks(1, &[], 1));
        assert!(!runs.has_open(1) && runs.has_open(2) && runs.has_open(9));
        assert_eq!(runs.give_up(5), 3, "2, 4 and 5");
        assert_eq!(runs.acknowledge(), acks(5, &[], 4));
        assert_eq!((runs.given_up.len(), runs.open.len(), runs.next), (3, 0, 6));
        assert_eq!(settled(&mut runs, &[7]), acks(None, &[], 0));
        assert_eq!(runs.give_up(5), 0);
        assert_eq!(settled(&mut runs, &[6]), acks(7, &[], 2));
    }

    #[tokio::test]
    async fn the_age_of_a_message_is_known_beyond_the_limit() {
        tokio::time::pause();
        let mut ages = Ages::new(Duration::from_secs(8));
        for tag in 1..100 {
            assert_eq!(ages.next(|| tag).await, tag.checked_sub(7).filter(|tag| *tag > 0));
            for (other, age) in [(tag + 1, 0), (tag, 1), (tag.saturating_sub(7), 8), (1, OLDEST)] {
                assert_eq!(u64::from(ages.of(other)), u64::from(age).min(tag), "{other} {tag}");
            }
        }
    }

    #[test]
    fn a_client_is_at_fault_only_if_the_oldest_message_gets_older() {
        let mut lag = Lag::default();
        let ages = [PARTS, PARTS + 1, PARTS + 1, PARTS, PARTS + 1, OLDEST, OLDEST];
        let grown = ages.map(|age| lag.has_grown(age));
        assert_eq!(grown, [true, true, false, false, true, true, true]);
        // Another one has been disconnected, and the rest catches up.
        lag.excuse();
        let grown = [PARTS + 3, PARTS + 2, PARTS].map(|age| lag.has_grown(age));
        assert_eq!(grown, [false; 3]);
        assert!(lag.has_grown(PARTS + 1));
    }

    #[tokio::test]
    async fn a_message_is_overdue_after_seven_to_eight_parts_of_the_limit() {
        tokio::time::pause();
        let mut ages = Ages::new(Duration::from_secs(8));
        let start = tokio::time::Instant::now();
        assert_eq!(ages.next(|| 0).await, None);
        while ages.next(|| 7).await != Some(7) {}
        assert_eq!(start.elapsed().as_secs(), 8);
    }

    #[tokio::test]
    async fn a_message_is_overdue_soon_while_many_wait() {
        tokio::time::pause();
        let (fates, _received) = Fates::channel(64);
        let deliveries = &fates.deliveries;
        let mut crowd = Ages::new(CROWDED);
        for first in [0, 5] {
            deliveries.set_routed(first + 4);
            let few = timeout(10 * CROWDED, crowd.next_of_many(deliveries)).await;
            assert!(few.is_err(), "four of 64");
            deliveries.set_routed(first + 5);
            let start = tokio::time::Instant::now();
            loop {
                match crowd.next_of_many(deliveries).await {
                    None => {}
                    overdue => break assert_eq!(overdue, Some(first + 5)),
                }
            }
            assert!(
                (CROWDED * 7 / 8..=CROWDED).contains(&start.elapsed()),
                "{:?}",
                start.elapsed()
            );
            deliveries.add_settled(5);
        }
    }

    #[test]
    fn an_unsettled_message_costs_no_memory_for_settled_ones() {
        let mut runs = Runs::default();
        for tag in 2..100_000 {
            settled(&mut runs, &[tag]);
        }
        assert_eq!((runs.open.len(), runs.put_off.len()), (1, 1));
    }

    #[test]
    fn in_any_order_each_message_is_acknowledged_once_and_not_too_early() {
        let (mut runs, mut random) = (Runs::default(), 1_u64);
        let (mut waiting, mut unacked) = (Vec::new(), BTreeSet::new());
        for tag in 1..=5_000 {
            waiting.push(tag);
            unacked.insert(tag);
            while waiting.len() > 64 || tag == 5_000 && !waiting.is_empty() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                let some = (random >> 33) as usize % waiting.len();
                let some = waiting.swap_remove(some);
                let Acks { up_to, single, count } = settled(&mut runs, &[some]);
                let before = unacked.len();
                for tag in up_to.iter().chain(&single) {
                    assert!(unacked.remove(tag), "{tag} is not unacknowledged");
                }
                unacked.retain(|tag| Some(*tag) > up_to);
                assert_eq!((before - unacked.len()) as u64, count);
                assert!(waiting.iter().all(|tag| unacked.contains(tag)));
            }
        }
        settled(&mut runs, &[]);
        assert!(runs.put_off.is_empty() && runs.open.is_empty());
    }
}

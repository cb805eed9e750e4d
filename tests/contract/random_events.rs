//! Guarantees that hold whatever happens (1 to 4, 8 to 11): many sinks with random events, and
//! monitors for what may be seen. The kit checks the contracts of `Sink`, `Stream` and `Future`, and
//! the rig checks the totals after every poll. `random_schedules` compares the same with a model.

use std::collections::BTreeMap;
use std::task::Poll;

use crate::common::{Answer, Call, Dice, Op, Rig, SinkHandle, Split, Terms};
use stream_demux::{Demux, Lease, Order, Overflow};

/// The rank of an item among all items. Items that end in 9 are not admitted.
fn rank(item: u32) -> u32 {
    item % 100_000
}

/// Sinks under the keys 0 to 4, tagged with their numbers from 1 on.
struct Crowd {
    rig: Rig,
    dice: Dice,
    sinks: Vec<SinkHandle<u32>>,
    leases: Vec<Lease>,
    conflates: bool,
    monitor: Monitor,
}

/// What the hooks have said so far.
#[derive(Default)]
struct Monitor {
    /// Keys for which `key_attached` was called, and `key_detached` was not.
    keys: Vec<String>,
    blocked: Option<String>,
    /// How often a line with this first word was logged.
    counts: BTreeMap<String, u64>,
    /// How often `attached` and `detached` were called for each recipient.
    seen: BTreeMap<String, [u64; 2]>,
}

impl Monitor {
    fn hear(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        *self.counts.entry(words[0].to_owned()).or_default() += 1;
        match words[..] {
            ["key", key, "attached"] => self.keys.push(key.to_owned()),
            ["key", key, "detached"] => {
                let at = self.keys.iter().position(|other| other == key);
                self.keys.remove(at.expect("key_detached without key_attached"));
            }
            ["blocked", on] => assert_eq!(self.blocked.replace(on.to_owned()), None),
            ["unblocked", on] => assert_eq!(self.blocked.take().as_deref(), Some(on)),
            ["attached", to] => self.seen.entry(to.to_owned()).or_default()[0] += 1,
            ["detached", to, ..] => self.seen.entry(to.to_owned()).or_default()[1] += 1,
            ["discarded", item, .., "NotAdmitted"] => assert!(item.ends_with('9'), "{line}"),
            _ => {}
        }
    }

    fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }
}

impl Crowd {
    fn new(seed: u64, settings: fn(Split) -> Split) -> Self {
        let mut dice = Dice::new(seed);
        let (budget, window) = (1 + dice.below(12) as usize, 1 + dice.below(9) as usize);
        let idle = dice.below(2) * 3;
        let rig = Rig::keyed(
            |item| item / 100_000,
            |demux| settings(demux.budget(budget).flush_every(window).idle_timeout(idle)),
        );
        let rig = rig.admitting(|_, item| item % 10 != 9);
        rig.log.keep_only(|line| !line.ends_with('?') && !line.starts_with("sink "));
        let conflates = seed % 2 == 0;
        let (sinks, leases, monitor) = Default::default();
        Self { rig, dice, sinks, leases, conflates, monitor }
    }

    /// Sends items or an order, ends a lease, changes what a sink does, or polls.
    fn act(&mut self, step: u32) {
        let Self { rig, dice, sinks, leases, .. } = self;
        let key = dice.below(5);
        match dice.below(18) {
            0..=4 => rig.push([key * 100_000 + step]),
            5 | 6 => self.attach(key),
            7 => rig.orders.push(Order::Detach(key)),
            8 => rig.orders.push(Order::Tick),
            9 if dice.below(3) == 0 => rig.orders.push(Order::Evict(key)),
            10 => drop(leases.pop().filter(|_| dice.below(2) == 0).map(Lease::detach)),
            11 => rig.orders.stutter(),
            12 => rig.input.stutter(),
            13 | 14 if !sinks.is_empty() => self.disturb(),
            _ => (0..self.dice.below(4)).for_each(|_| {
                let spurious = step % 8 == 0;
                let turn = if spurious { self.rig.task.poll() } else { self.rig.task.turns(1) };
                assert!(turn.is_pending());
                self.check();
            }),
        }
    }

    fn attach(&mut self, key: u32) {
        let Self { rig, dice, sinks, leases, .. } = self;
        let mut policies =
            vec![Overflow::Wait, Overflow::DropNewest, Overflow::DropOldest, Overflow::Evict];
        policies.extend(self.conflates.then_some(Overflow::Conflate));
        let terms = |attach: Terms| {
            let attach = attach.tag(sinks.len() as u64 + 1).buffer(dice.below(4) as usize);
            let attach = attach.overflow(dice.pick(&policies));
            let attach = match dice.below(10) {
                0 | 1 => attach.limit(u64::from(dice.below(4))),
                2 => attach.catch_all(),
                3 => attach.keep_existing(),
                4 => attach.stall_timeout(2),
                5 => attach.idle_timeout(2),
                _ => attach,
            };
            if dice.below(3) > 0 {
                return attach;
            }
            let mut lease = Lease::new();
            let attach = attach.leased(&mut lease);
            leases.push(lease);
            attach
        };
        let sink = rig.order(key, "sink", terms);
        sink.lenient(); // the wakers of former sinks of its slot may fire
        if dice.below(2) == 0 {
            sink.park();
        }
        sinks.push(sink);
    }

    fn disturb(&mut self) {
        let sink = &self.sinks[self.dice.below(self.sinks.len().try_into().unwrap()) as usize];
        let op = self.dice.pick(&[Op::Ready, Op::Flush, Op::Close]);
        match self.dice.below(9) {
            0 => sink.open(),
            1 => sink.allow(2),
            2 => sink.hold(op),
            3 => sink.release(op),
            4 => sink.stutter(op, 2),
            5 => drop(sink.wake()),
            6 if self.dice.below(3) == 0 => sink.fail(op),
            7 if self.dice.below(3) == 0 => sink.fail(Op::Send),
            _ => sink.park(),
        }
    }

    #[track_caller]
    fn check(&mut self) {
        self.rig.check_totals();
        self.rig.log.take().iter().for_each(|line| self.monitor.hear(line));
        let demux = self.rig.demux();
        let mut keys: Vec<_> = demux.recipients().map(|to| to.key.to_string()).collect();
        keys.sort();
        keys.dedup();
        self.monitor.keys.sort();
        assert_eq!(keys, self.monitor.keys);
        assert!((0..5).all(|key| demux.contains_key(&key) == keys.contains(&key.to_string())));
        let blocked = demux.blocked_on().map(|on| format!("{}#{}", on.key, on.tag));
        assert_eq!(blocked, self.monitor.blocked);
    }
}

/// Plays random events, then lets everything end, and compares what sinks and hooks have got.
#[track_caller]
fn play(seed: u64, settings: fn(Split) -> Split) {
    let mut crowd = Crowd::new(seed, settings);
    (1..1_500).for_each(|step| crowd.act(step));
    if seed % 3 == 0 {
        crowd.rig.orders.push(Order::Finish);
    } else {
        crowd.rig.input.end();
    }
    for sink in &crowd.sinks {
        for op in [Op::Ready, Op::Flush, Op::Close] {
            sink.release(op);
        }
    }
    if seed % 7 == 0 {
        crowd.rig.orders.push(Order::Abort);
    }
    let Poll::Ready(all) = crowd.rig.run() else { panic!("seed {seed}: the task has parked") };
    crowd.check();

    let Crowd { rig, monitor, sinks, conflates, .. } = crowd;
    drop(rig); // with the orders that were not read before the last close
    assert!(monitor.seen.values().all(|&seen| seen == [1, 1]), "seed {seed}");
    assert_eq!(monitor.seen.len() as u64, all.attached, "seed {seed}");
    let hooks = (monitor.count("unmatched"), monitor.count("discarded"));
    assert_eq!((all.unmatched, all.discarded), hooks, "seed {seed}");
    let taken: usize = sinks.iter().map(SinkHandle::taken).sum();
    assert_eq!(all.delivered, taken as u64, "seed {seed}");
    let lost = sinks.iter().filter(|sink| sink.calls().contains(&Call::Send(Answer::Failed)));
    assert_eq!(all.lost, lost.count() as u64, "seed {seed}");
    for sink in sinks {
        let ordered = sink.items().is_sorted_by_key(|item| rank(*item));
        assert!(ordered || conflates, "seed {seed}: {:?}", sink.items());
        assert!(sink.is_dropped() && sink.breaches().is_empty(), "seed {seed}");
        assert!(!sink.is_closed() || sink.flushed() == sink.taken(), "seed {seed}");
    }
}

const ROUNDS: u64 = if cfg!(debug_assertions) { 60 } else { 600 };

#[test]
fn one_sink_for_each_key() {
    (1..=ROUNDS).for_each(|seed| play(seed, |demux| demux));
}

#[test]
fn groups_that_get_copies() {
    (1..=ROUNDS).for_each(|seed| play(seed, Demux::multicast));
}

#[test]
fn sinks_that_share_queues() {
    (1..=ROUNDS).for_each(|seed| play(seed, Demux::balance));
}

//! Sinks that have room for everything get everything, under every policy, on every runtime of
//! tokio, wherever the items come from. Such a sink is not ready only when it yields, because the
//! cooperative budget of the task is spent. This may happen after any number of operations: the
//! task that was woken last runs next on its worker, with what its waker left of the budget.
//!
//! Tests guarantees 2 and 3 and the attachment rule on `Overflow`. `really_full` is the opposite.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::{env, mem};

use crate::common::real::{Fates, Flavor, POLICIES, Pipe, RUNTIMES, Receipt, Sending, Sharing};
use futures::future::{self, BoxFuture};
use futures::{FutureExt, SinkExt, StreamExt, stream};
use model::dice::Dice;
use stream_demux::{Attach, DemuxStreamExt, Overflow, Totals};
use tokio::task;

/// What forwards items from one pipe to the next.
#[derive(Clone, Copy, Debug)]
enum Bridge {
    Task,
    Demux,
}

/// A row of the table: a program in which each sink has room for everything.
#[derive(Clone, Debug)]
struct Case {
    runtime: Flavor,
    /// Whether the demux is awaited in `block_on`, or spawned.
    in_block_on: bool,
    sharing: Sharing,
    keys: u32,
    /// Sinks of each key.
    members: u32,
    sinks: Pipe,
    overflow: Overflow,
    buffer: Option<usize>,
    budget: Option<usize>,
    items: u32,
    /// What the producer sends to, and its room.
    input: (Pipe, usize),
    /// What forwards the items from there to the demux, and what to.
    bridges: Vec<(Bridge, Pipe)>,
    /// The producer sends this many items at once. Before that, it yields `idle` times, and then
    /// does `spent` operations of tokio.
    burst: usize,
    idle: usize,
    spent: usize,
    /// Whether its sending is `unconstrained`, so that it does not count as operations.
    unconstrained: bool,
    /// Tasks that use up their budgets all the time.
    busy_tasks: usize,
    /// Whether the sinks are read while the demux runs, or afterwards.
    read_at_once: bool,
    /// How many of these programs run at the same time.
    programs: usize,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            runtime: Flavor::CurrentThread,
            in_block_on: false,
            sharing: Sharing::Alone,
            keys: 1,
            members: 1,
            sinks: Pipe::Tokio,
            overflow: Overflow::Evict,
            buffer: None,
            budget: None,
            items: 3_000,
            input: (Pipe::Tokio, 99),
            bridges: Vec::new(),
            burst: 3_000,
            idle: 0,
            spent: 0,
            unconstrained: false,
            busy_tasks: 0,
            read_at_once: true,
            programs: 1,
        }
    }
}

/// The result of a run.
struct Outcome {
    totals: Totals,
    fates: BTreeMap<(&'static str, &'static str), usize>,
    /// What was read from each sink, key by key.
    read: Vec<Vec<u32>>,
}

impl Case {
    /// Sends all items.
    async fn produce(self, mut to: Sending) {
        let mut items = 0..self.items;
        while !items.is_empty() {
            for _ in 0..self.idle {
                task::yield_now().await;
            }
            for _ in 0..self.spent {
                task::consume_budget().await;
            }
            let mut burst = stream::iter(items.by_ref().take(self.burst).map(Ok));
            let sent = to.send_all(&mut burst);
            let sent =
                if self.unconstrained { task::unconstrained(sent).await } else { sent.await };
            sent.expect("the demux was dropped");
        }
    }

    /// Creates a demux. Its orders do not yield (see `yielding_orders`), and do not end.
    fn demux(
        &self,
        input: Receipt,
        keys: u32,
        sinks: Vec<Attach<u32, Sending>>,
        fates: Fates,
    ) -> BoxFuture<'static, Totals> {
        let orders = stream::iter(sinks).chain(stream::pending());
        let demux = input.demux_by(move |n| n % keys, orders).hooks(fates);
        let mut demux = demux.overflow(self.overflow);
        if let Some(buffer) = self.buffer {
            demux = demux.buffer(buffer);
        }
        if let Some(budget) = self.budget {
            demux = demux.budget(budget);
        }
        match self.sharing {
            Sharing::Alone => demux,
            Sharing::Multicast => demux.multicast(),
            Sharing::Balance => demux.balance(),
        }
        .boxed()
    }
}

impl Case {
    /// Spawns the producer and the bridges. Returns the input of the demux.
    async fn input(&self) -> Receipt {
        let (feed, mut input) = self.input.0.open(self.input.1).await;
        task::spawn(self.clone().produce(feed));
        for (bridge, pipe) in &self.bridges {
            let (mut to, next) = pipe.open(self.items as usize).await;
            let mut from = mem::replace(&mut input, next);
            match bridge {
                Bridge::Task => drop(task::spawn(async move {
                    while let Some(item) = from.next().await {
                        to.send(item).await.expect("the demux was dropped");
                    }
                })),
                Bridge::Demux => {
                    let sinks = vec![Attach::new(0, to)];
                    task::spawn(self.demux(from, 1, sinks, Fates::default()));
                }
            }
        }
        input
    }

    /// The program: runs the demux, and reads what its sinks got.
    async fn program(self) -> Outcome {
        for _ in 0..self.busy_tasks {
            task::spawn(async {
                loop {
                    task::consume_budget().await;
                }
            });
        }
        let (mut sinks, mut receipts) = (Vec::new(), Vec::new());
        for n in 0..self.keys * self.members {
            let (sink, receipt) = self.sinks.open(self.items as usize).await;
            sinks.push(Attach::new(n / self.members, sink));
            receipts.push(receipt);
        }
        let fates = Fates::default();
        let demux = self.demux(self.input().await, self.keys, sinks, fates.clone());

        let read = |receipt: Receipt| task::spawn(receipt.collect::<Vec<_>>());
        let mut readers = Vec::new();
        if self.read_at_once {
            readers.extend(receipts.drain(..).map(read));
        }
        let totals = if self.in_block_on { Ok(demux.await) } else { task::spawn(demux).await };
        readers.extend(receipts.drain(..).map(read));
        let read = future::try_join_all(readers).await.expect("a reader panicked");
        Outcome { totals: totals.expect("the demux panicked"), fates: fates.counts(), read }
    }

    /// Runs this program, and others like it beside it.
    async fn programs(self) -> Vec<Outcome> {
        let other = Self { in_block_on: false, ..self.clone() };
        let others = (1..self.programs).map(|_| task::spawn(other.clone().program()));
        let others: Vec<_> = others.collect();
        let first = self.program().await;
        let mut outcomes = future::try_join_all(others).await.expect("a program panicked");
        outcomes.push(first);
        outcomes
    }

    /// Runs the case once. Returns what went wrong.
    #[track_caller]
    fn fault(&self) -> Option<String> {
        let outcomes = self.runtime.try_run(self.clone().programs());
        let outcomes = outcomes.unwrap_or_else(|fault| panic!("{fault}: {self:?}"));
        outcomes.iter().find_map(|outcome| self.fault_of(outcome))
    }

    fn fault_of(&self, Outcome { totals, fates, read }: &Outcome) -> Option<String> {
        let (items, sinks) = (u64::from(self.items), self.keys * self.members);
        let shared = self.sharing == Sharing::Multicast;
        let copies = if shared { items * u64::from(self.members - 1) } else { 0 };
        let expected = (items, copies, items + copies, 0, u64::from(sinks));
        let Totals { received, copies, delivered, queued, attached, .. } = *totals;
        // Nothing was discarded or unmatched, and no sink ended earlier.
        let finished = BTreeMap::from([(("detached", "finished"), sinks as usize)]);
        if (received, copies, delivered, queued, attached) != expected || *fates != finished {
            return Some(format!("{totals:?}, {fates:?}"));
        }
        let of_each_key = (0..).zip(read.chunks(self.members as usize));
        let faulty = of_each_key.filter(|(key, read)| !self.is_exact(*key, read));
        let (key, read) = faulty.min_by_key(|(key, _)| *key)?;
        Some(format!("{totals:?}, the sinks of key {key} got {read:?}"))
    }

    /// Returns `true` if the sinks of this key got its items, in order.
    fn is_exact(&self, key: u32, read: &[Vec<u32>]) -> bool {
        let items: Vec<_> = (key..self.items).step_by(self.keys as usize).collect();
        if self.sharing == Sharing::Multicast {
            return read.iter().all(|read| *read == items);
        }
        let mut all = read.concat();
        all.sort_unstable();
        all == items && read.iter().all(|read| read.is_sorted())
    }
}

/// Returns the value of an environment variable.
fn number(variable: &str) -> Option<usize> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}

/// Runs each case, and panics with those that lost something, and how often.
#[track_caller]
fn check(cases: impl IntoIterator<Item = (usize, Case)>) {
    let runs = number("STREAM_DEMUX_RUNS").unwrap_or(1);
    let (mut all, mut failed, mut report) = (0, 0, String::new());
    for (number, case) in cases {
        let faults: Vec<_> = (0..runs).filter_map(|_| case.fault()).collect();
        all += 1;
        if let Some(first) = faults.first() {
            failed += 1;
            let times = faults.len();
            write!(report, "\n{number}: {times} of {runs} runs of {case:?}\n  {first}").unwrap();
        }
    }
    assert!(failed == 0, "{failed} of {all} cases lost something:{report}");
}

/// Checks each case on each runtime.
#[track_caller]
fn check_everywhere(cases: impl IntoIterator<Item = Case>) {
    let everywhere = |case: Case| RUNTIMES.map(|runtime| Case { runtime, ..case.clone() });
    check(cases.into_iter().flat_map(everywhere).enumerate());
}

// The situations in which the second edition lost items.

#[test]
fn single_sink_that_evicts_is_kept() {
    let case = Case { idle: 10, ..Case::default() };
    check_everywhere([None, Some(0)].map(|buffer| Case { buffer, ..case.clone() }));
}

/// The bridge uses up 100 operations before the demux runs.
#[test]
fn burst_through_a_bridge_costs_no_item() {
    let bridges = vec![(Bridge::Task, Pipe::Futures)];
    let case = Case {
        items: 2_000,
        input: (Pipe::Tokio, 100),
        bridges,
        burst: 100,
        idle: 10,
        unconstrained: true,
        buffer: Some(8),
        ..Case::default()
    };
    check_everywhere(POLICIES.map(|overflow| Case { overflow, ..case.clone() }));
}

/// Around 128 members, the last one is polled when the budget of the task is spent.
#[test]
fn large_groups_lose_nothing() {
    let sharing = Sharing::Multicast;
    for (members, items) in [(127, 20), (129, 20), (600, 2)] {
        let case = Case { sharing, members, items, burst: 20, ..Case::default() };
        check_everywhere(POLICIES.map(|overflow| Case { overflow, ..case.clone() }));
    }
}

// Their relatives.

/// Returns a random element of `all`.
fn pick<T: Copy>(dice: &mut Dice, all: &[T]) -> T {
    all[dice.index(all.len())]
}

/// Numbers of keys, and of sinks for each.
const SHAPES: [(Sharing, u32, u32); 16] = [
    (Sharing::Alone, 1, 1),
    (Sharing::Alone, 2, 1),
    (Sharing::Alone, 10, 1),
    (Sharing::Alone, 100, 1),
    (Sharing::Alone, 400, 1),
    (Sharing::Multicast, 1, 2),
    (Sharing::Multicast, 1, 10),
    (Sharing::Multicast, 3, 20),
    (Sharing::Multicast, 1, 64),
    (Sharing::Multicast, 1, 127),
    (Sharing::Multicast, 1, 129),
    (Sharing::Multicast, 1, 400),
    (Sharing::Balance, 1, 2),
    (Sharing::Balance, 3, 10),
    (Sharing::Balance, 1, 65),
    (Sharing::Balance, 1, 400),
];

impl Case {
    /// Returns a random case. Equal seeds are equal cases.
    fn random(seed: u64) -> Self {
        use Pipe::{Duplex, Futures, Pair, Tcp, Tokio};
        let dice = &mut Dice::new(seed);
        let (sharing, keys, members) = pick(dice, &SHAPES);
        let sinks = pick(dice, &[Tokio, Tokio, Tokio, Pair, Futures, Duplex, Tcp]);
        // More connections would need too many files, and longer texts may fill their buffers.
        let sinks = if sinks == Tcp && keys * members > 20 { Duplex } else { sinks };
        let most = if sinks == Tcp { 200 } else { 1_000 };
        let copies = if sharing == Sharing::Multicast { members } else { 1 };
        let bridges = (0..pick(dice, &[0, 0, 1, 1, 2])).map(|_| {
            let pipe = pick(dice, &[Tokio, Futures, Duplex]);
            (pick(dice, &[Bridge::Task, Bridge::Task, Bridge::Demux]), pipe)
        });
        Self {
            bridges: bridges.collect(),
            runtime: pick(dice, &RUNTIMES),
            in_block_on: pick(dice, &[false, false, false, true]),
            sharing,
            keys,
            members,
            sinks,
            overflow: pick(dice, &POLICIES),
            buffer: pick(dice, &[None, Some(0), Some(1), Some(8), Some(64)]),
            budget: pick(dice, &[None, None, Some(16), Some(1_000)]),
            items: (3_000 / copies).clamp(20, most),
            input: (pick(dice, &[Tokio, Futures]), pick(dice, &[8, 99, 1_000, 1_000])),
            burst: pick(dice, &[60, 100, 300, 1_000]),
            idle: pick(dice, &[0, 1, 10]),
            spent: pick(dice, &[0, 64, 100, 120]),
            unconstrained: pick(dice, &[false, true]),
            busy_tasks: pick(dice, &[0, 0, 1, 3]),
            read_at_once: pick(dice, &[true, true, false]),
            programs: pick(dice, &[1, 1, 2]),
        }
    }
}

const SEEDS: u64 = 600;

/// With `STREAM_DEMUX_RUNS`, all cases are run, that many times each; with `STREAM_DEMUX_CASE`,
/// only the case of this number; otherwise each seventh case, once.
#[test]
fn combinations_lose_nothing() {
    let cases = (0..SEEDS).map(Case::random).enumerate();
    let only = number("STREAM_DEMUX_CASE");
    let all = only.is_some() || number("STREAM_DEMUX_RUNS").is_some();
    let step = if all { 1 } else { 7 };
    check(cases.filter(|(number, _)| only.is_none_or(|only| only == *number)).step_by(step));
}

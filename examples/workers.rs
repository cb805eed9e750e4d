//! A worker per customer, made on demand and reaped when idle: `or_attach_with`, `idle_timeout`
//! and `Order::Tick`.
//!
//! ```sh
//! cargo run --release --example workers
//! cargo run --release --example workers -- --jobs 1000000
//! ```
//!
//! ```text
//!                     ┌─▶ worker of customer 0     attached by an order, never reaped
//! jobs ─────▶ demux ──┼─▶ worker of customer 17    made by the first job of the customer,
//!               ▲     └─▶ …                        ends after a few ticks without a job
//! orders ─┬─────┘
//! ticks ──┘
//! ```
//!
//! The demux has no clock. A ticker, merged into the orders, informs it that time has passed.
//!
//! An idle worker is detached gracefully: its channel is closed, and it ends when the channel is
//! empty. If the customer returns before that, the demux makes a new worker at once. The new worker
//! first waits for the old one, which keeps the jobs of a customer in order, and takes over its
//! state. Every job is checked: it is done once and in order, or the program fails.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Duration;

use futures::channel::mpsc::{self, Receiver, Sender};
use futures::{SinkExt, Stream, StreamExt, stream};
use stream_demux::{Attach, DemuxStreamExt, Detached, Hooks, Order, Recipient};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// The unit of time of the demux.
const TICK: Duration = Duration::from_millis(2);
/// A worker ends after this many ticks without a job.
const IDLE: u32 = 3;
/// How many jobs may wait for a worker before the input waits.
const ROOM: usize = 64;

type Customer = u64;

#[derive(Debug, Clone, Copy)]
struct Job {
    customer: Customer,
    /// From 0, for each customer.
    number: u64,
}

// ---- workers ------------------------------------------------------------------------------------

/// The state of a customer, which the next worker takes over.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// The number of the next job.
    next: u64,
    done: u64,
    out_of_order: u64,
}

/// Does jobs until its channel is closed, after the earlier worker of this customer has ended.
async fn work(earlier: Option<JoinHandle<State>>, mut jobs: Receiver<Job>) -> State {
    let mut state = match earlier {
        Some(earlier) => earlier.await.expect("the earlier worker panicked"),
        None => State::default(),
    };
    while let Some(Job { number, .. }) = jobs.next().await {
        state.out_of_order += u64::from(number != state.next);
        state.next = number + 1;
        state.done += 1;
        if number % SLOW_JOB == SLOW_JOB - 1 {
            sleep(SLOW).await; // long enough that the worker is reaped meanwhile
        }
    }
    state
}

/// The last worker of each customer, running or not.
///
/// The map keeps the state of every customer. If there is no limit to their number, store the
/// state elsewhere and remove workers that have ended.
#[derive(Default)]
struct Workers {
    last: HashMap<Customer, JoinHandle<State>>,
    /// How many had to wait for an earlier worker.
    waited: u64,
}

impl Workers {
    /// Starts a worker, and returns the order that attaches it.
    fn start(&mut self, customer: Customer) -> Attach<Customer, Sender<Job>> {
        let (sender, jobs) = mpsc::channel(ROOM);
        let earlier = self.last.remove(&customer);
        self.waited += u64::from(earlier.as_ref().is_some_and(|worker| !worker.is_finished()));
        self.last.insert(customer, tokio::spawn(work(earlier, jobs)));
        Attach::new(customer, sender)
    }
}

/// An endless stream of ticks. Ticks that were missed while the demux was busy are not made up for.
fn ticks<K, S>(every: Duration) -> impl Stream<Item = Order<K, S>> {
    let mut interval = interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::poll_fn(move |cx| interval.poll_tick(cx).map(|_| Some(Order::Tick)))
}

/// Counts workers that are attached, and those that ended because they were idle.
#[derive(Default)]
struct Counts {
    now: u64,
    most: u64,
    idle: u64,
}

impl<V, E> Hooks<Customer, V, E> for Counts {
    fn attached(&mut self, _: Recipient<'_, Customer>) {
        self.now += 1;
        self.most = self.most.max(self.now);
    }

    fn detached(&mut self, _: Recipient<'_, Customer>, why: Detached<E>) {
        self.now -= 1;
        self.idle += u64::from(matches!(why, Detached::Idle));
    }
}

// ---- customers ----------------------------------------------------------------------------------

const CUSTOMERS: u64 = 200;
/// How many customers send jobs at the same time. After each burst, half of them are replaced.
const ACTIVE: u64 = 20;
/// How many jobs are sent at once before a pause.
const BURST: u64 = 500;
const PAUSE: Duration = Duration::from_millis(1);
/// One in this many jobs of a customer is slow.
const SLOW_JOB: u64 = 150;
const SLOW: Duration = Duration::from_millis(60);

/// Sends the jobs of customers that connect, disconnect and return.
async fn send_jobs(count: u64, mut to: Sender<Job>) {
    let mut numbers = HashMap::new();
    for n in 0..count {
        let (burst, of_burst) = (n / BURST, n % BURST);
        let customer = (burst * ACTIVE / 2 + of_burst % ACTIVE) % CUSTOMERS;
        let number = numbers.entry(customer).or_insert(0);
        let job = Job { customer, number: *number };
        *number += 1;
        if to.send(job).await.is_err() {
            return;
        }
        if of_burst == BURST - 1 {
            sleep(PAUSE).await;
        }
    }
}

/// The summary that is printed at the end.
struct Summary {
    jobs: u64,
    customers: usize,
    workers: u64,
    counts: Counts,
    waited: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { jobs, customers, workers, counts: Counts { most, idle, .. }, waited } = self;
        writeln!(f, "{jobs} jobs of {customers} customers, each done once and in order")?;
        writeln!(f, "{workers} workers, {idle} reaped when idle, at most {most} at a time")?;
        write!(f, "{waited} workers waited for an earlier one of the same customer")
    }
}

async fn run(count: u64) -> Result<Summary, String> {
    let (jobs, input) = mpsc::channel(ROOM);
    tokio::spawn(send_jobs(count, jobs));

    let (mut workers, mut counts) = (Workers::default(), Counts::default());
    let first = workers.start(0).idle_timeout(0); // overrides the default that is set below
    let orders = stream::iter([Order::from(first)]); // often the receiving end of a channel
    let totals = input
        .demux_by(|job| job.customer, stream::select(orders, ticks(TICK)))
        .or_attach_with(|job| Some(workers.start(job.customer)))
        .idle_timeout(IDLE)
        .hooks(&mut counts)
        .await;

    let (customers, mut done, mut out_of_order) = (workers.last.len(), 0, 0);
    for worker in workers.last.into_values() {
        let state = worker.await.map_err(|error| error.to_string())?;
        done += state.done;
        out_of_order += state.out_of_order;
    }
    if (done, out_of_order) != (count, 0) {
        return Err(format!(
            "{done} of {count} jobs done, {out_of_order} out of order: {totals:?}"
        ));
    }
    Ok(Summary { jobs: done, customers, workers: totals.attached, counts, waited: workers.waited })
}

// ---- the command line ---------------------------------------------------------------------------

const USAGE: &str = "usage: workers [--jobs N]

  --jobs N  how many there are, of 200 customers, which are replaced over time (100000)";

/// Returns the number of jobs, or `None` if help was requested.
fn jobs_from_arguments() -> Result<Option<u64>, lexopt::Error> {
    use lexopt::prelude::{Long, ValueExt};
    let mut jobs = 100_000;
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("jobs") => jobs = arguments.value()?.parse::<NonZeroU64>()?.get(),
            Long("help") => return Ok(None),
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(Some(jobs))
}

#[tokio::main]
async fn main() -> ExitCode {
    let jobs = match jobs_from_arguments() {
        Ok(Some(jobs)) => jobs,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("workers: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = run(jobs).await.and_then(|summary| {
        writeln!(io::stdout(), "{summary}").map_err(|error| format!("cannot print: {error}"))
    });
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("workers: {error}");
    ExitCode::FAILURE
}

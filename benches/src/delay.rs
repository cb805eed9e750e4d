//! The delay of the last line of a burst, which has one line for each of many TCP clients.
//!
//! The time is that of the clock on the wall, from before the first line is sent until its client
//! has read the last one. The clients read on a thread of their own.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::clients::Clients;
use crate::measure::percentile;
use crate::receiving::Receiving;
use crate::sockets::{self, Line};
use crate::tcp::programs::Program;
use crate::threads::Threads;

/// What else runs on the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Nothing.
    Idle,
    /// Ten tasks that are always ready, each for 20 µs at a time.
    Busy,
}

/// The job of all contenders.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The number of clients, and of lines in a burst.
    pub clients: usize,
    /// What else runs on the runtime.
    pub load: Load,
    /// How many threads run the tasks.
    pub threads: Threads,
}

/// The contenders: a demux with nothing set, a loop that flushes each line, and one that feeds all
/// lines there are and flushes as soon as the input has nothing ready.
pub const CONTENDERS: [&str; 3] = ["demux", "send().await", "one loop"];

const PROGRAMS: [Program; 3] = [Program::Demux, Program::Send, Program::OneLoop];

/// The delays of a contender.
#[derive(Debug, Clone, Default)]
pub struct Delays(Vec<f64>);

impl Delays {
    /// Returns the delay in nanoseconds that `percent` percent of them do not exceed.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> f64 {
        percentile(self.0.clone(), percent)
    }

    pub(crate) fn extend(&mut self, delays: impl IntoIterator<Item = Duration>) {
        self.0.extend(delays.into_iter().map(|delay| delay.as_secs_f64() * 1e9));
    }
}

/// Measures the contenders in turn, each in several rounds of `bursts` bursts.
#[must_use]
pub fn measure(job: Job, rounds: usize, bursts: u64) -> [Delays; 3] {
    let mut delays = [(); 3].map(|()| Delays::default());
    for round in 0..rounds {
        for turn in 0..PROGRAMS.len() {
            let index = (round + turn) % PROGRAMS.len();
            delays[index].extend(run(job, PROGRAMS[index], bursts));
        }
    }
    delays
}

/// The room of the channel that the program reads.
const CAPACITY: usize = 1_024;

/// The time between a burst and the next one.
const PAUSE: Duration = Duration::from_millis(1);

fn run(job: Job, program: Program, bursts: u64) -> Vec<Duration> {
    let (sockets, clients) = sockets::connect(job.clients);
    let clients = clients.into_iter().enumerate().collect();
    // The first burst is not measured.
    let mut clients = Clients::start(clients, job.clients as u64, bursts + 1);
    let runtime = job.threads.runtime();
    let delays = runtime.block_on(async {
        if job.load == Load::Busy {
            (0..10).for_each(|_| drop(tokio::spawn(work())));
        }
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let sockets = sockets.into_iter().map(sockets::framed).collect();
        let writer = tokio::spawn(program.run(Receiving(receiver), sockets));
        let producer = tokio::spawn(async move {
            let mut delays = Vec::new();
            for _ in 0..=bursts {
                sleep(PAUSE).await;
                let start = Instant::now();
                for key in 0..job.clients {
                    sender.send(Line::new(key)).await.expect("the receiver is open");
                }
                delays.push(clients.burst_arrived().await.at.duration_since(start));
            }
            drop(sender);
            (delays, clients)
        });
        let produced = producer.await.expect("the producer did not panic");
        writer.await.expect("the writer did not panic");
        produced
    });
    drop(runtime);
    let (mut delays, clients) = delays;
    clients.join();
    delays.remove(0);
    delays
}

async fn work() {
    loop {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(20) {
            std::hint::spin_loop();
        }
        yield_now().await;
    }
}

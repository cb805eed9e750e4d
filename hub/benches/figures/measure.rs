//! Runs contenders in turn and prints the processor time of each.

use std::time::Duration;

use cpu_time::ProcessTime;
use tokio::runtime::{Builder, Runtime};

/// What a run has cost.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) time: Duration,
    /// The number of deliveries, items or calls.
    pub(crate) count: u64,
}

/// Measures the processor time of the whole process, which is that of all threads.
pub(crate) struct Clock(ProcessTime);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(ProcessTime::now())
    }

    pub(crate) fn stop(self, count: u64) -> Cost {
        Cost { time: self.0.elapsed(), count }
    }
}

type Work = Box<dyn FnMut() -> Cost>;

pub(crate) struct Contender {
    pub(crate) name: &'static str,
    work: Work,
}

impl Contender {
    pub(crate) fn new(name: &'static str, work: impl FnMut() -> Cost + 'static) -> Self {
        Self { name, work: Box::new(work) }
    }
}

/// Runs the contenders in turn, once unmeasured, and prints their medians and the median of the
/// ratios of the first to each other one in the same round.
///
/// With `ONLY` set in the environment, runs only the contenders whose names begin with it: for a
/// profiler.
pub(crate) fn compare(title: &str, rounds: usize, mut contenders: Vec<Contender>) {
    let only = std::env::var("ONLY").unwrap_or_default();
    contenders.retain(|contender| contender.name.starts_with(&only));
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..=rounds {
        for place in 0..contenders.len() {
            let index = (round + place) % contenders.len();
            let Cost { time, count } = (contenders[index].work)();
            if round > 0 {
                times[index].push(time.as_secs_f64() * 1e9 / count as f64);
            }
        }
    }
    println!("{title}");
    let least = |index: usize| times[index].iter().copied().fold(f64::INFINITY, f64::min);
    for (index, contender) in contenders.iter().enumerate() {
        let ns = median(times[index].clone());
        let ratios = times[0].iter().zip(&times[index]).map(|(ours, rival)| ours / rival);
        let (ratio, of_least) = (median(ratios.collect()), least(0) / least(index));
        let note = format!("   hub / this: {ratio:.2}, of the least {of_least:.2}");
        let note = if index == 0 { "" } else { &note };
        println!("    {:<44} {ns:>9.1} ns, least {:>9.1} ns{note}", contender.name, least(index));
    }
}

fn median(values: Vec<f64>) -> f64 {
    percentile(values, 50)
}

/// Returns the value that at least `percent` percent of the values do not exceed.
pub(crate) fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

/// A runtime on this thread, or with two worker threads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Threads {
    One,
    Two,
}

impl Threads {
    pub(crate) fn runtime(self) -> Runtime {
        let mut builder = match self {
            Self::One => Builder::new_current_thread(),
            Self::Two => Builder::new_multi_thread(),
        };
        builder.worker_threads(2).enable_all().build().expect("a runtime starts")
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one thread",
            Self::Two => "two threads",
        }
    }
}

/// One thread and two; with `THREADS` set in the environment, only one of them.
pub(crate) fn threads() -> Vec<Threads> {
    match std::env::var("THREADS").as_deref() {
        Ok("1") => vec![Threads::One],
        Ok("2") => vec![Threads::Two],
        _ => vec![Threads::One, Threads::Two],
    }
}

//! Collects counts and violations, and prints the report.

use std::array;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::counts::{self, Counts};
use crate::watch::Watch;

/// Number of violations that are printed; further ones are only counted.
const SHOWN: usize = 20;

macro_rules! counters {
    ($($name:ident $text:literal)*) => {
        /// Counts of attacks, and of lines of the well-behaved clients.
        #[derive(Clone, Copy)]
        pub enum Counter { $($name),* }
        /// Labels, in the same order.
        const LABELS: &[&str] = &[$($text),*];
    };
}

counters! {
    Reset "connections reset in the middle of a line"
    Mute "subscribers that never read"
    Stop "times a client process was stopped (SIGSTOP)"
    Kill "client processes killed while stopped"
    Release "client processes resumed and checked"
    Garbage "connections that sent garbage and recovered"
    Giant "connections that sent a line of a megabyte and recovered"
    Churn "subscriptions and unsubscriptions on long-lived connections"
    Herd "subscribers that disconnected at the same moment"
    Visit "short visits: subscribe, publish, receive, disconnect"
    Failed "attacks that could not connect or lost their connection"
    Published "numbered lines published"
    Dripped "of these, lines written byte by byte"
    Checked "numbered lines received and checked"
    Lost "numbered lines that the server reported as lost"
}

pub struct Report {
    address: SocketAddr,
    start: Instant,
    counters: [AtomicU64; LABELS.len()],
    /// The highest latency of a line since the last `take_slowest`, in microseconds.
    slowest: AtomicU64,
    violations: Mutex<Vec<String>>,
}

impl Report {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            start: Instant::now(),
            counters: array::from_fn(|_| AtomicU64::new(0)),
            slowest: AtomicU64::new(0),
            violations: Mutex::default(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn count(&self, counter: Counter, times: u64) {
        self.counters[counter as usize].fetch_add(times, Relaxed);
    }

    pub fn counted(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Relaxed)
    }

    /// Returns the microseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Records the latency of a line that was published at `then`.
    pub fn record_latency(&self, then: u64) {
        self.slowest.fetch_max(self.now().saturating_sub(then), Relaxed);
    }

    pub fn take_slowest(&self) -> u64 {
        self.slowest.swap(0, Relaxed)
    }

    pub fn violation(&self, what: impl fmt::Display) {
        let what = what.to_string();
        let mut violations = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        if violations.len() < SHOWN {
            eprintln!("VIOLATION after {:.1?}: {what}", self.start.elapsed());
        }
        violations.push(what);
    }

    /// Checks the server's counts, and that every attack was run. `published` is the number of
    /// lines published by well-behaved clients.
    pub fn judge(&self, counts: &Counts, published: u64) {
        for fault in counts::faults(counts, published) {
            self.violation(fault);
        }
        for counter in [
            Counter::Stop,
            Counter::Mute,
            Counter::Reset,
            Counter::Garbage,
            Counter::Visit,
            Counter::Checked,
        ] {
            if self.counted(counter) == 0 {
                self.violation(format!("not tested: no {}", LABELS[counter as usize]));
            }
        }
    }

    /// Prints the report. Returns `true` if there was no violation.
    pub fn print(&self, watch: &Watch, counts: &Counts) -> bool {
        println!("\nattacks and checks");
        for (text, count) in LABELS.iter().zip(&self.counters) {
            println!("{:>12}  {text}", count.load(Relaxed));
        }
        println!("\ncounts of the server");
        let mut counts = counts.iter().collect::<Vec<_>>();
        counts.sort();
        for (name, count) in counts {
            println!("{count:>12}  {name}");
        }
        println!("\n{watch}");
        let violations = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        match violations.len() {
            0 => println!("no violation"),
            count => println!("{count} violations; the first: {}", violations[0]),
        }
        violations.is_empty()
    }
}

//! What everybody reports to, and what is printed of it at the end.

use std::array;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::account::{self, Account};
use crate::watch::Watch;

/// So many violations are shown; the rest is counted.
const SHOWN: usize = 20;

macro_rules! deeds {
    ($($name:ident $text:literal)*) => {
        /// What was done to the server, or seen by those who behave.
        #[derive(Clone, Copy)]
        pub enum Deed { $($name),* }
        /// In the same order.
        const DEEDS: &[&str] = &[$($text),*];
    };
}

deeds! {
    Reset "connections reset in the middle of a line"
    Mute "subscribers that never read"
    Stop "times a client process was stopped (SIGSTOP)"
    Kill "client processes killed while stopped"
    Release "client processes that caught up after it, and checked"
    Garbage "loads of garbage, answered and survived"
    Giant "megabytes without an end of line, answered and survived"
    Churn "subscriptions begun and ended on lasting connections"
    Herd "subscribers that left all at once"
    Visit "connections with a subscription, an own line, and a goodbye, checked"
    Failed "attacks that could not connect, or were cut off"
    Published "numbered lines published"
    Dripped "of these a byte at a time"
    Checked "numbered lines received and checked"
    Lost "numbered lines that the server said were lost"
}

pub struct Report {
    address: SocketAddr,
    began: Instant,
    deeds: [AtomicU64; DEEDS.len()],
    /// The longest way of a line since it was last asked, in microseconds.
    slowest: AtomicU64,
    violations: Mutex<Vec<String>>,
}

impl Report {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            began: Instant::now(),
            deeds: array::from_fn(|_| AtomicU64::new(0)),
            slowest: AtomicU64::new(0),
            violations: Mutex::default(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn count(&self, deed: Deed, times: u64) {
        self.deeds[deed as usize].fetch_add(times, Relaxed);
    }

    pub fn counted(&self, deed: Deed) -> u64 {
        self.deeds[deed as usize].load(Relaxed)
    }

    /// Microseconds since it began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// A line that was published at `then` was received.
    pub fn arrived(&self, then: u64) {
        self.slowest.fetch_max(self.now().saturating_sub(then), Relaxed);
    }

    pub fn take_slowest(&self) -> u64 {
        self.slowest.swap(0, Relaxed)
    }

    pub fn violation(&self, what: impl fmt::Display) {
        let what = what.to_string();
        let mut violations = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        if violations.len() < SHOWN {
            eprintln!("VIOLATION after {:.1?}: {what}", self.began.elapsed());
        }
        violations.push(what);
    }

    /// `published` are the lines of those who saw them obeyed.
    pub fn judge(&self, account: &Account, published: u64) {
        for fault in account::faults(account, published) {
            self.violation(fault);
        }
        for deed in [Deed::Stop, Deed::Mute, Deed::Reset, Deed::Garbage, Deed::Visit, Deed::Checked]
        {
            if self.counted(deed) == 0 {
                self.violation(format!("nothing was tried: no {}", DEEDS[deed as usize]));
            }
        }
    }

    /// Prints it all. Whether there was no violation.
    pub fn print(&self, watch: &Watch, account: &Account) -> bool {
        println!("\nwhat was done");
        for (text, count) in DEEDS.iter().zip(&self.deeds) {
            println!("{:>12}  {text}", count.load(Relaxed));
        }
        println!("\nwhat the server counted");
        let mut counts = account.iter().collect::<Vec<_>>();
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

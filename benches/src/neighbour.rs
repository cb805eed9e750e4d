//! The delay of an item for a quiet key, beside a neighbour whose items never pause.
//!
//! The time is that of the clock on the wall, from the moment when the input returns the item until
//! its reader has it. There is no channel before the program: in one that is full, an item waits for
//! those before it in any program.
//!
//! The sink of the quiet key keeps an item until it is flushed, as a codec does. A flush passes it
//! on to the reader, which is a task on the same runtime. So the delay includes what is left of the
//! turn. A TCP client reads on a thread of its own.

mod probe;
mod programs;

use std::sync::Arc;
use std::time::Duration;

use self::probe::{Input, Probe};
use self::programs::Outlet;
use crate::delay::Delays;
use crate::parts::Item;
use crate::sockets::Line;
use crate::tcp::programs::Program;
use crate::threads::Threads;

/// What never pauses. Its items come between those of the quiet key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// A sink that counts.
    Counting,
    /// A sink that takes 20 µs for an item.
    Working,
    /// A group of so many sinks that count, each of which gets a copy.
    Group(u64),
    /// So many keys with a sink each that counts, in turn.
    Keys(u64),
    /// So many TCP clients with a line codec, in turn.
    Clients(u64),
}

/// A program that does the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// A demux with nothing set.
    Demux,
    /// A loop that sends each item and waits for its flush.
    Send,
    /// A broadcast channel per key, and a task per sink.
    Broadcast,
}

impl Contender {
    /// Returns its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Demux => "demux",
            Self::Send => "send().await",
            Self::Broadcast => "broadcast",
        }
    }
}

impl Neighbour {
    /// Returns the programs that are compared, the demux first. A million tasks, each with a channel,
    /// would be slow to set up and would not be written.
    #[must_use]
    pub fn contenders(self) -> &'static [Contender] {
        match self {
            Self::Keys(_) => &[Contender::Demux, Contender::Send],
            _ => &[Contender::Demux, Contender::Send, Contender::Broadcast],
        }
    }

    /// The number of its keys, which follow that of the quiet one.
    fn keys(self) -> u64 {
        match self {
            Self::Counting | Self::Working | Self::Group(_) => 1,
            Self::Keys(keys) | Self::Clients(keys) => keys,
        }
    }

    /// The number of sinks that get an item.
    fn copies(self) -> u64 {
        match self {
            Self::Group(members) => members,
            _ => 1,
        }
    }

    /// The largest number of busy items between the arrival of a quiet item and the next one. The
    /// number is random, so that a quiet item may be sent at any time in a turn, and at any time
    /// between two flushes of a demux.
    fn longest_pause(self, contender: Contender) -> u64 {
        match (self, contender) {
            (Self::Keys(_) | Self::Clients(_), Contender::Demux) => 16_384,
            (Self::Working, Contender::Demux) => 512,
            (Self::Working, _) => 128,
            _ => 2_048 / self.copies() + 2,
        }
    }

    /// The number of quiet items in a run, fewer where each takes many milliseconds.
    fn items(self, contender: Contender) -> usize {
        match (self, contender) {
            (Self::Group(10_000..), Contender::Broadcast) => 30,
            (Self::Working | Self::Group(10_000..) | Self::Keys(_), _) => 70,
            _ => 200,
        }
    }
}

/// The quiet items of a run that are not measured.
const WARM_UP: usize = 10;

/// Measures the contenders in turn, each in several rounds.
#[must_use]
pub fn measure(neighbour: Neighbour, threads: Threads, rounds: usize) -> Vec<(Contender, Delays)> {
    let contenders = neighbour.contenders();
    let mut measured =
        contenders.iter().map(|&contender| (contender, Delays::default())).collect::<Vec<_>>();
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let (contender, delays) = &mut measured[(round + turn) % contenders.len()];
            let found = run(neighbour, *contender, threads);
            delays.extend(found.into_iter().skip(WARM_UP));
        }
    }
    measured
}

/// The quiet key.
const QUIET: u64 = 0;

fn run(neighbour: Neighbour, contender: Contender, threads: Threads) -> Vec<Duration> {
    let probe = Arc::new(Probe::new(WARM_UP + neighbour.items(contender)));
    let pause = neighbour.longest_pause(contender);
    if let Neighbour::Clients(clients) = neighbour {
        let input = Input::new(neighbour.keys(), pause, &probe, |key| Line::new(key as usize));
        let program = match contender {
            Contender::Demux => Program::Demux,
            Contender::Send => Program::Send,
            Contender::Broadcast => Program::Broadcast,
        };
        programs::write_lines(program, input, clients, &probe, threads);
    } else {
        let input = Input::new(neighbour.keys(), pause, &probe, |key| Item { key, value: 0 });
        let outlet = Outlet::new(neighbour == Neighbour::Working, &probe);
        programs::route(contender, input, &outlet, neighbour, &probe, threads);
    }
    probe.finish(neighbour.copies())
}

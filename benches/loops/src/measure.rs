//! Contenders that do the same job, and their times.

use std::time::Duration;

/// The result of one run of a contender.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The time from the first item that was read to the end of the job, without the set-up. The
    /// scenario says which: processor time, or that of the clock on the wall.
    pub elapsed: Duration,
    /// The time by the clock on the wall, if `elapsed` is the processor time of several threads.
    pub wall: Option<Duration>,
    /// The number of items that were sent.
    pub sent: u64,
    /// The number of items that arrived at the right place.
    pub arrived: u64,
    /// The number of allocations, if [`alloc::Counting`](crate::alloc::Counting) is the allocator.
    pub allocations: u64,
}

impl Run {
    /// Creates a run that was timed with one clock.
    #[must_use]
    pub fn new(elapsed: Duration, sent: u64, arrived: u64) -> Self {
        Self { elapsed, wall: None, sent, arrived, allocations: 0 }
    }

    /// Returns the nanoseconds per item.
    #[must_use]
    pub fn ns(&self) -> f64 {
        self.ns_of(self.elapsed)
    }

    fn ns_of(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e9 / self.sent as f64
    }
}

/// A program that does the job.
pub struct Contender {
    /// Its name.
    pub name: &'static str,
    /// The number of items per run. Slow contenders get fewer.
    pub items: u64,
    loses: bool,
    work: Box<dyn FnMut(u64) -> Run>,
}

impl Contender {
    /// Creates a contender that must deliver all items.
    pub fn new(name: &'static str, items: u64, work: impl FnMut(u64) -> Run + 'static) -> Self {
        Self { name, items, loses: false, work: Box::new(work) }
    }

    /// Allows the contender to lose items. The losses are reported.
    #[must_use]
    pub fn loses(self) -> Self {
        Self { loses: true, ..self }
    }

    /// Does the job once.
    ///
    /// # Panics
    ///
    /// Panics if items are missing, unless the contender may lose them.
    pub fn run(&mut self) -> Run {
        let run = (self.work)(self.items);
        let Run { sent, arrived, .. } = run;
        assert!(arrived == sent || self.loses, "{}: {arrived} of {sent} items arrived", self.name);
        run
    }
}

/// Contenders for one job.
pub struct Group {
    /// The name of the job.
    pub name: String,
    /// The contenders.
    pub contenders: Vec<Contender>,
}

impl Group {
    /// Creates a group.
    pub fn new(name: impl Into<String>, contenders: impl Into<Vec<Contender>>) -> Self {
        Self { name: name.into(), contenders: contenders.into() }
    }

    /// Runs the contenders in turn, once unmeasured and then `rounds` times. Each round begins with
    /// a different contender, so that none always runs first.
    pub fn measure(&mut self, rounds: usize) -> Measured {
        let count = self.contenders.len();
        let mut measured = Measured {
            name: self.name.clone(),
            members: self.contenders.iter().map(|contender| Member::new(contender.name)).collect(),
        };
        for round in 0..=rounds {
            for place in 0..count {
                let index = (round + place) % count;
                let run = self.contenders[index].run();
                if round > 0 {
                    let member = &mut measured.members[index];
                    member.times.push(run.ns());
                    member.wall_times.extend(run.wall.map(|wall| run.ns_of(wall)));
                    member.sent = run.sent;
                    member.arrived = run.arrived;
                }
            }
        }
        measured
    }
}

/// The times of a group.
#[derive(Debug)]
pub struct Measured {
    /// The name of the job.
    pub name: String,
    /// The times of each contender.
    pub members: Vec<Member>,
}

/// The times of a contender.
#[derive(Debug)]
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// Nanoseconds per item, by round.
    pub times: Vec<f64>,
    /// The same by the clock on the wall, if that was read as well.
    pub wall_times: Vec<f64>,
    /// The number of items that were sent in the last run.
    pub sent: u64,
    /// The number of those items that arrived.
    pub arrived: u64,
}

impl Member {
    fn new(name: &'static str) -> Self {
        Self { name, times: Vec::new(), wall_times: Vec::new(), sent: 0, arrived: 0 }
    }

    /// Returns the median of the nanoseconds per item.
    #[must_use]
    pub fn ns(&self) -> f64 {
        median(self.times.clone())
    }
}

impl Measured {
    /// Returns the contender with this name.
    ///
    /// # Panics
    ///
    /// Panics if there is none.
    #[must_use]
    pub fn member(&self, name: &str) -> &Member {
        let found = self.members.iter().find(|member| member.name == name);
        found.unwrap_or_else(|| panic!("{}: there is no contender {name}", self.name))
    }

    /// Returns the median of the nanoseconds per item of the contender with this name.
    #[must_use]
    pub fn ns(&self, name: &str) -> f64 {
        self.member(name).ns()
    }

    /// Returns the median of the ratios of the times of `numerator` and `denominator` in each
    /// round. A disturbance during a round affects both.
    #[must_use]
    pub fn ratio(&self, numerator: &str, denominator: &str) -> f64 {
        ratio(&self.member(numerator).times, &self.member(denominator).times)
    }

    /// Returns the same for the times by the clock on the wall.
    #[must_use]
    pub fn wall_ratio(&self, numerator: &str, denominator: &str) -> f64 {
        ratio(&self.member(numerator).wall_times, &self.member(denominator).wall_times)
    }
}

/// Returns the median of the ratios of two times in each round.
#[must_use]
pub fn ratio(numerators: &[f64], denominators: &[f64]) -> f64 {
    let ratios = numerators.iter().zip(denominators);
    median(ratios.map(|(numerator, denominator)| numerator / denominator).collect())
}

/// Returns the median; of an even number of values, the upper of the middle two.
///
/// # Panics
///
/// Panics if there are no values.
#[must_use]
pub fn median(values: Vec<f64>) -> f64 {
    percentile(values, 50)
}

/// Returns the value that at least `percent` percent of the values do not exceed.
///
/// # Panics
///
/// Panics if there are no values.
#[must_use]
pub fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

//! Contenders that do the same job, and their times side by side.

use std::time::Duration;

/// What one run of a contender came to.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// From the first item that was read to the end of the job; setting up is not in it.
    pub elapsed: Duration,
    /// How many items were to be routed.
    pub sent: u64,
    /// How many of them were found where they should be.
    pub arrived: u64,
    /// How often memory was allocated meanwhile, if [`alloc::Counting`](crate::alloc::Counting) is
    /// the allocator.
    pub allocations: u64,
}

impl Run {
    /// What an item cost.
    #[must_use]
    pub fn ns(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / self.sent as f64
    }
}

/// One way to do the job.
pub struct Contender {
    /// What it is called.
    pub name: &'static str,
    /// How many items a run is given: fewer for the slow ones.
    pub items: u64,
    loses: bool,
    job: Box<dyn FnMut(u64) -> Run>,
}

impl Contender {
    /// A way that must deliver all items.
    pub fn new(name: &'static str, items: u64, job: impl FnMut(u64) -> Run + 'static) -> Self {
        Self { name, items, loses: false, job: Box::new(job) }
    }

    /// A way that is known to lose items: how many is told, not objected to.
    #[must_use]
    pub fn loses(self) -> Self {
        Self { loses: true, ..self }
    }

    /// Does the job once.
    ///
    /// # Panics
    ///
    /// If items are missing, unless it is known to lose them.
    pub fn run(&mut self) -> Run {
        let run = (self.job)(self.items);
        let Run { sent, arrived, .. } = run;
        assert!(arrived == sent || self.loses, "{}: {arrived} of {sent} items arrived", self.name);
        run
    }
}

/// Contenders for one job.
pub struct Group {
    /// What the job is.
    pub name: String,
    /// Who does it.
    pub contenders: Vec<Contender>,
}

impl Group {
    /// A group of this name.
    pub fn new(name: impl Into<String>, contenders: impl Into<Vec<Contender>>) -> Self {
        Self { name: name.into(), contenders: contenders.into() }
    }

    /// Runs them all in turn, once unmeasured and then `rounds` times. Each round begins with
    /// another one, so that none always follows the same neighbour.
    pub fn measure(&mut self, rounds: usize) -> Measured {
        let count = self.contenders.len();
        let mut measured = Measured {
            name: self.name.clone(),
            members: self.contenders.iter().map(|one| Member::new(one.name)).collect(),
        };
        for round in 0..=rounds {
            for turn in 0..count {
                let which = (round + turn) % count;
                let run = self.contenders[which].run();
                if round > 0 {
                    let member = &mut measured.members[which];
                    member.times.push(run.ns());
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
    /// What the job was.
    pub name: String,
    /// Who did it.
    pub members: Vec<Member>,
}

/// The times of a contender.
#[derive(Debug)]
pub struct Member {
    /// What it is called.
    pub name: &'static str,
    /// Nanoseconds an item, round by round.
    pub times: Vec<f64>,
    /// Items of the last run.
    pub sent: u64,
    /// Those of them that arrived.
    pub arrived: u64,
}

impl Member {
    fn new(name: &'static str) -> Self {
        Self { name, times: Vec::new(), sent: 0, arrived: 0 }
    }

    /// Nanoseconds an item: the median.
    #[must_use]
    pub fn ns(&self) -> f64 {
        median(self.times.clone())
    }
}

impl Measured {
    /// The contender of this name.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn member(&self, name: &str) -> &Member {
        let found = self.members.iter().find(|member| member.name == name);
        found.unwrap_or_else(|| panic!("{}: no contender is called {name}", self.name))
    }

    /// Nanoseconds an item of the contender of this name.
    #[must_use]
    pub fn ns(&self, name: &str) -> f64 {
        self.member(name).ns()
    }

    /// How many times what `below` takes `above` takes: the median of the ratios of each round,
    /// because what disturbs a round disturbs both.
    #[must_use]
    pub fn ratio(&self, above: &str, below: &str) -> f64 {
        let (above, below) = (&self.member(above).times, &self.member(below).times);
        median(above.iter().zip(below).map(|(above, below)| above / below).collect())
    }
}

/// The middle one; of an even number the upper one of the two.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

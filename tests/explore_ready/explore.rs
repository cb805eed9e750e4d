//! Explores all reachable states of a scenario, in breadth-first order.

use std::collections::VecDeque;
use std::fmt;

use hashbrown::HashSet;

use crate::model::{Label, Protocol, Scenario, State};

/// A shortest path to a failure.
pub struct Failure {
    pub what: String,
    steps: Vec<Label>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        write!(f, "        {}", self.what)
    }
}

/// Returns the number of states if there is no failure.
pub fn explore(protocol: &Protocol, scenario: &Scenario, weak: bool) -> Result<usize, Failure> {
    let first = State::new(scenario, weak);
    let mut known: HashSet<Box<[u8]>> = HashSet::new();
    known.insert(first.encode());
    let mut queue = VecDeque::from([(first, 0)]);
    // The step that led to each state, and the index of the previous state.
    let mut paths: Vec<(Option<Label>, usize)> = vec![(None, 0)];
    while let Some((state, here)) = queue.pop_front() {
        let steps = state.steps(protocol, scenario);
        if let Some(what) = state.fault(protocol, scenario, steps.is_empty()) {
            return Err(failure(&paths, here, None, what));
        }
        for step in steps {
            match step {
                Ok((label, after)) => {
                    if known.insert(after.encode()) {
                        paths.push((Some(label), here));
                        queue.push_back((after, paths.len() - 1));
                    }
                }
                Err((label, what)) => {
                    return Err(failure(&paths, here, Some(label), what.to_owned()));
                }
            }
        }
    }
    Ok(known.len())
}

fn failure(
    paths: &[(Option<Label>, usize)],
    mut at: usize,
    last: Option<Label>,
    what: String,
) -> Failure {
    let mut steps = Vec::from_iter(last);
    while let (Some(label), from) = paths[at] {
        steps.push(label);
        at = from;
    }
    steps.reverse();
    Failure { what, steps }
}

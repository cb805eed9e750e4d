//! Goes through all states that a scenario can get into, nearest first.

use std::collections::VecDeque;
use std::fmt;

use hashbrown::HashSet;

use crate::model::{Label, Protocol, Scenario, State};

/// A way to get into trouble, as short as any.
pub struct Trouble {
    pub what: String,
    steps: Vec<Label>,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        write!(f, "        {}", self.what)
    }
}

/// How many states there are, if none of them is trouble.
pub fn explore(protocol: &Protocol, scenario: &Scenario, weak: bool) -> Result<usize, Trouble> {
    let first = State::new(scenario, weak);
    let mut known: HashSet<Box<[u8]>> = HashSet::new();
    known.insert(first.encode());
    let mut queue = VecDeque::from([(first, 0)]);
    // How each state was come by: the step, and from where.
    let mut ways: Vec<(Option<Label>, usize)> = vec![(None, 0)];
    while let Some((state, here)) = queue.pop_front() {
        let steps = state.steps(protocol, scenario);
        if let Some(what) = state.fault(protocol, scenario, steps.is_empty()) {
            return Err(trouble(&ways, here, None, what));
        }
        for step in steps {
            match step {
                Ok((label, after)) => {
                    if known.insert(after.encode()) {
                        ways.push((Some(label), here));
                        queue.push_back((after, ways.len() - 1));
                    }
                }
                Err((label, what)) => {
                    return Err(trouble(&ways, here, Some(label), what.to_owned()));
                }
            }
        }
    }
    Ok(known.len())
}

fn trouble(
    ways: &[(Option<Label>, usize)],
    mut at: usize,
    last: Option<Label>,
    what: String,
) -> Trouble {
    let mut steps = Vec::from_iter(last);
    while let (Some(label), from) = ways[at] {
        steps.push(label);
        at = from;
    }
    steps.reverse();
    Trouble { what, steps }
}

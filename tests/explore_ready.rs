//! x
#![allow(unreachable_pub, missing_docs)]

#[path = "explore_ready/explore.rs"]
mod explore;
#[path = "explore_ready/memory.rs"]
mod memory;
#[path = "explore_ready/model.rs"]
mod model;
#[path = "explore_ready/steps.rs"]
mod steps;

use std::time::Instant;

use Act::{Nudge, Ring, Stale, Wake};
use explore::explore;
use model::{AS_IT_IS, Act, Extra, Scenario};

const BASIC: &[Scenario] = &[
    Scenario { acts: [&[Wake(0)], &[Wake(0)]], budget: 2, extra: Extra::Nothing },
    Scenario { acts: [&[Wake(0)], &[Wake(1)]], budget: 2, extra: Extra::Nothing },
    Scenario { acts: [&[Wake(0)], &[Wake(1)]], budget: 1, extra: Extra::Nothing },
    Scenario { acts: [&[Wake(0)], &[Ring]], budget: 2, extra: Extra::Nothing },
    Scenario { acts: [&[Ring], &[Ring]], budget: 2, extra: Extra::Nothing },
    Scenario { acts: [&[Nudge(0)], &[Wake(0)]], budget: 2, extra: Extra::Nothing },
    Scenario { acts: [&[Ring, Stale(0)], &[Wake(0)]], budget: 2, extra: Extra::Replace },
    Scenario { acts: [&[Wake(0)], &[Wake(0)]], budget: 2, extra: Extra::Hear },
    Scenario { acts: [&[Wake(0)], &[Wake(1)]], budget: 2, extra: Extra::Attend },
    Scenario { acts: [&[Wake(0)], &[Wake(1)]], budget: 2, extra: Extra::Relist },
    Scenario { acts: [&[Wake(0)], &[Wake(1)]], budget: 2, extra: Extra::WakesItself },
    //    Scenario { acts: [&[Wake(0), Wake(1)], &[Wake(1), Wake(0)]], budget: 2, extra: Extra::Nothing },
    //    Scenario { acts: [&[Wake(0), Wake(1)], &[Wake(1), Wake(0)]], budget: 1, extra: Extra::Nothing },
];

#[test]
fn sizes() {
    for weak in [true] {
        for scenario in BASIC {
            let began = Instant::now();
            match explore(&AS_IT_IS, scenario, weak) {
                Ok(n) => println!("{weak} {scenario:?}: {n} {:?}", began.elapsed()),
                Err(trouble) => println!("{weak} {scenario:?}\n{trouble}"),
            }
            if began.elapsed().as_secs() > 30 {
                return;
            }
        }
    }
}

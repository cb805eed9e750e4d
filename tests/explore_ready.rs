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
    for weak in [false, true] {
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
#[test]
fn mutants() {
    use memory::Order::*;
    use model::{Flaw::*, Protocol};
    let mut all: Vec<(String, Protocol)> = vec![];
    for flaw in [ClaimByLoad, ClaimWithoutReason, LinkByStore, WakeBeforeList, RingByStore, TakeOverTaken, SleepOnTaken, ClearBeforeNext, ClearAfterPoll, HearAfterPoll, HushAfterPoll, RegisterAfterLook, LookAtBellOnly, LookAtHeadOnly] {
        all.push((format!("{flaw:?}"), Protocol { flaw: Some(flaw), ..AS_IT_IS }));
    }
    let p = AS_IT_IS;
    for (n, o) in [("Relaxed", Relaxed), ("Acquire", Acquire), ("Release", Release)] {
        all.push((format!("claim {n}"), Protocol { claim: o, ..p }));
        all.push((format!("clear {n}"), Protocol { clear: o, ..p }));
        all.push((format!("hear {n}"), Protocol { hear: o, ..p }));
        all.push((format!("task {n}"), Protocol { task: o, ..p }));
    }
    all.push(("link Relaxed".into(), Protocol { link: Relaxed, ..p }));
    all.push(("ring Relaxed".into(), Protocol { ring: Relaxed, ..p }));
    all.push(("take Relaxed".into(), Protocol { take: Relaxed, ..p }));
    all.push(("hush Relaxed".into(), Protocol { hush: Relaxed, ..p }));
    all.push(("any Relaxed".into(), Protocol { any: Relaxed, ..p }));
    all.push(("rung Relaxed".into(), Protocol { rung: Relaxed, ..p }));
    all.push(("all relaxed looks".into(), Protocol { rung: Relaxed, any: Relaxed, ..p }));
    for (name, protocol) in all {
        for weak in [false, true] {
            let mut found = vec![];
            for (i, scenario) in BASIC.iter().enumerate() {
                if let Err(t) = explore(&protocol, scenario, weak) { found.push(format!("{i}: {} ({})", t.what, t.to_string().lines().count())); }
            }
            println!("{name} weak={weak}: {found:?}");
            if !found.is_empty() { break; }
        }
    }
}

//! A reference model of the whole contract, and the scripts that drive it against the crate.
//!
//! A script is a string of bytes; any string is one. It says what the outside world does: items, orders
//! on all terms, leases, what sinks and streams answer, what happens inside a poll, when the task is
//! run. Everything the demux then does passes through watched sinks, streams and hooks onto one tape,
//! and the model reads the tape: it keeps a list of attachments per key, a queue for each, and the one
//! item in hand, and objects to the first event that cannot follow from what came before.
//!
//! Exact, event by event: who is asked to admit an item, who receives it and in which order, who is
//! unmatched, what is discarded, lost, moved to a successor or taken along, and why; which order is
//! applied before which item; whom `blocked` and `unblocked` name; what limits and leases end; why an
//! attachment ended; the totals, `len`, `contains_key` and `blocked_on`.
//!
//! Where the contract leaves the moment open and nothing shows it (a lease's `detach` takes effect, the
//! end of the input is told, a held item joins a queue), the model follows each possibility until what
//! comes next rules it out. It objects when none is left.
//!
//! Only bounds, not exact: when a sink is flushed (never with nothing to flush, never later than
//! `flush_every`, always before sleep), the cost of a turn (never more than the budget and one item's
//! spread), how many turns things take (the task falls asleep, and does not turn idly), and the spurious
//! looks that stale wakers may cause. Shares between orders, sinks and items are not looked at.

mod event;
mod monitor;
mod play;
mod script;
mod state;
mod watched;
mod world;

use std::collections::BTreeMap;

use play::Run;

/// Items have keys below `ITEM_KEYS`, attachments below `KEYS`: some items are strays.
const KEYS: u8 = 4;
const ITEM_KEYS: u8 = 6;
/// Bounds on what a script can do, so that a long one takes no longer than this.
const MAX_STEPS: usize = 600;
const MAX_SINKS: usize = 64;
const MAX_ITEMS: u32 = 3_000;
/// Polls in which nothing happens before the task is said to spin: a budget under four has up to three.
const MAX_IDLE: usize = 12;
const MAX_POLLS: usize = 20_000;
/// Ways to explain what was seen, before the model gives up on a script.
const MAX_BELIEFS: usize = 128;
const LOST: &str = "the model is at a loss";

/// Runs a script.
///
/// # Panics
///
/// If the crate breaks the contract; the message is the story of the script.
#[track_caller]
pub fn run(script: &[u8]) {
    if let Err(failure) = check(script) {
        panic!("{failure}");
    }
}

/// Runs a script, and returns its story, whether it fails or not.
pub fn run_traced(script: &[u8]) -> String {
    let mut world = Run::new(script);
    let complaint = world.guarded();
    world.story(complaint.as_deref())
}

/// Runs a script: what it came to, or the story of its failure.
pub fn check(script: &[u8]) -> Result<Summary, String> {
    let mut world = Run::new(script);
    match world.guarded() {
        None => Ok(world.monitor.summary),
        Some(complaint) => Err(world.story(Some(&complaint))),
    }
}

/// Drops bytes from a failing script for as long as it still fails: first long stretches, then single
/// bytes. `fails` decides.
pub fn shrink(script: &[u8], mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut script = script.to_vec();
    let mut len = script.len() / 2;
    while len > 0 {
        let mut at = 0;
        while at < script.len() {
            let mut shorter = script.clone();
            shorter.drain(at..script.len().min(at + len));
            if fails(&shorter) {
                script = shorter;
            } else {
                at += len;
            }
        }
        len /= 2;
    }
    script
}

/// How often what happened, in one script or in many.
#[derive(Clone, Debug, Default)]
pub struct Summary(pub BTreeMap<&'static str, u64>);

impl Summary {
    pub fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

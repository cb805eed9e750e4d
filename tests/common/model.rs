//! A reference model of the whole contract, and the scripts that compare the crate with it.
//!
//! * A *script* is a string of bytes; any string is valid. It consists of *steps* of the outside
//!   world: items, orders on all terms, ends of leases, what sinks and streams return, what happens
//!   inside a call, and polls of the task.
//! * A *cue* is a command to a scripted sink, such as to return `Pending` or to fail.
//! * The *tape* is the log of all events. Everything that the demux does passes through watched
//!   sinks, streams and hooks, which write to it.
//! * A *state* is one possible explanation of the tape.
//!
//! The model reads the tape, and reports the first event that cannot follow from the events before
//! it.
//!
//! | file | content |
//! | --- | --- |
//! | `script.rs` | the meaning of the bytes |
//! | `event.rs` | commands, and the events on the tape |
//! | `world.rs` | what a script acts on: sinks, streams, leases, cooperative budgets |
//! | `watched.rs` | items, sinks, streams and hooks that write to the tape |
//! | `setup.rs` | creates the demux and the world around it |
//! | `play.rs` | plays a script, inspects the demux between two polls and when it is dropped |
//! | `monitor.rs` | checks that need no model: the totals, cost, sleep, the hooks for keys |
//! | `inbox.rs` | the orders stream: orders before items |
//! | `facts.rs` | what is known about each sink: whether it may be polled again or has yielded |
//! | `flushes.rs` | when flushes are due, and how long they linger |
//! | `summary.rs` | how often each kind of event occurred |
//! | `state.rs`, `state/` | the model: attachments, queues, the item that is served, orders and leases |
//!
//! # What is checked exactly
//!
//! For each event, the model checks
//!
//! * for which attachments `admit` is called, and when;
//! * which attachments receive an item, and in which order;
//! * that an item is cloned once for each recipient but the last;
//! * which items are unmatched;
//! * which items are discarded, lost, moved to a successor or taken along, and why;
//! * that a policy acts on a sink that is not ready, and on no other;
//! * that a sink is polled only for an item that it then gets;
//! * which order is applied before which item, and which lease takes effect before both;
//! * which attachments `blocked` and `unblocked` name;
//! * what limits end;
//! * why an attachment ended;
//! * the totals, `len`, `draining`, `recipients`, `contains_key` and `blocked_on`;
//! * that `key_attached` and `key_detached` alternate and agree with these getters;
//! * which item supersedes which, and in which place of the queue;
//! * for which items a sink is requested on demand, and that these items get it.
//!
//! The contract leaves some moments open, and no event shows them. The model then follows each
//! possibility as a separate state, until a later event rules it out:
//!
//! * An ended lease takes effect at any time before the next order or item.
//! * A copy takes the place of the head of a queue, which was just sent.
//! * A left-over wake is taken for a yield, or it is not.
//! * A yield counts or does not count, because it is open whether an event was progress.
//!
//! The model reports a fault when no state is left.
//!
//! # What is checked within bounds
//!
//! * Flushes: never with nothing to flush, never later than `flush_every`, and always before the
//!   task sleeps. In a busy turn, not before three quarters of `flush_every`, less one. With a
//!   budget of at least 16, not after the 16th dry turn.
//! * The cost of a turn: at most the budget and one, counting only what is certain to cost. The
//!   ends of leases that detach, and sinks that are advanced and sent nothing, are not counted.
//! * Time-outs: a tick comes to an attachment at some time before the task sleeps. The model counts
//!   the ticks that have counted whenever they came, and the ticks that may have counted. An
//!   attachment expires at the latest after enough ticks of the first kind, and never before enough
//!   ticks of the second kind. It is open whether a sink stalls that wakes itself or was handed a
//!   queue.
//! * Flushes that linger: bounds of the same kind.
//! * `balance`: the order of turns among sinks that were woken, were not ready when their queues
//!   drained, or did not admit an item.
//! * The number of turns that work takes: the task falls asleep and does not spin. What a policy
//!   does may be delayed by two turns. The shares of orders, sinks and items are not checked.
//! * The polls that the waker of a former sink may cause.
//!
//! # Scripts
//!
//! A script begins with three or five bytes of settings, and the steps follow; [`script`] has the
//! details. Bits 4 to 7 of the third byte give the task a cooperative budget. Bits 4 and 5 select
//! 3, 12 or 70 operations; 0 means no budget. Bits 6 and 7 select whether the budget applies to the
//! sinks alone or also to the input and the orders, and whether its wakers fire at once, after each
//! poll, or when the task is parked.

mod event;
mod facts;
mod flushes;
mod inbox;
mod monitor;
mod play;
mod script;
mod setup;
mod state;
mod summary;
mod watched;
mod world;

use play::Run;
pub use summary::Summary;

/// The number of keys that attachments have. Items have keys below `ITEM_KEYS`, so some items match
/// no attachment.
const KEYS: u8 = 4;
const ITEM_KEYS: u8 = 6;
/// The maximal numbers of steps, sinks and items of a script, which bound the time that it takes.
const MAX_STEPS: usize = 600;
const MAX_SINKS: usize = 64;
const MAX_ITEMS: u32 = 3_000;
/// The maximal number of polls in a row without any event. A task that exceeds it spins. With a
/// budget below four there are up to three.
const MAX_IDLE: usize = 12;
const MAX_POLLS: usize = 20_000;
/// The maximal number of states that may explain the tape. If there are more, the model gives up on
/// the script.
const MAX_STATES: usize = 512;
/// The maximal number of states that are examined for a whole script, for the same reason.
const MAX_EXAMINED: usize = 40_000;
const GIVEN_UP: &str = "the model is at a loss";

/// Runs a script.
///
/// # Panics
///
/// Panics if the crate breaks the contract. The message lists the events of the script.
#[track_caller]
pub fn run(script: &[u8]) {
    if let Err(failure) = check(script) {
        panic!("{failure}");
    }
}

/// Runs a script. Returns its events, whether it fails or not.
pub fn run_traced(script: &[u8]) -> String {
    let mut world = Run::new(script);
    let complaint = world.guarded();
    world.story(complaint.as_deref())
}

/// Runs a script. Returns how often each kind of event occurred or, if the script fails, its events
/// and the fault.
pub fn check(script: &[u8]) -> Result<Summary, String> {
    let mut world = Run::new(script);
    match world.guarded() {
        None => Ok(world.monitor.summary),
        Some(complaint) => Err(world.story(Some(&complaint))),
    }
}

/// Removes bytes from a failing script, as long as `fails` returns `true` for the rest: first long
/// runs, then single bytes.
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

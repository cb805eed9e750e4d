//! A reference model of the whole contract, and the scripts that drive it against the crate.
//!
//! A script is a string of bytes; any string is one. It says what the outside world does: items,
//! orders on all terms, leases, what sinks and streams answer, what happens inside a call, when the
//! task is polled. Everything that the demux then does passes through watched sinks, streams and
//! hooks onto one tape. The model reads the tape and objects to the first event that cannot follow
//! from what came before.
//!
//! | file | what |
//! | --- | --- |
//! | `script.rs` | what the bytes mean |
//! | `event.rs` | commands, and the events on the tape |
//! | `world.rs` | what a script acts on: sinks, streams, leases, cooperative budgets |
//! | `watched.rs` | items, sinks, streams and hooks that write to the tape |
//! | `setup.rs` | makes the demux and the world around it |
//! | `play.rs` | plays a script, looks at the demux between two polls and when it is dropped |
//! | `monitor.rs` | checks that need no model: the account, cost, sleep, interest in keys |
//! | `inbox.rs` | the orders stream: orders before items |
//! | `facts.rs` | what is known of each sink: who may be asked again, what is a yield |
//! | `flushes.rs` | when flushes are due, and how long they linger |
//! | `summary.rs` | how often what happened |
//! | `state.rs`, `state/` | the model: attachments, queues, the item that is served, orders and leases |
//!
//! # What is exact
//!
//! Event by event: who is asked to admit an item, and when; who receives it, and in which order;
//! clones, one for each but the last; who is unmatched; what is discarded, lost, moved to a
//! successor or taken along, and why; that a policy acts on a sink that is not ready, and on no
//! other; that a sink is asked only on behalf of an item that it then gets; which order is applied
//! before which item, and which lease before both; whom `blocked` and `unblocked` name; what limits
//! end; why an attachment ended; the totals, `len`, `draining`, `recipients`, `contains_key` and
//! `blocked_on`; that `key_attached` and `key_detached` alternate and agree with these; what
//! supersedes what, and in which place; which items are asked for a sink of their own, and that
//! these get it.
//!
//! Some moments the contract leaves open, and nothing shows them. There the model follows each
//! possibility, as a state of its own, until what comes next rules it out: an ended lease takes
//! effect at any time before the next order or item; a copy takes the place of the head that was
//! just sent; a left-over wake is taken for a yield, or is not; a yield counts, because of progress
//! that may or may not be one. It objects when no state is left.
//!
//! # What has bounds only
//!
//! * Flushes: never with nothing to flush; never later than `flush_every`; in a busy turn not
//!   before three quarters of that, less one; not after the 16th dry turn (budgets from 16 on);
//!   always before the task sleeps.
//! * The cost of a turn: at most the budget and one, of what is certain to cost. The ends of leases
//!   that detach, and sinks that are looked after and sent nothing, are not counted.
//! * Time-outs: a tick comes to an attachment at some time before the task sleeps. Counted are the
//!   ticks that have counted whenever they came, and those that may have. An attachment expires
//!   after the first kind at the latest, and never before enough of the second. Whether a sink that
//!   wakes itself, or was handed a queue, stalls, and whether what was flushed between two ticks
//!   counts as idle, is open.
//! * Flushes that linger: bounds of the same kind.
//! * `balance`: in which order those take their turns that were woken, were not ready when their
//!   queues drained, or did not admit an item.
//! * How many turns things take: the task falls asleep, and does not turn idly; what a policy does
//!   may be put off for two turns. Shares between orders, sinks and items are not looked at.
//! * The polls that a former sink's waker may cause.
//!
//! # Scripts
//!
//! Three bytes of settings, then steps; [`script`] has the details. Of the settings, bits 4 to 7 of
//! the third byte give the task a cooperative budget: 3, 12 or 70 operations (bits 4 and 5, 0:
//! none), for sinks alone or for input and orders, too; its wakers fire at once, after each poll,
//! or when the task is parked (bits 6 and 7).

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

/// Items have keys below `ITEM_KEYS`, attachments below `KEYS`: some items are strays.
const KEYS: u8 = 4;
const ITEM_KEYS: u8 = 6;
/// Bounds on what a script can do, so that a long one takes no longer than this.
const MAX_STEPS: usize = 600;
const MAX_SINKS: usize = 64;
const MAX_ITEMS: u32 = 3_000;
/// Polls in which nothing happens before the task is said to spin: a budget under four has up to
/// three.
const MAX_IDLE: usize = 12;
const MAX_POLLS: usize = 20_000;
/// States that may explain what was seen, before the model gives up on a script.
const MAX_STATES: usize = 512;
const GIVEN_UP: &str = "the model is at a loss";

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

/// Runs a script, and returns what happened, event by event, whether it fails or not.
pub fn run_traced(script: &[u8]) -> String {
    let mut world = Run::new(script);
    let complaint = world.guarded();
    world.story(complaint.as_deref())
}

/// Runs a script. Returns how often what happened, or the story of the failure.
pub fn check(script: &[u8]) -> Result<Summary, String> {
    let mut world = Run::new(script);
    match world.guarded() {
        None => Ok(world.monitor.summary),
        Some(complaint) => Err(world.story(Some(&complaint))),
    }
}

/// Drops bytes from a failing script for as long as `fails` says that it still does: first long
/// stretches, then single bytes.
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

//! Target `model`: any byte script, played against the reference model of the whole contract.
//!
//! The first bytes are settings, and the rest are steps: see `tests/common/model/script.rs`.
//! `tests/common/model.rs` lists what is asserted.

use crate::common::model;

/// Plays a script.
///
/// # Panics
///
/// Panics if the crate breaks the contract. The message lists the events of the script.
pub fn run(script: &[u8]) {
    model::run(script);
}

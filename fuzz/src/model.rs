//! Target `model`: any byte script, played against the reference model of the whole contract.
//!
//! The first three bytes are the settings, the others what happens; `tests/common/model/script.rs`
//! says what each means, `tests/common/model.rs` what is asserted.

use crate::common::model;

/// Plays a script.
///
/// # Panics
///
/// If the crate breaks the contract; the message is the story of the script.
pub fn run(script: &[u8]) {
    model::run(script);
}

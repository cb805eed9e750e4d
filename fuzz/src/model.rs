//! Target `model`: any byte script, played against the reference model of the whole contract.
//!
//! The first three bytes are the settings, the others what happens; `tests/common/model/script.rs` says
//! what each means, `tests/common/model.rs` what is asserted.

use crate::common::model;

/// Plays a script.
///
/// # Panics
///
/// If the crate breaks the contract; the message is the story of the script.
pub fn run(script: &[u8]) {
    model::run(&without_balance(script));
}

/// The same script with `multicast` in place of `balance`: which member gets an item is modelled only
/// for the schedules of `tests/random_schedules.rs`, not for any script.
fn without_balance(script: &[u8]) -> Vec<u8> {
    const MORE_SETTINGS: u8 = 32;
    const BALANCE: u8 = 8;
    let mut script = script.to_vec();
    if let [_, flags, _, more, ..] = &mut script[..] {
        if *flags & MORE_SETTINGS != 0 {
            *more &= !BALANCE;
        }
    }
    script
}

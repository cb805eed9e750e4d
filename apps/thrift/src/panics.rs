//! Panics of code that is not ours, such as a service, or the waker of a caller.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of others, whose panic ends nothing else. Returns `None` if it panics.
pub(crate) fn contain<T>(run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => Some(done),
        Err(payload) => {
            mem::forget(payload); // it may panic when it is dropped
            None
        }
    }
}

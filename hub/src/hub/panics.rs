//! [`Panics`]: what panics in the middle of a duty, kept until the duty is done.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// The first panic of several steps that are all to be done.
///
/// A guard that does the remaining steps while it is dropped would not suffice: a second panic
/// during unwinding aborts the process.
#[derive(Default)]
pub(super) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Runs a step. Returns `None` if it panicked.
    ///
    /// The step must leave nothing half done that is looked at later.
    pub(super) fn catch<R>(&mut self, step: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(output) => Some(output),
            Err(panic) if self.0.is_none() => {
                self.0 = Some(panic);
                None
            }
            Err(panic) => {
                // Dropping the message of a panic may panic, too.
                std::mem::forget(panic);
                None
            }
        }
    }

    /// Goes on with the first panic, unless one is under way already.
    pub(super) fn resume(self) {
        match self.0 {
            Some(panic) if thread::panicking() => std::mem::forget(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}

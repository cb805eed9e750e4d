//! Foreign code that may panic where a panic would end what others need.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls foreign code, and returns its panic instead of going on with it.
///
/// What it may leave half done belongs to the caller of the crate, or is dropped.
pub(super) fn guarded<R>(call: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(call))
}

/// Drops items one after the other, and returns how many there were.
///
/// If the drop of one panics, the others are dropped all the same. Without this, two that panic
/// would end the process.
pub(super) fn discard<T>(items: impl IntoIterator<Item = T>) -> u64 {
    let mut count = 0;
    for item in items {
        count += 1;
        if let Err(panic) = guarded(|| drop(item)) {
            // The panic hook has printed it.
            discard_panic(panic);
        }
    }
    count
}

/// Drops what a panic carries, which may panic as well.
pub(super) fn discard_panic(panic: Box<dyn Any + Send>) {
    if let Err(another) = guarded(|| drop(panic)) {
        std::mem::forget(another);
    }
}

/// The message of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return text;
    }
    panic.downcast_ref::<String>().map_or("no message", String::as_str)
}

//! Expected panics: their messages and locations.
//!
//! A process has one panic hook. This module installs one, which forwards unexpected panics to the
//! former hook, so tests may run in parallel.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// A caught panic.
#[derive(Clone, Debug)]
pub struct Caught {
    pub message: String,
    pub file: String,
    pub line: u32,
}

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
    static LOCATION: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
}

/// Installs the hook, which records the location of an expected panic and prints nothing.
fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                return usual(info);
            }
            LOCATION.set(info.location().map(|at| (at.file().to_owned(), at.line())));
        }));
    });
}

/// Runs `f`. Returns its panic, or `None` if it does not panic.
///
/// # Panics
///
/// If `f` panics with something that is not a string.
#[track_caller]
pub fn try_catch<R>(f: impl FnOnce() -> R) -> Option<Caught> {
    install_hook();
    let outer = EXPECTED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    EXPECTED.set(outer);
    let message = message_of(&*result.err()?);
    let (file, line) = LOCATION.take().expect("the hook records the location");
    Some(Caught { message, file, line })
}

/// Runs `f` and returns its panic.
///
/// # Panics
///
/// If `f` returns, or panics with something that is not a string.
#[track_caller]
pub fn catch<R>(f: impl FnOnce() -> R) -> Caught {
    try_catch(f).expect("expected a panic")
}

/// Runs `f`, which must panic. Returns the message of the panic.
#[track_caller]
pub fn panic_message<R>(f: impl FnOnce() -> R) -> String {
    catch(f).message
}

/// Returns the message of a caught panic.
#[track_caller]
pub fn message_of(panic: &(dyn Any + Send)) -> String {
    let owned = panic.downcast_ref::<String>().cloned();
    let message = owned.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    message.expect("the panic has no message")
}

//! Panics that a test expects: what they say, and where.
//!
//! There is one panic hook in a process. This module installs one, once; it passes on every panic
//! that no test expects, so tests may run side by side.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// A panic that was caught.
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

/// Installs the hook: it writes down where an expected panic happened, and prints nothing.
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

/// Runs `f`, and returns its panic; `None` if it does not panic.
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
    let (file, line) = LOCATION.take().expect("the hook is installed, and panics have a location");
    Some(Caught { message, file, line })
}

/// Runs `f`, and returns its panic.
///
/// # Panics
///
/// If `f` returns, or panics with something that is not a string.
#[track_caller]
pub fn catch<R>(f: impl FnOnce() -> R) -> Caught {
    try_catch(f).expect("no panic")
}

/// Runs `f`, which must panic, and returns the message of the panic.
#[track_caller]
pub fn panic_message<R>(f: impl FnOnce() -> R) -> String {
    catch(f).message
}

/// The message that a caught panic was raised with.
#[track_caller]
pub fn message_of(panic: &(dyn Any + Send)) -> String {
    let owned = panic.downcast_ref::<String>().cloned();
    let message = owned.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    message.expect("the panic has a message")
}

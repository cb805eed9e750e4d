//! `core` with other atomics: a closure can run before each of their operations.
//!
//! `model` imports this crate as `core`, so that `src/slots/ready.rs` and its parts, which it compiles
//! unchanged, use these atomics. The closure stands for another thread. It runs in the same thread
//! before a chosen operation, that is, between two steps of the call that it interrupts. This gives
//! every interleaving of two calls in which one of them is not interrupted, reproducibly.

pub use ::core::*;

use std::cell::RefCell;

thread_local! {
    static OTHER: RefCell<Option<Other>> = const { RefCell::new(None) };
}

struct Other {
    steps: usize,
    run: Box<dyn FnOnce()>,
}

/// Makes `call`, and runs `other` before the atomic operation with number `steps` of the call,
/// counted from 0. If the call has no such operation, `other` runs after it.
pub fn during<R>(steps: usize, other: impl FnOnce() + 'static, call: impl FnOnce() -> R) -> R {
    OTHER.set(Some(Other { steps, run: Box::new(other) }));
    let result = call();
    let other = OTHER.take();
    if let Some(Other { run, .. }) = other {
        run();
    }
    result
}

/// Called before each atomic operation.
fn step() {
    let due = OTHER.with_borrow_mut(|other| {
        other.take_if(|other| {
            let due = other.steps == 0;
            other.steps = other.steps.saturating_sub(1);
            due
        })
    });
    if let Some(Other { run, .. }) = due {
        run();
    }
}

/// `core::sync`.
pub mod sync {
    pub use ::core::sync::*;

    /// The part of `core::sync::atomic` that `src/slots/ready.rs` uses.
    pub mod atomic {
        pub use ::core::sync::atomic::Ordering;

        use crate::step;

        macro_rules! atomic {
            ($Atomic:ident, $Value:ty) => {
                #[doc = concat!("`", stringify!($Atomic), "`.")]
                #[derive(Debug)]
                pub struct $Atomic(::core::sync::atomic::$Atomic);

                impl $Atomic {
                    #[must_use]
                    pub const fn new(value: $Value) -> Self {
                        Self(::core::sync::atomic::$Atomic::new(value))
                    }
                    pub fn load(&self, order: Ordering) -> $Value {
                        step();
                        self.0.load(order)
                    }
                    pub fn store(&self, value: $Value, order: Ordering) {
                        step();
                        self.0.store(value, order);
                    }
                    pub fn swap(&self, value: $Value, order: Ordering) -> $Value {
                        step();
                        self.0.swap(value, order)
                    }
                    pub fn fetch_or(&self, value: $Value, order: Ordering) -> $Value {
                        step();
                        self.0.fetch_or(value, order)
                    }
                    pub fn fetch_and(&self, value: $Value, order: Ordering) -> $Value {
                        step();
                        self.0.fetch_and(value, order)
                    }
                    /// # Errors
                    ///
                    /// Returns the present value if it is not `current`. Never fails spuriously.
                    pub fn compare_exchange_weak(
                        &self,
                        current: $Value,
                        new: $Value,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$Value, $Value> {
                        step();
                        self.0.compare_exchange(current, new, success, failure)
                    }
                }
            };
        }

        atomic!(AtomicBool, bool);
        atomic!(AtomicU8, u8);
        atomic!(AtomicU32, u32);
    }
}

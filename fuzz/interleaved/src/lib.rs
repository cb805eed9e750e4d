//! `core`, but for the atomics: before each of their operations another thread may have its way.
//!
//! `stream-demux-fuzz` calls this crate `core`, so that `src/ready.rs`, compiled into it unchanged,
//! uses these. The "other thread" is a closure that runs, in the same thread, before a chosen
//! operation: whatever it does has then happened between two steps of the call that it interrupts.
//! That is every interleaving of two calls in which one of them is not interrupted itself; and it
//! is reproducible.

pub use ::core::*;

use std::cell::RefCell;

thread_local! {
    static OTHER: RefCell<Option<Other>> = const { RefCell::new(None) };
}

struct Other {
    steps: usize,
    runs: Box<dyn FnOnce()>,
}

/// Makes `call`, and lets `other` run before the atomic operation number `steps` of it, counted
/// from 0: after it, if it has no more than that.
pub fn during<R>(steps: usize, other: impl FnOnce() + 'static, call: impl FnOnce() -> R) -> R {
    OTHER.set(Some(Other { steps, runs: Box::new(other) }));
    let result = call();
    let other = OTHER.take();
    if let Some(Other { runs, .. }) = other {
        runs();
    }
    result
}

/// An atomic operation is about to be made.
fn step() {
    let due = OTHER.with_borrow_mut(|other| {
        other.take_if(|other| {
            let due = other.steps == 0;
            other.steps = other.steps.saturating_sub(1);
            due
        })
    });
    if let Some(Other { runs, .. }) = due {
        runs();
    }
}

/// `core::sync`.
pub mod sync {
    pub use ::core::sync::*;

    /// `core::sync::atomic`, as far as it is needed.
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
                    /// With what is there, if that is not `current`; never spuriously.
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

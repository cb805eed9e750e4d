//! `core`, but for the atomics: before each of their operations another thread may have its way.
//!
//! `stream-demux-fuzz` calls this crate `core`, so that `src/ready.rs`, compiled into it unchanged, uses
//! these. The "other thread" is a closure that runs, in the same thread, before a chosen operation:
//! whatever it does has then happened between two steps of the call that it interrupts. That is every
//! interleaving of two calls in which one of them is not interrupted itself; and it is reproducible.

pub use ::core::*;

use std::cell::RefCell;

thread_local! {
    static OTHER: RefCell<Option<Other>> = const { RefCell::new(None) };
}

struct Other {
    steps: usize,
    runs: Box<dyn FnOnce()>,
}

/// Makes `call`, and lets `other` run before the atomic operation number `steps` of it, counted from 0:
/// after it, if it has no more than that.
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

        /// `AtomicBool`.
        #[derive(Debug)]
        pub struct AtomicBool(::core::sync::atomic::AtomicBool);

        impl AtomicBool {
            #[must_use]
            pub const fn new(value: bool) -> Self {
                Self(::core::sync::atomic::AtomicBool::new(value))
            }
            pub fn load(&self, order: Ordering) -> bool {
                step();
                self.0.load(order)
            }
            pub fn store(&self, value: bool, order: Ordering) {
                step();
                self.0.store(value, order);
            }
            pub fn swap(&self, value: bool, order: Ordering) -> bool {
                step();
                self.0.swap(value, order)
            }
        }

        /// `AtomicU8`.
        #[derive(Debug)]
        pub struct AtomicU8(::core::sync::atomic::AtomicU8);

        impl AtomicU8 {
            #[must_use]
            pub const fn new(value: u8) -> Self {
                Self(::core::sync::atomic::AtomicU8::new(value))
            }
            pub fn load(&self, order: Ordering) -> u8 {
                step();
                self.0.load(order)
            }
            pub fn store(&self, value: u8, order: Ordering) {
                step();
                self.0.store(value, order);
            }
            pub fn swap(&self, value: u8, order: Ordering) -> u8 {
                step();
                self.0.swap(value, order)
            }
            pub fn fetch_or(&self, value: u8, order: Ordering) -> u8 {
                step();
                self.0.fetch_or(value, order)
            }
            pub fn fetch_and(&self, value: u8, order: Ordering) -> u8 {
                step();
                self.0.fetch_and(value, order)
            }
        }

        /// `AtomicU32`.
        #[derive(Debug)]
        pub struct AtomicU32(::core::sync::atomic::AtomicU32);

        impl AtomicU32 {
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(::core::sync::atomic::AtomicU32::new(value))
            }
            pub fn load(&self, order: Ordering) -> u32 {
                step();
                self.0.load(order)
            }
            pub fn store(&self, value: u32, order: Ordering) {
                step();
                self.0.store(value, order);
            }
            pub fn swap(&self, value: u32, order: Ordering) -> u32 {
                step();
                self.0.swap(value, order)
            }
            /// # Errors
            ///
            /// With what is there, if that is not `current`; never spuriously.
            pub fn compare_exchange_weak(
                &self,
                current: u32,
                new: u32,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u32, u32> {
                step();
                self.0.compare_exchange(current, new, success, failure)
            }
            /// # Errors
            ///
            /// With what is there, if that is not `current`.
            pub fn compare_exchange(
                &self,
                current: u32,
                new: u32,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u32, u32> {
                step();
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    }
}

//! A mutex that a panic does not poison.
//!
//! With std's mutex, a panic of one task while it holds a lock makes all other tasks panic that
//! take the lock later: one client would end the demux, and with it the process. What is locked
//! here is either valid after each statement (counters, tables) or belongs to a single client, which
//! ends if its task panics ([`crate::outlet`]).

use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_panic_under_the_lock_of_one_task_does_not_end_others() {
        let lock = Arc::new(Lock::new(1));
        let other = Arc::clone(&lock);
        let panicked = std::thread::spawn(move || {
            let mut value = other.lock();
            *value = 2;
            panic!("planted");
        });
        assert!(panicked.join().is_err());
        assert_eq!(*lock.lock(), 2);
    }
}

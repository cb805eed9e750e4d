//! The runtimes of tokio that the programs run on.

use tokio::runtime::{Builder, Runtime};

/// How many threads run the tasks of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The current-thread runtime.
    One,
    /// The multi-threaded runtime with two workers.
    Two,
}

impl Threads {
    /// Starts the runtime.
    ///
    /// # Panics
    ///
    /// Panics if the system has no threads or descriptors left.
    #[must_use]
    pub fn runtime(self) -> Runtime {
        let mut builder = match self {
            Self::One => Builder::new_current_thread(),
            Self::Two => Builder::new_multi_thread(),
        };
        builder.worker_threads(2).enable_all().build().expect("the runtime starts")
    }

    /// Returns the words for a row of the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one thread",
            Self::Two => "two threads",
        }
    }
}

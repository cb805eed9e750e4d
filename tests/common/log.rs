//! One list of events that sinks, streams and hooks share, so that a test can assert their order.

use std::sync::{Arc, Mutex};

/// A shared list of lines. Clones write to the same list.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&self, line: impl Into<String>) {
        super::lock(&self.0).push(line.into());
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        super::lock(&self.0).clone()
    }

    /// The lines since the last `take`.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut super::lock(&self.0))
    }
}

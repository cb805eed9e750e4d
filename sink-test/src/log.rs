//! A list of events, whose order a test can assert.

use std::sync::{Arc, Mutex};

use crate::lock;

/// A list of lines that sinks and the test write to. Clones share the list.
///
/// # Examples
///
/// ```
/// use futures::{SinkExt, executor::block_on};
/// use sink_test::{Log, scripted_sink};
///
/// let log = Log::new();
/// let (mut a, handle) = scripted_sink("a");
/// handle.log_to(&log);
/// block_on(async {
///     a.send(1).await?;
///     log.push("now it is closed");
///     a.close().await
/// })?;
/// assert_eq!(log.take(), ["a sent 1", "a flushed", "now it is closed", "a closed"]);
/// # Ok::<(), sink_test::Broken>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    lines: Vec<String>,
    /// Selects the lines to keep; `None` keeps all.
    keep: Option<fn(&str) -> bool>,
}

impl Log {
    /// Creates an empty log, which keeps all lines.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps only lines for which `keep` returns `true`, from now on.
    pub fn keep_only(&self, keep: fn(&str) -> bool) {
        lock(&self.0).keep = Some(keep);
    }

    /// Adds a line.
    pub fn push(&self, line: impl Into<String>) {
        let line = line.into();
        let mut state = lock(&self.0);
        if state.keep.is_none_or(|keep| keep(&line)) {
            state.lines.push(line);
        }
    }

    /// Returns all lines since the last [`take`](Self::take).
    pub fn lines(&self) -> Vec<String> {
        lock(&self.0).lines.clone()
    }

    /// Removes and returns all lines.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0).lines)
    }
}
